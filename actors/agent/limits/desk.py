"""The limiter that a whole cluster shares: processes report to it what they want and what they met, and get turns."""

from __future__ import annotations

import asyncio
import contextlib
from weakref import WeakKeyDictionary

from ....protocol.limits import Answered, Asking, Granted, LimiterReply, LimiterReport
from ..timing import SYSTEM, Timing
from .alarm import Alarm
from .limiter import Limiter
from .told import Told
from .turns import DEFAULT, Turn

POLL_SECONDS = 1.0
LEASE_SECONDS = 10.0
SETTLING_SECONDS = 3.0
SHARE_DECAY = 0.98
LEAST_SHARE = 0.01


class _Client:
    """A process, as the desk knows it."""

    def __init__(self) -> None:
        self.turns: dict[int, Turn] = {}
        self.granted: list[Granted] = []
        self.poll = 0
        self.seen = 0.0
        self.used = 0.0
        self.came_with: float | None = None
        self.wake = asyncio.Event()

    @property
    def demand(self) -> float:
        """What it uses and waits for."""
        return self.used + len(self.turns)


class Desk:
    """One endpoint's limiter for all processes of a cluster. Belongs to one event loop.

    A desk that takes the place of one that died hands out, for the first seconds, only the shares of those processes that
    have come back to it: the others still go on with theirs.

    Args:
        epoch: of this incarnation.
        timing: the clock.
    """

    def __init__(self, epoch: int, *, timing: Timing = SYSTEM) -> None:
        self.limiter = Limiter()
        self._epoch = epoch
        self._timing = timing
        self._clients: dict[str, _Client] = {}
        self._whose: WeakKeyDictionary[Turn, tuple[str, int]] = WeakKeyDictionary()
        self._since = timing.monotonic()
        self._alarm = Alarm(timing)
        self._driver: asyncio.Task[None] | None = None

    async def exchange(self, report: LimiterReport) -> LimiterReply:
        """Take a report, and wait up to a second for turns; a later report of the same process ends the wait."""
        if self._driver is None or self._driver.done():
            self._driver = asyncio.ensure_future(self._drive())
        client = self._take(report)
        client.poll += 1
        mine = client.poll
        client.wake.set()
        deadline = self._timing.monotonic() + POLL_SECONDS
        self._alarm.ring()
        await asyncio.sleep(0)  # the driver gives what can be given at once
        while not (client.granted or report.over) and client.poll == mine and self._timing.monotonic() < deadline:
            client.wake.clear()
            await self._alarm.sleep_or(deadline - self._timing.monotonic(), client.wake)
        return self._reply(client)

    async def close(self) -> None:
        """Let nobody go any more."""
        if self._driver is not None:
            self._driver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._driver

    def _take(self, report: LimiterReport) -> _Client:
        now = self._timing.monotonic()
        client = self._clients.get(report.client)
        if client is None or report.known is not None:
            client = self._welcome(report, client, now)
        client.seen = now
        if report.limits is not None:
            self.limiter.configure(report.limits)
        for answer in report.answers:
            self._hear(client, answer, now)
        for asking in report.asks:
            if asking.key not in client.turns:
                self.limiter.ask(self._turn(report.client, client, asking))
        for key in report.dropped:
            if (turn := client.turns.pop(key, None)) is not None:
                self.limiter.withdraw(turn)
        return client

    def _welcome(self, report: LimiterReport, before: _Client | None, now: float) -> _Client:
        if before is not None:
            self._forget(report.client)
        client = self._clients[report.client] = _Client()
        known = report.known
        if known is not None:
            client.came_with = known.share
            if known.rate is not None and self.limiter.pace.rate is None:
                self.limiter.adopt(known.rate, known.closed_for, now)
        for asking in report.away:
            self.limiter.resume(self._turn(report.client, client, asking))
        return client

    def _turn(self, name: str, client: _Client, asking: Asking) -> Turn:
        turn = client.turns[asking.key] = Turn(asking.key, asking.share or DEFAULT, asking.tokens, again=asking.again)
        self._whose[turn] = name, asking.key
        return turn

    def _hear(self, client: _Client, answer: Answered, now: float) -> None:
        turn = client.turns.get(answer.key) if answer.key is not None else None
        if answer.key is not None and turn is None:
            return
        if answer.requests_per_minute or answer.tokens_per_minute:
            self.limiter.tell(Told(answer.requests_per_minute, answer.tokens_per_minute))
        if answer.kind == "accepted":
            self.limiter.accept(turn, now)
        elif answer.kind == "refused":
            self.limiter.refuse(turn, now, answer.seconds, age=answer.age)
        elif turn is not None:
            self.limiter.end(turn, answer.tokens)
            client.turns.pop(answer.key or 0, None)

    def _forget(self, name: str) -> None:
        for turn in self._clients.pop(name).turns.values():
            self.limiter.withdraw(turn)

    async def _drive(self) -> None:
        """Give turns as they come up."""
        while True:
            now = self._timing.monotonic()
            for name in [name for name, client in self._clients.items() if now - client.seen > LEASE_SECONDS]:
                self._forget(name)
            self.limiter.share = self._settled(now)
            for turn in self.limiter.grant(now):
                name, key = self._whose[turn]
                for other in self._clients.values():
                    other.used *= SHARE_DECAY
                client = self._clients[name]
                client.used += 1.0
                client.granted.append(Granted(key=key, at=turn.at))
                client.wake.set()
            at = self.limiter.next_at(now)
            await self._alarm.sleep(min(at - now, POLL_SECONDS) if at is not None else POLL_SECONDS)

    def _settled(self, now: float) -> float:
        """The part of the pace that may be given out."""
        shares = [client.came_with for client in self._clients.values()]
        if now - self._since > SETTLING_SECONDS or all(share is None for share in shares):
            return 1.0
        return max(min(sum(share or 0.0 for share in shares), 1.0), 0.01)

    def _reply(self, client: _Client) -> LimiterReply:
        now = self._timing.monotonic()
        granted, client.granted = tuple(client.granted), []
        demand = sum(other.demand for other in self._clients.values())
        return LimiterReply(
            epoch=self._epoch,
            now=now,
            grants=granted,
            rate=self.limiter.pace.rate,
            closed_for=max(self.limiter.closed_until - now, 0.0),
            wait=self.limiter.wait_for(now),
            share=max(client.demand / demand if demand else 0.0, LEAST_SHARE),
            free=self.limiter.is_free,
        )
