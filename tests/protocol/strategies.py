"""Hypothesis strategies for every message type, made from its pydantic fields."""

from __future__ import annotations

import types
from collections.abc import Callable
from datetime import UTC
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import AwareDatetime

from umbel.protocol import commands, events, limits, state  # noqa: F401 - importing them registers their messages
from umbel.protocol.config import Limits
from umbel.protocol.events import CustomEvent, Event, ReflectEvent, ThinkEvent, ToolCompleteEvent
from umbel.protocol.messages import Frozen
from umbel.protocol.shares import Share

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6
)
json_objects = st.dictionaries(st.text(max_size=8), json_values, max_size=3)
_POSITIVE = st.floats(1e-3, 1e9)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=30),
    int: st.integers(-(2**70), 2**70),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=50),
    type(None): st.none(),
    AwareDatetime: st.datetimes(timezones=st.just(UTC)),
    Any: json_values,
    Share: st.builds(Share, fleet=st.text(max_size=30), weight=_POSITIVE, priority=st.integers(-(2**70), 2**70)),
    Limits: st.builds(
        Limits,
        requests_per_minute=st.none() | _POSITIVE,
        tokens_per_minute=st.none() | _POSITIVE,
        concurrency=st.none() | st.integers(1, 10**6),
    ),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if annotation is Event:
        return st.deferred(lambda: st.one_of([messages(cls) for cls in (ThinkEvent, ToolCompleteEvent, CustomEvent)]))
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        return st.deferred(lambda: messages(annotation))
    return _COMPOSED[get_origin(annotation)](*get_args(annotation))


def _tuples(first: Any, *others: Any) -> st.SearchStrategy[Any]:
    if others == (Ellipsis,):
        return st.lists(values(first), max_size=3).map(tuple)
    return st.tuples(values(first), *map(values, others))


def _unions(*members: Any) -> st.SearchStrategy[Any]:
    return st.one_of([values(member) for member in members])


_COMPOSED: dict[Any, Callable[..., st.SearchStrategy[Any]]] = {
    Annotated: lambda inner, *_: values(inner),
    Union: _unions,
    types.UnionType: _unions,
    Literal: lambda *members: st.sampled_from(members),
    tuple: _tuples,
    frozenset: lambda item: st.frozensets(values(item), max_size=3),
    list: lambda item: st.lists(values(item), max_size=3),
    dict: lambda _, item: json_objects if item is Any else st.dictionaries(st.text(max_size=8), values(item), max_size=3),
}


def messages(cls: type[Frozen]) -> st.SearchStrategy[Any]:
    """Instances of a message class: required fields always, the others sometimes."""
    required = {name: values(field.annotation) for name, field in cls.model_fields.items() if field.is_required()}
    optional = {name: values(field.annotation) for name, field in cls.model_fields.items() if not field.is_required()}
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: cls(**fields))


def minimal(cls: type[Frozen]) -> Frozen:
    """One small valid instance."""
    return cls(**{name: _small(field.annotation) for name, field in cls.model_fields.items() if field.is_required()})


def _small(annotation: Any) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _small(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return ()
    if annotation is Event:
        return ReflectEvent(iteration=1, assessment="stuck", confidence_delta=0.0, new_confidence=0.0)
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        return minimal(annotation)
    return {str: "x", int: 1, float: 0.5, bool: True, bytes: b"\xff\x00"}[annotation]
