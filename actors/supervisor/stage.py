"""The stage: what a pattern's program (``Pattern.conduct``) can do, and how it is made durable. Source: OURS-24, OURS-25.

    call            run a member as a child run, on a shard of its own choice           member.py
    function        run a function in a tool executor                                   here
    ask             ask a person                                                        here
    remember        choose a value once                                                 here
    side_by_side    several of these at once

Each of them has a key. What came of it is recorded (``progress.py``, ``steps.py``) before anybody hears of it, and when the
program is played again, after a pause, a crash or a move, it is given what is recorded, and only the rest runs. So the
program must do the same whenever it is given the same, and keeps nothing outside of its local variables.

A step that pauses raises ``StepPaused``; those that run beside it finish first, then the pattern pauses.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ...protocol.codec import plain, to_json
from ...protocol.errors import ConfigurationError, OutcomeUnknown
from ...protocol.events import Event
from ...protocol.messages import InterruptRequest, Message, ToolCall
from ...protocol.patterns import MemberResult
from ...protocol.results import Metrics
from ...protocol.state import AgentState
from ...protocol.turn import PendingInterrupt
from ..runnable import Runnable
from ..tools.decorator import Tool
from ..tools.output import json_in
from .execute import call_tool
from .member import run_member
from .progress import Progress, StepPaused
from .purse import purse_of
from .slot import Slot
from .steps import fingerprint, past_results, record

T = TypeVar("T")


class Stage(Progress):
    """One run of a pattern, as its program sees it; the other half of it is in ``progress.py``."""

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

        asked = fingerprint(prompt, values) if member in self.pattern.auxiliary else ""
        return await self._step(key or member, member, perform, asked)

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


def _rank(error: BaseException) -> int:
    """A pause is raised rather than a cancel, and both rather than an error."""
    return 0 if isinstance(error, StepPaused) else 1 if not isinstance(error, Exception) else 2


async def _within(room: asyncio.Semaphore, job: Awaitable[T]) -> T:
    async with room:
        return await job
