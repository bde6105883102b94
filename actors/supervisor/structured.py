"""Structured output: JSON out of a final answer, validated, and asked for again when it does not fit.

Source: spec API-42 to API-45, LOOP-9, LOOP-46.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from ...protocol.errors import DefinitionError
from ...protocol.json_text import read_json, read_json_at
from ...protocol.markers import AUTOMATED
from ...protocol.messages import Message, ModelResponse

ERROR_CHARS = 2_000
MAX_BRACES = 1_000  # braces that open no JSON, until the search is given up: each costs a look at the text before it
_UNANSWERED = frozenset({"interrupted", "cancelled", "suspended"})

Ask = Callable[[list[Message], dict[str, Any] | None], Awaitable[ModelResponse]]


@dataclass(frozen=True, slots=True)
class Parsed:
    """What became of a final answer.

    Attributes:
        value: the validated answer as a JSON value, of which ``adapter(schema).validate_python`` makes the instance.
        message: the answer as canonical JSON text; the text itself when it did not fit.
        error: why it did not fit, or None.
    """

    value: Any
    message: str
    error: str | None = None


def adapter(schema: Any) -> TypeAdapter[Any]:
    """The validator of ``schema``: a pydantic class, or any type that pydantic knows.

    Raises:
        DefinitionError: pydantic cannot make a JSON schema of it.
    """
    try:
        made = TypeAdapter(schema)
        made.json_schema(by_alias=True)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise DefinitionError(f"output_schema must be a pydantic class, not {schema!r}: {error}") from error
    return made


def is_answer(stop_reason: str) -> bool:
    """Whether a run that ended so has an answer to parse: a paused or cancelled one has none, and no call is spent on it."""
    return stop_reason not in _UNANSWERED


def schema_instruction(schema: Any) -> str:
    """What the system prompt gains: reply with JSON of this schema and nothing else."""
    text = json.dumps(adapter(schema).json_schema(by_alias=True), ensure_ascii=False, separators=(",", ":"))
    return f"Your final answer must be one JSON value that fits this JSON schema, without any text around it:\n{text}"


def response_format(schema: Any, strict: bool = True) -> dict[str, Any]:
    """The ``response_format`` that asks a provider for JSON of ``schema``.

    ``strict`` holds only for what providers can enforce: objects with a fixed set of fields.
    """
    plain = adapter(schema).json_schema(by_alias=True)
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in str(plain.get("title") or "answer"))
    strict = strict and plain.get("type", "object") == "object" and _is_closed(plain)
    described = {"name": name[:64], "schema": _closed(plain) if strict else plain, "strict": strict}
    return {"type": "json_schema", "json_schema": described}


async def parse_or_repair(text: str | None, schema: Any, ask: Ask, retries: int = 2, strict: bool = True) -> Parsed:
    """The answer that ``text`` holds, or the one of a repair call.

    Args:
        text: the final answer.
        schema: what it must fit.
        ask: ``ask(messages, response_format)`` calls the model, tools off, on the conversation with ``messages`` behind
            it; the conversation ends with ``text``, and ``messages`` are not kept. Called again without a format when
            the model does not know that argument (``TypeError``).
        retries: repair calls at most.
        strict: ask the provider to enforce the schema.

    Raises:
        Whatever ``ask`` raises.
    """
    validator = adapter(schema)
    wanted: dict[str, Any] | None = response_format(schema, strict)
    first = parsed = parse(text or "", validator)
    notes: list[Message] = []
    for _ in range(retries):
        if parsed.error is None:
            break
        notes.append(Message.user(_repair_note(parsed.error), **{AUTOMATED: True}))
        try:
            response = await ask(notes.copy(), wanted)
        except TypeError:
            if wanted is None:
                raise
            wanted = None
            response = await ask(notes.copy(), wanted)
        parsed = parse(response.content or "", validator)
        notes.append(Message.assistant(response.content or "(no text)"))
    return parsed if parsed.error is None else Parsed(None, first.message, parsed.error)


def parse(text: str, validator: TypeAdapter[Any]) -> Parsed:
    """The answer that ``text`` holds, validated: no model is called."""
    try:
        value = extract_json(text)
        instance = validator.validate_json(json.dumps(value))
        message = validator.dump_json(instance, by_alias=True).decode()
        return Parsed(json.loads(message), message)
    except ValidationError as error:
        return Parsed(None, text, _bounded(_problems(error)))
    except ValueError as error:
        return Parsed(None, text, _bounded(str(error)))


def extract_json(text: str) -> Any:
    """The JSON value in ``text``: all of it, else the first fenced block that is JSON, else the first braces that close.

    Raises:
        ValueError: there is none.

    Source: spec API-42.
    """
    for candidate in (text, *_fenced_blocks(text)):
        try:
            return read_json(candidate)
        except ValueError:
            continue
    position = text.find("{")
    for _ in range(MAX_BRACES):
        if position < 0:
            break
        try:
            return read_json_at(text, position)[0]
        except json.JSONDecodeError as error:
            position = text.find("{", max(error.pos, position + 1))  # what a broken object holds is not the answer
        except ValueError:
            break
    raise ValueError("the answer holds no JSON" if text.strip() else "the answer is empty")


def _fenced_blocks(text: str) -> Iterator[str]:
    inside: list[str] | None = None
    for line in text.split("\n"):
        if not line.lstrip().startswith("```"):
            if inside is not None:
                inside.append(line)
        elif inside is None:
            inside = []
        else:
            yield "\n".join(inside)
            inside = None


def _repair_note(error: str) -> str:
    return (
        f"Your answer does not fit the required JSON schema: {error}\n"
        "Answer again with the corrected JSON only, without any text around it."
    )


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc'])) or 'the value'}: {problem['msg']}" for problem in found)


def _bounded(text: str) -> str:
    return text if len(text) <= ERROR_CHARS else f"{text[:ERROR_CHARS]}... [{len(text)} characters]"


def _is_closed(schema: Any) -> bool:
    """Whether every object in ``schema`` has a fixed set of fields."""
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, Mapping):
        return True
    open_object = schema.get("additionalProperties") or (schema.get("type") == "object" and "properties" not in schema)
    return not open_object and all(map(_is_closed, schema.values()))


def _closed(schema: Any) -> Any:
    """``schema`` as strict modes want it: every field required, no others, no defaults."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items() if key != "default"}
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        closed["properties"] = {name: _closed(field) for name, field in fields.items()}  # a field may be called "default"
        closed |= {"required": list(fields), "additionalProperties": False}
    return closed
