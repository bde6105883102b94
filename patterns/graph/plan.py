"""A graph's definition, checked and frozen: what the runner, the state's view and the drawings read."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...protocol.errors import GraphError
from ..structure import inner_of
from .commands import END, START, Send, targets_of
from .edges import Branch, Edge, Join
from .node import Node, literals_of, mentions
from .planner import Planner
from .schema import StateSchema
from .structure import EdgeView, NodeView, Structure


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """What a graph consists of.

    Attributes:
        name: the graph.
        schema: of the state; ``input_schema`` and ``output_schema`` of what goes in and what comes out, None for all of it.
        nodes: by name, in the order in which they were added.
        edges: plain edges and joins, in the order in which they were added.
        branches: by source.
    """

    name: str
    schema: StateSchema
    input_schema: StateSchema | None
    output_schema: StateSchema | None
    nodes: Mapping[str, Node]
    edges: tuple[Edge | Join, ...]
    branches: Mapping[str, tuple[Branch, ...]] = field(default_factory=dict)

    @cached_property
    def planner(self) -> Planner:
        return Planner(self.nodes, self.edges, [node.name for node in self.nodes.values() if node.defer])

    async def route(self, source: str, values: Mapping[str, Any]) -> tuple[str | Send, ...] | None:
        """What the branches of ``source`` name; None where there is none, or none has an opinion.

        Raises:
            GraphError: a router named something that it cannot go to.
            Exception: what a router raised.
        """
        for branch in self.branches.get(source, ()):
            answer = branch.router(self.schema.view(values))
            if inspect.isawaitable(answer):
                answer = await answer
            if answer is not None or None in (branch.targets or ()):
                return targets_of([meaning(branch, each) for each in several(answer)])
        return None

    def structure(self) -> Structure:
        """The graph as nodes and edges."""
        edges: list[EdgeView] = []
        for edge in self.edges:
            if isinstance(edge, Edge):
                edges.append(EdgeView(edge.source, edge.target))
            else:
                edges += [EdgeView(source, edge.target, "barrier", join=edge.key) for source in edge.sources]
        for branches in self.branches.values():
            edges += [view for branch in branches for view in views_of(branch)]
        for node in self.nodes.values():
            edges += [EdgeView(node.name, target, "command") for target in node.destinations or ()]
            edges += [EdgeView(node.name, target, "send") for target in node.sends or ()]
        nodes = tuple(
            NodeView(
                node.name,
                node.kind,
                deferred=node.defer,
                conditional=node.condition is not None,
                inner=inner_of(node.action),
            )
            for node in self.nodes.values()
        )
        return Structure(
            self.name, (NodeView(START, "start"), *nodes, NodeView(END, "end")), tuple(edges), open_ended=self.open_ended()
        )

    def open_ended(self) -> tuple[str, ...]:
        """Nodes (and ``START``) that may lead where no declaration says."""
        sources = [node.name for node in self.nodes.values() if node.may_go_anywhere]
        sources += [s for s, branches in self.branches.items() if any(declared(branch) is None for branch in branches)]
        return tuple(dict.fromkeys(sources))


def declared(branch: Branch) -> dict[str, str] | None:
    """Where a branch may lead, as target to label; None where nothing says."""
    if branch.targets is not None:
        labels: dict[str, list[str]] = {}
        for answer, target in branch.targets.items():
            labels.setdefault(target, []).append("" if answer == target else str(answer))
        return {target: " | ".join(filter(None, texts)) for target, texts in labels.items()}
    said = literals_of(branch.router)
    return dict.fromkeys(said, "") if said else None


def views_of(branch: Branch) -> list[EdgeView]:
    """A branch as edges."""
    sends = mentions(branch.router, frozenset({"Send"}))
    kind = "send" if sends and (branch.targets is None or all(a == t for a, t in branch.targets.items())) else "conditional"
    found = declared(branch) or {}
    return [
        EdgeView(branch.source, target, "conditional" if target == END else kind, label)  # type: ignore[arg-type]
        for target, label in found.items()
    ]


def several(answer: Any) -> list[Any]:
    """A router's answer as a list."""
    if isinstance(answer, set | frozenset):
        return sorted(answer, key=str)
    return list(answer) if isinstance(answer, list | tuple) else [answer]


def meaning(branch: Branch, answer: Any) -> str | Send:
    """What one answer of a router stands for.

    Raises:
        GraphError: nothing.
    """
    if isinstance(answer, Send):
        return answer
    if branch.targets is not None:
        if answer in branch.targets:
            return branch.targets[answer]
        known = ", ".join(repr(each) for each in branch.targets)
        raise GraphError(f"router {branch.name!r} behind {branch.source!r} answered {answer!r}; it may answer {known}")
    if isinstance(answer, str):
        return answer
    raise GraphError(
        f"router {branch.name!r} behind {branch.source!r} answered {answer!r} ({type(answer).__name__}): a name, a Send or a "
        "list of them is needed, or a mapping of its answers: add_conditional_edges(source, router, {answer: node})"
    )
