"""What a mailbox keeps for one peer. See ``mailbox.py``."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import Any

from ..protocol.codec import encode
from ..protocol.errors import DecodeError
from ..protocol.messages import Frozen
from .burst import Burst
from .frames import WINDOW, Envelope, cut

OUTBOX = 20_000  # posted but unsent messages of a peer before ``Caller.flow`` waits


async def _within(future: asyncio.Future[None], seconds: float) -> None:
    timer = asyncio.get_running_loop().call_later(seconds, _wake, future)
    try:
        await future
    finally:
        timer.cancel()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


class Session:
    """One peer: its frames under way, its running requests, and the replies it has not acknowledged."""

    def __init__(self, peer: str, epoch: int) -> None:
        self.peer = peer
        self.epoch = epoch
        self.frame = 0  # the last one that was started; likewise of control
        self.control_frame = 0
        self.attempts: dict[int, int] = {}  # the latest at a recent frame
        self.collection = 0  # the latest attempt to collect
        self.entering = False  # a frame waits for room
        self.over = False  # a newer incarnation of the peer is here
        self.turns: list[asyncio.Future[None]] = []
        self.running: dict[int, RemoteCaller] = {}
        self.withdrawn: dict[int, int] = {}  # cancelled before they arrived: number -> ``frame`` at that moment
        self.unsent: deque[Envelope] = deque()
        self.unacknowledged: deque[Envelope] = deque()
        self.first_cursor = 1  # of unacknowledged
        self.delivering = 0
        self.wake: asyncio.Future[None] | None = None  # of a waiting collect
        self.first_reply: asyncio.Future[None] | None = None  # of a lingering deliver
        self.drained: asyncio.Event | None = None
        self.burst = Burst()
        self.one_way = itertools.count(-1, -1)

    def accepts(self, frame: int, attempt: int) -> bool:
        """Whether this is no late copy of what was tried again meanwhile, or is over."""
        if frame > self.frame + WINDOW:
            raise DecodeError(f"frame {frame} came when {self.frame} was the last one")
        if frame <= self.frame - WINDOW or attempt <= self.attempts.get(frame, 0):
            return False
        self.attempts[frame] = attempt
        return True

    async def turn(self, frame: int) -> bool:
        """Wait until all earlier frames have been started. Whether this one still has to be."""
        while frame > self.frame and (self.entering or frame > self.frame + 1) and not self.over:
            self.turns.append(turn := asyncio.get_running_loop().create_future())
            await turn
        return frame > self.frame and not self.over

    def advance(self) -> None:
        """Let go of those who wait for their turn."""
        turns, self.turns = self.turns, []
        for turn in turns:
            _wake(turn)

    def post(self, number: int, message: Frozen) -> None:
        kind, blob = encode(message)
        self.unsent.append((number, kind, blob))
        if self.first_reply is not None:
            _wake(self.first_reply)
        elif not self.delivering:
            _wake(self.wake)

    def notify(self) -> None:
        """End a poll."""
        _wake(self.wake)

    async def linger(self, seconds: float) -> None:
        """Until the first reply is posted, at most ``seconds``."""
        self.first_reply = self.first_reply or asyncio.get_running_loop().create_future()
        try:
            await _within(self.first_reply, seconds)
        finally:
            self.first_reply = None

    async def poll(self, seconds: float) -> None:
        """Until something is posted that no delivery takes along."""
        self.wake = wake = asyncio.get_running_loop().create_future()
        await _within(wake, seconds)

    def acknowledge(self, cursor: int) -> None:
        while self.unacknowledged and self.first_cursor <= cursor:
            self.unacknowledged.popleft()
            self.first_cursor += 1

    def rewind(self) -> None:
        """The peer lost a frame: everything it has not acknowledged is sent again."""
        self.unsent.extendleft(reversed(self.unacknowledged))
        self.unacknowledged.clear()

    def take(self) -> tuple[int, list[Any], list[bytes]]:
        """The next replies: (cursor of the first, envelopes, large blobs)."""
        first = self.first_cursor + len(self.unacknowledged)
        taken, wire, large = cut(self.unsent)
        self.unacknowledged.extend(taken)
        if self.drained is not None and len(self.unsent) < OUTBOX:
            self.drained.set()
        return first, wire, large

    def withdraw(self, number: int) -> None:
        """Nobody waits for this request any more."""
        caller = self.running.get(number)
        if caller is None:
            self.withdrawn[number] = self.frame
        else:
            caller.withdrawn = True
            caller.stop()

    def forget_withdrawn(self) -> None:
        """Drop those that have arrived, or were over: a link has no more than ``WINDOW`` frames under way."""
        self.withdrawn = {number: frame for number, frame in self.withdrawn.items() if frame + WINDOW > self.frame}

    def stop(self) -> None:
        """Cancel whatever runs, and let go of those who wait."""
        self.over = True
        self.advance()
        for caller in self.running.values():
            caller.stop()
        self.notify()


class RemoteCaller:
    """The asking side of one request (``Caller``), and the request itself while it runs."""

    __slots__ = ("key", "number", "session", "stopped", "task", "withdrawn")

    def __init__(self, session: Session, key: int, number: int) -> None:
        self.session = session
        self.key = key
        self.number = number
        self.task: asyncio.Task[None] | None = None
        self.stopped = False
        self.withdrawn = False

    def stop(self) -> None:
        self.stopped = True
        if self.task is not None:  # it has begun; a task that has not would never get to its `finally`
            self.task.cancel()

    def send(self, message: Frozen) -> None:
        if self.number and not self.withdrawn:
            self.session.post(-self.number, message)

    async def flow(self) -> None:
        session = self.session
        if len(session.unsent) >= OUTBOX:
            session.drained = session.drained or asyncio.Event()
            session.drained.clear()
            await session.drained.wait()
