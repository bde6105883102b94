"""Tool bodies in processes of their own, which can really be stopped (OURS-17): the parent's side (``worker.py``: the child).

A worker runs one call at a time and is reused. It is killed, with everything that it started, at a call's deadline at
once, after a cancellation when a grace has passed; the place in the pool is free at once in both cases. Whatever else
happens to it (``os._exit``, a segmentation fault, the kernel's out-of-memory killer) is the error of that one call.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref

import cloudpickle

from ...protocol.errors import ToolCrashed, ToolError
from ...protocol.messages import ToolCall, ToolResult
from .context import ToolContext
from .decorator import Tool
from .invoke import failed
from .ports import place
from .process import Definition, Outcome, WorkerProcess
from .worker import content_hash

DEFAULT_MEMORY_MB = 4096
_CLOSE_SECONDS = 5.0


class WorkerPool:
    """Worker processes of one executor, started when first needed.

    Args:
        limit: calls at once; default the larger of 4 and the number of CPUs.
        idle_seconds: an unused worker ends after this.
        memory_mb: limit for tools that set none; default ``UMBEL_TOOL_MEMORY_MB`` or 4096.
    """

    def __init__(self, limit: int | None = None, *, idle_seconds: float = 60.0, memory_mb: int | None = None) -> None:
        self._slots = asyncio.Semaphore(limit or max(4, os.cpu_count() or 1))
        self._idle_seconds = idle_seconds
        self._memory_mb = memory_mb or int(os.environ.get("UMBEL_TOOL_MEMORY_MB") or DEFAULT_MEMORY_MB)
        self._idle: list[WorkerProcess] = []
        self._alive: set[WorkerProcess] = set()
        self._definitions: weakref.WeakKeyDictionary[Tool, Definition] = weakref.WeakKeyDictionary()
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that are alive."""
        return tuple(worker.pid for worker in self._alive)

    async def run(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
        """Run the call's body in a worker. The tool's timeout counts from the moment the body starts."""
        try:
            definition = self._definition(tool)
        except Exception as error:  # noqa: BLE001 - pickling runs foreign code; the call fails, nothing else
            return failed(call, _unpicklable(tool, error))
        result = await self._attempt(tool, call, context, definition)
        if isinstance(result, ToolResult):
            return result
        # A module that only this process can import: send what it defines by value instead.
        try:
            definition = self._definitions[tool] = _pickled(tool, by_value=True)
        except Exception as error:  # noqa: BLE001 - as above
            return failed(call, _unpicklable(tool, error))
        again = await self._attempt(tool, call, context, definition)
        if isinstance(again, ToolResult):
            return again
        return failed(call, ToolError(f"tool {tool.name!r} cannot be loaded in a worker process: {again}"))

    async def close(self) -> None:
        """Kill every worker and wait until it is gone."""
        self._closed = True
        workers = list(self._alive)
        for worker in workers:
            worker.kill()
        if workers:
            await asyncio.wait([worker.exited for worker in workers], timeout=_CLOSE_SECONDS)

    def _definition(self, tool: Tool) -> Definition:
        known = self._definitions.get(tool)
        if known is None:
            known = self._definitions[tool] = _pickled(tool)
        return known

    async def _attempt(self, tool: Tool, call: ToolCall, context: ToolContext, definition: Definition) -> Outcome:
        async with place(context, self._slots):
            if self._closed:
                return failed(call, ToolCrashed(f"tool {tool.name!r} was not run: the executor is closed"))
            worker = self._take(definition[0])
            if worker is None:
                worker = WorkerProcess()
                self._alive.add(worker)
                worker.on_free, worker.on_exit = self._keep, self._forget
                await worker.connect()
            outcome = worker.submit(tool, call, context, definition, tool.memory_mb or self._memory_mb)
            try:
                return await outcome
            except asyncio.CancelledError:
                worker.abandon(context.grace)
                raise

    def _take(self, definition: str) -> WorkerProcess | None:
        usable = [worker for worker in self._idle if worker.usable]
        knowing = [worker for worker in usable if definition in worker.known]
        if not usable:
            return None
        worker = (knowing or usable)[-1]
        self._idle.remove(worker)
        return worker

    def _keep(self, worker: WorkerProcess) -> None:
        self._idle.append(worker)
        served = worker.served
        asyncio.get_running_loop().call_later(self._idle_seconds, self._retire, worker, served)

    def _retire(self, worker: WorkerProcess, served: int) -> None:
        if worker in self._idle and worker.served == served:
            self._idle.remove(worker)
            worker.kill()

    def _forget(self, worker: WorkerProcess) -> None:
        self._alive.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)


def _pickled(tool: Tool, by_value: bool = False) -> Definition:
    module = sys.modules.get(getattr(tool.function, "__module__", "") or "") if by_value else None
    if module is None or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        blob = cloudpickle.dumps(tool)
    else:
        cloudpickle.register_pickle_by_value(module)
        try:
            blob = cloudpickle.dumps(tool)
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    return content_hash(blob), blob


def _unpicklable(tool: Tool, error: Exception) -> ToolError:
    return ToolError(
        f"tool {tool.name!r} cannot be sent to a worker process ({type(error).__name__}: {error}); "
        "let it open what it needs inside its body, or use isolation='thread' without a timeout"
    )
