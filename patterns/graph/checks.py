"""What is wrong with a graph, seen before it runs. Source: OURS-28, PAT-33, PAT-47, case 20."""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.errors import ConfigurationError
from .commands import END, START
from .edges import Edge, Join
from .node import Node
from .plan import Plan, declared
from .planner import Ended, Schedule
from .schema import conflict


def check(plan: Plan) -> None:
    """Refuse a graph that cannot work.

    Raises:
        ConfigurationError: see the message.
        ConflictingWrites: two nodes of one superstep declare a write to a key without a reducer.
    """
    if not plan.nodes:
        raise ConfigurationError(f"graph {plan.name!r} has no nodes: add_node(name, function)")
    _check_names(plan)
    _check_writes(plan)
    entered = {edge.target for edge in plan.edges if isinstance(edge, Edge) and edge.source == START}
    if not entered and START not in plan.branches:
        raise ConfigurationError(
            f"nothing leads from START in graph {plan.name!r}, so nothing would run: add_edge(START, name)"
        )
    _check_reach(plan)
    _check_conflicts(plan)


def closes_cycle(edges: Iterable[Edge | Join], new: Edge | Join) -> list[str] | None:
    """The cycle that ``new`` closes among plain edges, as a path; None where there is none."""
    onward: dict[str, list[str]] = {}
    for edge in edges:
        for source in _sources(edge):
            onward.setdefault(source, []).append(edge.target)
    for source in _sources(new):
        found = _path(onward, new.target, source)
        if found is not None:
            return [source, *found]
    return None


def _path(onward: dict[str, list[str]], start: str, goal: str) -> list[str] | None:
    came_from: dict[str, str | None] = {start: None}
    queue = [start]
    for place in queue:
        if place == goal:
            path = [place]
            while (before := came_from[path[-1]]) is not None:
                path.append(before)
            return path[::-1]
        for target in onward.get(place, ()):
            if target not in came_from:
                came_from[target] = place
                queue.append(target)
    return None


def _sources(edge: Edge | Join) -> tuple[str, ...]:
    return (edge.source,) if isinstance(edge, Edge) else edge.sources


def _check_names(plan: Plan) -> None:
    named: list[tuple[str, str]] = []
    for edge in plan.edges:
        named += [(name, f"the edge to {edge.target!r}") for name in _sources(edge)]
        named.append((edge.target, f"the edge from {' + '.join(_sources(edge))}"))
    for source, branches in plan.branches.items():
        named.append((source, "a conditional edge"))
        named += [(target, f"router {branch.name!r}") for branch in branches for target in declared(branch) or ()]
    for node in plan.nodes.values():
        named += [(target, f"destinations of {node.name!r}") for target in node.destinations or ()]
        named += [(target, f"sends of {node.name!r}") for target in node.sends or ()]
    for name, where in named:
        if name not in plan.nodes and name not in (START, END):
            known = ", ".join(plan.nodes)
            raise ConfigurationError(f"{where} names {name!r}, which is no node of graph {plan.name!r}; there are {known}")


def _check_writes(plan: Plan) -> None:
    for node in plan.nodes.values():
        unknown = [key for key in writes_of(plan, node) or () if not plan.schema.has(key)]
        if unknown:
            raise ConfigurationError(
                f"node {node.name!r} writes {unknown[0]!r}, which is no key of {plan.schema.title}; it has "
                f"{', '.join(plan.schema.keys)}"
                + (". Say where its answer goes: output='key'" if node.kind != "function" else "")
            )


def writes_of(plan: Plan, node: Node) -> tuple[str, ...] | None:
    """The keys that a node is known to write; None where nothing says."""
    if node.writes is not None:
        return node.writes
    if isinstance(node.output, str):
        return (node.output,)
    if node.output is None and node.kind in ("agent", "pattern"):
        return (answer_key(plan, node),)
    return None


def answer_key(plan: Plan, node: Node) -> str:
    """Where an agent's or pattern's answer goes by default: its own name, or ``messages`` where the schema lacks that."""
    if not plan.schema.has(node.name) and plan.schema.has("messages"):
        return "messages"
    return node.name


def _check_reach(plan: Plan) -> None:
    if any(source in plan.open_ended() for source in [START, *_reached(plan)]):
        return
    lost = [name for name in plan.nodes if name not in _reached(plan)]
    if lost:
        raise ConfigurationError(
            f"nothing leads to {', '.join(map(repr, lost))} in graph {plan.name!r}: add an edge, or say who goes there with "
            "add_node(..., destinations=[...]) or sends=[...]"
        )


def _reached(plan: Plan) -> set[str]:
    onward: dict[str, set[str]] = {}
    for edge in plan.edges:
        for source in _sources(edge):
            onward.setdefault(source, set()).add(edge.target)
    for source, branches in plan.branches.items():
        onward.setdefault(source, set()).update(target for branch in branches for target in declared(branch) or ())
    for node in plan.nodes.values():
        onward.setdefault(node.name, set()).update([*(node.destinations or ()), *(node.sends or ())])
    seen: set[str] = set()
    queue = [START]
    while queue:
        found = onward.get(queue.pop(), set()) - seen
        seen |= found
        queue += sorted(found)
    return seen - {END}


def _check_conflicts(plan: Plan) -> None:
    """Follow the plain edges superstep by superstep, as far as they are certain, and compare what is declared."""
    if START in plan.branches:
        return
    schedule = plan.planner.begin()
    for _ in range(len(plan.nodes) + 1):
        nodes = [plan.nodes[task.node] for task in schedule.tasks]
        writers: dict[str, str] = {}
        for node in nodes:
            for key in () if node.condition is not None else writes_of(plan, node) or ():
                if key in writers and not plan.schema.reduces(key):
                    raise conflict(key, [writers[key], node.name])
                writers[key] = node.name
        certain = [Ended(node.name) for node in nodes if node.name not in plan.branches and not node.may_go_anywhere]
        schedule = plan.planner.follow(certain, Schedule(arrived=schedule.arrived, deferred=schedule.deferred))
        if not schedule.tasks:
            return
