"""What a node's task came to, as it travels and is recorded. Source: PAT-36, PAT-49, PAT-51."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from ...protocol.errors import InvalidUpdate
from .commands import Command, Send
from .plain import plain

RESULT = "result"


@dataclass(frozen=True)
class Reply:
    """A node's result, taken apart.

    Attributes:
        update: keys to write.
        value: what it returned that is none of the other things; JSON.
        has_value: whether there is one (it may be None).
        targets: where a ``Command`` goes; None where it does not say.
        sends: further tasks of the same superstep.
        to_parent: the command is for the graph that has this one as a node.
        writes: further (key, value) pairs: what a subgraph wrote to keys that its parent has a reducer for, in order.
    """

    update: Mapping[str, Any] = field(default_factory=dict)
    value: Any = None
    has_value: bool = False
    targets: tuple[str | Send, ...] | None = None
    sends: tuple[Send, ...] = ()
    to_parent: bool = False
    writes: tuple[tuple[str, Any], ...] = ()

    @property
    def output(self) -> Any:
        """What the node gave, for results: its value or its update."""
        return self.value if self.has_value else {**dict(self.writes), **self.update} or None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        known: dict[str, Any] = {}
        if self.update:
            known["update"] = dict(self.update)
        if self.has_value:
            known["value"] = self.value
        if self.targets is not None:
            known["goto"] = [target_json(target) for target in self.targets]
        if self.sends:
            known["sends"] = [target_json(send) for send in self.sends]
        if self.to_parent:
            known["to_parent"] = True
        if self.writes:
            known["writes"] = [list(write) for write in self.writes]
        return known

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> Reply:
        """What :meth:`to_json` gave."""
        goto = known.get("goto")
        return cls(
            update=known.get("update", {}),
            value=known.get("value"),
            has_value="value" in known,
            targets=None if goto is None else tuple(target_of(target) for target in goto),
            sends=tuple(Send(**send) for send in known.get("sends", ())),
            to_parent=known.get("to_parent", False),
            writes=tuple((key, value) for key, value in known.get("writes", ())),
        )


def reply_to(given: Any, node: str, state: Any = None, before: Any = None) -> Reply:
    """What a node's return value says.

    Args:
        given: the value.
        node: the node, for errors.
        state: the very object that the node was given; one that is returned counts with what it has changed.
        before: the same object's values as they were.

    Raises:
        InvalidUpdate: keys that are no text, or sends among other things.
        NotStorable: a value that is not JSON.
    """
    if given is None:
        return Reply()
    if isinstance(given, Command):
        update = update_of(given.update or {}, node)
        return Reply(update=update, targets=given.targets, to_parent=given.graph is not None)
    if isinstance(given, Send):
        given = [given]
    if isinstance(given, list | tuple) and any(isinstance(each, Send | Command) for each in given):
        if not all(isinstance(each, Send) for each in given):
            raise InvalidUpdate(f"node {node!r} returned Sends among other things; use Command(update=..., goto=[Send(...)])")
        return Reply(sends=tuple(Send(send.target, plain(send.payload, f"payload of {node!r}"), send.id) for send in given))
    if isinstance(given, Mapping) or is_record(given):
        update = update_of(fields_of(given), node)
        if given is state and before is not None:
            update = {key: value for key, value in update.items() if key not in before or before[key] != value}
        return Reply(update=update)
    return Reply(value=plain(given, f"the result of node {node!r}"), has_value=True)


def is_record(value: Any) -> bool:
    """Whether ``value`` is a pydantic model or a dataclass with fields to write."""
    return isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def fields_of(given: Any) -> Mapping[Any, Any]:
    """The fields that were set, by name."""
    if isinstance(given, BaseModel):
        return {name: getattr(given, name) for name in type(given).model_fields if name in given.model_fields_set}
    if dataclasses.is_dataclass(given):
        return {each.name: getattr(given, each.name) for each in dataclasses.fields(given) if hasattr(given, each.name)}
    return dict(given)


def update_of(given: Mapping[Any, Any], node: str) -> dict[str, Any]:
    """An update as JSON values."""
    odd = next((key for key in given if not isinstance(key, str)), None)
    if odd is not None:
        raise InvalidUpdate(f"node {node!r} wrote the key {odd!r}: keys of a graph's state are texts", writer=node)
    return {key: plain(value, f"{key!r}, written by node {node!r},") for key, value in given.items()}


def target_json(target: str | Send) -> Any:
    """A target as plain values."""
    if isinstance(target, str):
        return target
    known: dict[str, Any] = {"target": target.target, "payload": plain(target.payload, f"payload of {target.target!r}")}
    return known if target.id is None else {**known, "id": target.id}


def target_of(known: Any) -> str | Send:
    """What :func:`target_json` gave."""
    return known if isinstance(known, str) else Send(**known)
