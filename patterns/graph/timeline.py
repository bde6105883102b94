"""A graph's run as its thread holds it, read back superstep by superstep. Pure: records go in, values come out.

A superstep is stored as the results of its tasks, each when it ended, and one record that closes it: which tasks there were,
where they lead, and what is to be done next. Values are not stored again: they follow from the input, the replies and the
reducers. So a thread costs what was added to it, and any earlier state can be had from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ...actors.supervisor.steps import result_of
from ...protocol.markers import STEP, VALUES, is_request
from ...protocol.messages import Message
from ...protocol.patterns import MemberResult
from .members import reply_of_member
from .plan import Plan
from .planner import Schedule, Task
from .reply import RESULT, Reply, target_json, target_of
from .schema import Write

SUPERSTEP, UPDATE, RETRY = "superstep-", "update-", "retry-"
Status = Literal["completed", "failed", "skipped"]


@dataclass(frozen=True)
class Done:
    """A task that is over.

    Attributes:
        task: which.
        status: ``skipped`` when its condition was false.
        steps: keys of the recorded steps it consists of: attempts, and a handler.
        reply: what it gave; empty unless it completed.
        problem: why it failed; also of a failure that a handler has replaced.
        handled: a handler's reply took the place of the failure.
        cached: the reply was reused.
        targets: where a ``Command`` or a branch led; None: along the edges.
        duration_ms: milliseconds.
        result: the last attempt's.
    """

    task: Task
    status: Status = "completed"
    steps: tuple[str, ...] = ()
    reply: Reply = field(default_factory=Reply)
    problem: str = ""
    handled: bool = False
    cached: bool = False
    targets: tuple[Any, ...] | None = None
    duration_ms: float = 0.0
    result: MemberResult | None = None

    def to_json(self) -> dict[str, Any]:
        """What the closing record says of it; the reply stays with the step's own record, if it has one."""
        known: dict[str, Any] = {"task": self.task.to_json(), "status": self.status, "steps": list(self.steps)}
        if self.targets is not None:
            known["targets"] = [target_json(target) for target in self.targets]
        if self.problem:
            known["problem"] = self.problem
        if self.handled:
            known["handled"] = True
        if self.cached:
            known["reply"] = self.reply.to_json()
        return known


@dataclass(frozen=True)
class Superstep:
    """A superstep that is over.

    Attributes:
        number: from 1 in each turn; 0 is the input.
        done: its tasks, in order.
        values: the state after it.
        schedule: what comes next.
    """

    number: int
    done: tuple[Done, ...]
    values: Mapping[str, Any]
    schedule: Schedule


@dataclass(frozen=True)
class Timeline:
    """What a thread says of a graph.

    Attributes:
        values: the state as it is now; JSON values.
        schedule: what is to be done next.
        supersteps: of the newest turn.
        begun: the newest turn has got as far as its first superstep.
        segments: ids of the segments that tried failed tasks again.
        failed: tasks of the newest turn that failed and were not tried again.
        writes: of the newest turn, to keys with reducers: what a parent graph folds into its own state.
        updates: how often the state was amended from outside.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)
    supersteps: tuple[Superstep, ...] = ()
    begun: bool = False
    segments: tuple[str, ...] = ()
    failed: tuple[Task, ...] = ()
    writes: tuple[tuple[str, Any], ...] = ()
    updates: int = 0

    @property
    def number(self) -> int:
        """The newest superstep's."""
        return self.supersteps[-1].number if self.supersteps else 0

    @property
    def steps(self) -> list[str]:
        """Keys of all steps whose superstep is over."""
        return [key for superstep in self.supersteps for done in superstep.done for key in done.steps]


