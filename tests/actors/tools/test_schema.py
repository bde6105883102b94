"""JSON schemas and validation of arguments from signatures."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import json
import typing
import uuid
from typing import Annotated, Any, Literal, Optional, Union

import cloudpickle
import pytest
import typing_extensions
from pydantic import BaseModel, Field

from umbel.actors.tools.context import ToolContext
from umbel.actors.tools.decorator import tool
from umbel.actors.tools.schema import signature_of
from umbel.protocol.errors import DefinitionError, InvalidArguments


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Address(BaseModel):
    street: str
    zip: str = Field(pattern=r"\d{5}")


class Customer(BaseModel):
    name: str
    address: Address


class OldStyle(typing.TypedDict, total=False):
    a: typing.Required[int]
    b: str


class NewStyle(typing_extensions.TypedDict):
    a: int


STRING = {"type": "string"}
INTEGER = {"type": "integer"}
TABLE: list[tuple[Any, dict[str, Any], Any, Any]] = [
    (str, STRING, "x", "x"),
    (int, INTEGER, "3", 3),
    (float, {"type": "number"}, 1, 1.0),
    (bool, {"type": "boolean"}, True, True),
    (bytes, {**STRING, "format": "base64", "contentEncoding": "base64"}, base64.b64encode(b"\xff\xfe").decode(), b"\xff\xfe"),
    (list[int], {"type": "array", "items": INTEGER}, ["1", 2], [1, 2]),
    (dict[str, int], {"type": "object", "additionalProperties": INTEGER}, {"k": 1}, {"k": 1}),
    (set[int], {"type": "array", "items": INTEGER, "uniqueItems": True}, [1, 1], {1}),
    (
        tuple[int, str],
        {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "maxItems": 2},
        [1, "a"],
        (1, "a"),
    ),
    (Optional[int], {"anyOf": [INTEGER, {"type": "null"}]}, None, None),  # noqa: UP045 - the form under test
    (int | None, {"anyOf": [INTEGER, {"type": "null"}]}, None, None),
    (Union[int, str], {"anyOf": [INTEGER, STRING]}, "a", "a"),  # noqa: UP007 - the form under test
    (int | str, {"anyOf": [INTEGER, STRING]}, 5, 5),
    (Literal["a", "b"], {**STRING, "enum": ["a", "b"]}, "b", "b"),
    (Any, {}, [1], [1]),
    (Annotated[int, Field(ge=1, le=9, description="d")], {**INTEGER, "minimum": 1, "maximum": 9, "description": "d"}, 9, 9),
    (dt.date, {**STRING, "format": "date"}, "2024-02-29", dt.date(2024, 2, 29)),
    (uuid.UUID, {**STRING, "format": "uuid"}, str(uuid.UUID(int=7)), uuid.UUID(int=7)),
]


@pytest.mark.spec("TOOL-6", "TOOL-7", "TOOL-15", "OURS-16", "BUG-45")
@pytest.mark.parametrize(("annotation", "schema", "given", "typed"), TABLE, ids=[str(row[0]) for row in TABLE])
def test_types(annotation: Any, schema: dict[str, Any], given: Any, typed: Any) -> None:
    def body(value):  # type: ignore[no-untyped-def]
        return value

    body.__annotations__["value"] = annotation
    made = tool(body)
    assert made.parameters == {
        "type": "object",
        "properties": {"value": schema},
        "required": ["value"],
        "additionalProperties": False,
    }
    assert made.signature.validate({"value": given}) == {"value": typed}
    json.dumps(made.schema, allow_nan=False)


@pytest.mark.spec("TOOL-6", "OURS-16")
def test_types_with_definitions_of_their_own() -> None:
    @tool
    def body(
        colour: Colour, point: Point, customer: Customer, old: OldStyle, new: list[NewStyle], price: decimal.Decimal
    ) -> None: ...

    parameters = body.parameters
    assert parameters["properties"]["colour"] == {"$ref": "#/$defs/Colour"}
    assert parameters["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert {"Point", "Customer", "Address", "OldStyle", "NewStyle"} <= parameters["$defs"].keys()
    assert parameters["$defs"]["OldStyle"]["required"] == ["a"]
    values = body.signature.validate(
        {
            "colour": "blue",
            "point": {"x": "1"},
            "customer": {"name": "A", "address": {"street": "s", "zip": "12345"}},
            "old": {"a": "1"},
            "new": [{"a": 2}],
            "price": "1.10",
        }
    )
    assert values["colour"] is Colour.BLUE
    assert values["point"] == Point(1, 0)
    assert values["customer"] == Customer(name="A", address=Address(street="s", zip="12345"))
    assert values["old"] == {"a": 1}
    assert values["price"] == decimal.Decimal("1.10")


@pytest.mark.spec("TOOL-6")
def test_a_missing_hint_is_offered_as_text_and_takes_anything() -> None:
    @tool
    def body(value, other=3): ...  # type: ignore[no-untyped-def]

    assert body.parameters["properties"] == {"value": STRING, "other": {"type": "string", "default": 3}}
    assert body.signature.validate({"value": [1]}) == {"value": [1]}


@pytest.mark.spec("TOOL-8")
def test_defaults_are_optional_and_json_safe() -> None:
    marker = object()

    @tool
    def body(
        a: int,
        b: int = 2,
        c: Colour = Colour.RED,
        d: float = float("nan"),
        e: Any = marker,
        f: bytes = b"\xff",
        g: int = None,  # type: ignore[assignment]  # noqa: RUF013 - a common slip
        h: int = Field(default=4, ge=1, description="from the field"),
        i: int = Field(ge=1),
    ) -> None: ...

    properties = body.parameters["properties"]
    assert body.parameters["required"] == ["a", "i"]
    assert properties["b"]["default"] == 2
    assert properties["c"]["default"] == "red"
    assert "default" not in properties["d"]
    assert "default" not in properties["e"]
    assert properties["f"]["default"] == "/w=="
    assert properties["g"] == {"anyOf": [INTEGER, {"type": "null"}], "default": None}
    assert properties["h"] == {**INTEGER, "default": 4, "minimum": 1, "description": "from the field"}
    assert properties["i"] == {**INTEGER, "minimum": 1}
    json.dumps(body.schema, allow_nan=False)
    assert body.signature.validate({"a": 1, "i": 1, "g": None}) == {"a": 1, "i": 1, "g": None, "h": 4}


@pytest.mark.spec("TOOL-9", "OURS-16")
def test_hidden_parameters() -> None:
    @tool
    def body(self: Any, ctx: Any, context: Any, asked: ToolContext | None, late: "Missing.ToolContext", x: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    assert list(body.parameters["properties"]) == ["x"]
    assert body.signature.injected == ("ctx", "context", "asked", "late")
    with pytest.raises(InvalidArguments, match="ctx: unknown parameter"):
        body.signature.validate({"x": 1, "ctx": 2})


@pytest.mark.spec("TOOL-9", "OURS-16")
def test_star_arguments() -> None:
    def positional(*values: int) -> None: ...

    with pytest.raises(DefinitionError, match=r"\*values"):
        tool(positional)

    @tool
    def named(a: int, ctx: Any = None, **more: int) -> None: ...

    assert named.parameters["additionalProperties"] == INTEGER
    assert list(named.parameters["properties"]) == ["a"]
    assert named.signature.validate({"a": 1, "b": "2"}) == {"a": 1, "b": 2}
    with pytest.raises(InvalidArguments, match="b"):
        named.signature.validate({"a": 1, "b": "x"})
    with pytest.raises(InvalidArguments, match="ctx"):
        named.signature.validate({"a": 1, "ctx": 1})

    @tool
    def anything(**more: Any) -> None: ...

    assert anything.parameters == {"type": "object", "properties": {}, "additionalProperties": True}


@pytest.mark.spec("TOOL-10", "TOOL-11")
def test_descriptions_from_the_docstring() -> None:
    def body(query: str, limit: int = 3, mode: str = "x") -> None:
        """Search.

        Args:
            query (str): what to find,
                for example: "cats: and dogs"
                mode: not a parameter here

                a second paragraph
            limit (Optional[Callable[[int], str]], optional): how many
            gone: not there any more
            mode: how

        Returns:
            query: nothing
        """

    made = tool(description="Explicit")(body)
    texts = {name: prop.get("description") for name, prop in made.parameters["properties"].items()}
    assert texts == {
        "query": 'what to find, for example: "cats: and dogs" mode: not a parameter here a second paragraph',
        "limit": "how many",
        "mode": "how",
    }
    assert made.description == "Explicit"
    assert tool(body).description.startswith("Search.")


@pytest.mark.spec("TOOL-14", "OURS-10", "OURS-16")
def test_bad_arguments_are_explained() -> None:
    @tool
    def search(query: str, limit: Annotated[int, Field(le=10)], mode: Literal["a", "b"] = "a") -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        search.signature.validate({"limit": 11, "mode": "c", "frob": 1})
    text = str(caught.value)
    assert "'search'" in text
    assert "query: missing" in text
    assert "limit: Input should be less than or equal to 10 (got int 11)" in text
    assert "mode: Input should be 'a' or 'b' (got str 'c')" in text
    assert "frob: unknown parameter" in text
    assert 'query (string), limit (integer), mode (one of "a", "b", optional)' in text


def test_explanations_are_bounded_and_keep_secrets() -> None:
    @tool
    def body(a: int) -> None: ...

    hostile = {f"k{i}" * 100: "v" * 1_000_000 for i in range(500)} | {"a": "sk-abcdefghijklmnopqrstuvwxyz"}
    with pytest.raises(InvalidArguments) as caught:
        body.signature.validate(hostile)
    assert len(str(caught.value)) <= 2_000
    assert "call the tool again" in str(caught.value)
    assert "ghijklmnop" not in str(caught.value)
    with pytest.raises(InvalidArguments):
        body.signature.validate([1])  # type: ignore[arg-type]


def test_unusual_names_and_positional_only() -> None:
    @tool
    def body(a: int, b: int = 5, /, *, schema: str, model_x: int = 1, _private: int = 0, copy: bool = False) -> None: ...

    values = body.signature.validate({"a": "1", "schema": "s", "_private": 2})
    assert body.signature.bind(values) == ([1, 5], {"schema": "s", "_private": 2})


def test_types_without_a_json_form_are_refused_at_definition() -> None:
    class Connection: ...

    def odd(x: int, connection: Connection) -> None: ...

    def function(call: typing.Callable[[int], int]) -> None: ...

    with pytest.raises(DefinitionError, match="'connection'"):
        tool(odd)
    with pytest.raises(DefinitionError, match="no JSON form"):
        tool(function)

    def unresolved(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    with pytest.raises(DefinitionError, match="Nowhere"):
        tool(unresolved)


def test_local_types_and_pickling() -> None:
    class Local(BaseModel):
        n: int

    @tool
    def body(item: Local, factor: int = 2) -> int:
        return item.n * factor

    copy = cloudpickle.loads(cloudpickle.dumps(body))
    assert copy.schema == body.schema
    assert copy(**copy.signature.validate({"item": {"n": "4"}})) == 8


def test_the_schema_is_made_once() -> None:
    @tool
    def body(a: int) -> None: ...

    assert body.schema is body.schema
    assert body.schema["function"]["parameters"] is body.parameters


def test_signature_of_accepts_callables_of_every_kind() -> None:
    class Functor:
        def __call__(self, a: int) -> int:
            return a

        def method(self, a: int) -> int:
            return a

    assert [p.name for p in signature_of(Functor(), "t").parameters] == ["a"]
    assert [p.name for p in signature_of(Functor().method, "t").parameters] == ["a"]
