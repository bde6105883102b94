"""Starting many coroutines at once, cheaply."""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any

Job = Coroutine[Any, Any, None]


async def begun() -> None:
    """Until all that a :class:`Burst` was just asked to start has begun."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


class Burst:
    """Starts coroutines on the next tick, in the order of ``jobs``; each must handle its own errors.

    A task costs more than decoding a message, so those that end without waiting for anything share one. The first that
    waits keeps it; all behind it get tasks of their own, on the tick after, with the context that the shared one had.
    """

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self._next: asyncio.Task[None] | None = None  # it has not begun
        self._last: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start whatever is in ``jobs``."""
        if self._next is None and self.jobs:
            self._next = asyncio.get_running_loop().create_task(self._run())

    @types.coroutine
    def _run(self) -> Generator[Any, Any, None]:
        task, self._next = self._next, None
        context = contextvars.copy_context()
        try:
            waiting = self._share(task)
        finally:
            self._spread(context)
        if waiting is not None:
            yield from _rest(*waiting)

    def _share(self, task: asyncio.Task[None] | None) -> tuple[Job, Any] | None:
        """Run jobs until one waits: (that one, for what)."""
        while self.jobs:
            job = self.jobs.popleft()
            try:
                return job, job.send(None)
            except StopIteration:
                if task is not None and task.cancelling():
                    break  # the job cancelled its own task, which is none of the others' business
        return None

    def _spread(self, context: contextvars.Context) -> None:
        loop = asyncio.get_running_loop()
        while self.jobs:
            self._last = loop.create_task(self.jobs.popleft(), context=context.copy())


def _rest(job: Job, awaited: Any) -> Generator[Any, Any, None]:
    """What follows after the first thing that ``job`` waits for."""
    try:
        while True:
            try:
                value = yield awaited
            except BaseException as error:  # noqa: BLE001 - a cancellation is for the job to handle
                awaited = job.throw(error)
            else:
                awaited = job.send(value)
    except StopIteration:
        return
