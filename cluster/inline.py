"""The inline runtime: all actors in the caller's process, on the caller's event loop, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..actors.definitions import LocalDefinitions
from ..actors.link import LocalLink
from ..protocol.commands import CancelRun, StartRun
from ..protocol.config import Topology
from ..protocol.handles import BeginRun, ListRuns, RunEntry, RunsListed
from ..protocol.messages import Frozen
from ..protocol.results import RunOutcome
from .cell import ROLES, Cell
from .loops import at_loop_end


class InlineBackend:
    """Same actors, same messages, same order of events as on a cluster; for tests and debugging.

    Every event loop gets actors of its own, so several ``asyncio.run`` in one process do not share connections.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._definitions = LocalDefinitions()
        self._guards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()
        self._cells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Cell] = weakref.WeakKeyDictionary()

    def register(self, definition: Any) -> str:
        return self._definitions.register(definition)

    async def execute(self, definition: Any, request: StartRun, on_event: Callable[[Any], None] | None = None) -> RunOutcome:
        cell = self._cells.get(asyncio.get_running_loop()) or await self._open()
        link = LocalLink(cell.mailbox)
        if on_event is not None:
            on_event = in_context(on_event)  # it is the caller's code, not the run's
        # its own task, so that stopping it stops only it
        task = asyncio.ensure_future(link.request(request, on_partial=on_event))
        return (await task).outcome  # type: ignore[no-any-return]

    async def begin(self, definition: Any, request: StartRun, *, recall: bool = False) -> str:
        """Begin a run that lives as long as the running event loop."""
        await self.ask_run(BeginRun(start=request, recall=recall), request.run_id)
        return request.run_id

    async def ask_run(self, message: Frozen, run_id: str) -> Any:
        """The supervisor's reply to a message about a run that was begun on this event loop."""
        return await self.ask(message, run_id)

    async def ask(self, message: Frozen, thread_id: str) -> Any:
        """The supervisor's reply to a message about a thread."""
        cell = self._cells.get(asyncio.get_running_loop()) or await self._open()
        return await LocalLink(cell.mailbox).request(message)

    async def ask_checkpointer(self, message: Frozen) -> Any:
        """The checkpointer's reply to a message about threads."""
        return await self.ask(message, "")  # one cell hosts them all

    async def runs(self) -> list[RunEntry]:
        """The runs that were begun on this event loop."""
        listed: RunsListed = await self.ask(ListRuns(), "")
        return list(listed.runs)

    def cancel(self, run_id: str, request: StartRun, *, suspend: bool = False) -> None:
        for loop, cell in list(self._cells.items()):
            if not loop.is_closed():
                with contextlib.suppress(RuntimeError):  # the loop closed in between: nothing runs there
                    loop.call_soon_threadsafe(cell.stop_runs, CancelRun(run_id=run_id, suspend=suspend))

    async def ready(self, seconds: float) -> None:
        """Nothing to wait for: the actors live in this process."""

    async def close_here(self) -> None:
        """Close the actors of the running event loop."""
        loop = asyncio.get_running_loop()
        self._guards.pop(loop, None)
        cell = self._cells.pop(loop, None)
        if cell is not None:
            await cell.close()

    async def close(self) -> None:
        """Close the runtime."""
        await self.close_here()

    def end(self) -> None:
        """The process ends, and with it its threads and worker processes; closing them in order is not possible any more."""
        self._cells.clear()

    async def _open(self) -> Cell:
        """The actors of an event loop that asks for the first time; they are closed when it ends."""
        loop = asyncio.get_running_loop()
        self._cells[loop] = cell = Cell("inline", time.time_ns(), ROLES, self._topology, None, self._definitions)
        self._guards[loop] = await at_loop_end(self.close_here)
        return cell


def in_context(on_event: Callable[[Any], None]) -> Callable[[Any], None]:
    """``on_event`` as if the code here, now, called it."""
    context = contextvars.copy_context()
    return lambda event: context.run(on_event, event)
