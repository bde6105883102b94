"""A durable run whose supervisor dies is sent again, to go on from what is stored (``supervisor/recovery.py``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container
from typing import Any

from ..protocol.commands import Ping, RunFinished, StartRun
from ..protocol.config import Topology
from ..protocol.errors import DeadlineExceeded, PeerLost
from ..protocol.event import Event
from ..protocol.events import InterruptEvent, TerminateEvent
from ..protocol.heard import Heard, note
from ..protocol.messages import Frozen
from ..protocol.results import RunOutcome
from .link import Link

logger = logging.getLogger("umbel.runtime")
Observer = Callable[[Any], None]


class Seen:
    """What the caller has seen of a run.

    Args:
        on_event: gets the events.
    """

    def __init__(self, on_event: Observer) -> None:
        self.seq = -1
        self.end = False
        self.heard: Heard = {}
        self._on_event = on_event

    def __call__(self, event: Any) -> None:
        if isinstance(event, Event):
            self.seq = event.seq
            self.end = isinstance(event, TerminateEvent | InterruptEvent)
            note(self.heard, event)
        self._on_event(event)


async def recovering(
    link: Link, request: StartRun, on_event: Observer | None, shape: Topology, stopped: Container[str]
) -> RunOutcome:
    """Have a durable run carried out, whatever happens to its supervisor meanwhile.

    Args:
        link: to the supervisor.
        request: the run.
        on_event: gets its events, numbered without a gap.
        shape: how long to wait for the supervisor, and how often.
        stopped: ids of runs that shall not go on.

    Raises:
        PeerLost: the supervisor did not come back in time, or dies of this run again and again.
    """
    seen = None if on_event is None else Seen(on_event)
    began, deaths, sent = time.monotonic(), 0, request
    while True:
        try:
            finished: RunFinished = await link.request(sent, on_partial=seen)
            return finished.outcome
        except PeerLost as lost:
            deaths += 1
            if deaths > shape.max_recoveries or not shape.recovery_seconds:
                raise
            logger.warning("run %s: its supervisor died (%s); it is recovered", request.run_id, lost.message)
            await back(link, shape.recovery_seconds, lost)
        cancelled = request.cancelled or request.run_id in stopped
        left = rest(request.timeout, began)
        sent = request.evolve(recover=True, cancelled=cancelled, timeout=left, **({} if seen is None else unseen(seen)))


async def persistent(link: Link, message: Frozen, shape: Topology) -> Any:
    """The reply to a message that may be sent again, whatever happens to the supervisor meanwhile.

    Raises:
        PeerLost: it did not come back in time, or dies again and again.
    """
    deaths = 0
    while True:
        try:
            return await link.request(message)
        except PeerLost as lost:
            deaths += 1
            if deaths > shape.max_recoveries + 1 or not shape.recovery_seconds:
                raise
            await back(link, shape.recovery_seconds, lost)


async def back(link: Link, seconds: float, lost: PeerLost) -> None:
    """Wait until the supervisor answers.

    Raises:
        PeerLost: it did not, for so many seconds, or is gone for good.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            await link.request(Ping(), timeout=max(0.0, end - time.monotonic()))
            return
        except DeadlineExceeded:
            raise lost from None
        except PeerLost:
            if link.gone or time.monotonic() >= end:
                raise


def unseen(seen: Seen) -> dict[str, Any]:
    """The events that are still wanted: those behind the last one, none when that was the last of all."""
    return {"after_seq": seen.seq, "events": not seen.end, "heard": seen.heard}


def rest(timeout: float | None, began: float) -> float | None:
    """What is left of a timeout, in seconds."""
    return None if timeout is None else max(0.001, timeout - (time.monotonic() - began))
