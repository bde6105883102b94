"""A graph's run on a stage: superstep after superstep, until nothing is left to run. Source: PAT-35 to PAT-45, OURS-28.

read        what the thread holds: input, supersteps that are over          timeline.py
plan        which tasks come next                                           planner.py
run         they all, side by side, each with its own sends                 nodes.py
close       fold their writes in task order, route, record                  here
end         the result                                                      ending.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...protocol.errors import CapReached, GraphError
from ...protocol.events import GraphStreamEvent
from ...protocol.patterns import Ending
from . import timeline as times
from .commands import START, Send
from .ending import ending_of, stopped
from .nodes import TaskRun
from .planner import Ended, Schedule, Task, tasks_of
from .timeline import Done, Timeline

if TYPE_CHECKING:
    from ...actors.supervisor.stage import Stage
    from .plan import Plan

ALL = "*"


@dataclass(frozen=True)
class Rules:
    """How a graph is run; the fields are those of :class:`CompiledGraph`.

    Attributes:
        tolerant: a failed node is passed over like one whose condition is false.
    """

    max_iterations: int = 100
    parallel: bool = True
    interrupt_before: frozenset[str] = frozenset()
    interrupt_after: frozenset[str] = frozenset()
    tolerant: bool = False


class Runner:
    """One run of a graph.

    Args:
        plan: the graph.
        rules: how it is run.
        stage: what it runs on.
    """

    def __init__(self, plan: Plan, rules: Rules, stage: Stage) -> None:
        self.plan = plan
        self.rules = rules
        self.stage = stage
        self.line = Timeline()
        self._taken: set[str] = set()

    async def run(self) -> Ending:
        """The whole run; what goes wrong in it is how it ends.

        Raises:
            StepPaused: it waits for a person.
            Exception: what a router, condition or input function raised.
        """
        try:
            self.line = times.read(self.plan, self.stage.run.state.messages)
            self.stage.pass_over(self.line.steps)
            await self._again()
            if not self.line.begun:
                await self._enter()
            while await self._goes_on():
                if self.line.number >= self.rules.max_iterations:
                    return self._capped()
                await self._superstep(self.line.number + 1)
        except GraphError as error:
            return stopped(self.plan, self.line, error)
        child = self.stage.run.request.parent_run_id is not None
        return ending_of(self.plan, self.line, child=child, tolerant=self.rules.tolerant)

    async def _again(self) -> None:
        """A turn that is continued tries what had failed once more, beside what comes next; each segment does so once."""
        request = self.stage.run.request
        if request.mode == "continue" and self.line.begun and request.run_id not in self.line.segments:
            key = f"{times.RETRY}{len(self.line.segments) + 1}"
            await self.stage.remember(key, lambda: {"segment": request.run_id})
            self.line = times.again(self.line, request.run_id)

    async def _enter(self) -> None:
        """The input has been merged: what does it lead to?"""
        self.plan.schema.require(self.line.values)
        schedule = self.plan.planner.begin(await self.plan.route(START, self.line.values))
        await self._record(0, (), schedule)
        self.stage.emit(GraphStreamEvent, mode="values", data=dict(self.line.values))

    async def _goes_on(self) -> bool:
        """Whether there is a next superstep."""
        if any(done.reply.to_parent for done in self._newest()):
            return False
        await self._ask_after()
        return bool(self.line.schedule.tasks)

    def _newest(self) -> tuple[Done, ...]:
        return self.line.supersteps[-1].done if self.line.supersteps else ()

    async def _ask_after(self) -> None:
        """A person sees what the newest superstep came to, where that was asked for."""
        asked = [
            done for done in self._newest() if done.status == "completed" and chosen(self.rules.interrupt_after, done.task)
        ]
        await self.stage.side_by_side(
            self.stage.ask(
                f"Node {done.task.node!r} has run. Go on?",
                key=f"{self.line.number}/{done.task.id}/after",
                metadata={"node": done.task.node, "task": done.task.id, "when": "after"},
            )
            for done in asked
        )

    async def _superstep(self, number: int) -> None:
        """Run the tasks of a superstep, and close it."""
        schedule = self.line.schedule
        self.stage.emit(
            GraphStreamEvent,
            mode="debug",
            data={"kind": "superstep_started", "step": number, "tasks": [task.id for task in schedule.tasks]},
        )
        self._taken = set()
        done = await self._all(schedule.tasks, number)
        newest = times.close(self.plan, self.line, number, done, schedule)
        routed = [await self._routed(each, newest) for each in done]
        ended = [Ended(each.task.node, each.targets, each.status != "failed" or self.rules.tolerant) for each in routed]
        following = self.plan.planner.follow(ended, replace(schedule, tasks=()))
        await self._record(number, routed, following)
        self.stage.emit(GraphStreamEvent, mode="values", data=dict(self.line.values))

    async def _all(self, tasks: Iterable[Task], number: int, depth: int = 0) -> list[Done]:
        """Tasks side by side, each followed by what it sent."""
        limit = None if self.rules.parallel else 1
        branches = await self.stage.side_by_side((self._branch(task, number, depth) for task in tasks), limit)
        return [done for branch in branches for done in branch]

    async def _branch(self, task: Task, number: int, depth: int) -> list[Done]:
        key = f"{number}/{task.id}"
        if task.id in self._taken:
            raise GraphError(f"two tasks of a superstep have the id {task.id!r}; every Send needs an id of its own", id=task.id)
        self._taken.add(task.id)
        recorded = self.stage.log.knows(key)
        done = await TaskRun(
            stage=self.stage,
            plan=self.plan,
            key=key,
            task=task,
            values=self.line.values,
            asks_before=chosen(self.rules.interrupt_before, task),
            cache=self.stage.run.request.definition,
        ).carry_out()
        if not recorded:
            self._tell(done)
        sends = sends_of(done)
        if not sends:
            return [done]
        if depth >= self.rules.max_iterations:
            raise GraphError(f"node {task.node!r} sends more than {depth} times in one superstep: its sends lead back to it")
        return [done, *await self._all(tasks_of_sends(task, sends, self.plan.nodes), number, depth + 1)]

    def _tell(self, done: Done) -> None:
        facts: dict[str, Any] = {"task": done.task.id, "status": done.status, "duration_ms": round(done.duration_ms, 3)}
        if done.problem:
            facts["error"] = done.problem
        self.stage.emit(GraphStreamEvent, mode="nodes", node_id=done.task.node, data={**facts, "output": done.reply.output})
        update = {write.key: write.value for write in times.writes_of(self.plan, done)}
        if done.status == "completed":
            self.stage.emit(GraphStreamEvent, mode="updates", node_id=done.task.node, data=update)

    async def _routed(self, done: Done, line: Timeline) -> Done:
        """Where a task leads: its command's targets, or what the node's branches say of the state as it is now."""
        if done.status == "failed" and not self.rules.tolerant:
            return done
        if done.reply.targets is not None and not done.reply.to_parent:
            targets: tuple[str | Send, ...] | None = tuple(each for each in done.reply.targets if isinstance(each, str))
        else:
            targets = await self.plan.route(done.task.node, line.values)
        if targets is not None:
            names = [target if isinstance(target, str) else target.target for target in targets]
            facts = {"kind": "routed", "task": done.task.id, "targets": names}
            self.stage.emit(GraphStreamEvent, mode="debug", node_id=done.task.node, data=facts)
        return replace(done, targets=targets)

    async def _record(self, number: int, done: Iterable[Done], schedule: Schedule) -> None:
        """Close a superstep, in the thread and here."""
        done = tuple(done)
        record = {"number": number, "done": [each.to_json() for each in done], "schedule": schedule.to_json()}
        self.stage.mark(superstep=number)
        await self.stage.remember(f"{times.SUPERSTEP}{number}", lambda: record)
        self.line = times.close(self.plan, self.line, number, done, schedule)

    def _capped(self) -> Ending:
        limit = self.rules.max_iterations
        waiting = ", ".join(task.id for task in self.line.schedule.tasks)
        error = CapReached(
            f"graph {self.plan.name!r} ran {limit} supersteps, and {waiting} would be next: see whether its cycle ends, or "
            "compile(max_iterations=...)",
            cap="max_iterations",
            limit=limit,
        )
        return stopped(self.plan, self.line, error, "max_iterations")


def chosen(names: frozenset[str], task: Task) -> bool:
    """Whether a node is among those named, or all are."""
    return task.node in names or ALL in names


def sends_of(done: Done) -> tuple[Send, ...]:
    """What a task sent, as its result or in a command."""
    if done.reply.to_parent:
        return ()
    return done.reply.sends + tuple(target for target in done.reply.targets or () if isinstance(target, Send))


def tasks_of_sends(task: Task, sends: Iterable[Send], nodes: Iterable[str]) -> tuple[Task, ...]:
    """A task's sends as tasks; those without an id are numbered behind the sender's.

    Raises:
        GraphError: a target is no node, or two have the same id.
    """
    known = frozenset(nodes)
    for send in sends:
        if send.target not in known:
            raise GraphError(
                f"node {task.node!r} sends to {send.target!r}, which is no node; there are {', '.join(sorted(known))}"
            )
    made = tasks_of(sends)
    return tuple(each if each.named else replace(each, id=f"{task.id}.{each.id}") for each in made)
