"""A straggler and its hedge: two calls for one task, of which the first good one counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from .hedging import Hedging

POLL_SECONDS = 1.0  # while too little is known to say what a straggler is
LOSER_SECONDS = 5.0  # for the slower one to end in order and say what it cost

Call = Callable[[], Awaitable[Any]]


class Race:
    """Makes calls, at most ``width`` at once, and a second one beside a call that takes too long.

    Args:
        hedging: says when.
        width: calls in flight at most, hedges included.
    """

    def __init__(self, hedging: Hedging, width: int) -> None:
        self.hedging = hedging
        self._slots = asyncio.Semaphore(width)

    async def run(
        self, call: Call, hedge: Call, *, cancel: Callable[[int], bool], lost: Callable[[Any], None], begun: Callable[[], None]
    ) -> Any:
        """The outcome of the call, or of its hedge.

        Args:
            call: makes the first.
            hedge: makes the second.
            cancel: asks the first (0) or second (1) of them to end; False when it has to be cancelled by force.
            lost: told the outcome of the one that does not count.
            begun: told that the hedge is made.

        Raises:
            Exception: what the first call raised, when no hedge did better.
        """
        self.hedging.begin()
        loop = asyncio.get_running_loop()
        await self._slots.acquire()
        started = loop.time()
        first = asyncio.ensure_future(self._in_slot(call))
        running = [first]
        try:
            if not await self._is_late(first, started):
                outcome = await first
            else:
                second = asyncio.ensure_future(self._when_free(hedge, begun))
                running.append(second)
                outcome = await self._first_good(first, second, cancel, lost)
            if getattr(outcome, "success", False):
                self.hedging.end(loop.time() - started)
            return outcome
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _in_slot(self, call: Call) -> Any:
        try:
            return await call()
        finally:
            self._slots.release()

    async def _when_free(self, call: Call, begun: Callable[[], None]) -> Any:
        await self._slots.acquire()
        begun()
        return await self._in_slot(call)

    async def _is_late(self, first: asyncio.Future[Any], started: float) -> bool:
        """Wait for the call, or until it should be hedged."""
        loop = asyncio.get_running_loop()
        while not first.done():
            patience = self.hedging.patience()
            left = POLL_SECONDS if patience is None else started + patience - loop.time()
            if patience is not None and left <= 0:
                return self.hedging.take()
            await asyncio.wait({first}, timeout=left)
        return False

    async def _first_good(
        self,
        first: asyncio.Future[Any],
        second: asyncio.Future[Any],
        cancel: Callable[[int], bool],
        lost: Callable[[Any], None],
    ) -> Any:
        both = (first, second)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        winner = next((one for one in both if one.done() and _is_good(one)), None)
        if winner is None:
            await asyncio.wait(both)
            winner = second if _is_good(second) else first
        loser = both[winner is first]
        if not loser.done():
            if not cancel(int(winner is first)):
                loser.cancel()
            await asyncio.wait({loser}, timeout=LOSER_SECONDS)
        if loser.done() and not loser.cancelled():
            lost(loser.exception() or loser.result())
        return winner.result()


def _is_good(call: asyncio.Future[Any]) -> bool:
    return not call.cancelled() and call.exception() is None and bool(getattr(call.result(), "success", False))
