"""Sleep that can be cut short, on a clock that tests may drive."""

from __future__ import annotations

import asyncio

from ..timing import Timing


class Alarm:
    """Lets a task of one event loop sleep until its time, or until somebody rings."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End the sleep, or the next one before it begins."""
        self._rung.set()

    async def sleep(self, seconds: float | None) -> None:
        """Sleep so long; None until somebody rings."""
        await self.sleep_or(seconds, self._rung)
        self._rung.clear()

    async def sleep_or(self, seconds: float | None, event: asyncio.Event) -> None:
        """Sleep so long, or until the event is set."""
        if event.is_set() or (seconds is not None and seconds <= 0):
            await asyncio.sleep(0)
            return
        waits: set[asyncio.Future[object]] = {asyncio.ensure_future(event.wait())}
        if seconds is not None:
            waits.add(asyncio.ensure_future(self._timing.sleep(seconds)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
