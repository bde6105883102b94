"""Async bodies on a loop of their own, so that one that blocks never blocks the mailbox (public case 28).

Calls go over in bursts: one wake-up of a loop for everything that is ready, in both directions. They are started one a
tick, so that when a body blocks the loop, those behind it have not begun and move to a fresh loop thread. What has
begun on the stuck one goes on when it is free again, or is given up after a while. A blocking body that is cancelled or
over its deadline is broken into at its next line of Python; one inside a C call (``time.sleep``) can only be outlived.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from ...protocol.errors import OutcomeUnknown, ToolCrashed
from ...protocol.messages import ToolCall, ToolResult
from .context import ToolContext
from .decorator import Tool
from .handover import Handover
from .invoke import failed, run_async, timed_out

logger = logging.getLogger("umbel.tools")

OnBlocked = Callable[[Tool], None]


class _BrokenInto(BaseException):
    """Raised inside a body that blocks its event loop beyond its deadline or cancellation."""


class _Job:
    __slots__ = ("call", "cancelled", "context", "error", "future", "lane", "result", "task", "tool")

    def __init__(self, tool: Tool, call: ToolCall, context: ToolContext, future: asyncio.Future[ToolResult]) -> None:
        self.tool, self.call, self.context, self.future = tool, call, context, future
        self.lane: _Lane | None = None
        self.task: asyncio.Task[ToolResult] | None = None
        self.result: ToolResult | None = None
        self.error: BaseException | None = None
        self.cancelled = False


class ToolLoop:
    """Runs async tools beside the loop that it was made in.

    Args:
        stuck_after: seconds without a beat after which the tool loop counts as blocked.
        lost_after: seconds for which calls that had begun on a blocked loop wait for it before they fail.
        on_blocked: told which tool blocked, in this loop's thread.
    """

    def __init__(
        self, *, stuck_after: float = 0.2, lost_after: float = 30.0, on_blocked: OnBlocked = lambda tool: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._stuck_after, self._lost_after, self._on_blocked = stuck_after, lost_after, on_blocked
        self._done: Handover[_Job] = Handover(self._loop, self._finish)
        self._lane: _Lane | None = None
        self._stuck: set[_Lane] = set()
        self._watch: asyncio.TimerHandle | None = None

    async def run(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
        """Run the call's body on the tool loop, under the tool's timeout, which holds even when that loop is stuck."""
        job = _Job(tool, call, context, self._loop.create_future())
        lane = self._lane
        if lane is None:
            lane = self._lane = _Lane(self._done.post)
        job.lane = lane
        lane.open += 1
        lane.start(job)
        if self._watch is None:
            self._beat(lane)
        timer = None if tool.timeout is None else self._loop.call_later(tool.timeout, self._expire, job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._cancel(job)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Cancel what runs; the threads end as soon as their loops are free. A stuck one ends with the process."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for lane in (*self._stuck, *([self._lane] if self._lane else [])):
            lane.stop()
        self._lane = None

    def _expire(self, job: _Job) -> None:
        if not job.future.done():
            job.future.set_result(timed_out(job.tool, job.call))
            self._cancel(job)

    def _cancel(self, job: _Job) -> None:
        job.cancelled = True
        if job.lane is not None:
            job.lane.cancel(job)
            if job.lane in self._stuck:
                job.lane.interrupt(job)

    def _finish(self, job: _Job) -> None:
        lane = job.lane
        if lane is not None:
            lane.open -= 1
            if not lane.open and lane in self._stuck:
                self._stuck.discard(lane)
                lane.stop()
        if job.future.done():
            return
        if job.result is not None:
            job.future.set_result(job.result)
        elif isinstance(job.error, asyncio.CancelledError):
            closed = ToolCrashed(f"tool {job.tool.name!r} was stopped: its executor is closed")
            job.future.set_result(failed(job.call, closed))
        else:
            job.future.set_exception(job.error or RuntimeError("a tool call ended without a result"))

    def _beat(self, lane: _Lane) -> None:
        lane.beat = False
        lane.call(lane.mark)
        self._watch = self._loop.call_later(self._stuck_after, self._check, lane, monotonic() + self._stuck_after)

    def _check(self, lane: _Lane, due: float) -> None:
        self._watch = None
        if lane is not self._lane or not lane.open:
            return
        # A late check means that this very loop was busy: the lane deserves its full time first.
        if not lane.beat and monotonic() - due < self._stuck_after:
            lane = self._replace(lane)
        if lane.open:
            self._beat(lane)

    def _replace(self, stuck: _Lane) -> _Lane:
        culprit, where = stuck.culprit()
        name = "an async tool" if culprit is None else f"async tool {culprit.tool.name!r}"
        logger.warning(
            "%s has blocked its event loop for more than %.1f s at %s; other calls move to a new loop, "
            "and it runs in a worker process from now on (use a sync def, or await instead of blocking)",
            name,
            self._stuck_after,
            where,
        )
        fresh = self._lane = _Lane(self._done.post)
        self._stuck.add(stuck)
        for job in stuck.rescue():
            stuck.open -= 1
            fresh.open += 1
            job.lane = fresh
            fresh.start(job)
        if culprit is not None:
            self._on_blocked(culprit.tool)
            if culprit.cancelled:
                stuck.interrupt(culprit)
            self._loop.call_later(self._lost_after, self._give_up, stuck, culprit)
        return fresh

    def _give_up(self, stuck: _Lane, culprit: _Job) -> None:
        """Fail what had begun beside ``culprit``, if that blocks the loop to this day."""
        if not stuck.inside(culprit):
            return
        for job in stuck.begun():
            if job is not culprit and not job.future.done():
                why = (
                    f"outcome unknown: the event loop of {job.call.name!r} is blocked by another tool, {culprit.tool.name!r}. "
                    "Verify what happened before you repeat it."
                )
                job.future.set_result(failed(job.call, OutcomeUnknown(why)))
                self._cancel(job)


class _Lane:
    """A thread with an event loop. ``open`` and ``beat`` belong to the owner's loop; the rest crosses by Handover."""

    def __init__(self, done: Callable[[_Job], Any]) -> None:
        self.open = 0
        self.beat = True
        self._report = done
        self._waiting: deque[_Job] = deque()
        self._jobs: dict[asyncio.Task[Any], _Job] = {}
        self._loop = _new_loop()
        self._starting = self._over = False
        self._inbox: Handover[_Job] = Handover(self._loop, self._accept)
        self._thread = threading.Thread(target=self._main, name="umbel-tool-loop", daemon=True)
        self._thread.start()

    def start(self, job: _Job) -> None:
        self._waiting.append(job)
        self._inbox.post(job)

    def cancel(self, job: _Job) -> None:
        self.call(self._cancel, job)

    def call(self, function: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # closed: nothing runs there any more
            self._loop.call_soon_threadsafe(function, *args)

    def mark(self) -> None:
        self.beat = True

    def rescue(self) -> list[_Job]:
        """Take what has not been started."""
        taken = []
        while self._waiting:
            try:
                taken.append(self._waiting.popleft())
            except IndexError:
                break
        return taken

    def stop(self) -> None:
        self.call(self._stop)

    def culprit(self) -> tuple[_Job | None, str]:
        """The call whose task the loop is inside of, and the line of its thread right now."""
        task = asyncio.current_task(self._loop)
        job = None if task is None else self._jobs.get(task)
        frame = sys._current_frames().get(self._thread.ident or 0)
        where = "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return job, where

    def inside(self, job: _Job) -> bool:
        """Whether the loop is inside a call's body."""
        return job.task is not None and asyncio.current_task(self._loop) is job.task

    def begun(self) -> list[_Job]:
        """Calls that have begun; copied while nothing can change, because the loop's thread is stuck."""
        return list(self._jobs.values())

    def interrupt(self, job: _Job) -> None:
        """Break into a call's body, if the loop is inside of it."""
        if self.inside(job):
            thread = ctypes.c_ulong(self._thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_BrokenInto))

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._over:
            try:
                self._loop.run_forever()  # until told; a body that stops its loop stops nothing else
            except BaseException:  # a KeyboardInterrupt raised by one body must not end the others
                logger.warning("a callback of an async tool raised", exc_info=True)
        self._loop.close()

    def _accept(self, job: _Job) -> None:
        if not self._starting:
            self._starting = True
            self._next()

    def _next(self) -> None:
        try:
            job = self._waiting.popleft()
        except IndexError:
            self._starting = False
            return
        if job.cancelled:
            job.error = asyncio.CancelledError()
            self._report(job)
            self._loop.call_soon(self._next)
            return
        task = job.task = self._loop.create_task(_run(job))
        self._jobs[task] = job
        task.add_done_callback(self._ended)
        # After this body's first step, which may block: whoever has not begun by then can still go elsewhere. Scheduled
        # even if nobody waits yet, so that a later arrival cannot begin in this same tick.
        self._loop.call_soon(self._next)

    def _ended(self, task: asyncio.Task[ToolResult]) -> None:
        job = self._jobs.pop(task)
        if task.cancelled():
            job.error = asyncio.CancelledError()
        else:
            job.error = task.exception()
            job.result = None if job.error is not None else task.result()
        self._report(job)

    def _cancel(self, job: _Job) -> None:
        if job.task is not None and job.lane is self:
            job.task.cancel()

    def _stop(self) -> None:
        if not self._jobs:
            self._over = True
            self._loop.stop()
            return
        for task in list(self._jobs):
            task.cancel()
        self._loop.call_later(0.05, self._stop)


async def _run(job: _Job) -> ToolResult:
    try:
        return await run_async(job.tool, job.call, job.context)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - a KeyboardInterrupt is not Ctrl-C here, and would end the loop
        return failed(job.call, error)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
