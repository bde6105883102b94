"""Structured output: finding JSON, validating it, asking again."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from umbel.actors.supervisor.structured import (
    Parsed,
    adapter,
    extract_json,
    is_answer,
    parse_or_repair,
    response_format,
    schema_instruction,
)
from umbel.protocol.errors import DefinitionError
from umbel.protocol.markers import is_request
from umbel.protocol.messages import Message, ModelResponse


class Stop(BaseModel):
    name: str
    default: bool = False


class Trip(BaseModel):
    city: str
    days: int = Field(ge=1)
    leaves: dt.date | None = None
    stops: list[Stop] = []


class Loose(BaseModel):
    extra: dict[str, int]


GOOD = '{"city":"Paris","days":2,"leaves":null,"stops":[]}'


@dataclass
class Script:
    """A model that gives its answers in order and keeps what it was asked."""

    answers: list[str]
    knows_format: bool = True
    asked: list[tuple[list[Message], dict[str, Any] | None]] = field(default_factory=list)

    async def __call__(self, messages: list[Message], response_format: dict[str, Any] | None) -> ModelResponse:
        self.asked.append((messages, response_format))
        if response_format is not None and not self.knows_format:
            raise TypeError("complete() got an unexpected keyword argument 'response_format'")
        return ModelResponse(message=Message.assistant(self.answers.pop(0)))


@pytest.mark.spec("API-42")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' {"a": 1}\n', {"a": 1}),
        ("[1, 2]", [1, 2]),
        ('"text"', "text"),
        ('Here:\n```json\n{"a": 1}\n```\nand {"b": 2}', {"a": 1}),
        ('```\nno json\n```\n```\n{"a": 1}\n```', {"a": 1}),
        ('Use {braces} like {"a": {"b": "}"}} and {"c": 1}.', {"a": {"b": "}"}}),
        ('{"broken": {"a": 1} oops} {"b": 2}', {"b": 2}),
        ('```json\n{"a": 1}', {"a": 1}),
    ],
)
def test_where_json_is_looked_for(text: str, value: Any) -> None:
    assert extract_json(text) == value


@pytest.mark.parametrize(
    "text", ["", "none", "{", '{"a": NaN}', "{a}", "[1, 2", "{" * 500_000, '{"a":' * 100_000, '{"' * 100_000]
)
def test_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"no JSON|empty"):
        extract_json(text)


@given(st.text(), st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)))
def test_an_object_is_found_behind_text_without_braces(prose: str, value: dict[str, Any]) -> None:
    prose = prose.replace("{", "").replace("`", "")
    assert extract_json(f"so {prose} {json.dumps(value)}") == value


async def test_a_fitting_answer_becomes_canonical_json() -> None:
    ask = Script([])
    parsed = await parse_or_repair('Sure!\n```json\n{"days": 2, "city": "Paris"}\n```', Trip, ask)
    assert parsed == Parsed(json.loads(GOOD), GOOD)
    assert adapter(Trip).validate_python(parsed.value) == Trip(city="Paris", days=2)
    assert ask.asked == []


async def test_a_wrong_answer_is_asked_for_again_with_the_error() -> None:
    ask = Script(["still not JSON", f"ok: {GOOD}"])
    parsed = await parse_or_repair('{"city": "Paris", "days": 0}', Trip, ask, retries=2)
    assert (parsed.message, parsed.error) == (GOOD, None)
    (first, wanted), (second, _) = ask.asked
    assert wanted == response_format(Trip)
    assert [message.role for message in first] == ["user"]
    assert "days: " in (first[0].content or "")
    assert [message.role for message in second] == ["user", "assistant", "user"]
    assert second[1].content == "still not JSON"
    assert "holds no JSON" in (second[2].content or "")
    assert not any(is_request(message) for message in second)  # nothing takes them for the user's own words


async def test_a_model_that_knows_no_format_is_asked_without() -> None:
    ask = Script(["no", GOOD], knows_format=False)
    assert (await parse_or_repair("no", Trip, ask)).error is None
    assert [wanted is not None for _, wanted in ask.asked] == [True, False, False]


async def test_a_type_error_that_is_not_about_the_format_is_raised() -> None:
    async def ask(messages: list[Message], wanted: dict[str, Any] | None) -> ModelResponse:
        raise TypeError("broken model")

    with pytest.raises(TypeError, match="broken model"):
        await parse_or_repair("no", Trip, ask)


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_the_last_failure_is_reported_and_the_answer_kept(retries: int) -> None:
    ask = Script(["{}"] * 5)
    parsed = await parse_or_repair("I cannot.", Trip, ask, retries=retries)
    assert (parsed.value, parsed.message) == (None, "I cannot.")
    assert parsed.error
    assert len(ask.asked) == retries


def test_only_answers_are_parsed() -> None:
    assert [reason for reason in ("complete", "max_iterations", "interrupted", "cancelled") if is_answer(reason)] == [
        "complete",
        "max_iterations",
    ]


def test_the_instruction_carries_the_schema() -> None:
    text = schema_instruction(Trip)
    schema = json.loads(text[text.index("{") :])
    assert schema == TypeAdapter(Trip).json_schema()


def test_strict_schemas_are_closed() -> None:
    wanted = response_format(Trip)["json_schema"]
    assert (wanted["name"], wanted["strict"]) == ("Trip", True)
    trip, stop = wanted["schema"], wanted["schema"]["$defs"]["Stop"]
    assert trip["required"] == ["city", "days", "leaves", "stops"]
    assert (trip["additionalProperties"], stop["additionalProperties"]) == (False, False)
    assert stop["required"] == list(stop["properties"]) == ["name", "default"]  # a field may be called so
    assert "default" not in trip["properties"]["leaves"]
    plain = response_format(Trip, strict=False)["json_schema"]
    assert (plain["strict"], plain["schema"]) == (False, TypeAdapter(Trip).json_schema())


@pytest.mark.parametrize("schema", [Loose, list[int], dict[str, int]])
def test_what_cannot_be_closed_is_not_strict(schema: Any) -> None:
    wanted = response_format(schema)["json_schema"]
    assert wanted["strict"] is False
    assert wanted["schema"] == TypeAdapter(schema).json_schema()
    assert wanted["name"].isascii()


class Plain:
    pass


@pytest.mark.parametrize("schema", [Plain, 7, Trip(city="Paris", days=1)])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(DefinitionError, match="pydantic"):
        adapter(schema)
