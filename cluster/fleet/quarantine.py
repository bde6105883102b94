"""Poison tasks: which of the tasks that were under way when an actor died is the one that kills it.

Everything that ran on an actor is lost with it, so the first losses prove nothing, and tasks simply run again together. A
task that is lost too often becomes a suspect, and suspects run one at a time: one that is lost then has no other suspect to
blame, and goes into quarantine. That clears those who wait behind it, which run together again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .tally import Attempts


class Quarantine:
    """Lets attempts run together or one at a time, and says when a task has had its last.

    Args:
        after: losses after which a task is not tried again, 2 or more; the last attempt is made alone.
    """

    def __init__(self, after: int) -> None:
        self._after = after
        self._verdicts = 0
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, attempts: Attempts) -> AsyncIterator[None]:
        """The time of one attempt; a suspect waits until no other suspect runs."""
        attempts.alone = False
        if attempts.losses < self._after - 1:
            yield
            return
        async with self._turn:
            if attempts.verdicts == self._verdicts:  # nobody was found guilty since
                attempts.alone = True
                yield
                return
        yield

    def lost(self, attempts: Attempts) -> bool:
        """Count a loss; whether the task is in quarantine now."""
        attempts.losses += 1
        guilty = attempts.alone and attempts.losses >= self._after
        self._verdicts += guilty
        attempts.verdicts = self._verdicts
        return guilty
