"""The stage: what a pattern's program (``Pattern.conduct``) can do, and how it is made durable. Source: OURS-24, OURS-25.

    call            run a member as a child run, on a shard of its own choice           member.py
    function        run a function in a tool executor                                   here
    ask             ask a person                                                        here
    remember        choose a value once                                                 here
    side_by_side    several of these at once

Each of them has a key. What came of it is recorded (``steps.py``) before anybody hears of it, and when the program is played
again, after a pause, a crash or a move, it is given what is recorded, and only the rest runs. So the program must do the
same whenever it is given the same, and keeps nothing outside of its local variables.

A step that pauses raises :class:`StepPaused`; those that run beside it finish first, then the pattern pauses.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from pydantic_core import to_json

from ...protocol.codec import plain
from ...protocol.commands import CancelRun, StartRun
from ...protocol.errors import ConfigurationError, OutcomeUnknown, RunError, UmbelError
from ...protocol.events import Event, StepCompleteEvent, StepStartEvent
from ...protocol.messages import InterruptRequest, Message, ToolCall
from ...protocol.patterns import Ending, MemberResult
from ...protocol.results import Metrics
from ...protocol.state import AgentState
from ...protocol.turn import PendingInterrupt
from ..runnable import Runnable
from ..tools.decorator import Tool
from ..tools.output import json_in
from .execute import call_tool
from .member import Asked, run_member
from .pause import asking
from .purse import purse_of
from .run import Run
from .slot import Slot
from .steps import StepLog, end_record, past_results, record, result_record, spent_record
from .subagent import child_channel
from .thread import save

T = TypeVar("T")
Perform = Callable[[str], Awaitable[MemberResult]]


class StepPaused(BaseException):
    """A step waits for a person. Not an ``Exception``, so that a program which handles failures lets it pass."""


class Stage:
    """One run of a pattern, as its program sees it.

    Args:
        run: the run; its state is loaded.

    Attributes:
        log: what is recorded.
        paused: what this segment has to ask.
        begun: requests of member runs in progress, by step.
        stopped: ids of those that were told to stop.
        leaving: the run is stopped, or its caller is gone: what the program loses now, it has not given up.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.pattern = run.agent
        self.log = StepLog(run.state.messages, again=run.request.mode == "continue")
        self.paused: list[PendingInterrupt] = []
        self.begun: dict[str, StartRun] = {}
        self.stopped: set[str] = set()
        self.leaving = False
        self._keys: set[str] = set()
        self._tasks: dict[str, asyncio.Task[MemberResult]] = {}
        self._unwanted: set[str] = set()
        self._unsaved: list[Message] = []
        self._ended: list[tuple[MemberResult, dict[str, bool]]] = []
        self._asked: dict[str, list[PendingInterrupt]] = {}
        self._saving = asyncio.Lock()
        self._changes = self._stored = 0
        self._is_open = False
        self._live = not self.log.records or self.log.replayed
        self.room = asyncio.Semaphore(self.pattern.max_concurrency or 1_000_000)
        for waits in run.state.interrupts:
            self._asked.setdefault(waits.call.id, []).append(waits)
        for result in self.log.totals:
            self._count(result)

    # facts

    @property
    def prompt(self) -> str:
        """The task."""
        return self.log.prompt

    @property
    def values(self) -> dict[str, Any] | None:
        """The structured input, JSON values; None where the task is a text."""
        return self.log.values

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The run's metadata."""
        return self.run.state.metadata

    @property
    def run_id(self) -> str:
        """The run, kept across pauses."""
        return self.run.id

    @property
    def thread_id(self) -> str | None:
        """Its thread, if it has one."""
        return self.run.request.thread_id

    @property
    def replaying(self) -> bool:
        """Only what is recorded has been asked for so far."""
        return not self._live

    def earlier(self, key: str) -> Any:
        """What was remembered last under ``key``, in this turn until now or in an earlier one of the thread; or None."""
        return self.log.earlier(key)

    @property
    def past(self) -> list[MemberResult]:
        """The results of earlier turns of the thread, oldest first; of a step that was tried again, the newest."""
        return past_results(self.run.state.messages)

    # what a program does

    async def call(
        self,
        member: str,
        prompt: str,
        *,
        key: str | None = None,
        values: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = None,
        history: Iterable[Message] = (),
        full: bool = False,
        calls: Collection[str] = (),
        runnable: Runnable | None = None,
    ) -> MemberResult:
        """Run a member, and say what came of it; what it did wrong is never raised.

        Args:
            member: its name in the pattern.
            prompt: its task.
            key: of the step; default is the member's name.
            values: structured input, for members that take it.
            metadata: JSON values for its tools, besides the run's own.
            timeout: seconds until it is stopped with ``time_budget``.
            history: the conversation that an agent goes on from, as if it had been its own; its system prompt stands before.
            full: the result holds the member's whole conversation, or what it added to ``history``, and is stored with it.
            calls: names of tools; the result holds what an agent called them with.
            runnable: the member itself, where the pattern's definition does not name it.

        Raises:
            StepPaused: it asks a person.
            ConfigurationError: there is no such member.
        """
        found = self.pattern.find(member) if runnable is None else runnable
        if isinstance(found, Tool):
            safe = found.idempotent
            arguments = {found.text_argument or "prompt": prompt}
            return await self.function(member, arguments, key=key or member, idempotent=safe, timeout=timeout)
        fields: dict[str, Any] = {"prompt": prompt, "values": values, "metadata": metadata or {}, "timeout": timeout}
        before = tuple(history)
        if before:
            fields["state"] = to_json(AgentState(messages=before))

        async def perform(step: str) -> MemberResult:
            return await run_member(self, step, member, found, fields, full=full, calls=calls)

        return await self._step(key or member, member, perform)

    async def function(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        key: str,
        member: str | None = None,
        idempotent: bool = True,
        timeout: float | None = None,
        owner: Any = None,
    ) -> MemberResult:
        """Call a function of the pattern in a tool executor; it may ask a person, as often as it likes.

        It is a function of ``functions``, or a member that is one.

        Args:
            name: of the function in ``pattern.tools_by_name``.
            arguments: JSON values.
            key: of the step.
            member: whose step it is, for results and events; default is ``name``.
            idempotent: it may run again when a crash hides what came of it; otherwise the step fails with ``outcome_unknown``.
            timeout: seconds until it is stopped with ``time_budget``.
            owner: the definition that has the function; default is the pattern.

        Raises:
            StepPaused: it asks a person.
            ConfigurationError: there is no such function.
        """
        having = (self.pattern if owner is None else owner).tools_by_name
        tool = having.get(name)
        if tool is None:
            known = ", ".join(having) or "none"
            raise ConfigurationError(f"{self.pattern.title} has no function {name!r}; it has: {known}")
        title = member or name

        async def perform(step: str) -> MemberResult:
            guarded = not idempotent and self.run.is_durable
            if guarded and step in self.log.begun:
                unknown = OutcomeUnknown(f"{title}: the process stopped while it ran. Verify what it did before you repeat it")
                return MemberResult(step=step, member=title, status="failed", stop_reason="error", error=unknown.to_wire())
            call = ToolCall(id=step, name=name, arguments=arguments)
            try:
                async with self.room, asyncio.timeout(timeout):
                    if guarded:
                        await self.store(record("begun", step))
                    definition = None if owner is None else self.run.peers.register(owner)
                    return await self._call_function(title, tool, call, definition)
            except TimeoutError:
                return MemberResult(step=step, member=title, status="failed", stop_reason="time_budget")

        return await self._step(key, title, perform)

    async def reuse(self, result: MemberResult, *, key: str) -> MemberResult:
        """A step for which an equal step's result is taken; it is recorded as ``cached``."""

        async def perform(step: str) -> MemberResult:
            self.announce(step, result.member)
            return result.evolve(step=step, cached=True, metrics=Metrics(), duration_ms=0.0)

        return await self._step(key, result.member, perform)

    async def ask(
        self,
        question: str,
        *,
        key: str,
        options: Iterable[str] | None = None,
        fields: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Any:
        """Ask a person; the answer, a JSON value, once there is one.

        Raises:
            StepPaused: there is none yet.
        """
        self._take_key(key)
        answers = self.log.answers.get(key)
        if answers:
            return answers[-1]["answers"][key]
        self._live = True
        request = InterruptRequest(
            question=question, options=None if options is None else tuple(options), fields=fields, metadata=metadata or {}
        )
        waits = PendingInterrupt(interrupt_id=key, call=ToolCall(id=key, name=self.pattern.title), request=request)
        return self._pause([waits])

    async def remember(self, key: str, make: Callable[[], Any]) -> Any:
        """What ``make`` (sync or async) gave the first time: a JSON value that every replay gets again."""
        known, value = self.log.value(key)
        if known:
            return value
        self._live = True
        made = make()
        value = await made if isinstance(made, Awaitable) else made
        value = plain(value, f"{self.pattern.title}: the value of {key!r}")
        self.log.keep_value(key, value)
        await self.store(record("value", key, value=value))
        return value

    async def side_by_side(self, awaitables: Iterable[Awaitable[T]], limit: int | None = None) -> list[T]:
        """What all of them give, in their order, once all have ended.

        Args:
            awaitables: calls of this stage, or coroutines made of them.
            limit: how many run at once, 1 or more; None is as many as the pattern allows.

        Raises:
            StepPaused: one of them asks a person.
            Exception: what the first of them raised.
            ConfigurationError: a limit below 1.
        """
        jobs = list(awaitables)
        if limit is not None and limit < 1:
            raise ConfigurationError(f"limit must be 1 or more, not {limit}")
        room = asyncio.Semaphore(min(limit or len(jobs), len(jobs)))
        tasks = [asyncio.ensure_future(_within(room, job)) for job in jobs]
        with self.sharing(min(len(jobs), limit or len(jobs))):
            try:
                if tasks:
                    await asyncio.wait(tasks)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                for job in jobs:
                    if inspect.iscoroutine(job):
                        job.close()  # one that was stopped before its turn came
        raised = [error for error in ended if isinstance(error, BaseException)]
        for error in sorted(raised, key=_rank):
            raise error
        return [task.result() for task in tasks]

    @contextmanager
    def sharing(self, members: int) -> Iterator[None]:
        """Inside, up to so many members run at once: none of them gets more of the budgets than such a share."""
        purse = purse_of(self.run)
        more = max(min(members, self.pattern.max_concurrency or members), 1) - 1
        purse.width += more
        try:
            yield
        finally:
            purse.width -= more

    def pass_over(self, keys: Iterable[str]) -> None:
        """Recorded steps that the program does not ask for, because a value that it remembered says what became of them."""
        self.log.pass_over(keys)
        self._live = self._live or self.log.replayed

    def emit(self, event_class: type[Event], **fields: Any) -> None:
        """Tell whoever watches; nothing is told again while the program is only given what is recorded."""
        if self._live:
            self.run.emit(event_class, **fields)

    def mark(self, **facts: Any) -> None:
        """Searchable facts for the next checkpoint."""
        self.run.memo.marks.update(facts)

    # steps

    def _take_key(self, key: str) -> None:
        if key in self._keys:
            raise RunError(f"{self.pattern.title} has two steps with the key {key!r}: each needs one of its own")
        self._keys.add(key)

    async def _step(self, key: str, member: str, perform: Perform) -> MemberResult:
        """One step: recorded, or carried out now."""
        self._take_key(key)
        if self.log.knows(key):
            return await self.log.recall(key)
        waiting = self._asked.get(key)
        if waiting:
            self._pause(waiting)
        self._live = True
        task = self._tasks[key] = asyncio.ensure_future(self._carry_out(key, member, perform))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done() and not self.leaving and not self.paused:
                await self.give_up(key)  # the program does not want it any more
            raise

    async def _carry_out(self, key: str, member: str, perform: Perform) -> MemberResult:
        began = time.monotonic()
        if not self._is_open:
            await self._open()
        try:
            result = await perform(key)
        except StepPaused:
            self.run.emit(StepCompleteEvent, step=key, step_member=member, status="interrupted", stop_reason="interrupted")
            raise
        except asyncio.CancelledError:
            if key in self._unwanted:
                given_up = MemberResult(step=key, member=member, status="cancelled", stop_reason="cancelled")
                self._ended.append((given_up, {"unwanted": True}))
            raise
        except UmbelError as error:
            result = MemberResult(step=key, member=member, status="failed", stop_reason="error", error=error.to_wire())
        if not result.duration_ms:
            result = result.evolve(duration_ms=(time.monotonic() - began) * 1e3)
        self._count(result)
        if result.status == "cancelled" and self.run.stopping is not None and key not in self._unwanted:
            self.counted(key, result.metrics)
            return result  # it was stopped with the pattern: who continues that continues it
        await self._record(result)
        return result

    async def _record(self, result: MemberResult) -> None:
        """A step has ended: that is recorded, and then told."""
        marks: dict[str, bool] = {}
        if result.step in self._unwanted:  # whatever came of it, the program does not know
            result, marks = result.evolve(status="cancelled", stop_reason="cancelled"), {"unwanted": True}
        self.run.state = self.run.state.next_iteration()
        self._ended.append((result, marks))
        await self.store()

    def counted(self, key: str, metrics: Metrics) -> None:
        """What a member that will go on has used so far is counted; it is recorded with whatever is saved next."""
        self._unsaved.append(spent_record(key, metrics))

    def _tell(self, result: MemberResult) -> None:
        self.run.emit(
            StepCompleteEvent,
            step=result.step,
            step_member=result.member,
            status=result.status,
            stop_reason=result.stop_reason,
            result=result.text,
            error=result.problem or None,
            duration_ms=result.duration_ms,
        )

    def tell_again(self, after_seq: int) -> None:
        """The ends of steps that are stored and that nobody may have heard of: the supervisor died before they had left it."""
        for segment, seq, result in self.log.ends:
            if segment == self.run.request.run_id and seq > after_seq:
                self._tell(result)

    def announce(self, key: str, member: str, child_run_id: str | None = None) -> None:
        """A step starts."""
        self.run.emit(StepStartEvent, step=key, step_member=member, child_run_id=child_run_id)

    async def _call_function(self, member: str, tool: Tool, call: ToolCall, definition: str | None = None) -> MemberResult:
        """Have an executor call a function, with the answers that it has got so far."""
        key, answers = call.id, self.log.answers.get(call.id, ())
        waits: tuple[PendingInterrupt, ...] = ()
        if answers:
            request = InterruptRequest(question="")
            given = tuple(answer["answers"][answer["asked"]] for answer in answers)
            waits = (PendingInterrupt(interrupt_id=key, call=call, request=request, answers=given),)
        slot = Slot(call, tool, waits)
        slot.announced = True
        self.announce(key, member)
        result = await call_tool(self.run, slot, definition)
        if slot.asks:
            self._unsaved.append(record("asked", key))
            self._pause(slot.asks)
        if result.error is not None:
            error = {"code": result.code or "tool", "message": result.error, "details": {}}
            return MemberResult(step=key, member=member, status="failed", stop_reason="error", error=error)
        return MemberResult(step=key, member=member, text=result.content, value=json_in(result), duration_ms=result.duration_ms)

    def pause_for(self, key: str, member: str, prompt: str, questions: Iterable[Asked]) -> NoReturn:
        """A member asks: each question with what is needed to go on with the member.

        Raises:
            StepPaused: in any case.
        """
        slot = Slot(ToolCall(id=key, name=member, arguments={"prompt": prompt}), None)
        asks = []
        for question, child in questions:
            request = InterruptRequest.model_validate({name: question.get(name) for name in InterruptRequest.model_fields})
            asks.append(asking(slot, request, child))
        self._pause(asks)

    def _pause(self, asks: Iterable[PendingInterrupt]) -> NoReturn:
        self.paused += asks
        raise StepPaused

    def _count(self, result: MemberResult) -> None:
        """The pattern's totals, besides tokens and cost, which its state has."""
        memo, metrics = self.run.memo, result.metrics
        memo.tool_calls += metrics.tool_calls
        memo.tool_errors += metrics.tool_errors
        memo.unpriced = memo.unpriced or (bool(metrics.model_calls) and metrics.cost_usd is None)

    # records

    async def _open(self) -> None:
        """Before the first step begins, what the turn is, or what was answered, is stored: so whoever comes can continue it."""
        async with self._saving:
            if not self._is_open:
                await save(self.run)
            self._is_open = True

    async def store(self, *records: Message) -> None:
        """Record, and return when it is stored; what happens at the same moment is stored together.

        The end of a step is told once it is stored. Its record holds the number of the event that tells it, so that
        whoever recovers the run knows whether it was heard.
        """
        self._unsaved += records
        self._changes += 1
        mine = self._changes
        if not self.run.is_durable:
            self._record_ends()
            return
        async with self._saving:
            if self._stored < mine:
                upto = self._changes
                self.run.hold()
                self.flush()
                await save(self.run)
                self.run.let_go()
                self._stored = upto

    def _record_ends(self) -> None:
        for result, marks in self._ended:
            self._tell(result)
            told = (self.run.request.run_id, self.run.seq) if self.run.watched else None
            self._unsaved.append(result_record(result, told, **marks))
        self._ended = []

    def flush(self) -> None:
        """What is recorded becomes part of the state."""
        self._record_ends()
        if self._unsaved:
            self.run.state = self.run.state.with_messages(self._unsaved)
            self._unsaved = []

    # the end

    async def settle(self) -> None:
        """Until every step that runs has ended, or asks.

        Raises:
            Exception: what ended one of them, if that is neither a result nor a pause.
        """
        while running := [task for task in self._tasks.values() if not task.done()]:
            await asyncio.wait(running)
        self.log.close()
        for task in self._tasks.values():
            if not task.cancelled() and isinstance(task.exception(), Exception):
                task.result()

    async def give_up(self, key: str) -> None:
        """Stop a step that nobody waits for any more; what it had used is counted."""
        self._unwanted.add(key)
        await self._stop([key])

    async def close(self, *, at_once: bool = False) -> None:
        """Stop whatever runs, within the grace that the pattern gives."""
        self.log.close()
        if not at_once:
            await self._stop([key for key, task in self._tasks.items() if not task.done()])
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _stop(self, keys: list[str]) -> None:
        tasks = [self._tasks[key] for key in keys]
        for key in keys:
            request = self.begun.get(key)
            if request is None:
                self._tasks[key].cancel()
            else:
                self.stopped.add(request.run_id)
                told = asyncio.ensure_future(child_channel(self.run, request).request(CancelRun(run_id=request.run_id)))
                told.add_done_callback(lambda done: done.cancelled() or done.exception())
        if tasks:
            await asyncio.wait(tasks, timeout=self.run.config.cancel_grace_seconds)
        for task in tasks:
            task.cancel()

    def end(self, ending: Ending) -> None:
        """The program has come to its end."""
        self._unsaved.append(end_record(ending, self.run.request.run_id))
        self.flush()


def _rank(error: BaseException) -> int:
    """A pause is raised rather than a cancel, and both rather than an error."""
    return 0 if isinstance(error, StepPaused) else 1 if not isinstance(error, Exception) else 2


async def _within(room: asyncio.Semaphore, job: Awaitable[T]) -> T:
    async with room:
        return await job
