"""An event loop of its own, in a thread of its own, for a store that keeps network connections.

A connection of asyncio belongs to the loop that opened it, but a store belongs to none: an agent's sync methods start a loop
for each call. Instead of connecting again for every loop, the connections live here, and calls come over from any loop.

To wake another thread's loop is a system call, and a fight for the interpreter's lock: under load ten times what a call costs
itself. So calls that are made while the thread is busy go over together, and so do the results that one tick of it brings.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from ...protocol.errors import StoreUnavailable

T = TypeVar("T")
_Loop = asyncio.AbstractEventLoop


class _Call:
    """What is awaited in the thread's loop, and who waits for it in another one."""

    __slots__ = ("answer", "caller", "task", "work")

    def __init__(self, work: Coroutine[Any, Any, Any], caller: _Loop) -> None:
        self.work = work
        self.caller = caller
        self.answer: asyncio.Future[Any] = caller.create_future()
        self.task: asyncio.Task[Any] | None = None

    def settle(self) -> None:
        """In the caller's loop: hand over what became of it."""
        task = self.task
        if task is None or self.answer.done():
            return
        if task.cancelled():
            self.answer.cancel()
        elif (error := task.exception()) is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())


class LoopThread:
    """The thread starts with the first call.

    Args:
        name: of the thread, and in the error once it is closed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._arriving: list[_Call] = []
        # What follows is the thread's alone.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._done: dict[_Loop, list[_Call]] = {}

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns, awaited in the thread's loop. A caller that is cancelled cancels the work.

        Raises:
            StoreUnavailable: the thread was closed.
        """
        call = _Call(work, asyncio.get_running_loop())
        with self._lock:
            if self._closed:
                work.close()
                raise StoreUnavailable(f"the store {self._name} was closed")
            loop = self._loop or self._start()
            self._arriving.append(call)
            if len(self._arriving) == 1:
                loop.call_soon_threadsafe(self._take)
        try:
            answer: T = await call.answer
        except asyncio.CancelledError:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_cancel, call)
            raise
        return answer

    async def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Let the calls end, then await ``last``, which gives up the connections, and end the loop. May be called twice."""
        with self._lock:
            was_closed, self._closed, loop, thread = self._closed, True, self._loop, self._thread
        if was_closed or loop is None or thread is None:
            last.close()
            return
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end(last), loop))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)

    def _start(self) -> _Loop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(loop,), name=f"umbel {self._name}", daemon=True)
        self._thread.start()
        self._loop = loop
        return loop

    # What follows runs in the thread's own loop.

    def _take(self) -> None:
        with self._lock:
            calls, self._arriving = self._arriving, []
        for call in calls:
            call.task = asyncio.get_running_loop().create_task(call.work)
            self._tasks.add(call.task)
            call.task.add_done_callback(partial(self._finished, call))

    def _finished(self, call: _Call, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: whoever asked may have given up since
        if not self._done:
            asyncio.get_running_loop().call_soon(self._hand_back)
        self._done.setdefault(call.caller, []).append(call)

    def _hand_back(self) -> None:
        done, self._done = self._done, {}
        for caller, calls in done.items():
            with contextlib.suppress(RuntimeError):  # the caller's loop was closed: nobody waits
                caller.call_soon_threadsafe(_settle, calls)

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        if self._tasks:  # those that arrived before the thread was closed were taken before this
            await asyncio.wait(self._tasks)
        await last


def _settle(calls: list[_Call]) -> None:
    for call in calls:
        call.settle()


def _cancel(call: _Call) -> None:
    if call.task is not None:  # taken before: it was sent over first
        call.task.cancel()


def _serve(loop: _Loop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
