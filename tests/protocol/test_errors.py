from __future__ import annotations

import copy
import inspect
import json
import pickle
from typing import Any

import pytest

from umbel.protocol import errors
from umbel.protocol.codec import decode, encode
from umbel.protocol.commands import Failure
from umbel.protocol.errors import UmbelError, from_wire

TREE = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, UmbelError)]
EVERY = pytest.mark.parametrize("cls", TREE, ids=lambda cls: cls.__name__)
DETAILS: dict[str, Any] = {"status_code": 503, "retry_after": 1.5, "size": 7, "delivered": "no", "names": ["a"], "code": "x"}


@EVERY
def test_it_crosses_the_wire_as_itself(cls: type[UmbelError]) -> None:
    error = cls("what happened", **DETAILS)
    wire = json.loads(json.dumps(error.to_wire()))
    back = from_wire(wire)
    assert type(back) is cls
    assert (back.message, str(back), back.details) == ("what happened", "what happened", DETAILS)
    failure = Failure(**wire)
    assert decode(*encode(failure)) == failure


@EVERY
def test_it_can_be_pickled_and_copied(cls: type[UmbelError]) -> None:
    for back in (
        pickle.loads(pickle.dumps(cls("m", **DETAILS))),
        copy.copy(cls("m", **DETAILS)),
        copy.deepcopy(cls("m", **DETAILS)),
    ):
        assert type(back) is cls
        assert (str(back), back.details) == ("m", DETAILS)


@EVERY
def test_it_says_what_it_is(cls: type[UmbelError]) -> None:
    assert cls.__doc__
    assert isinstance(cls.retryable, bool)
    assert cls.__name__ in (errors.__doc__ or "")
    assert str(cls()) == ""
    with pytest.raises(UmbelError):
        raise cls("x")


def test_codes_are_unique_and_every_class_is_exported() -> None:
    assert len({cls.code for cls in TREE}) == len(TREE)
    assert {*errors.__all__} == {"from_wire", "error_codes", *(cls.__name__ for cls in TREE)}


def test_errors_are_the_builtin_kinds_that_people_catch() -> None:
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.DefinitionError, TypeError)
    assert issubclass(errors.MissingExtra, ImportError)
    assert issubclass(errors.ToolTimeout, TimeoutError)
    assert issubclass(errors.ModelConnectionError, ConnectionError)


def test_an_unknown_code_is_named() -> None:
    error = from_wire({"code": "of_tomorrow", "message": "boom", "details": {"a": 1}})
    assert type(error) is UmbelError
    assert (str(error), error.details) == ("boom [of_tomorrow]", {"a": 1})


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"code": None},
        {"code": ["tool"], "message": 5},
        {"code": "tool", "details": None},
        {"code": "tool", "details": [1]},
        {"code": "tool", "details": {1: 2}},
        {"code": "tool", "details": {"message": "m", "self": "s", "cls": 1}},
    ],
)
def test_odd_wire_forms_become_errors_too(wire: dict[Any, Any]) -> None:
    assert isinstance(from_wire(wire), UmbelError)


def test_details_that_are_not_json_travel_as_text() -> None:
    ring: list[Any] = []
    ring.append(ring)
    error = errors.ToolError("m", cause=ValueError("x"), where={"path": (1, {2})}, ring=ring)
    wire = json.loads(json.dumps(error.to_wire()))
    assert wire["details"]["cause"] == "x"
    assert wire["details"]["where"] == {"path": [1, [2]]}


def test_a_users_own_error_comes_out_as_the_nearest_known_one() -> None:
    class PaymentRefused(errors.ToolError):
        pass

    assert type(from_wire(PaymentRefused("no").to_wire())) is errors.ToolError


def test_what_can_be_tried_again() -> None:
    assert errors.RateLimited("x", retry_after="3").retry_after == 3.0
    assert errors.RateLimited("x").retry_after is None
    assert errors.ModelServerError("x", status_code=500).status_code == 500
    assert errors.PeerLost("x").delivered == "unknown"
    assert errors.PeerLost("x", delivered="no").delivered == "no"
    assert {cls.__name__ for cls in TREE if cls.retryable} == {
        "ActorError", "PeerLost", "DeadlineExceeded", "RunLost", "ThreadBusy", "RateLimited", "Overloaded", "ModelServerError",
        "ModelTimeout", "ModelConnectionError", "MalformedResponse", "StoreUnavailable",
    }  # fmt: skip
