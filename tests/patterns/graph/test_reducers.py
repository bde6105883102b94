"""Reducers and the schema: what becomes of several writes, and of values that do not fit."""

from __future__ import annotations

import copy
import operator
import pickle
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, TypedDict

import cloudpickle
import pytest
from pydantic import BaseModel, Field, model_validator

from umbel import Message
from umbel.errors import ConfigurationError, ConflictingWrites, DefinitionError, InvalidUpdate, NotStorable
from umbel.patterns.graph.reducers import (
    MISSING,
    REMOVE_ALL,
    add,
    add_messages,
    append,
    append_unique,
    deep_merge,
    first,
    intersection,
    last,
    maximum,
    merge,
    minimum,
    reducer,
    remove_message,
    union,
)
from umbel.patterns.graph.schema import StateSchema, Write


def fold(schema: StateSchema, values: dict[str, Any], **writes: Any) -> dict[str, Any]:
    return schema.fold(values, [Write(f"node {key!r}", key, value) for key, value in writes.items()])


@pytest.mark.spec("PAT-39")
@pytest.mark.parametrize(
    ("reduce", "current", "write", "expected"),
    [
        (append, MISSING, "a", ["a"]),
        (append, ["a"], ["b", "c"], ["a", "b", "c"]),
        (append, ["a"], {"k": 1}, ["a", {"k": 1}]),
        (append_unique, [1, {"k": 1}], [{"k": 1}, 2, 2], [1, {"k": 1}, 2]),
        (append_unique, MISSING, [1, 1, True], [1, True]),
        (merge, MISSING, {"a": 1}, {"a": 1}),
        (merge, {"a": {"x": 1}, "b": 1}, {"a": {"y": 2}}, {"a": {"y": 2}, "b": 1}),
        (
            deep_merge,
            {"a": {"x": 1, "z": {"p": 1}}},
            {"a": {"y": 2, "z": {"q": 1}}},
            {"a": {"x": 1, "y": 2, "z": {"p": 1, "q": 1}}},
        ),
        (add, 1, 2.5, 3.5),
        (add, MISSING, 4, 4),
        (maximum, 3, 2, 3),
        (minimum, 3, 2, 2),
        (minimum, MISSING, 5, 5),
        (first, "a", "b", "a"),
        (first, MISSING, "b", "b"),
        (last, "a", "b", "b"),
        (union, ["a", "b"], ["b", "c"], ["a", "b", "c"]),
        (union, {"a"}, ["c"], {"a", "c"}),
        (intersection, ["a", "b"], ["b", "c"], ["b"]),
        (intersection, {"a", "b"}, {"b"}, {"b"}),
        (intersection, MISSING, ["b"], ["b"]),
    ],
)
def test_what_each_reducer_makes_of_a_write(reduce: Any, current: Any, write: Any, expected: Any) -> None:
    before = copy.deepcopy(current)
    assert reduce(current, write) == expected
    assert current is MISSING or current == before, "neither argument is changed"


@pytest.mark.spec("PAT-37", "PAT-39")
@pytest.mark.parametrize(
    ("reduce", "write"),
    [
        (add, "a"),
        (add, True),
        (maximum, "a"),
        (merge, [1]),
        (deep_merge, 1),
        (union, "abc"),
        (intersection, 1),
        (add_messages, 3),
    ],
)
def test_a_first_write_is_checked_like_any_other(reduce: Any, write: Any) -> None:
    with pytest.raises(TypeError):
        reduce(MISSING, write)
    with pytest.raises(InvalidUpdate, match=r"the reducer .* of 'k' failed on the write of node 'k'"):
        fold(StateSchema(None, {"k": reduce}), {}, k=write)


@pytest.mark.spec("PAT-39")
def test_messages_are_added_replaced_and_removed() -> None:
    kept = add_messages(MISSING, [{"role": "user", "content": "hi", "id": "1"}, Message.assistant("hello", id="2")])
    kept = add_messages(kept, {"role": "user", "content": "hey", "id": "1"})
    assert [m["content"] if isinstance(m, dict) else m.content for m in kept] == ["hey", "hello"]
    assert add_messages(kept, "more")[-1] == {"role": "user", "content": "more"}
    assert len(add_messages(kept, remove_message("2"))) == 1
    assert add_messages(kept, [remove_message(REMOVE_ALL), "new"]) == [{"role": "user", "content": "new"}]
    same = add_messages(["a"], "a")
    assert len(same) == 2, "messages without an id are all kept"


def test_messages_with_a_type_are_messages() -> None:
    class Chat(TypedDict):
        messages: Annotated[list[Message], add_messages]

    schema = StateSchema(Chat, scope=locals())
    values = fold(schema, {}, messages=[{"role": "user", "content": "hi"}])
    values = fold(schema, values, messages=[Message.assistant("hello").model_dump(mode="json")])
    assert [type(m) for m in schema.view(values)["messages"]] == [Message, Message]
    assert [m["content"] for m in values["messages"]] == ["hi", "hello"]


@pytest.mark.spec("PAT-37")
def test_functions_of_the_users_own_begin_with_the_empty_value_of_the_type() -> None:
    class State(TypedDict):
        log: Annotated[list[str], operator.add]
        tags: Annotated[set[str], operator.or_]
        low: Annotated[int, min]
        product: Annotated[int, reducer(identity=lambda: 1)(operator.mul)]

    schema = StateSchema(State, scope=locals())
    values = fold(schema, {}, log=["a"], tags=["b", "a"], low=3, product=5)
    assert values == {"log": ["a"], "tags": ["a", "b"], "low": 3, "product": 5}
    values = fold(schema, values, log=["b"], tags=["c"], low=2, product=2)
    assert values == {"log": ["a", "b"], "tags": ["a", "b", "c"], "low": 2, "product": 10}
    with pytest.raises(InvalidUpdate, match="the reducer add of 'log' failed"):
        fold(schema, values, log=3)


