"""Values as JSON has them: what a graph's state is stored and sent as."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ...protocol.errors import NotStorable
from ...protocol.messages import MAX_NESTING, clean_value

UNDONE = object()
BRACKETS = re.compile(r"[\[\]{}]")


def plain(value: Any, where: str) -> Any:
    """``value`` as JSON; sets become lists in a fixed order, models and dataclasses objects.

    Raises:
        NotStorable: something in it has no JSON form; ``where`` says whose value it is.
    """
    try:
        quick = _quick(value)
        return clean_value(_plain(value)) if quick is UNDONE else quick
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise NotStorable(f"{where} cannot be stored: {error}. Values of a graph's state are JSON values") from None


def copy_of(value: Any) -> Any:
    """A copy of a JSON value, at the speed of C."""
    return value if isinstance(value, str | int | float | None) else json.loads(json.dumps(value))


def _quick(value: Any) -> Any:
    """The same for what ``json`` can write, which most values are; unless a text in it may have to be cleaned."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return UNDONE
    deep = text.count("[") + text.count("{") > MAX_NESTING
    return UNDONE if "\\ud" in text or (deep and _depth(text) > MAX_NESTING) else json.loads(text)


def _depth(text: str) -> int:
    """How deep the brackets of a JSON text are nested, those in its strings included."""
    deepest = depth = 0
    for bracket in BRACKETS.findall(text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _plain(value: Any) -> Any:  # noqa: PLR0911 - one return for each kind of value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(exclude_unset=False))
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(to_jsonable_python(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=sign)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return to_jsonable_python(value)


def sign(value: Any) -> str:
    """A text that is the same for equal JSON values."""
    return json.dumps(value, sort_keys=True, default=repr)
