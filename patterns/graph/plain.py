"""Values as JSON has them: what a graph's state is stored and sent as."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ...protocol.errors import NotStorable
from ...protocol.messages import clean_value


def plain(value: Any, where: str) -> Any:
    """``value`` as JSON; sets become lists in a fixed order, models and dataclasses objects.

    Raises:
        NotStorable: something in it has no JSON form; ``where`` says whose value it is.
    """
    try:
        return clean_value(_plain(value))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise NotStorable(f"{where} cannot be stored: {error}. Values of a graph's state are JSON values") from None


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
