"""Reducers: how writes to one key of a graph's state become one value. Source: PAT-39.

A reducer takes the current value and a write, and gives the new value; it changes neither. Put one on a key with
``Annotated[list[str], append]`` in the state's schema, or with ``StateGraph(reducers={"log": append})``. Any function of two
arguments will do; :func:`reducer` says what its first write is combined with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...protocol.messages import Message
from .plain import sign

REMOVE_ALL = "__remove_all__"
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING", "__reduce__": lambda self: "MISSING"})()


class Reducer:
    """A function that combines, and what it begins with.

    Args:
        combine: ``(current, write) -> new``.
        identity: makes the value that the first write is combined with; without one the first write is combined with nothing,
            and ``check`` sees that it is a value the reducer can work on.
        check: raises ``TypeError`` for what cannot be a first value.
    """

    def __init__(
        self,
        combine: Callable[[Any, Any], Any],
        identity: Callable[[], Any] | None = None,
        check: Callable[[Any], Any] | None = None,
    ) -> None:
        self.combine = combine
        self.identity = identity
        self.check = check
        self.__name__ = getattr(combine, "__name__", type(combine).__name__)
        self.__doc__ = combine.__doc__

    def __call__(self, current: Any, write: Any) -> Any:
        """The new value; ``current`` may be ``MISSING``."""
        if current is not MISSING:
            return self.combine(current, write)
        if self.identity is not None:
            return self.combine(self.identity(), write)
        if self.check is not None:
            self.check(write)
        return write

    def __repr__(self) -> str:
        return f"<reducer {self.__name__}>"


def reducer(identity: Callable[[], Any] | None = None, check: Callable[[Any], Any] | None = None) -> Callable[[Any], Reducer]:
    """Decorate a function of ``(current, write)`` with what it begins with; the arguments are those of :class:`Reducer`."""
    return lambda combine: Reducer(combine, identity, check)


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a number is needed, not {type(value).__name__}")
    return value


def _mapping(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"a mapping is needed, not {type(value).__name__}")
    return value


def _items(value: Any) -> list[Any]:
    """What a write adds to a list: the members of a list, tuple or set, or the value itself."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=sign)
    return list(value) if isinstance(value, list | tuple) else [value]


def _members(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError(f"a set or list is needed, not {type(value).__name__}")
    return _items(value)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"the value is a {type(value).__name__}, not a list")
    return list(value)


@reducer(identity=list)
def append(current: Any, write: Any) -> list[Any]:
    """The members of a list that is written, or the one value, behind what is there."""
    return [*_listed(current), *_items(write)]


@reducer(identity=list)
def append_unique(current: Any, write: Any) -> list[Any]:
    """As :data:`append`, without what is there already."""
    kept = _listed(current)
    seen = {sign(item) for item in kept}
    for item in _items(write):
        if (known := sign(item)) not in seen:
            seen.add(known)
            kept.append(item)
    return kept


@reducer(identity=dict)
def merge(current: Any, write: Any) -> dict[str, Any]:
    """The written keys over those that are there."""
    return {**_mapping(current), **_mapping(write)}


@reducer(identity=dict)
def deep_merge(current: Any, write: Any) -> dict[str, Any]:
    """As :data:`merge`, and mappings on both sides are merged in turn."""
    merged = dict(_mapping(current))
    for key, value in _mapping(write).items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = deep_merge(merged[key], value) if both else value
    return merged


@reducer(check=_number)
def add(current: Any, write: Any) -> Any:
    """The sum."""
    return _number(current) + _number(write)


@reducer(check=_number)
def maximum(current: Any, write: Any) -> Any:
    """The larger number."""
    return max(_number(current), _number(write))


@reducer(check=_number)
def minimum(current: Any, write: Any) -> Any:
    """The smaller number."""
    return min(_number(current), _number(write))


@reducer()
def first(current: Any, write: Any) -> Any:  # noqa: ARG001 - every reducer has these two
    """What was written first, for good."""
    return current


@reducer()
def last(current: Any, write: Any) -> Any:  # noqa: ARG001 - every reducer has these two
    """What was written last: of parallel writers, the last in the order of tasks."""
    return write


@reducer(check=_members)
def union(current: Any, write: Any) -> Any:
    """The members of both: a set where the key's type is one, else a list without duplicates, oldest first."""
    if isinstance(current, set | frozenset):
        return set(current) | set(_members(write))
    return append_unique.combine(current, _members(write))


@reducer(check=_members)
def intersection(current: Any, write: Any) -> Any:
    """The members that both have: a set where the key's type is one, else a list in its present order."""
    kept = {sign(item) for item in _members(write)}
    common = [item for item in _members(current) if sign(item) in kept]
    return set(common) if isinstance(current, set | frozenset) else common


def _id(message: Any) -> str | None:
    if isinstance(message, Message):
        found = message.metadata.get("id")
    else:
        found = message.get("id") or (message.get("metadata") or {}).get("id")
    return None if found is None else str(found)


def _message(value: Any) -> Any:
    if isinstance(value, str):
        return {"role": "user", "content": value}
    if isinstance(value, Message) or (isinstance(value, Mapping) and "role" in value):
        return value
    raise TypeError(f"a message is a Message, a text or a mapping with 'role', not {type(value).__name__} {value!r:.80}")


def remove_message(message_id: str) -> dict[str, Any]:
    """A write for :data:`add_messages` that takes the message with this id out; ``REMOVE_ALL`` takes all."""
    return {"role": "remove", "id": message_id}


@reducer(identity=list)
def add_messages(current: Any, write: Any) -> list[Any]:
    """Messages behind those that are there; one whose id is there takes its place.

    The id is ``id`` of a mapping or ``metadata["id"]`` of either form. :func:`remove_message` takes messages out.
    """
    messages = [_message(value) for value in _listed(current)]
    for value in [write] if isinstance(write, Mapping) else _items(write):
        message = _message(value)
        known = _id(message)
        if isinstance(message, Mapping) and message["role"] == "remove":
            messages = [] if known == REMOVE_ALL else [each for each in messages if _id(each) != known]
            continue
        place = next((i for i, each in enumerate(messages) if known is not None and _id(each) == known), None)
        if place is None:
            messages.append(message)
        else:
            messages[place] = message
    return messages


BY_NAME: dict[str, Reducer] = {
    each.__name__: each
    for each in (
        add, add_messages, append, append_unique, deep_merge, first, intersection, last, maximum, merge, minimum, union,
    )
}  # fmt: skip