def input_of(plan: Plan, prompt: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a turn's task writes: the values themselves, or the text as ``task``, or as a message."""
    if values is not None:
        return dict(values)
    if not prompt:
        return {}
    if plan.schema.has("task") or not plan.schema.has("messages"):
        return {"task": prompt}
    return {"messages": [{"role": "user", "content": prompt}] if plan.schema.reduces("messages") else prompt}


def begin(plan: Plan, timeline: Timeline, prompt: str, values: Mapping[str, Any] | None) -> Timeline:
    """A turn's input, merged into the state that there is: through the reducers, and over the defaults.

    Raises:
        InvalidUpdate: the input does not fit.
    """
    writes = [Write("the input", key, value) for key, value in input_of(plan, prompt, values).items()]
    filled = plan.schema.fill(timeline.values)
    return Timeline(values=plan.schema.fold(filled, writes), updates=timeline.updates)


def writes_of(plan: Plan, done: Done) -> list[Write]:
    """What a task writes, in the order in which the node named the keys. Source: PAT-36, PAT-49."""
    task, reply = done.task, done.reply
    writer = f"node {task.node!r}" if task.id == task.node else f"node {task.node!r} (task {task.id!r})"
    writes = [Write(writer, key, value) for key, value in reply.writes]
    writes += [Write(writer, key, value) for key, value in ({} if reply.to_parent else reply.update).items()]
    if task.payload is None:
        return writes + ([Write(writer, RESULT, reply.value)] if reply.has_value else [])
    if (task.named or reply.has_value) and plan.schema.has(task.id):
        record = {"error": done.problem, "item": task.payload} if done.status == "failed" else reply.output
        writes.append(Write(writer, task.id, record))
    return writes


def close(plan: Plan, timeline: Timeline, number: int, done: Iterable[Done], schedule: Schedule) -> Timeline:
    """The timeline with one more superstep.

    Raises:
        ConflictingWrites, InvalidUpdate: its writes do not fit together, or not the schema; the values stay as they were.
    """
    done = tuple(done)
    writes = [write for each in done for write in writes_of(plan, each)]
    values = plan.schema.fold(timeline.values, writes)
    shared = [(write.key, write.value) for write in writes if plan.schema.reduces(write.key)]
    return replace(
        timeline,
        values=values,
        schedule=schedule,
        supersteps=(*timeline.supersteps, Superstep(number, done, values, schedule)),
        begun=True,
        failed=(*timeline.failed, *(each.task for each in done if each.status == "failed")),
        writes=(*timeline.writes, *shared),
    )


def amend(plan: Plan, timeline: Timeline, record: Mapping[str, Any]) -> Timeline:
    """The timeline after the state was amended from outside."""
    writes = [Write(record["writer"], key, value) for key, value in record["writes"].items()]
    schedule = timeline.schedule if record.get("schedule") is None else Schedule.from_json(record["schedule"])
    values = plan.schema.fold(timeline.values, writes)
    return replace(timeline, values=values, schedule=schedule, updates=timeline.updates + 1)


def again(timeline: Timeline, segment: str) -> Timeline:
    """The timeline with the tasks that failed to be tried once more."""
    both = (*timeline.schedule.tasks, *timeline.failed)
    tasks = {task.id: task for task in both}  # one that failed in several supersteps, or comes anyway, is tried once
    schedule = replace(timeline.schedule, tasks=tuple(tasks.values()))
    return replace(timeline, schedule=schedule, failed=(), segments=(*timeline.segments, segment))


def read(plan: Plan, messages: Iterable[Message]) -> Timeline:
    """What a thread says.

    Raises:
        InvalidUpdate: the graph has changed since, and what is recorded does not fit it any more.
    """
    reader = Reader(plan)
    reader.read(tuple(messages))
    return reader.timeline


class Reader:
    """Reads a thread that grows, message by message.

    Args:
        plan: the graph.

    Attributes:
        timeline: what the messages that were read say.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.timeline = Timeline()
        self._results: dict[str, Message] = {}
        self._seen: tuple[Message, ...] = ()

    def read(self, messages: tuple[Message, ...]) -> Timeline:
        """What a whole conversation says; of one that begins with the one that was read last, only the rest is read."""
        known = len(self._seen)
        if messages[:known] != self._seen:
            self._begin_anew()
            known = 0
        for message in messages[known:]:
            self._take(message)
        self._seen = messages
        return self.timeline

    def _take(self, message: Message) -> None:
        if is_request(message):
            self.timeline = begin(self._plan, self.timeline, message.content or "", message.metadata.get(VALUES))
            self._results = {}
        facts = message.metadata.get(STEP)
        if facts is None:
            return
        key, value = str(facts["key"]), facts.get("value")
        if facts["kind"] == "result":
            self._results[key] = message
        elif facts["kind"] != "value":
            return
        elif key.startswith(SUPERSTEP):
            done = [_done(self._plan, known, self._results) for known in value["done"]]
            schedule = Schedule.from_json(value["schedule"])
            self.timeline = close(self._plan, self.timeline, value["number"], done, schedule)
        elif key.startswith(UPDATE):
            self.timeline = amend(self._plan, self.timeline, value)
        elif key.startswith(RETRY):
            self.timeline = again(self.timeline, value["segment"])


def _done(plan: Plan, known: Mapping[str, Any], results: Mapping[str, Message]) -> Done:

    task, steps = Task.from_json(known["task"]), tuple(known["steps"])
    last = results.get(steps[-1]) if steps else None
    result = None if last is None else result_of(last)
    reply = Reply()
    if "reply" in known:
        reply = Reply.from_json(known["reply"])
    elif known["status"] == "completed" and result is not None:
        reply = reply_of_member(plan, plan.nodes.get(task.node), result, handled=known.get("handled", False))
    return Done(
        task=task,
        status=known["status"],
        steps=steps,
        reply=reply,
        problem=known.get("problem", ""),
        handled=known.get("handled", False),
        cached="reply" in known,
        targets=tuple(target_of(target) for target in known["targets"]) if "targets" in known else None,
        duration_ms=sum(result_of(results[key]).duration_ms for key in steps if key in results),
        result=result,
    )
