"""A run that goes on without the caller who began it, as its supervisor keeps it. See ``begun_runs.py``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ...protocol.codec import to_json
from ...protocol.commands import StartRun
from ...protocol.errors import EventsExpired, RunLost, UmbelError
from ...protocol.event import Event, read_event_json
from ...protocol.events import InterruptEvent, TerminateEvent
from ...protocol.handles import KeptRun, ReadEvents, RunEntry
from ...protocol.heard import Heard, note
from ...protocol.results import RunOutcome
from .event_log import EventLog


@dataclass(slots=True, eq=False)
class Begun:
    """One of these runs; for the run itself it is the caller that gets its events.

    Attributes:
        start: the request.
        agent: of the request; None where it could not be loaded.
        log: the events.
        began_at: seconds since the epoch, UTC.
        deaths: of supervisors over it.
        ended_at: of a run that is over.
        outcome, error: how it ended.
        stored: it ended in an earlier incarnation, and its outcome has still to be read from its thread.
        end_seq: number of the event that is its last, once there is one.
        told: number of the last event that is noted as told.
        heard: what those who were told have heard of a pattern's members in progress.
        changed: set when there is something new.
    """

    start: StartRun
    agent: Any
    log: EventLog
    began_at: float
    deaths: int = 0
    ended_at: float | None = None
    outcome: RunOutcome | None = None
    error: UmbelError | None = None
    stored: bool = False
    end_seq: int | None = None
    told: int = -1
    heard: Heard = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def durable(self) -> bool:
        """Its thread is stored."""
        return self.start.thread_id is not None and self.agent is not None and self.agent.config.checkpointer is not None

    def send(self, event: Any) -> None:
        """Take in an event (``Caller``)."""
        if isinstance(event, Event):
            self.log.append(event.to_json())
            if isinstance(event, TerminateEvent | InterruptEvent):
                self.end_seq = event.seq
            self.changed.set()

    def hear(self, lines: list[bytes], first: int) -> None:
        """Events are about to be told, as lines of JSON; those that were told before are known."""
        if self.agent.is_pattern:
            for line in lines[max(self.told + 1 - first, 0) :]:
                note(self.heard, read_event_json(line))

    async def flow(self) -> None:
        """Nobody is waited for (``Caller``)."""

    async def change(self) -> None:
        """Until there is something new."""
        self.changed.clear()
        await self.changed.wait()

    def record(self) -> KeptRun:
        """For the register."""
        return KeptRun(start=self.start, began_at=self.began_at, deaths=self.deaths, over=self.ended_at is not None)

    def entry(self, now: float) -> RunEntry:
        """For a list, at a time."""
        over = self.ended_at is not None
        return RunEntry(
            run_id=self.start.run_id,
            thread_id=self.start.thread_id,
            agent_name=None if self.agent is None else self.agent.label,
            status="lost" if isinstance(self.error, RunLost) else "finished" if over else "running",
            durable=self.durable,
            seconds=(self.ended_at or now) - self.began_at,
            first_seq=self.log.oldest,
            next_seq=self.log.next,
        )


def expired(message: ReadEvents, oldest: int) -> EventsExpired:
    """The error about a cursor that is too old."""
    return EventsExpired(
        f"the events of run {message.run_id} behind {message.after_seq} are not kept any more, the oldest is {oldest}: attach "
        f"with after_seq={oldest - 1}, or with after_seq=None to read what there is (Topology.kept_events and "
        "kept_event_bytes say how many are kept)",
        run_id=message.run_id,
        after_seq=message.after_seq,
        oldest=oldest,
    )


def compact(outcome: RunOutcome) -> RunOutcome:
    """The outcome with its state as bytes, whose size is known."""
    return outcome if outcome.state is None else outcome.evolve(state=None, state_json=to_json(outcome.state))


def size_of(outcome: RunOutcome | None) -> int:
    """Bytes that an outcome takes."""
    return 0 if outcome is None else len(outcome.state_json or b"") + len(to_json(outcome))


def rest(timeout: float | None, passed: float) -> float | None:
    """What is left of a timeout, in seconds."""
    return None if timeout is None else max(0.001, timeout - passed)
