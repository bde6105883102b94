"""The tool executor actor: finds the tool of a call, decides where its body runs, and answers with a result."""

from __future__ import annotations

import asyncio
import difflib
import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ...protocol.commands import ExecuteCall, SubagentAnswer, SubagentHeard, ToolProgress, ToolReply
from ...protocol.errors import UnknownTool
from ...protocol.messages import ToolCall, ToolResult
from .context import ToolContext
from .decorator import Tool
from .invoke import Asked, Attempt, failed, invoke, on_loop
from .ports import Caller, CallPort, Pack, Ports, place
from .threads import Threads
from .toolloop import ToolLoop
from .workers import WorkerPool

logger = logging.getLogger("umbel.tools")

FindTool = Callable[[str, str], Tool]
_LISTED, _LIST_CHARS, _NAME_CHARS = 40, 1_200, 100


class ToolExecutorActor:
    """Runs tool calls. It belongs to the event loop in which its first call arrives.

    Args:
        find_tool: ``(definition hash, tool name) -> Tool``; raises UnknownTool (see :func:`unknown_tool_text`).
        own_process: the executor has a process to itself: sync bodies go to worker processes and async bodies to a loop of
            their own. Otherwise (inline, or beside a supervisor) they run in threads and on the caller's loop.
        max_workers: worker processes at once; default the larger of 4 and the number of CPUs.
        stuck_after: seconds after which an async body that does not give way counts as blocking.
        pack: how definitions of agents that bodies run are sent to a supervisor: (key, bytes).
    """

    def __init__(
        self,
        find_tool: FindTool,
        *,
        own_process: bool,
        max_workers: int | None = None,
        stuck_after: float = 0.2,
        pack: Pack = lambda definition: definition.packed,
    ) -> None:
        self._find_tool, self._own_process, self._pack = find_tool, own_process, pack
        self._max_workers, self._stuck_after = max_workers, stuck_after
        self._limits: weakref.WeakKeyDictionary[Tool, asyncio.Semaphore] = weakref.WeakKeyDictionary()
        self._demoted: weakref.WeakSet[Tool] = weakref.WeakSet()
        self._workers: WorkerPool | None = None
        self._threads: Threads | None = None
        self._tool_loop: ToolLoop | None = None
        self._ports: Ports | None = None
        self.calls = 0
        self.running = 0

    async def execute(self, message: ExecuteCall, caller: Caller) -> ToolReply:
        """Run one call. Every failure is a result, a question to a person is the reply's ``interrupt``.

        Only a cancellation of this task comes out as an exception.
        """
        call = message.call
        try:
            tool = self._find_tool(message.definition, call.name)
        except UnknownTool as error:
            return ToolReply(result=failed(call, error))
        except Exception as error:  # loading a definition runs foreign code; its failure is the call's result
            logger.warning("the definition of tool %r cannot be loaded", call.name, exc_info=True)
            return ToolReply(result=failed(call, error))
        self.calls += 1
        self.running += 1
        progress = _Progress(caller, call.id) if tool.emits_progress else None
        self._ports = self._ports or Ports(self._pack)
        port = CallPort(self._ports, caller)
        attempt = self._in_worker if message.apart and tool.function is not None else self._attempt
        try:
            result = await self._limited(tool, call, _context(message, progress, port), attempt)
        finally:
            self.running -= 1
            port.end()
            if progress is not None:
                progress.end()
        return _paused(result) if isinstance(result, Asked) else ToolReply.trusted(result=result)

    async def answered(self, message: SubagentAnswer, caller: Any) -> None:
        """A child run that the body of a call here has started is over."""
        if self._ports is not None:
            await self._ports.answered(message)

    async def heard(self, message: SubagentHeard, caller: Any) -> None:
        """An event of such a child."""
        if self._ports is not None:
            self._ports.heard(message)

    async def close(self) -> None:
        """End worker processes and threads. Calls that still run come out as errors."""
        workers, self._workers = self._workers, None
        threads, self._threads = self._threads, None
        loop, self._tool_loop = self._tool_loop, None
        if loop is not None:
            loop.close()
        if threads is not None:
            threads.close()
        if workers is not None:
            await workers.close()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the worker processes that are alive."""
        return () if self._workers is None else self._workers.pids

    async def _limited(self, tool: Tool, call: ToolCall, context: ToolContext, attempt: Attempt) -> ToolResult:
        if tool.max_concurrency is None or call.malformed_arguments is not None:
            return await self._run(tool, call, context, attempt)
        limit = self._limits.get(tool)
        if limit is None:
            limit = self._limits[tool] = asyncio.Semaphore(tool.max_concurrency)
        async with place(context, limit):
            return await self._run(tool, call, context, attempt)

    async def _run(self, tool: Tool, call: ToolCall, context: ToolContext, attempt: Attempt) -> ToolResult:
        if not self._own_process and tool.direct:
            return await invoke(tool, call, context)
        return await invoke(tool, call, context, attempt)

    async def _in_worker(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
        return await self._worker_pool().run(tool, call, context)

    async def _attempt(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
        if tool.function is not None and (tool.needs_process or tool in self._demoted or self._sync_in_process(tool)):
            return await self._in_worker(tool, call, context)
        if not tool.is_async:
            self._threads = self._threads or Threads()
            return await self._threads.run(tool, call, context)
        if not self._own_process:
            return await on_loop(tool, call, context)
        if self._tool_loop is None:
            self._tool_loop = ToolLoop(stuck_after=self._stuck_after, on_blocked=self._demoted.add)
        return await self._tool_loop.run(tool, call, context)

    def _sync_in_process(self, tool: Tool) -> bool:
        return self._own_process and not tool.is_async and tool.isolation is None

    def _worker_pool(self) -> WorkerPool:
        if self._workers is None:
            self._workers = WorkerPool(self._max_workers)
        return self._workers


class _Progress:
    """Carries reports of one call to its caller, from any thread, until the call has ended."""

    def __init__(self, caller: Caller, tool_call_id: str) -> None:
        self._caller, self._id = caller, tool_call_id
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._open = True

    def __call__(self, progress: float, total: float | None, message: str | None) -> bool:
        if not self._open:
            return False
        report = ToolProgress(tool_call_id=self._id, progress=progress, total=total, message=message)
        if threading.get_ident() == self._thread:
            self._caller.send(report)
            return True
        try:
            self._loop.call_soon_threadsafe(self._send, report)
        except RuntimeError:
            return False
        return True

    def end(self) -> None:
        self._open = False

    def _send(self, report: ToolProgress) -> None:
        if self._open:
            self._caller.send(report)


def unknown_tool_text(name: str, available: Iterable[str]) -> str:
    """What a model is told when it calls a tool that does not exist: the nearest name, and what there is (bounded)."""
    names = sorted(available)
    text = f"Unknown tool: {name[:_NAME_CHARS]!r}."
    close = difflib.get_close_matches(name[:_NAME_CHARS], names, n=1, cutoff=0.6) or [
        known for known in names if name.startswith(known)
    ]
    if close:
        text += f" Did you mean {close[0]!r}?"
    if not names:
        return text + " There are no tools; answer without one."
    listed = ", ".join(names[:_LISTED])[:_LIST_CHARS]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{text} Available tools: {listed}{more}."


def _paused(asked: Asked) -> ToolReply:
    result = ToolResult(**{name: getattr(asked, name) for name in ToolResult.model_fields})
    return ToolReply.trusted(result=result, interrupt=asked.interrupt)


def _context(message: ExecuteCall, progress: _Progress | None, port: CallPort) -> ToolContext:
    call = message.call
    return ToolContext(
        tool_call_id=call.id,
        tool_name=call.name,
        run_id=message.run_id,
        thread_id=message.thread_id,
        agent_name=message.agent_name,
        iteration=message.iteration,
        metadata=message.metadata,
        ephemeral_metadata=message.ephemeral,
        grace=message.grace,
        answers=message.answers,
        state_json=message.state,
        reporter=progress,
        port=port,
    )
