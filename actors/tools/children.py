"""Children of a tool call, as its body sees them: agents that it runs, wherever the body itself runs.

Inside a body the current runtime is :class:`ChildRuntime`, so ``agent.arun``, ``run``, ``run_sync`` and
``run_subagent`` all take one way: a :class:`SubagentRequest` goes back along the call to the supervisor of its run, which
starts the child on a supervisor shard and sends back what is heard of it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from ...protocol.commands import StartRun, SubagentAnswer, SubagentHeard, SubagentRequest
from ...protocol.errors import ConfigurationError, RunError
from ...protocol.messages import Frozen
from ...protocol.results import RunOutcome, SubagentResult
from .handover import Handover

T = TypeVar("T")
Deliver = Callable[[SubagentHeard | SubagentAnswer], Any]


class ChildPort(Protocol):
    """A running call's way to its supervisor. Every method may be called from any thread."""

    def pack(self, definition: Any) -> tuple[str, bytes]: ...
    def start(self, request: SubagentRequest, deliver: Deliver) -> None: ...
    def stop(self, run_id: str) -> None: ...


class ChildRuntime:
    """The runtime of a tool's body: its runs are supervised children of the run that the call belongs to."""

    def __init__(self, port: ChildPort) -> None:
        self._port = port
        self._blobs: dict[str, bytes] = {}

    def register(self, definition: Any) -> str:
        key, self._blobs[key] = self._port.pack(definition)
        return key

    async def execute(self, definition: Any, request: StartRun, on_event: Callable[[Any], Any] | None = None) -> RunOutcome:
        return (await self.answer(request, on_event)).outcome

    async def begin(self, definition: Any, request: StartRun, *, recall: bool = False) -> str:
        """A child ends with the call that runs it.

        Raises:
            RunError: always.
        """
        raise RunError("a tool's body cannot begin a run that goes on without it: await the agent, or return what to begin")

    async def ask_run(self, message: Frozen, run_id: str) -> Any:
        """As :meth:`begin`.

        Raises:
            RunError: always.
        """
        raise RunError("a tool's body cannot attach to runs: do that where the agent is run")

    async def ask(self, message: Frozen, thread_id: str) -> Any:
        """Threads are the application's business, not a tool body's.

        Raises:
            RunError: always.
        """
        raise RunError("a tool's body cannot look into threads: do that where the agent is run")

    async def ask_checkpointer(self, message: Frozen) -> Any:
        """As :meth:`ask`.

        Raises:
            RunError: always.
        """
        return await self.ask(message, "")

    async def answer(
        self, request: StartRun, on_event: Callable[[Any], Any] | None = None, task_id: str | None = None
    ) -> SubagentAnswer:
        """Have the child run; leaving early stops it.

        Args:
            request: of a definition that was registered here.
            on_event: called, and awaited if need be, with every event.
            task_id: as in :class:`SubagentRequest`.
        """
        items: asyncio.Queue[SubagentHeard | SubagentAnswer] = asyncio.Queue()
        arrived = Handover(asyncio.get_running_loop(), items.put_nowait)
        blob = self._blobs[request.definition]
        self._port.start(SubagentRequest.trusted(start=request, blob=blob, task_id=task_id), arrived.post)
        over = False
        try:
            while True:
                item = await items.get()
                if isinstance(item, SubagentAnswer):
                    over = True
                    return item
                told = on_event(item.event) if on_event is not None else None
                if inspect.isawaitable(told):
                    await told
        finally:
            if not over:
                self._port.stop(request.run_id)

    def cancel(self, run_id: str, request: StartRun, *, suspend: bool = False) -> None:
        if not suspend:  # a child run has no thread to go on from
            self._port.stop(run_id)

    def run_sync(self, job: Coroutine[Any, Any, T]) -> T:
        """For sync bodies.

        Raises:
            RunError: an event loop runs in this thread, and would stand still.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(job)
        job.close()
        raise RunError(
            "an async tool cannot wait synchronously for an agent, because that would block its event loop: "
            "use 'await ctx.run_subagent(agent, prompt)' or 'await agent.arun(prompt)'"
        )


async def run_child(
    port: ChildPort,
    agent: Any,
    prompt: str,
    *,
    on_event: Callable[[Any], Any] | None = None,
    resumable: bool = False,
    task_id: str | None = None,
    ephemeral: dict[str, Any] | None = None,
) -> SubagentResult:
    """Run ``agent`` as a child of the call behind ``port``; see :meth:`ToolContext.run_subagent`."""
    wanted = task_id if task_id is not None else ("" if resumable else None)
    if wanted is not None and getattr(getattr(agent, "config", None), "checkpointer", None) is not None:
        raise ConfigurationError("a resumable subagent keeps its conversation itself: give it no checkpointer")
    runtime = ChildRuntime(port)
    request = StartRun(
        run_id=os.urandom(16).hex(),
        definition=runtime.register(agent),
        prompt=prompt,
        ephemeral=ephemeral or {},
        events=on_event is not None,
        full=False,
    )
    answer = await runtime.answer(request, on_event, wanted)
    return SubagentResult.of(answer.outcome, agent.label, answer.task_id)
