"""A run's events on their way to whoever runs it: a handler that is called, or a stream that is iterated."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..protocol.events import Event, TerminateEvent

Observer = Callable[[Any], None]


class Callback:
    """A caller's event handler: once it raises, it is not called again and the run is stopped."""

    def __init__(self, handler: Observer, stop: Callable[[], None]) -> None:
        self.error: Exception | None = None
        self._handler = handler
        self._stop = stop

    def __call__(self, event: Event) -> None:
        if self.error is None:
            try:
                self._handler(event)
            except Exception as error:  # noqa: BLE001 - kept for the caller, who gets it when the run has ended
                self.error = error
                self._stop()


class EventStream:
    """Events of one run on their way to ``async for``; filled on the consumer's own event loop."""

    def __init__(self) -> None:
        self.seq = -1
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._finished = False
        self._cut = False

    def push(self, event: Event) -> None:
        if self._cut and not isinstance(event, TerminateEvent):
            return
        self._events.append(event)
        self._arrived.set()

    def cut(self) -> None:
        """The run was cancelled: drop what is buffered, and everything but its end."""
        self._cut = True
        self._events = deque(event for event in self._events if isinstance(event, TerminateEvent))

    def finish(self) -> None:
        self._finished = True
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            while self._events:
                event = self._events.popleft()
                self.seq = event.seq
                yield event
            if self._finished:
                return
            self._arrived.clear()
            await self._arrived.wait()
