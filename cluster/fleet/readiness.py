"""No attempt is spent on actors that are still being restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...protocol.errors import UmbelError

_log = logging.getLogger("umbel.fleet")


class Readiness:
    """Waits until every actor answers, once for all tasks that lost one.

    Args:
        ready: waits for the actors, within bounds; None where there are none.
    """

    def __init__(self, ready: Callable[[], Awaitable[None]] | None) -> None:
        self._ready = ready
        self._waiting: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Until the actors answer, or have been waited for long enough: the next attempt then says what is wrong."""
        if self._ready is None:
            return
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.ensure_future(self._wait(self._ready))
        await asyncio.shield(self._waiting)

    async def _wait(self, ready: Callable[[], Awaitable[None]]) -> None:
        try:
            await ready()
        except UmbelError as error:  # the next attempt fails for the same reason, or there is none any more
            _log.warning("the fleet does not wait for the actors any longer: %s", error.message)
