"""What a graph looks like: the structure that every pattern has, and what only graphs have of it."""

from __future__ import annotations

from dataclasses import dataclass

from .. import structure


@dataclass(frozen=True)
class NodeView(structure.Node):
    """A node.

    Attributes:
        deferred: it runs when nothing else is left.
        conditional: it has a condition, and may be skipped.
    """

    deferred: bool = False
    conditional: bool = False


@dataclass(frozen=True)
class EdgeView(structure.Edge):
    """An edge.

    ``plain``; ``conditional`` by a router, whose answer is the label; ``barrier``: one of the sources of a join; ``send``: a
    task for each ``Send``; ``command``: a node's ``Command`` may go there.

    Attributes:
        join: for ``barrier``, the same text for all sources of one join.
    """

    join: str | None = None


@dataclass(frozen=True)
class Structure(structure.Structure):
    """A graph; its edges are in the order in which they were added, those of commands and sends follow.

    Attributes:
        open_ended: nodes whose routers or commands may lead to nodes that no edge here shows.
    """

    nodes: tuple[NodeView, ...]
    edges: tuple[EdgeView, ...]
    type: str = "StateGraph"
    open_ended: tuple[str, ...] = ()
