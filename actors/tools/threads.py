"""Sync bodies in daemon threads of an executor.

Unlike the loop's default pool, a thread that never ends blocks neither the interpreter's exit nor later calls: a call
that was cancelled while it ran gives its place away at once (the body itself cannot be stopped and runs on).
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable

from ...protocol.errors import ToolCrashed
from ...protocol.messages import ToolCall, ToolResult
from .context import ToolContext
from .decorator import Tool
from .handover import Handover
from .invoke import failed, run_sync
from .ports import place

_IDLE_SECONDS = 60.0


class _Job:
    __slots__ = ("_claim", "context", "error", "function", "future", "result")

    def __init__(self, function: Callable[[], ToolResult], future: asyncio.Future[ToolResult]) -> None:
        self.function, self.future = function, future
        self.context = contextvars.copy_context()
        self.result: ToolResult | None = None
        self.error: BaseException | None = None
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """True for exactly one of: the thread that starts the job, the loop that drops it."""
        return self._claim.acquire(blocking=False)

    def work(self) -> None:
        try:
            self.result = self.context.run(self.function)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the call must not wait for ever
            self.error = error

    def settle(self) -> None:
        if self.future.done():
            return
        if self.result is not None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error or RuntimeError("a tool thread ended without a result"))


class Threads:
    """Up to ``limit`` calls at once, each in a thread of its own."""

    def __init__(self, limit: int = 64) -> None:
        self._places = asyncio.Semaphore(limit)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: Handover[_Job] = Handover(asyncio.get_running_loop(), self._finish)
        self._open: dict[_Job, ToolCall] = {}
        self._running = self._threads = 0
        self._lock = threading.Lock()

    async def run(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
        """Run the call's body in a thread; see :func:`invoke.run_sync`."""
        async with place(context, self._places):
            return await self._run(tool, call, context)

    async def _run(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
        job = _Job(lambda: run_sync(tool, call, context), asyncio.get_running_loop().create_future())
        self._open[job] = call
        self._running += 1
        with self._lock:
            grow = self._threads < self._running
            self._threads += grow
        if grow:
            threading.Thread(target=self._serve, name="umbel-tool", daemon=True).start()
        self._jobs.put(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            if job.claim():
                self._running -= 1  # otherwise its thread is lost until the body ends
            raise
        finally:
            del self._open[job]

    def close(self) -> None:
        """Let idle threads end; busy ones end with their body, whose call is answered with an error now."""
        for job, call in self._open.items():
            if not job.future.done():
                closed = ToolCrashed(f"tool {call.name!r} was left behind: its executor is closed")
                job.future.set_result(failed(call, closed))
        for _ in range(self._threads):
            self._jobs.put(None)

    def _finish(self, job: _Job) -> None:
        self._running -= 1
        job.settle()

    def _serve(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                job = None
            if job is None:
                break
            if job.claim():
                job.work()
                self._done.post(job)
            del job
        with self._lock:
            self._threads -= 1
