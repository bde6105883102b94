"""``Play``: one playing of an entrypoint's body, and which of its calls is which step. Source: PAT-64, PAT-65.

The body is plain code, so its calls have no keys. They get them here: the name and how many calls of that name came before,
in the order in which the body makes them. A body that does the same when it is given the same makes the same calls.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import hashlib
import inspect
import json
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ..actors.tools.context import enter, leave
from ..actors.tools.decorator import is_async
from ..protocol.errors import MemberFailed, RunError
from ..protocol.patterns import MemberResult, failure_of

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage

T_co = TypeVar("T_co", covariant=True)
_current: contextvars.ContextVar[Play | None] = contextvars.ContextVar("umbel_play", default=None)


class Pending(Coroutine[Any, Any, T_co]):
    """What a call in a body gives: a coroutine, to be awaited, in an async one; a future, for its result, in a sync one."""

    @abstractmethod
    def result(self, timeout: float | None = None) -> T_co:
        """Wait, in a sync body.

        Raises:
            TimeoutError: after ``timeout`` seconds.
        """


class Play:
    """A body at work.

    Args:
        stage: where its steps are carried out.

    Attributes:
        facts: its steps, in the order in which the body began them.
        broken: what the runtime itself raised (a store that cannot be written...), whatever the body made of it.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.facts: list[dict[str, Any]] = []
        self.broken: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._calls: Counter[str] = Counter()
        self._equal: dict[str, asyncio.Future[Any]] = {}
        self._over = False

    async def perform(self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run the body: an async one here, a sync one in a thread of its own."""
        mine, outer = _current.set(self), enter(None)  # the body is no tool's, even if a tool's body began this run
        try:
            given = function(*args, **kwargs) if is_async(function) else await in_thread(lambda: function(*args, **kwargs))
            return await given if inspect.isawaitable(given) else given
        finally:
            self._over = True
            _current.reset(mine)
            leave(outer)

    def key(self, name: str) -> str:
        """The key of the next call of that name."""
        self._calls[name] += 1
        return f"{name}-{self._calls[name]}"

    def begin(self, job: Coroutine[Any, Any, Any]) -> Any:
        """What the body gets for a call: the coroutine, to be awaited; in a thread a future, for its ``result()``."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            return job
        return asyncio.run_coroutine_threadsafe(job, self._loop)

    async def step(self, name: str, key: str, carry_out: Callable[[], Awaitable[MemberResult]]) -> MemberResult:
        """Carry out a step. Nothing begins any more once the body has come to its end.

        Raises:
            StepPaused: it asks a person.
        """
        if self._over:
            raise asyncio.CancelledError
        fact: dict[str, Any] = {"step": key, "task": name, "status": "running"}
        self.facts.append(fact)
        _current.set(None)  # what the step runs in this process is not the body
        try:
            result = await carry_out()
        except asyncio.CancelledError:
            fact["status"] = "cancelled"
            raise
        except Exception as error:  # raised again; what is not the body's own patience is the runtime's
            if type(error) is TimeoutError:  # the body had given it up when it was played before
                fact["status"] = "cancelled"
            else:
                self.broken = self.broken or error
            raise
        finally:
            _current.set(self)
        fact["status"] = result.status
        if result.cached:
            fact["cached"] = True
        return result

    async def ask(self, question: str, *, key: str, **fields: Any) -> Any:
        """Ask a person.

        Raises:
            StepPaused: there is no answer yet.
        """
        if self._over:
            raise asyncio.CancelledError
        return await self.stage.ask(question, key=key, **fields)

    async def once(
        self, name: str, what: Any, key: str, lasting: bool, carry_out: Callable[[], Awaitable[MemberResult]]
    ) -> MemberResult:
        """A step whose result is taken from an equal one, if there is one that succeeded; of those at once, one runs.

        Args:
            name: of what the step carries out.
            what: it and its arguments, JSON values; steps are equal if these are.
            key: of the step.
            lasting: also from earlier turns of the thread.
            carry_out: carries the step out.
        """
        sign = hashlib.sha256(canonical(what).encode()).hexdigest()
        while (first := self._equal.get(sign)) is not None:
            ended = await asyncio.shield(first)
            if isinstance(ended, MemberResult) and ended.success:
                return await self.step(name, key, functools.partial(self.stage.reuse, ended, key=key))
            if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
                raise ended
            if self._equal.get(sign) is first:
                del self._equal[sign]
        mine = self._equal[sign] = self._loop.create_future()
        carry = (lambda: self._lasting(f"cache/{sign}", key, carry_out)) if lasting else carry_out
        try:
            result = await self.step(name, key, carry)
        except BaseException as error:  # raised again; equal calls that wait hear of it, too
            mine.set_result(error)
            raise
        mine.set_result(result)
        return result

    async def _lasting(self, cache: str, key: str, carry_out: Callable[[], Awaitable[MemberResult]]) -> MemberResult:
        known = self.stage.earlier(cache)
        if known is not None:
            return await self.stage.reuse(MemberResult.model_validate(known), key=key)
        result = await carry_out()
        if result.success:
            kept = result.model_dump(mode="json", include={"step", "member", "text", "value"})
            await self.stage.remember(cache, lambda: kept)
        return result


def current_play(call: str) -> Play:
    """The playing of the body that this code belongs to.

    Raises:
        RunError: it belongs to none; ``call`` says what needs one.
    """
    play = playing()
    if play is None:
        raise RunError(f"{call}() belongs into the body of an @entrypoint while it runs; in a @task use interrupt() to ask")
    return play


def playing() -> Play | None:
    """The playing of the body that this code belongs to; None elsewhere, and in what a step runs."""
    return _current.get()


def failure(result: MemberResult) -> MemberFailed:
    """What a body catches when a step failed."""
    reason, error = failure_of([result]) or ("error", MemberFailed(f"{result.member}: {result.problem}", steps=[result.step]))
    error.details["stop_reason"] = reason
    return error


def canonical(value: Any) -> str:
    """JSON values as the same text, however their keys are ordered."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


async def in_thread(job: Callable[[], Any]) -> Any:
    """Run ``job`` in a thread of its own, in this context: a body may wait there for any number of others."""
    ended: concurrent.futures.Future[Any] = concurrent.futures.Future()
    ended.set_running_or_notify_cancel()  # who waits may be cancelled, the thread may not
    context = contextvars.copy_context()

    def work() -> None:
        try:
            ended.set_result(context.run(job))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the one who waits gets it
            ended.set_exception(error)

    threading.Thread(target=work, name="umbel-entrypoint", daemon=True).start()
    return await asyncio.wrap_future(ended)
