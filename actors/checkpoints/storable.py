"""What JSON gives back exactly as it got it; everything else is refused before it is stored, by its path."""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from typing import Any

from ...protocol.errors import NotStorable
from ...protocol.messages import NOTHING, Frozen

MAX_DEPTH = 100
_EXACT = frozenset({str, int, bool, type(None)})


def check_model(model: Frozen, path: str, fields: Collection[str] | None = None) -> None:
    """Check the free-form values (dicts, and fields typed ``Any``) inside ``model`` or the given fields of it.

    Fields of any other type come back through validation, which restores dates, sets and tuples.

    Raises:
        NotStorable: names the first value that would not come back as it is.
    """
    for name, value in model.__dict__.items():
        kind = type(value)
        if kind in _EXACT or (fields is not None and name not in fields):
            continue
        if kind is tuple:
            for number, item in enumerate(value):
                if isinstance(item, Frozen):
                    check_model(item, f"{path}.{name}[{number}]")
                elif type(item) is dict:
                    check_json(item, f"{path}.{name}[{number}]")
        elif isinstance(value, Frozen):
            check_model(value, f"{path}.{name}")
        elif isinstance(value, dict) or type(model).model_fields[name].annotation is Any:
            check_json(value, f"{path}.{name}")


def check_json(value: Any, path: str, depth: int = 0) -> None:
    """Check one free-form value.

    Raises:
        NotStorable: names the first value that would not come back as it is.
    """
    kind = type(value)
    if kind in _EXACT or value is NOTHING:
        return
    if kind is float:
        if not isfinite(value):
            raise NotStorable(f"{path} is {value}, which JSON cannot hold; store None or text", path=path)
    elif depth >= MAX_DEPTH:
        raise NotStorable(f"{path[:200]}... is nested more than {MAX_DEPTH} levels deep", path=path)
    elif kind is list:
        for number, item in enumerate(value):
            check_json(item, f"{path}[{number}]", depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise NotStorable(f"{path} has the key {key!r}; keys must be text", path=path)
            check_json(item, f"{path}.{key}", depth + 1)
    else:
        raise NotStorable(
            f"{path} is a {kind.__qualname__}, which would not come back as one; store text, numbers, lists and dicts",
            path=path,
        )
