"""What a graph looks like: nodes and edges as plain values, for drawings and tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .node import Kind

EdgeKind = Literal["plain", "conditional", "barrier", "send", "command"]


@dataclass(frozen=True)
class NodeView:
    """A node.

    Attributes:
        name: the node.
        kind: ``start``, ``end``, or what it runs.
        deferred: it runs when nothing else is left.
        conditional: it has a condition, and may be skipped.
        inner: the structure of a subgraph; None for others.
    """

    name: str
    kind: Kind | Literal["start", "end"]
    deferred: bool = False
    conditional: bool = False
    inner: Structure | None = None


@dataclass(frozen=True)
class EdgeView:
    """An edge.

    Attributes:
        source, target: names of nodes, ``START`` and ``END`` included.
        kind: ``plain``; ``conditional`` by a router; ``barrier``: one of the sources of a join; ``send``: a task for each
            ``Send``; ``command``: a node's ``Command`` may go there.
        label: what a router answers to go there, or empty.
        join: for ``barrier``, the same text for all sources of one join.
    """

    source: str
    target: str
    kind: EdgeKind = "plain"
    label: str = ""
    join: str | None = None


@dataclass(frozen=True)
class Structure:
    """A graph.

    Attributes:
        name: the graph.
        nodes: ``START``, the nodes in the order in which they were added, ``END``.
        edges: in the order in which they were added; those of commands and sends follow.
        open_ended: nodes whose routers or commands may lead to nodes that no edge here shows.
    """

    name: str
    nodes: tuple[NodeView, ...]
    edges: tuple[EdgeView, ...]
    open_ended: tuple[str, ...] = ()
