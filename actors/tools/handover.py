"""Passing things to an event loop from other threads, with one wake-up per burst."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Handover(Generic[T]):
    """A queue into ``loop``: ``post`` from any thread, ``deliver`` is called for each item in the loop's thread, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[T], None]) -> None:
        self._loop, self._deliver = loop, deliver
        self._items: deque[T] = deque()
        self._woken = False

    def post(self, item: T) -> bool:
        """Queue ``item``. Returns False when the loop is closed."""
        self._items.append(item)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                return False
        return True

    def _drain(self) -> None:
        # Cleared before the queue is read: whoever appends after this either is read below or wakes the loop again.
        self._woken = False
        items = self._items
        while items:
            self._deliver(items.popleft())
