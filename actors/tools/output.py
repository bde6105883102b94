"""Return values of tools as text for the model (TOOL-17, TOOL-18), and exceptions as its error text (TOOL-22)."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from ...protocol.messages import ToolResult, clean_value
from .redaction import redact

NOTHING = "The tool completed successfully and returned nothing."
ERROR_CHARS = 1_000
_JSON_KEYS = (str, int, float, bool, type(None))


class ToolOutput(str):
    """Text for the model plus values for applications only.

    Attributes:
        structured_content: a JSON object; never shown to the model.
        content_blocks: further typed blocks.
        is_error: the text is the call's error.
    """

    structured_content: dict[str, Any] | None
    content_blocks: tuple[dict[str, Any], ...]
    is_error: bool

    def __new__(
        cls,
        text: str = "",
        *,
        structured_content: Mapping[str, Any] | None = None,
        content_blocks: Sequence[Mapping[str, Any]] = (),
        is_error: bool = False,
    ) -> Self:
        output = super().__new__(cls, text)
        output.structured_content = None if structured_content is None else dict(structured_content)
        output.content_blocks = tuple(dict(block) for block in content_blocks)
        output.is_error = is_error
        return output


def json_output(value: Any) -> ToolOutput:
    """A JSON value as text for the model, and as a typed block for programs (:func:`json_in`)."""
    return ToolOutput(text_of(value), content_blocks=[{"type": "json", "json": value}])


def json_in(result: ToolResult) -> Any:
    """What a result says to a program: its JSON value if it has one, else its text."""
    if result.structured_content is not None:
        return result.structured_content
    return next((block["json"] for block in result.content_blocks if block.get("type") == "json"), result.content)


def text_of(value: Any) -> str:
    """``value`` as the model sees it.

    None becomes a fixed sentence, text stays as it is, pydantic models become JSON, dictionaries, lists and tuples
    indented JSON (anything JSON does not know as its own text), everything else ``str(value)``.
    """
    if isinstance(value, str):
        return str(value)
    if value is None:
        return NOTHING
    if isinstance(value, BaseModel):
        return _model_text(value)
    if isinstance(value, dict | list | tuple):
        try:
            return json.dumps(keyed(value), indent=2, ensure_ascii=False, default=_plain)
        except (ValueError, RecursionError):
            return str(value)
    return str(value)


def error_text(error: BaseException) -> str:
    """``Type: first line`` of an exception, secrets and private paths redacted, at most 1,000 characters."""
    name = type(error).__name__
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - a broken __str__ of foreign code must not hide the error itself
        lines = ["(its message could not be read)"]
    first = redact(lines[0][: 4 * ERROR_CHARS]) if lines else ""
    return f"{name}: {first}"[:ERROR_CHARS] if first else name


def _model_text(value: BaseModel) -> str:
    try:
        return value.model_dump_json()
    except (PydanticSerializationError, UnicodeEncodeError, ValueError):
        return json.dumps(clean_value(value.model_dump()), ensure_ascii=False, default=_plain)


def keyed(value: Any) -> Any:
    """``value`` with keys that JSON does not know turned into text."""
    if isinstance(value, dict):
        return {key if isinstance(key, _JSON_KEYS) else str(key): keyed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [keyed(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
