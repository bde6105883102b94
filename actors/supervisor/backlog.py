"""Asynchronous durability: iterations are saved behind the run's back, and still in order, without a queue that grows.

One save is under way at a time. Whatever is due meanwhile waits as *one* newest state, which takes the place of the one
that waited before: a state holds everything of those before it, so nothing is lost but the intermediate checkpoints. What
waits is thus one reference to a state that the run holds anyway, however slow the store and however long the run.

A save that fails ends the run with its error, at once and not only when somebody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Backlog(Generic[T]):
    """Writes in the background, the newest state at a time.

    Args:
        write: stores a state.
        failed: told what a write raised.
    """

    def __init__(self, write: Callable[[T], Awaitable[None]], failed: Callable[[Exception], None]) -> None:
        self.error: Exception | None = None
        self._write = write
        self._failed = failed
        self._waiting: list[T] = []  # none or one
        self._task: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        """States on their way: at most the one that is written and the one that waits."""
        return len(self._waiting) + (self._task is not None)

    def add(self, state: T) -> None:
        """Have ``state`` written, soon.

        Raises:
            Exception: what an earlier write raised.
        """
        if self.error is not None:
            raise self.error
        self._waiting = [state]
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def settle(self) -> None:
        """Wait for the write that is under way; what waits behind it is dropped, because the caller writes something newer.

        Raises:
            Exception: what a write raised.
        """
        self._waiting = []
        if self._task is not None:
            await asyncio.wait({self._task})
        if self.error is not None:
            raise self.error

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._write(self._waiting.pop())
        except Exception as error:  # noqa: BLE001 - kept, and told: the run ends with it
            self.error = error
            self._waiting = []
            self._failed(error)
        finally:
            self._task = None
