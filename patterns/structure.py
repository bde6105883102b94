"""What an agent or a pattern looks like: nodes and edges as plain values, for drawings and tools."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..actors.runnable import Runnable
from ..actors.tools.decorator import Tool

START, END = "__start__", "__end__"
NodeKind = Literal["start", "end", "agent", "pattern", "subgraph", "function", "auxiliary", "anywhere"]
EdgeKind = Literal["plain", "conditional", "barrier", "send", "command"]


@dataclass(frozen=True)
class Node:
    """A node.

    Attributes:
        name: unique among the nodes around it.
        kind: what it is; ``auxiliary`` are agents of the pattern's own (a router, a judge); ``anywhere``, in drawings, stands
            for nodes that only the code names.
        inner: its own structure, where there is something to see.
    """

    name: str
    kind: NodeKind
    inner: Structure | None = None


@dataclass(frozen=True)
class Edge:
    """An edge.

    Attributes:
        source, target: names of nodes, ``START`` and ``END`` included.
        kind: ``plain`` is always taken; ``conditional`` may be; ``barrier``, ``send``, ``command`` as in a ``StateGraph``.
        label: when, or with what.
    """

    source: str
    target: str
    kind: EdgeKind = "plain"
    label: str = ""


@dataclass(frozen=True)
class Structure:
    """An agent or a pattern.

    Attributes:
        name: of what it is.
        nodes: ``START``, what there is in order, ``END``.
        edges: between them.
        type: the class, such as ``Sequential``.
    """

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    type: str = ""


def structure_of(runnable: Any) -> Structure:
    """The structure of an agent or a pattern.

    Raises:
        TypeError: it is neither.
    """
    own = getattr(runnable, "structure", None)
    if callable(own):
        found: Structure = own()
        return found
    if not isinstance(runnable, Runnable):
        raise TypeError(f"an agent or a pattern has a structure, not a {type(runnable).__name__}")
    return _of_agent(runnable, list(getattr(runnable, "tools_by_name", {}).values()))


def structured(
    name: str, type_name: str, parts: Mapping[str, Any], auxiliary: Iterable[str], edges: Iterable[Edge]
) -> Structure:
    """A structure of members.

    Args:
        name: of the whole.
        type_name: its class.
        parts: members by name.
        auxiliary: names of those that are the pattern's own.
        edges: between them.
    """
    own = set(auxiliary)
    nodes = [_node(key, part, auxiliary=key in own) for key, part in parts.items()]
    return Structure(name, (Node(START, "start"), *nodes, Node(END, "end")), tuple(edges), type_name)


def chain(*names: str) -> list[Edge]:
    """Edges from each to the next."""
    return [Edge(source, target) for source, target in itertools.pairwise(names)]


def inner_of(part: Any) -> Structure | None:
    """What there is to see inside a member: all of a pattern, and the agents that an agent calls."""
    if not isinstance(part, Runnable):
        return None
    if part.is_pattern:
        found = structure_of(part)
        return found if len(found.nodes) > 2 else None
    tools = [tool for tool in getattr(part, "tools_by_name", {}).values() if tool.agent is not None]
    return _of_agent(part, tools) if tools else None


def _node(name: str, part: Any, *, auxiliary: bool = False) -> Node:
    if isinstance(part, Tool) and part.agent is not None:
        part = part.agent
    if not isinstance(part, Runnable):
        return Node(name, "function")
    kind: NodeKind = "pattern" if part.is_pattern else "auxiliary" if auxiliary else "agent"
    return Node(name, kind, inner_of(part))


def _of_agent(agent: Any, tools: list[Tool]) -> Structure:
    """An agent that calls tools, some of which are agents."""
    name = str(getattr(agent, "title", None) or type(agent).__name__)
    nodes = [Node(f"{name} (model)" if any(tool.name == name for tool in tools) else name, "agent")]
    nodes += [_node(tool.name, tool) for tool in tools]
    called = [Edge(nodes[0].name, node.name, "conditional", "calls") for node in nodes[1:]]
    edges = [Edge(START, nodes[0].name), *called, Edge(nodes[0].name, END)]
    return Structure(name, (Node(START, "start"), *nodes, Node(END, "end")), tuple(edges), type(agent).__name__)
