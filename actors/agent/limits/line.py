"""A process's side of a cluster's limiter: one call in flight, news collected meanwhile, and what to do when nobody answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Protocol

from ....protocol.config import Limits
from ....protocol.limits import Answered, Asking, Known, LimiterReply, LimiterReport
from ..timing import Timing
from .turns import DEFAULT, Turn

BATCH_SECONDS = 0.005
RETRY_SECONDS = 0.5
CONNECT_SECONDS = 5.0
UNKNOWN_SHARE = 0.25
"""Of the rate, for a process that has never reached the limiter."""
LEEWAY = 5e-4  # seconds that the estimate of the limiter's clock may fall behind with each reply: clocks drift


class Exchange(Protocol):
    """The way to a desk."""

    async def __call__(self, report: LimiterReport) -> LimiterReply:
        """Its reply.

        Raises:
            ConnectionError: it cannot be reached, or is gone. The next call may find or make another one.
        """
        ...


class Line:
    """Reports to the desk of an endpoint, from one event loop.

    Args:
        client: this process, unique in the cluster.
        exchange: the way to the desk.
        timing: the clock.
        on_turn: called with a turn that may be sent; ``turn.at`` is on this process's clock.
        on_state: called when the desk was reached, was lost, or said something new.
    """

    def __init__(
        self,
        client: str,
        exchange: Exchange,
        timing: Timing,
        on_turn: Callable[[Turn], None],
        on_state: Callable[[], None],
    ) -> None:
        self.rate: float | None = None
        self.closed_until = 0.0
        self.wait = 0.0
        self.share: float | None = None
        self.is_up = False
        self.is_lost = False
        self.is_free = False
        self.limits: Limits | None = None
        self._client = client
        self._exchange = exchange
        self._timing = timing
        self._on_turn = on_turn
        self._on_state = on_state
        self._keys = itertools.count(1)
        self._waiting: dict[int, Turn] = {}
        self._away: dict[int, Turn] = {}
        self._key_of: dict[Turn, int] = {}
        self._asks: list[Asking] = []
        self._answers: list[tuple[float, Answered]] = []
        self._dropped: list[int] = []
        self._epoch: int | None = None
        self._offset: float | None = None
        self._began: float | None = None
        self._news = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._pump: asyncio.Task[None] | None = None

    def ask(self, turn: Turn) -> None:
        """Wait for a turn."""
        key = next(self._keys)
        self._key_of[turn], self._waiting[key] = key, turn
        self._asks.append(_asking(key, turn))
        self._say()

    def withdraw(self, turn: Turn) -> None:
        """It waits no longer."""
        key = self._key_of.pop(turn, None)
        if key is not None and self._waiting.pop(key, None) is not None:
            self._dropped.append(key)
            self._say()

    def answer(self, turn: Turn, kind: Any, **said: Any) -> None:
        """Say what became of a request."""
        key = self._key_of.get(turn)
        if kind == "ended":
            if key is None:
                return
            del self._key_of[turn]
            self._away.pop(key, None)
        self._answers.append((self._timing.monotonic(), Answered(key=key, kind=kind, **said)))
        self._say()

    def take_back(self) -> list[Turn]:
        """The turns that wait here, which wait elsewhere from now on."""
        turns = list(self._waiting.values())
        for turn in turns:
            del self._key_of[turn]
        self._waiting.clear()
        self._asks.clear()
        return turns

    async def close(self) -> None:
        """Say nothing any more."""
        tasks = [*self._calls, *([self._pump] if self._pump is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _say(self) -> None:
        self._news.set()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        """While there is anything to say or to wait for, have a call in flight; news end its wait by the next one."""
        try:
            while self._news.is_set() or self._waiting or self._away or self.is_lost:
                if self.is_lost:
                    await self._timing.sleep(RETRY_SECONDS)
                if self._calls and not self._news.is_set():
                    await self._until_news_or_reply()
                    continue
                self._news.clear()
                report = self._report()
                if self._epoch is None:
                    await self._call(report)  # nothing else is said before it knows this process
                    continue
                call = asyncio.ensure_future(self._call(report))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
                await self._timing.sleep(BATCH_SECONDS)
                while len(self._calls) > 1:
                    await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pump = None

    async def _until_news_or_reply(self) -> None:
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({news, *self._calls}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    def _report(self) -> LimiterReport:
        now = self._timing.monotonic()
        first = self._epoch is None
        asks = tuple(_asking(key, turn) for key, turn in self._waiting.items()) if first else tuple(self._asks)
        report = LimiterReport(
            client=self._client,
            known=Known(rate=self.rate, closed_for=self._closed_for(), share=self.share) if first else None,
            limits=self.limits if first else None,
            asks=asks,
            away=tuple(_asking(key, turn) for key, turn in self._away.items()) if first else (),
            answers=tuple(_aged(answer, now - when) for when, answer in self._answers),
            dropped=tuple(self._dropped),
            over=not (self._waiting or self._away),
        )
        self._asks.clear()
        self._answers.clear()
        self._dropped.clear()
        return report

    async def _call(self, report: LimiterReport) -> None:
        if self._began is None:
            self._began = self._timing.monotonic()
        try:
            reply = await self._exchange(report)
        except ConnectionError:
            self._lose()
            return
        if self._epoch is None:
            self._epoch, self._offset = reply.epoch, None
        elif self._epoch != reply.epoch:  # another one answers, which does not know what was said before
            self._lose()
            return
        self._hear(reply)

    def _hear(self, reply: LimiterReply) -> None:
        now = self._timing.monotonic()
        offset = now - reply.now
        self._offset = offset if self._offset is None else min(offset, self._offset + LEEWAY)
        self.rate, self.wait, self.is_free = reply.rate, reply.wait, reply.free
        self.share = reply.share
        self.closed_until = now + reply.closed_for if reply.closed_for else 0.0
        self.is_up, self.is_lost = True, False
        for granted in reply.grants:
            turn = self._waiting.pop(granted.key, None)
            if turn is None:  # given up meanwhile
                self._answers.append((now, Answered(key=granted.key, kind="ended")))
                self._news.set()
                continue
            self._away[granted.key] = turn
            turn.at = granted.at + self._offset
            self._on_turn(turn)
        self._on_state()

    def _lose(self) -> None:
        """Nobody answers: whoever waits goes on at this process's share, until somebody does again."""
        self._epoch, self.is_up = None, False
        if self.share is None and self._began is not None and self._timing.monotonic() - self._began < CONNECT_SECONDS:
            self._news.set()
            self.is_lost = True
            return
        self.is_lost = True
        if self.share is None:
            self.share = UNKNOWN_SHARE
        self._on_state()

    def _closed_for(self) -> float:
        return max(self.closed_until - self._timing.monotonic(), 0.0)


def _asking(key: int, turn: Turn) -> Asking:
    return Asking(key=key, share=None if turn.share is DEFAULT else turn.share, tokens=turn.tokens, again=turn.again)


def _aged(answer: Answered, delay: float) -> Answered:
    """What is said later than it was heard, as while the desk is being made."""
    if answer.kind != "refused":
        return answer
    seconds = None if answer.seconds is None else max(answer.seconds - delay, 0.0)
    return answer.evolve(age=answer.age + delay, seconds=seconds)


Connect = Callable[[str, str], Exchange]
"""From an endpoint's address and account (a digest) to its desk."""

_connect: Connect | None = None


def use(connect: Connect | None) -> None:
    """From now on the gates of this process share their limits with those of others; None ends that."""
    global _connect  # noqa: PLW0603 - a process belongs to one cluster
    _connect = connect


def way_to(address: str, account: str) -> Exchange | None:
    """The way to an endpoint's desk, if this process belongs to a cluster."""
    return _connect(address, account) if _connect is not None else None
