"""What JSON gives back exactly as it got it; everything else is refused before it is stored, by its path."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from functools import cache
from math import isfinite
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AwareDatetime

from ...protocol.errors import NotStorable
from ...protocol.messages import NOTHING, Frozen

MAX_DEPTH = 100
_EXACT = frozenset({str, int, bool, type(None)})
_PLAIN = frozenset({str, int, float, bool, bytes, datetime, AwareDatetime, type(None), Ellipsis})


class _Refused(Exception):
    """A value that would not come back, and the way to it, innermost part first."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.path: list[str] = []


def check_model(model: Frozen, path: str, fields: Collection[str] | None = None) -> None:
    """Check the free-form values (dicts, and fields typed ``Any``) inside ``model`` or the given fields of it.

    Fields of any other type come back through validation, which restores dates, sets and tuples.

    Raises:
        NotStorable: names the first value that would not come back as it is.
    """
    try:
        _check_fields(model, fields)
    except _Refused as refused:
        raise _error(refused, path) from None


def check_json(value: Any, path: str) -> None:
    """Check one free-form value.

    Raises:
        NotStorable: names the first value that would not come back as it is.
    """
    try:
        _check_value(value, 0)
    except _Refused as refused:
        raise _error(refused, path) from None


def _error(refused: _Refused, path: str) -> NotStorable:
    where = path + "".join(reversed(refused.path))
    return NotStorable(f"{where[:200] + '...' if len(where) > 220 else where} {refused}", path=where)


@cache
def _free(kind: type[Frozen]) -> tuple[tuple[str, bool], ...]:
    """The fields that may hold free-form values, at any depth; and whether such a value may be anything."""
    fields = kind.model_fields.items()
    return tuple((name, field.annotation is Any) for name, field in fields if not _is_plain(field.annotation))


def _is_plain(annotation: Any) -> bool:
    """Whether validation alone restores a value of this type."""
    if annotation in _PLAIN or get_origin(annotation) is Literal:
        return True
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _is_plain(inner[0])
    return bool(inner) and get_origin(annotation) is not dict and all(map(_is_plain, inner))


def _check_fields(model: Frozen, fields: Collection[str] | None = None) -> None:
    values = model.__dict__
    for name, anything in _free(type(model)):
        value = values[name]
        if not value or (fields is not None and name not in fields):
            continue
        try:
            if type(value) is tuple:
                _check_items(value)
            elif isinstance(value, Frozen):
                _check_fields(value)
            elif anything or isinstance(value, dict):
                _check_value(value, 0)
        except _Refused as refused:
            refused.path.append(f".{name}")
            raise


def _check_items(items: tuple[Any, ...]) -> None:
    number = 0
    try:
        for number, item in enumerate(items):  # noqa: B007 - for the path
            if isinstance(item, Frozen):
                _check_fields(item)
            elif type(item) is dict:
                _check_value(item, 0)
    except _Refused as refused:
        refused.path.append(f"[{number}]")
        raise


def _check_value(value: Any, depth: int) -> None:
    kind = type(value)
    if kind in _EXACT or value is NOTHING:
        return
    if kind is float:
        if not isfinite(value):
            raise _Refused(f"is {value}, which JSON cannot hold; store None or text")
    elif depth >= MAX_DEPTH:
        raise _Refused(f"is nested more than {MAX_DEPTH} levels deep")
    elif kind is list:
        _check_list(value, depth)
    elif kind is dict:
        _check_dict(value, depth)
    else:
        raise _Refused(f"is a {kind.__qualname__}, which would not come back as one; store text, numbers, lists and dicts")


def _check_list(value: list[Any], depth: int) -> None:
    number = 0
    try:
        for number, item in enumerate(value):  # noqa: B007 - for the path
            _check_value(item, depth + 1)
    except _Refused as refused:
        refused.path.append(f"[{number}]")
        raise


def _check_dict(value: dict[Any, Any], depth: int) -> None:
    key: Any = None
    try:
        for key, item in value.items():
            if type(key) is not str:
                break
            _check_value(item, depth + 1)
        else:
            return
    except _Refused as refused:
        refused.path.append(f".{key}")
        raise
    raise _Refused(f"has the key {key!r}; keys must be text")
