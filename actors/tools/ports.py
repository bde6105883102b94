"""Children of tool calls, as their executor sees them: requests go to each call's caller, answers come back to bodies.

A body that waits for a child gives up its place among the calls that may run at once (worker processes, threads, its
tool's ``max_concurrency``) and takes it again before it hears the answer: otherwise the calls of children, which need such
places, too, could wait for their own parents.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from ...protocol.commands import CancelRun, SubagentAnswer, SubagentHeard, SubagentRequest
from ...protocol.errors import PeerLost, RunError, UmbelError
from ...protocol.messages import Frozen
from ...protocol.results import RunOutcome
from .children import Deliver
from .context import ToolContext

Pack = Callable[[Any], tuple[str, bytes]]


class Caller(Protocol):
    """Who asked for a call, and hears of it."""

    def send(self, message: Frozen) -> None: ...


class Ports:
    """The children of all calls of one executor, by run id. Belongs to the running event loop."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.open: dict[str, tuple[CallPort, Deliver]] = {}
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    async def answered(self, message: SubagentAnswer) -> None:
        """A child has ended."""
        known = self.open.get(message.run_id)
        if known is not None:
            port, deliver = known
            await port.back(message.run_id)
            deliver(message)

    def heard(self, message: SubagentHeard) -> None:
        """A child has said something."""
        known = self.open.get(message.run_id)
        if known is not None:
            known[1](message)

    def on_loop(self, job: Callable[..., None], *args: Any) -> None:
        """Do something in this loop's thread: now, if it is this one.

        Raises:
            PeerLost: the loop is closed.
        """
        if threading.get_ident() == self._thread:
            job(*args)
            return
        try:
            self._loop.call_soon_threadsafe(job, *args)
        except RuntimeError:
            raise PeerLost("the tool executor is closed", delivered="no") from None


class CallPort:
    """One call's :class:`ChildPort`."""

    __slots__ = ("_caller", "_over", "_own", "_places", "_ports")

    def __init__(self, ports: Ports, caller: Caller) -> None:
        self._ports, self._caller = ports, caller
        self._own: set[str] | None = None
        self._places: list[_Place] | None = None
        self._over = False

    def pack(self, definition: Any) -> tuple[str, bytes]:
        return self._ports.pack(definition)

    def start(self, request: SubagentRequest, deliver: Deliver) -> None:
        self._ports.on_loop(self._start, request, deliver)

    def stop(self, run_id: str) -> None:
        self._ports.on_loop(self._stop, run_id)

    def end(self) -> None:
        """The call is over; its supervisor stops the children that it leaves behind."""
        self._over = True
        for run_id in self._own or ():
            self._ports.open.pop(run_id, None)

    @asynccontextmanager
    async def place(self, limit: asyncio.Semaphore) -> AsyncIterator[None]:
        """Take a place among the calls that may run at once, except while the body waits for a child."""
        await limit.acquire()
        self._places = self._places or []
        place = _Place(limit)
        self._places.append(place)
        try:
            yield
        finally:
            place.over = True
            self._places.remove(place)
            place.free()

    async def back(self, run_id: str) -> None:
        """A child has ended: unless the body still waits for others, it takes its places again."""
        own = self._own or set()
        own.discard(run_id)
        self._ports.open.pop(run_id, None)
        for place in list(self._places or ()):
            if not own and not place.held:
                await place.limit.acquire()
                if _needless(own, place):
                    place.limit.release()
                else:
                    place.held = True

    def _start(self, request: SubagentRequest, deliver: Deliver) -> None:
        run_id = request.start.run_id
        if self._over:
            deliver(_refused(run_id, RunError("no agent can be run here: the tool call that this code belongs to is over")))
            return
        self._own = self._own or set()
        self._own.add(run_id)
        self._ports.open[run_id] = (self, deliver)
        for place in self._places or ():
            place.free()
        try:
            self._caller.send(request)
        except UmbelError as error:
            self._ports.on_loop(deliver, _refused(run_id, error))

    def _stop(self, run_id: str) -> None:
        if not self._over and run_id in (self._own or ()):
            self._caller.send(CancelRun(run_id=run_id))


class _Place:
    __slots__ = ("held", "limit", "over")

    def __init__(self, limit: asyncio.Semaphore) -> None:
        self.limit = limit
        self.held, self.over = True, False

    def free(self) -> None:
        if self.held:
            self.held = False
            self.limit.release()


def _needless(own: set[str], place: _Place) -> bool:
    """Whether, since it asked for the place again, the call has ended, got it already, or waits for another child."""
    return bool(own) or place.held or place.over


def place(context: ToolContext, limit: asyncio.Semaphore) -> AbstractAsyncContextManager[Any]:
    """``limit`` for the length of a body; it is given up while the body waits for a child."""
    return context.port.place(limit) if isinstance(context.port, CallPort) else limit


def _refused(run_id: str, error: UmbelError) -> SubagentAnswer:
    outcome = RunOutcome(run_id=run_id, stop_reason="error", reason="error", error=error.to_wire())
    return SubagentAnswer(run_id=run_id, outcome=outcome)
