"""Steps in progress whose ends come one at a time, in the order in which they are recorded. Source: OURS-24."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Calls(Generic[T]):
    """Steps that were started and have not been heard of, for programs that decide what comes next at each end.

    One end is handed out at a time, and only when the program asks. So what it decides after it follows from the ends before
    it and nothing else: a program that is played again, and gets the recorded ends in their order, decides the same.
    A step that pauses keeps its place; the others go on.

    Close it in any case: ``try: ... finally: calls.close()``.
    """

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], T] = {}
        self._ended: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()
        self._paused: list[BaseException] = []

    def __len__(self) -> int:
        return len(self._running)

    def start(self, what: T, work: Coroutine[Any, Any, Any]) -> None:
        """Begin ``work``; ``what`` is handed out with its result."""
        task = asyncio.ensure_future(work)
        self._running[task] = what
        task.add_done_callback(self._ended.put_nowait)

    async def next(self) -> tuple[T, Any]:
        """The end that comes next: what was started, and its result. There must be one in progress.

        Raises:
            StepPaused: all that are left wait for a person.
            Exception: what the work raised.
        """
        while len(self._paused) < len(self._running):
            task = await self._ended.get()
            raised = task.exception()
            if raised is None:
                return self._running.pop(task), task.result()
            if isinstance(raised, Exception):
                raise raised
            self._paused.append(raised)
        raise self._paused[0]

    def close(self) -> None:
        """Stop what is in progress; what it raises is of no interest any more."""
        for task in self._running:
            task.cancel()
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
