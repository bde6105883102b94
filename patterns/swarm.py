"""Swarm: agents that claim tasks from a common board, by priority and capability. Source: PAT-17 to PAT-23, OURS-26."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from ..actors.agent_definition import Agent
from ..protocol.errors import CapReached, ConfigurationError, DeadlineExceeded, PatternError, Unclaimed
from ..protocol.events import PatternEvent
from ..protocol.patterns import Ending, MemberResult
from ..protocol.results import StopReason
from .auxiliary import auxiliary_agent, with_value
from .board import Board, SwarmTask, task_of
from .board_tools import ABOUT, BOARD_TOOLS, posts_of
from .calls import Calls
from .endings import concluded, failed
from .pattern import Member, Pattern, named
from .structure import END, START, Edge

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage


@dataclass(frozen=True)
class SwarmAgent:
    """A member of a swarm with what it is capable of.

    Args:
        agent: an agent, a pattern, a function; see ``Pattern``.
        capabilities: tags that tasks require or prefer.
    """

    agent: Member
    capabilities: Iterable[str] = ()


class PlannedTask(BaseModel):
    """A part of the goal."""

    description: str = Field(min_length=1)
    required: list[str] = Field(default=[], description="Capabilities that an agent must have for it")
    preferred: list[str] = Field(default=[], description="Capabilities that would help")


class Plan(BaseModel):
    """What the goal is split into, most urgent first."""

    tasks: list[PlannedTask]


class Swarm(Pattern):
    """Agents that take tasks from a board until none is left.

    An agent that is free claims the open task of the highest priority whose required capabilities it has. Tasks run side by
    side; what they found out, and their results, are part of the prompts of later tasks. An agent gets three tools for this
    (``share_finding``, ``write_blackboard``, ``add_task``); a member with structured output, and a function that returns a
    mapping, have the fields ``findings`` (texts), ``blackboard`` (a mapping) and ``subtasks`` (texts or mappings) instead.
    What a task posts can be seen by tasks that are claimed after it has ended. The subtasks of a failed task are dropped.

    Claims are decided in one place, the swarm's supervisor, and recorded: a task that was claimed stays with its agent when
    the run is played again after a pause, a crash or a move.

    The result's ``outputs`` are the tasks' texts in the order of ``details["tasks"]``; ``details`` also has ``findings``,
    ``blackboard``, ``completed``, ``failed`` and ``unclaimed`` (ids). A failed task does not stop the others. The swarm
    fails if a task failed (with ``on_error="continue"``: if all did), if nobody can claim a task, or if there would be
    more than ``max_iterations`` generations.

    Args:
        agents: :class:`SwarmAgent`, or any member, which then has no capabilities; a list, or a mapping by name.
        model: for splitting the goal and for the summary: as for ``Agent``.
        tasks: what to begin with, texts or mappings (``description``, ``priority``, ``required``, ``preferred``). A run may
            have its own: its input is then ``{"goal": ..., "tasks": [...]}``. Without any, the goal is split, or is one task.
        decompose: split the goal with the model, if there is one.
        summarize: write the final answer with the model, if there is one; else it is what the swarm knows, as text.
        max_parallel_agents: tasks in progress at the same time.
        per_agent: of these, with one agent.
        max_iterations: generations: the first tasks, their subtasks, the subtasks of these, ...
        task_timeout: seconds until a task has failed.
        context_chars: how much of what the swarm knows is in a task's prompt; the newest, if there is more.
        **settings: of :class:`Pattern`.
    """

    def __init__(
        self,
        agents: Iterable[Member] | Mapping[str, Member],
        *,
        model: Any = None,
        tasks: Iterable[Any] = (),
        decompose: bool = True,
        summarize: bool = True,
        max_parallel_agents: int = 5,
        per_agent: int = 1,
        max_iterations: int = 10,
        task_timeout: float = 120.0,
        context_chars: int = 8_000,
        **settings: Any,
    ) -> None:
        caps = {
            "max_parallel_agents": max_parallel_agents,
            "per_agent": per_agent,
            "max_iterations": max_iterations,
            "context_chars": context_chars,
        }
        for name, value in caps.items():
            if value < 1:
                raise ConfigurationError(f"{name} must be a whole number from 1, not {value!r}")
        if task_timeout <= 0:
            raise ConfigurationError(f"task_timeout must be a positive number of seconds, not {task_timeout!r}")
        self.max_parallel_agents, self.per_agent = max_parallel_agents, per_agent
        self.max_iterations, self.task_timeout, self.context_chars = max_iterations, task_timeout, context_chars
        self.tasks = tuple(map(task_of, tasks))
        members, self.capabilities = _with_capabilities(agents)
        auxiliary = {}
        if model is not None and decompose:
            auxiliary["planner"] = auxiliary_agent(model, "planner", "You split a goal into tasks for a team of agents.", Plan)
        if model is not None and summarize:
            auxiliary["summarizer"] = auxiliary_agent(model, "summarizer", "You write the final answer of a team of agents.")
        settings.setdefault("max_concurrency", max_parallel_agents)
        super().__init__({name: _equipped(member) for name, member in members.items()}, auxiliary=auxiliary, **settings)

    def add_task(
        self, description: str, *, priority: int | None = None, required: Iterable[str] = (), preferred: Iterable[str] = ()
    ) -> SwarmTask:
        """Another task for later runs to begin with."""
        fields: dict[str, Any] = {"description": description, "required": required, "preferred": preferred}
        task = task_of(fields if priority is None else {**fields, "priority": priority})
        self.tasks = (*self.tasks, task)
        self._packed = None
        return task

    def input_of(self, prompt: Any) -> tuple[str, dict[str, Any] | None]:
        text, values = super().input_of(prompt)
        if values is not None:
            if not isinstance(values.get("goal", ""), str) or values.keys() - {"goal", "tasks"}:
                raise ConfigurationError(f"{self.title} takes a text, or a mapping with goal (a text) and tasks, not {text}")
            given = values.get("tasks", [])
            if not isinstance(given, list):
                raise ConfigurationError(f"tasks of {self.title} must be a list of texts and mappings, not {given!r}")
            for task in given:
                task_of(task)
        return text, values

    def flow(self) -> list[Edge]:
        before = "planner" if "planner" in self.auxiliary else START
        after = "summarizer" if "summarizer" in self.auxiliary else END
        edges = [Edge(START, before)] if before != START else []
        edges += [
            e for name in self.members for e in (Edge(before, name, "conditional", "claims"), Edge(name, after, "barrier"))
        ]
        return [*edges, Edge(after, END)] if after != END else edges

    async def conduct(self, stage: Stage) -> Ending:
        values = stage.values or {}
        goal: str = values.get("goal", "") if stage.values is not None else stage.prompt
        board = Board(self.capabilities, self.per_agent, lambda task: stage.log.value(_claim(task))[1])
        first = [*self.tasks, *map(task_of, values.get("tasks", ()))]
        if not first and goal:
            planned = await self._split(stage, goal)
            if isinstance(planned, Ending):
                return planned
            first = planned
        for task in first:
            _announce(stage, "task_added", board.add(task))
        await self._work(stage, goal, board)
        return await self._end(stage, goal, board)

    async def _split(self, stage: Stage, goal: str) -> list[SwarmTask] | Ending:
        """The tasks that the goal consists of; an ending when the model failed."""
        whole = [SwarmTask(description=goal)]
        if "planner" not in self.auxiliary:
            return whole
        agents = "\n".join(
            f"- {name}: {', '.join(sorted(tags)) or 'no capabilities'}" for name, tags in self.capabilities.items()
        )
        prompt = f"Goal: {goal}\n\nAgents and their capabilities:\n{agents}\n\nSplit the goal into tasks, most urgent first."
        result = with_value(await stage.call("planner", prompt))
        if not result.success:
            return whole if self.on_error == "continue" else failed([result])
        plan = Plan.model_validate(result.value)
        return [task_of(task.model_dump()) for task in plan.tasks] or whole

    async def _work(self, stage: Stage, goal: str, board: Board) -> None:
        """Until nobody can claim anything any more."""
        calls: Calls[tuple[SwarmTask, str]] = Calls()
        try:
            with stage.sharing(min(self.max_parallel_agents, max(len(self.members), 1) * self.per_agent)):
                while True:
                    while len(calls) < self.max_parallel_agents and (claimed := board.claim()) is not None:
                        _announce(stage, "task_claimed", *claimed)
                        calls.start(claimed, self._carry_out(stage, goal, board, *claimed))
                    if not len(calls):
                        return
                    (task, agent), ended = await calls.next()
                    self._settle(stage, board, task, agent, ended)
        finally:
            calls.close()

    def _carry_out(self, stage: Stage, goal: str, board: Board, task: SwarmTask, agent: str) -> Any:
        """One task, with the prompt of the moment in which it was claimed."""
        known = board.context(self.context_chars)
        about = f"Goal: {goal}\n\n" if goal and goal != task.description else ""
        prompt = f"{about}Your task: {task.description}" + (f"\n\nWhat is known so far:\n\n{known}" if known else "")
        tags = sorted(frozenset().union(*self.capabilities.values()))
        metadata = {ABOUT: {"id": task.id, "may_add": task.generation < self.max_iterations, "capabilities": tags}}

        async def carry_out() -> MemberResult:
            await stage.remember(_claim(task.id), lambda: agent)
            tools = [one.name for one in BOARD_TOOLS]
            key = f"task-{task.id}"
            return await stage.call(agent, prompt, key=key, metadata=metadata, timeout=self.task_timeout, calls=tools)

        return carry_out()

    def _settle(self, stage: Stage, board: Board, task: SwarmTask, agent: str, result: MemberResult) -> None:
        """A task has ended: what it came to, and what it has posted, goes onto the board."""
        result = _as_failure(result, self.task_timeout)
        findings: list[str] = []
        subtasks: list[SwarmTask] = []
        try:
            findings, facts, subtasks = posts_of(result)
            board.facts.update(facts)
        except ConfigurationError as error:  # a subtask that is none
            result = result.evolve(status="failed", stop_reason="error", error=error.to_wire())
        board.findings += [{"task": task.id, "agent": agent, "text": text} for text in findings]
        board.settle(task, agent, result)
        _announce(stage, "task_completed" if result.success else "task_failed", task, agent)
        for given in subtasks if result.success else ():
            if task.generation >= self.max_iterations:
                board.refused.append(given.description)
            else:
                _announce(stage, "task_added", board.add(given, task))

    async def _end(self, stage: Stage, goal: str, board: Board) -> Ending:
        results = list(board.results.values())
        summary = None
        if "summarizer" in self.auxiliary and any(result.success for result in results):
            prompt = f"Goal: {goal}\n\nWhat the agents came to:\n\n{board.context()}\n\nWrite the final answer."
            summary = await stage.call("summarizer", prompt)
        final = summary.text if summary is not None and summary.success else board.context()
        details = {
            "tasks": board.report(),
            "findings": board.findings,
            "blackboard": board.facts,
            "completed": [name for name, result in board.results.items() if result.success],
            "failed": [name for name, result in board.results.items() if not result.success],
            "unclaimed": [task.id for task in board.unclaimed],
        }
        outputs = tuple(_output(board.results.get(name)) for name in board.tasks)
        problem = self._problem(board)
        if problem is not None:
            return Ending.failed(problem[1], problem[0], outputs=outputs, final_output=final, details=details)
        if summary is not None and not summary.success and self.on_error == "fail":
            results.append(summary)
        return concluded(self, results, outputs=outputs, final_output=final, details=details)

    def _problem(self, board: Board) -> tuple[StopReason, PatternError] | None:
        """What is never a success, whatever ``on_error`` says."""
        if board.unclaimed:
            names = "; ".join(
                f"task {task.id} ({task.description[:80]}) requires {', '.join(task.required) or 'an agent'}"
                for task in board.unclaimed
            )
            ids = [task.id for task in board.unclaimed]
            return "error", Unclaimed(f"{self.title} has no agent for: {names}", tasks=ids)
        if board.refused:
            why = (
                f"{self.title} stopped at generation {self.max_iterations} with subtasks left: "
                f"{'; '.join(board.refused)[:500]}. Raise max_iterations, or have the agents split less"
            )
            return "max_iterations", CapReached(why, cap="max_iterations", limit=self.max_iterations)
        return None


def _with_capabilities(agents: Iterable[Member] | Mapping[str, Member]) -> tuple[dict[str, Any], dict[str, frozenset[str]]]:
    """Members and their capabilities, by name."""
    names = list(agents) if isinstance(agents, Mapping) else None
    given = list(agents.values() if isinstance(agents, Mapping) else agents)
    bare = [one.agent if isinstance(one, SwarmAgent) else one for one in given]
    members = named(bare if names is None else dict(zip(names, bare, strict=True)))
    tags = [one.capabilities if isinstance(one, SwarmAgent) else () for one in given]
    return members, {name: frozenset({own} if isinstance(own, str) else own) for name, own in zip(members, tags, strict=True)}


def _equipped(member: Any) -> Any:
    """An agent with the tools of the board."""
    if not isinstance(member, Agent) or member.output_schema is not None:
        return member
    own = member.given.tools
    return member.with_settings(tools=[*own, *(one for one in BOARD_TOOLS if one not in own)])


def _claim(task: str) -> str:
    """The key under which it is recorded who claimed a task."""
    return f"claim/{task}"


def _announce(stage: Stage, kind: str, task: SwarmTask, agent: str | None = None) -> None:
    data = {"task": task.id, "description": task.description, "priority": task.priority, "agent": agent}
    stage.emit(PatternEvent, kind=kind, step=f"task-{task.id}", data=data)


def _output(result: MemberResult | None) -> str:
    return result.text if result is not None and result.success else ""


def _as_failure(result: MemberResult, seconds: float) -> MemberResult:
    """A task that was not done in time has failed; it is not the swarm's time that is over. Source: PAT-22."""
    if result.stop_reason != "time_budget" or result.error is not None:
        return result
    late = DeadlineExceeded(f"it ran out of time (a task has {seconds:g} s)")
    return result.evolve(stop_reason="error", error=late.to_wire())


__all__ = ["Swarm", "SwarmAgent", "SwarmTask"]
