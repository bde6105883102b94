"""Handing work from one thread's event loop to another's, a burst at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Crossing:
    """Runs callables on a loop that belongs to another thread, in the order posted. A burst costs one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._awake = False

    def post(self, job: Callable[..., Any], *arguments: Any) -> None:
        """Run ``job(*arguments)`` there, soon. Raises RuntimeError when that loop is closed."""
        self._jobs.append((job, arguments))
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._awake = False  # first, so that a job posted from now on wakes us again
        while self._jobs:
            job, arguments = self._jobs.popleft()
            job(*arguments)
