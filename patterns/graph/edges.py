"""Edges of a graph, as they are declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Edge:
    """From one node to another, always followed unless a router or a ``Command`` says otherwise."""

    source: str
    target: str


@dataclass(frozen=True)
class Join:
    """From several nodes to one: a barrier. The target runs once for each time that all of them have arrived.

    Attributes:
        sources: in the order in which they were given.
        target: the node.
    """

    sources: tuple[str, ...]
    target: str

    @property
    def key(self) -> str:
        """A text that names it within the graph."""
        return f"{'+'.join(self.sources)}>{self.target}"


@dataclass(frozen=True, eq=False)
class Branch:
    """From a node to where a router says.

    Attributes:
        source: the node.
        router: ``(state) -> name | Send | several of them | None``; None leaves it to the next branch, or to the plain edges.
        targets: what the router's answers stand for; None where it names nodes itself.
        name: for people.
    """

    source: str
    router: Callable[..., Any]
    targets: Mapping[Any, str] | None
    name: str