@pytest.mark.case(20)
@pytest.mark.spec("PAT-37", "OURS-28")
def test_two_writers_of_a_key_without_a_reducer_are_an_error_that_names_both() -> None:
    writes = [Write("node 'left'", "x", 1), Write("node 'right'", "x", 1)]
    with pytest.raises(ConflictingWrites, match=r"node 'left'.*node 'right'.*write 'x' in the same superstep"):
        StateSchema().fold({}, writes)
    assert StateSchema(None, {"x": "add"}).fold({}, writes) == {"x": 2}
    assert StateSchema().fold({}, [writes[0], Write("node 'left'", "x", 2)]) == {"x": 2}, "one task may name a key twice"


@pytest.mark.case(21)
@pytest.mark.spec("OURS-28")
def test_a_reducer_that_fails_leaves_the_state_as_it_was() -> None:
    def careless(current: list[int], write: list[int]) -> list[int]:
        current.extend(write)
        if 3 in write:
            raise LookupError("no three")
        return current

    values = {"x": [1], "y": 1}
    schema = StateSchema(None, {"x": careless})
    with pytest.raises(InvalidUpdate, match="careless of 'x' failed on the write of b: LookupError: no three"):
        schema.fold(values, [Write("a", "x", [2]), Write("a", "y", 2), Write("b", "x", [3])])
    assert values == {"x": [1], "y": 1}


class Model(BaseModel):
    name: str
    count: int = 0
    tags: Annotated[set[str], union] = Field(default_factory=set)

    @model_validator(mode="after")
    def small(self) -> Model:
        if self.count > 10 and self.name == "small":
            raise ValueError("too many for small")
        return self


@dataclass
class Record:
    name: str
    count: int = 0
    log: Annotated[list[str], append] = field(default_factory=list)


@pytest.mark.spec("PAT-38")
def test_a_pydantic_schema_has_defaults_and_is_validated() -> None:
    schema = StateSchema(Model)
    values = schema.fill({"name": "a"})
    assert values == {"name": "a", "count": 0, "tags": []}
    values = fold(schema, values, count="7", tags=["y", "x"])
    assert values == {"name": "a", "count": 7, "tags": ["x", "y"]}
    assert schema.view(values) == Model(name="a", count=7, tags={"x", "y"})
    with pytest.raises(InvalidUpdate, match=r"'count'.*valid integer"):
        fold(schema, values, count="many")
    with pytest.raises(InvalidUpdate, match=r"after .*too many for small"):
        fold(schema, values, name="small", count=11)
    with pytest.raises(InvalidUpdate, match="'other', which is no key of Model; it has name, count, tags"):
        fold(schema, values, other=1)
    with pytest.raises(InvalidUpdate, match="lacks name"):
        schema.require({"count": 1})
    assert schema.view({"count": 1}).count == 1, "what is missing is simply not there"
    assert schema.view(values, {"item": 1})["item"] == 1, "a payload of other keys makes it a dict"


@pytest.mark.spec("PAT-38")
def test_a_dataclass_and_a_typed_dict_are_schemas() -> None:
    schema = StateSchema(Record)
    values = fold(schema, schema.fill({"name": "a"}), log="x", count=2)
    assert schema.view(values) == Record("a", 2, ["x"])
    assert schema.view({"log": ["x"]}).log == ["x"]

    class Part(TypedDict):
        n: int
        note: NotRequired[str]

    part = StateSchema(Part, scope=locals())
    assert fold(part, part.fill({}), n=1) == {"n": 1}
    with pytest.raises(InvalidUpdate, match="'note'"):
        fold(part, {}, note=3)


def test_schemas_that_cannot_be_read_are_refused() -> None:
    class Lost(TypedDict):
        x: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match="'Lost' cannot be read: name 'Nowhere'"):
        StateSchema(Lost)
    with pytest.raises(DefinitionError, match="not <class 'int'>"):
        StateSchema(int)
    with pytest.raises(ConfigurationError, match="'y' is no key of Model"):
        StateSchema(Model, {"y": append})
    with pytest.raises(ConfigurationError, match="'sum' is not known"):
        StateSchema(None, {"x": "sum"})
    with pytest.raises(ConfigurationError, match="a function of"):
        StateSchema(None, {"x": 3})


def test_schemas_travel_to_other_processes() -> None:
    schema: StateSchema = pickle.loads(cloudpickle.dumps(StateSchema(Record, {"count": add})))
    assert fold(schema, {"name": "a", "count": 1}, count=2, log=["x"]) == {"name": "a", "count": 3, "log": ["x"]}
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING


def test_what_has_no_json_form_is_refused_with_its_place() -> None:
    from umbel.patterns.graph.reply import reply_to

    with pytest.raises(NotStorable, match="'x', written by node 'a', cannot be stored"):
        reply_to({"x": object()}, "a")
    with pytest.raises(InvalidUpdate, match="the key 1"):
        reply_to({1: "x"}, "a")
    assert reply_to({"x": {"b", "a"}, "y": (1, Record("n"))}, "a").update == {
        "x": ["a", "b"],
        "y": [1, {"name": "n", "count": 0, "log": []}],
    }
