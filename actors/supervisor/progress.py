"""A pattern's steps in progress: carried out, recorded, told, asked about, stopped. Source: OURS-24.

a step      is carried out in a task of its own, unless its result is recorded      steps.py
its end     becomes a record; the record is stored, and only then told
a pause     leaves it open; those that run beside it go on
a stop      reaches the members as a cancel, within the pattern's grace
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn

from ...protocol.commands import CancelRun, StartRun
from ...protocol.errors import RunError, UmbelError
from ...protocol.events import StepCompleteEvent, StepStartEvent
from ...protocol.messages import InterruptRequest, Message, ToolCall
from ...protocol.patterns import Ending, MemberResult
from ...protocol.results import Metrics
from ...protocol.turn import PendingInterrupt
from .member import Asked
from .pause import asking
from .run import Run
from .slot import Slot
from .steps import StepLog, end_record, result_record, spent_record
from .subagent import child_channel
from .thread import save

Perform = Callable[[str], Awaitable[MemberResult]]


class StepPaused(BaseException):
    """A step waits: for a person, or, in a pattern that is suspended, for whoever goes on with it.

    Not an ``Exception``, so that a program which handles failures lets it pass.
    """


class Progress:
    """The steps of one run of a pattern.

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
        self._fingerprints: dict[str, str] = {}
        self._unsaved: list[Message] = []
        self._ended: list[tuple[MemberResult, dict[str, bool]]] = []
        self._asked: dict[str, list[PendingInterrupt]] = {}
        self._saving = asyncio.Lock()
        self._changes = self._stored = 0
        self._opening: asyncio.Task[None] | None = None
        self._live = not self.log.records or self.log.replayed
        run.on_suspend = self._suspend_members
        self.room = asyncio.Semaphore(self.pattern.max_concurrency or 1_000_000)
        for waits in run.state.interrupts:
            self._asked.setdefault(waits.call.id, []).append(waits)
        for result in self.log.totals:
            self._count(result)

    # steps

    def _take_key(self, key: str) -> None:
        if key in self._keys:
            raise RunError(f"{self.pattern.title} has two steps with the key {key!r}: each needs one of its own")
        self._keys.add(key)

    async def _step(self, key: str, member: str, perform: Perform, asked: str = "") -> MemberResult:
        """One step: recorded, or carried out now.

        Args:
            key: of the step.
            member: whose step it is.
            perform: carries it out.
            asked: stands for what it is asked, where it can be asked again without harm: a judge, a router, a merger.
        """
        self._take_key(key)
        self._fingerprints[key] = asked
        if self.log.knows(key, asked):
            return await self.log.recall(key)
        waiting = self._asked.get(key)
        if waiting:
            self._pause(waiting)
        if self.run.suspending:
            raise StepPaused
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
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        if not self._opening.done():
            await asyncio.shield(self._opening)
        self._opening.result()
        if self.run.suspending:
            raise StepPaused
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
        if result.stop_reason == "suspended":
            self.counted(key, result.metrics)
            raise StepPaused
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
            await save(self.run)

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
            self._unsaved.append(result_record(result, told, asked=self._fingerprints.get(result.step, ""), **marks))
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

    def _suspend_members(self) -> None:
        """The pattern is suspended: so are its members in progress, and no step begins any more."""
        for request in self.begun.values():
            told = asyncio.ensure_future(self._tell_to_suspend(request))
            told.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _tell_to_suspend(self, request: StartRun) -> None:
        await asyncio.sleep(0)  # one that begins at this moment is told behind its request
        await child_channel(self.run, request).request(CancelRun(run_id=request.run_id, suspend=True))

    async def give_up(self, key: str) -> None:
        """Stop a step that nobody waits for any more; what it had used is counted."""
        self._unwanted.add(key)
        await self._stop([key])

    async def close(self, *, at_once: bool = False) -> None:
        """Stop whatever runs, within the grace that the pattern gives."""
        self.log.close()
        if not at_once:
            await self._stop([key for key, task in self._tasks.items() if not task.done()])
        running: list[asyncio.Task[Any]] = [*self._tasks.values(), *([self._opening] if self._opening is not None else [])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

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
