"""Which tasks a superstep has. Pure: what happened in the last one goes in, the next one comes out.

The rules, in the order in which they apply to each task that ended (Source: PAT-35, PAT-40 to PAT-44, OURS-28):

    it failed                    its successors are not run for it
    Command(goto=...)            the named targets, and no edge
    the first branch that names  its targets
      something
    else                         plain edges, and its arrival at every join it is part of

A node that several tasks of a superstep lead to runs once in the next; every ``Send`` is a task of its own. A join fires once
all its sources have arrived, and then begins to count anew. A deferred node waits until nothing else is left. ``END`` ends
one branch only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...protocol.errors import GraphError
from .commands import END, START, Send
from .edges import Edge, Join


@dataclass(frozen=True)
class Task:
    """One node's turn in a superstep.

    Attributes:
        node: which.
        id: unique in the superstep: the node's name, or the ``Send``'s id.
        payload: what a ``Send`` lays over the state; None for others.
        named: the ``Send`` has an id that was given: its result is also stored under it.
    """

    node: str
    id: str
    payload: Mapping[str, Any] | None = None
    named: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        values: dict[str, Any] = {"node": self.node, "id": self.id}
        if self.payload is not None:
            values |= {"payload": dict(self.payload), "named": self.named}
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Task:
        """What :meth:`to_json` gave."""
        return cls(**values)


@dataclass(frozen=True)
class Schedule:
    """What is still to be done, after a superstep.

    Attributes:
        tasks: of the next superstep, in order; empty: nothing is left.
        arrived: by :attr:`Join.key`, the sources that have arrived since it fired last.
        deferred: deferred nodes that were reached and wait.
    """

    tasks: tuple[Task, ...] = ()
    arrived: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deferred: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "tasks": [task.to_json() for task in self.tasks],
            "arrived": {key: list(sources) for key, sources in self.arrived.items()},
            "deferred": list(self.deferred),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Schedule:
        """What :meth:`to_json` gave."""
        return cls(
            tasks=tuple(Task.from_json(task) for task in values["tasks"]),
            arrived={key: tuple(sources) for key, sources in values["arrived"].items()},
            deferred=tuple(values["deferred"]),
        )


@dataclass(frozen=True)
class Ended:
    """A task that has ended, and where it leads.

    Attributes:
        node: whose task; ``START`` is the one before the first superstep.
        targets: what a ``Command`` or a branch named; None: the plain edges.
        success: False: nothing follows from it.
    """

    node: str
    targets: tuple[str | Send, ...] | None = None
    success: bool = True


class Planner:
    """The plain part of a graph.

    Args:
        nodes: all names.
        edges: plain edges and joins, in the order in which they were added.
        deferred: nodes that wait until nothing else is left.
    """

    def __init__(self, nodes: Iterable[str], edges: Sequence[Edge | Join], deferred: Iterable[str] = ()) -> None:
        self.nodes = frozenset(nodes)
        self.edges = tuple(edges)
        self.deferred = frozenset(deferred)
        self.joins = {edge.key: edge for edge in self.edges if isinstance(edge, Join)}

    def begin(self, targets: tuple[str | Send, ...] | None = None, schedule: Schedule | None = None) -> Schedule:
        """The first superstep: what ``START`` leads to, or the targets that its branch named."""
        return self.follow([Ended(START, targets)], schedule or Schedule())

    def follow(self, ended: Iterable[Ended], schedule: Schedule) -> Schedule:
        """What comes after a superstep whose tasks ended as told, in their order.

        Raises:
            GraphError: a target is no node of the graph.
        """
        reached: list[str | Send] = []
        arrived = {key: list(sources) for key, sources in schedule.arrived.items()}
        for task in ended:
            if task.success:
                reached += self._successors(task, arrived)
        waiting = list(schedule.deferred)
        ready: list[str | Send] = []
        for target in reached:
            if isinstance(target, str) and target in self.deferred:
                waiting.append(target)
            else:
                ready.append(target)
        if not ready:
            ready, waiting = list(dict.fromkeys(waiting)), []
        kept = {key: tuple(sources) for key, sources in arrived.items() if sources}
        return Schedule(tasks_of(ready), kept, tuple(dict.fromkeys(waiting)))

    def unfinished(self, schedule: Schedule) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Joins that some but not all sources have reached: target to (arrived, missing)."""
        return {
            self.joins[key].target: (sources, tuple(s for s in self.joins[key].sources if s not in sources))
            for key, sources in schedule.arrived.items()
            if key in self.joins
        }

    def _successors(self, task: Ended, arrived: dict[str, list[str]]) -> list[str | Send]:
        if task.targets is not None:
            return [target for target in task.targets if self._known(task.node, target) != END]
        found: list[str | Send] = []
        for edge in self.edges:
            if isinstance(edge, Edge):
                if edge.source == task.node and edge.target != END:
                    found.append(edge.target)
            elif task.node in edge.sources:
                sources = arrived.setdefault(edge.key, [])
                if task.node not in sources:
                    sources.append(task.node)
                if len(sources) == len(edge.sources):
                    arrived[edge.key] = []
                    found += [edge.target] if edge.target != END else []
        return found

    def _known(self, source: str, target: str | Send) -> str:
        name = target.target if isinstance(target, Send) else target
        if name not in self.nodes and name != END:
            who = "the entry's router" if source == START else f"node {source!r}"
            raise GraphError(
                f"{who} goes to {name!r}, which is no node of the graph; there are {', '.join(sorted(self.nodes))} and END",
                node=source,
                target=name,
            )
        return name


def tasks_of(targets: Iterable[str | Send], taken: Iterable[str] = ()) -> tuple[Task, ...]:
    """Targets as tasks: a node once, however often it is named; each ``Send`` by itself, under an id of its own.

    Args:
        targets: in order.
        taken: ids that tasks of the same superstep have already.

    Raises:
        GraphError: two have the same given id.
    """
    tasks: list[Task] = []
    used, numbers = set(taken), Counter[str]()
    for target in targets:
        if isinstance(target, str):
            if target not in used:
                tasks.append(Task(target, target))
                used.add(target)
            continue
        name = target.id if target.id is not None else _free(target.target, used, numbers)
        if name in used:
            raise GraphError(f"two tasks of a superstep have the id {name!r}; every Send needs an id of its own", id=name)
        used.add(name)
        tasks.append(Task(target.target, name, dict(target.payload), target.id is not None))
    return tuple(tasks)


def _free(node: str, used: set[str], numbers: Counter[str]) -> str:
    numbers[node] += 1
    while f"{node}:{numbers[node]}" in used:
        numbers[node] += 1
    return f"{node}:{numbers[node]}"
