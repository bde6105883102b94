"""An event loop of its own, in a thread of its own, for a store that keeps network connections.

A connection of asyncio belongs to the loop that opened it, but a store belongs to none: an agent's sync methods start a loop
for each call. Instead of connecting again for every loop, the connections live here, and calls come over from any loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from ...protocol.errors import StoreUnavailable

T = TypeVar("T")


class LoopThread:
    """The thread starts with the first call.

    Args:
        name: of the thread, and in the error once it is closed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._calls: set[Future[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns, awaited in the thread's loop. A caller that is cancelled cancels the work.

        Raises:
            StoreUnavailable: the thread was closed.
        """
        with self._lock:
            if self._closed:
                work.close()
                raise StoreUnavailable(f"the store {self._name} was closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop or self._start())
            self._calls.add(future)
            future.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(future)

    async def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Let the calls end, then await ``last``, which gives up the connections, and end the loop. May be called twice."""
        with self._lock:
            was_closed, self._closed, loop, thread = self._closed, True, self._loop, self._thread
        if was_closed or loop is None or thread is None:
            last.close()
            return
        try:
            calls = [asyncio.wrap_future(call) for call in tuple(self._calls)]
            if calls:
                await asyncio.wait(calls)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(last, loop))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(loop,), name=f"umbel {self._name}", daemon=True)
        self._thread.start()
        self._loop = loop
        return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
