"""What a swarm knows: its tasks, who may claim which, and what was found out. Source: PAT-18, PAT-19, PAT-23, OURS-26."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..protocol.errors import ConfigurationError
from ..protocol.messages import Frozen, Text
from ..protocol.patterns import MemberResult

PRIORITY = 10  # of the tasks that a swarm begins with; a subtask has one less than its parent


class SwarmTask(Frozen):
    """A task of a swarm.

    Attributes:
        description: what is to be done.
        priority: higher is claimed earlier.
        required: capabilities that an agent must have to claim it.
        preferred: capabilities that decide between agents, and between tasks of one priority.
        id: ``1``, ``2``...; the first subtask of task 2 is ``2.1``. Given by the swarm.
        parent: the task that it came from.
        generation: 1 for the tasks that the swarm begins with, 2 for their subtasks, and so on.
    """

    description: Text
    priority: int = PRIORITY
    required: tuple[Text, ...] = ()
    preferred: tuple[Text, ...] = ()
    id: Text = ""
    parent: Text | None = None
    generation: int = 1


class Profile(NamedTuple):
    """Who may claim a task: who has these capabilities; ``holder`` alone, if it was claimed before."""

    required: frozenset[str]
    preferred: frozenset[str]
    holder: str | None


def task_of(given: Any) -> SwarmTask:
    """A task from a text, a mapping or a task.

    Raises:
        ConfigurationError: it is none of these, or a field is wrong.
    """
    if isinstance(given, SwarmTask):
        return given
    fields = {"description": given} if isinstance(given, str) else given
    known = {"description", "priority", "required", "preferred"}
    if not isinstance(fields, Mapping) or not str(fields.get("description") or "").strip():
        raise ConfigurationError(f"a task is a text, or a mapping with a description, not {given!r}")
    if fields.keys() - known:
        raise ConfigurationError(f"a task has {', '.join(sorted(known))}, not {', '.join(sorted(fields.keys() - known))}")
    tags = {name: _tags(fields.get(name) or ()) for name in ("required", "preferred")}
    priority = fields.get("priority", PRIORITY)
    if not isinstance(priority, int):
        raise ConfigurationError(f"a task's priority is a whole number, not {priority!r}")
    return SwarmTask(description=str(fields["description"]), priority=priority, **tags)


def _tags(given: Any) -> tuple[str, ...]:
    """Capabilities, sorted; one text stands for itself."""
    return tuple(sorted({given} if isinstance(given, str) else set(map(str, given))))


class Board:
    """The state of one run of a swarm.

    Args:
        agents: capabilities of each agent.
        per_agent: tasks that one agent may have at the same time.
        holder_of: who had claimed a task when the run was played before, by the task's id; None if nobody had.

    Attributes:
        tasks: all tasks by id, in the order in which they were added.
        results: of those that have ended, in the order in which they ended.
        findings: ``{"task", "agent", "text"}``, oldest first.
        facts: the blackboard: values by name; the newest wins.
        refused: descriptions of subtasks that came too late in the line of generations.
    """

    def __init__(self, agents: Mapping[str, frozenset[str]], per_agent: int, holder_of: Callable[[str], str | None]) -> None:
        self.agents = dict(agents)
        self.per_agent = per_agent
        self.holder_of = holder_of
        self.tasks: dict[str, SwarmTask] = {}
        self.results: dict[str, MemberResult] = {}
        self.findings: list[dict[str, str]] = []
        self.facts: dict[str, str] = {}
        self.refused: list[str] = []
        self._counts: Counter[str] = Counter()
        self._open: dict[Profile, list[tuple[int, int, str]]] = {}
        self._busy = dict.fromkeys(self.agents, 0)
        self._claimed = dict.fromkeys(self.agents, 0)

    def add(self, given: SwarmTask, parent: SwarmTask | None = None) -> SwarmTask:
        """Open a task."""
        family = f"{parent.id}." if parent is not None else ""
        self._counts[family] += 1
        task = given.evolve(id=f"{family}{self._counts[family]}")
        if parent is not None:
            task = task.evolve(parent=parent.id, priority=parent.priority - 1, generation=parent.generation + 1)
        holder = self.holder_of(task.id)
        profile = Profile(frozenset(task.required), frozenset(task.preferred), holder if holder in self.agents else None)
        heapq.heappush(self._open.setdefault(profile, []), (-task.priority, len(self.tasks), task.id))
        self.tasks[task.id] = task
        return task

    def claim(self) -> tuple[SwarmTask, str] | None:
        """The next task and the agent that claims it; None when nobody who is free can claim any.

        The highest priority goes first; of equals the one whose claimer has the most of the preferred capabilities, then the
        oldest. Of agents that could claim it alike, the one with the fewest claims, then the first of them.
        """
        best: tuple[Any, ...] | None = None
        for profile, heap in self._open.items():
            priority, number, _ = heap[0]
            for index, (agent, tags) in enumerate(self.agents.items()):
                able = agent == profile.holder if profile.holder else profile.required <= tags
                if able and self._busy[agent] < self.per_agent:
                    rank = (priority, -len(profile.preferred & tags), number, self._claimed[agent], index)
                    if best is None or rank < best[0]:
                        best = (rank, profile, agent)
        if best is None:
            return None
        _, profile, agent = best
        task = self.tasks[heapq.heappop(self._open[profile])[2]]
        if not self._open[profile]:
            del self._open[profile]
        self._busy[agent] += 1
        self._claimed[agent] += 1
        return task, agent

    def settle(self, task: SwarmTask, agent: str, result: MemberResult) -> None:
        """A task has ended: its agent is free again."""
        self._busy[agent] -= 1
        self.results[task.id] = result

    @property
    def unclaimed(self) -> list[SwarmTask]:
        """Tasks that are still open."""
        waiting = sorted(entry for heap in self._open.values() for entry in heap)
        return [self.tasks[name] for _, _, name in waiting]

    def context(self, limit: int | None = None) -> str:
        """Findings, blackboard and results as text; of more than ``limit`` characters the newest that fit."""
        found = (f"- {finding['text']} (found by {finding['agent']})" for finding in reversed(self.findings))
        known = (f"- {name}: {value}" for name, value in reversed(self.facts.items()))
        done = (
            f"- {self.tasks[name].description}: {result.text if result.success else f'FAILED, {result.problem}'}"
            for name, result in reversed(self.results.items())
        )
        parts = {"Findings": (self.findings, found), "Blackboard": (self.facts, known), "Results": (self.results, done)}
        share = None if limit is None else limit // max(sum(bool(kept) for kept, _ in parts.values()), 1)
        return "\n\n".join(f"{title}:\n{_newest(lines, share)}" for title, (kept, lines) in parts.items() if kept)

    def report(self) -> list[dict[str, Any]]:
        """Every task as JSON values: its fields, ``status``, and the ``agent`` that had it."""
        return [self._line(task) for task in self.tasks.values()]

    def _line(self, task: SwarmTask) -> dict[str, Any]:
        result = self.results.get(task.id)
        status, agent = ("pending", None) if result is None else (result.status, result.member)
        problem = result.problem if result is not None else ""
        return {**task.model_dump(mode="json"), "status": status, "agent": agent, "error": problem or None}


def _newest(lines: Iterable[str], limit: int | None) -> str:
    """Of lines that come newest first, those that have at most ``limit`` characters together, oldest first."""
    kept: list[str] = []
    left = limit
    for line in lines:
        if left is not None:
            left -= len(line)
            if left < 0:
                kept += ["- (older ones are left out)"] if kept else [line[:left]]
                break
        kept.append(line)
    return "\n".join(reversed(kept))
