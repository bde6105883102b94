"""A transport inside the process that loses calls and returns, delays them, and whose peer dies and comes back."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any

from umbel.actors.frames import Frames, Unreachable, Unsent
from umbel.actors.mailbox import Mailbox
from umbel.protocol.errors import PeerLost


class Fault(Enum):
    CALL_LOST = "it never arrives"
    RETURN_LOST = "it is processed, its answer never arrives"
    ABANDONED = "the caller hears of a failure while it is processed"
    UNSENT = "it never arrives, as its caller knows"
    LATE = "the caller hears of a failure, and later it arrives nevertheless"


async def ticks(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


class FaultyTransport:
    """Calls to ``mailbox``.

    Attributes:
        mailbox: the peer's present incarnation; None while it restarts.
        faults: what happens to the next calls of a method, in order; None is no fault.
        chance: how likely any other call is to have one.
        delay: most loop ticks that a call or an answer takes.
        calls: how often each method was called.
        gate: while set, calls of the methods in it wait there.
    """

    def __init__(self, mailbox: Mailbox, seed: int = 0) -> None:
        self.mailbox: Mailbox | None = mailbox
        self.faults: defaultdict[str, deque[Fault | None]] = defaultdict(deque)
        self.chance = 0.0
        self.delay = 0
        self.calls = {"hello": 0, "deliver": 0, "collect": 0, "control": 0}
        self.large: list[bytes] = []
        self.gates: dict[str, asyncio.Event] = {}
        self._dead = False
        self._random = random.Random(seed)
        self._flying: set[asyncio.Future[Any]] = set()

    async def hello(self) -> int:
        async def greet(mailbox: Mailbox) -> int:
            return mailbox.epoch

        return int(await self._call("hello", greet))

    async def deliver(self, frame: bytes, large: Sequence[bytes]) -> Frames:
        self.large += large
        frames: Frames = await self._call("deliver", lambda mailbox: mailbox.deliver(frame, large))
        return frames

    async def collect(self, frame: bytes) -> Frames:
        frames: Frames = await self._call("collect", lambda mailbox: mailbox.collect(frame))
        return frames

    async def control(self, frame: bytes) -> None:
        async def control(mailbox: Mailbox) -> None:
            mailbox.control(frame)

        await self._call("control", control)

    async def die(self) -> None:
        """The peer's process ends: calls under way fail, others wait until ``restart``."""
        mailbox, self.mailbox = self.mailbox, None
        for job in list(self._flying):
            job.cancel()
        assert mailbox is not None
        await mailbox.close()

    def restart(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox

    def end(self) -> None:
        """The peer is dead for good."""
        self.mailbox, self._dead = None, True
        for job in list(self._flying):
            job.cancel()

    def close(self) -> None:
        """Nothing of it belongs to one link."""

    async def shut_down(self) -> None:
        jobs = list(self._flying)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    async def _call(self, method: str, work: Callable[[Mailbox], Awaitable[Any]]) -> Any:
        self.calls[method] += 1
        queue = self.faults[method]
        fault = queue.popleft() if queue else None
        if self._random.random() < self.chance:
            fault = self._random.choice(list(Fault))
        await self._wait(method)
        if fault is Fault.CALL_LOST:
            raise Unreachable
        if fault is Fault.UNSENT:
            raise Unsent
        mailbox = self._peer()
        if fault is Fault.LATE:
            job = self._fly(self._late(work))
            raise Unreachable
        job = self._fly(work(mailbox))
        if fault is Fault.ABANDONED:
            await ticks(self._random.randint(1, 5))
            raise Unreachable
        try:
            answer = await asyncio.shield(job)
        except asyncio.CancelledError:
            if job.cancelled():
                self._peer()
                raise Unreachable from None
            job.cancel()
            raise
        await self._wait()
        if fault is Fault.RETURN_LOST or self.mailbox is not mailbox:
            self._peer()
            raise Unreachable
        return answer

    def _peer(self) -> Mailbox:
        if self._dead:
            raise PeerLost("the peer is dead")
        if self.mailbox is None:
            raise Unreachable
        return self.mailbox

    def _fly(self, work: Awaitable[Any]) -> asyncio.Future[Any]:
        job = asyncio.ensure_future(work)
        self._flying.add(job)
        job.add_done_callback(self._landed)
        return job

    def _landed(self, job: asyncio.Future[Any]) -> None:
        self._flying.discard(job)
        if not job.cancelled():
            job.exception()

    async def _late(self, work: Callable[[Mailbox], Awaitable[Any]]) -> None:
        await ticks(self._random.randint(5, 60))
        if self.mailbox is not None:
            await work(self.mailbox)

    async def _wait(self, method: str = "") -> None:
        if self.delay:
            await ticks(self._random.randint(0, self.delay))
        if method in self.gates:
            await self.gates[method].wait()
