"""Every request to an endpoint passes a gate: what the endpoint allows its account is kept by all of them together.

Without it every worker meets a limit for itself, and all come back on the same beat. While nothing is known to limit the
endpoint, a gate only looks on. From the first refusal, or the first limit that is configured or that an answer names, its
requests queue: in one process at a limiter of its own, on a cluster at the desk that all processes share
(``actors/agent/limits``).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from inspect import isawaitable
from weakref import WeakKeyDictionary

from ....protocol.config import Limits
from ....protocol.errors import RateLimited
from ...sharing import current_share
from ..limits.alarm import Alarm
from ..limits.limiter import Limiter
from ..limits.line import Exchange, Line, way_to
from ..limits.told import Told
from ..limits.turns import DEFAULT, Turn
from ..timing import SYSTEM, Timing

DEFAULT_PATIENCE = 300.0
LATE_SECONDS = 0.05
"""A turn that is taken later than that has passed: sent now, requests of different times would arrive together."""
MISSED = 5  # turns, after which a process that is too busy to be in time sends anyway
NO_WAIT = 0.1  # seconds that a request waits which is not to wait
QUIET_SECONDS = 1.0  # a wait that may become longer is announced

_keys = itertools.count(1)
_allowance: ContextVar[wait_until | None] = ContextVar("umbel_model_allowance", default=None)


class wait_until:  # noqa: N801 - used like a function, in front of every model call: a generator would cost twice as much
    """``with wait_until(deadline)``: inside, no request waits beyond it (monotonic seconds) for an endpoint that is closed.

    Waiting for one's turn among others, while the endpoint answers, has no end of its own: it moves ``deadline``.

    Args:
        deadline: the time.
        on_wait: told how many seconds a request is going to wait for its turn, at least, if that is long.
    """

    __slots__ = ("_before", "again", "deadline", "on_wait")

    def __init__(self, deadline: float, on_wait: Callable[[float, str], Awaitable[None] | None] | None = None) -> None:
        self.deadline = deadline
        self.on_wait = on_wait
        self.again = False

    def __enter__(self) -> None:
        self._before = _allowance.get()
        _allowance.set(self)

    def __exit__(self, *_: object) -> None:
        _allowance.set(self._before)


class _Waiter:
    __slots__ = ("deadline", "future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()
        self.deadline = deadline


class Gate:
    """Holds back the requests to one endpoint and account as its limits demand. Serves any number of event loops.

    Args:
        endpoint: what errors call it.
        timing: clock, sleep and randomness.
        patience: seconds that a request waits at most for an endpoint that is closed, when its caller set no deadline.
        limits: what is configured.
        exchange: the way to the cluster's desk for this endpoint; None keeps the limits in this process.
    """

    def __init__(
        self,
        endpoint: str = "",
        *,
        timing: Timing = SYSTEM,
        patience: float = DEFAULT_PATIENCE,
        limits: Limits | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._timing = timing
        self._patience = patience
        self._limiter = Limiter(limits)
        self._exchange = exchange
        self._line: Line | None = None
        self._line_loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.RLock()
        self._waiters: dict[Turn, _Waiter] = {}
        self._drivers: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Alarm, asyncio.Task[None]]] = WeakKeyDictionary()
        self._engaged = not self._limiter.is_free

    def limit(self, limits: Limits) -> None:
        """Configure what holds whatever the endpoint says."""
        with self._lock:
            if limits != self._limiter.limits:
                self._limiter.configure(limits)
                self._engaged = not self._limiter.is_free

    async def admit(self, tokens: int = 0) -> Turn:
        """Wait until a request may be sent.

        Args:
            tokens: that it is going to use, as far as that is known.

        Returns:
            A pass, for ``settle``, ``refuse`` or ``abandon``, and in the end ``finish``.

        Raises:
            RateLimited: the endpoint is closed beyond the deadline; nothing was sent.
        """
        if not self._engaged:
            return Turn(None, round=self._limiter.round, at=self._timing.monotonic())
        return await self._in_turn(tokens)

    def wait_for(self) -> float:
        """Seconds that a request which comes now waits, at least."""
        if not self._engaged:
            return 0.0
        now = self._timing.monotonic()
        if self._line is not None and self._line.is_up:
            return max(self._line.wait, self._line.closed_until - now)
        return self._limiter.wait_for(now)

    def close(self, seconds: float) -> None:
        """The endpoint wants to be left alone for ``seconds``."""
        self.refuse(Turn(None, at=self._timing.monotonic()), seconds)

    def refuse(self, admission: Turn, seconds: float | None, told: Told | None = None) -> None:
        """The endpoint refused the request, and wants to be left alone for ``seconds`` if it says so."""
        if (allowance := _allowance.get()) is not None:
            allowance.again = True  # whoever tries again is not sent to the end of the queue
        with self._lock:
            line = self._line_here() if self._exchange is not None else None
            if told is not None:
                self._limiter.tell(told)
            now = self._timing.monotonic()
            self._limiter.refuse(admission, now, seconds, age=now - admission.at)
            self._engaged = True
        if line is not None:
            line.answer(admission, "refused", seconds=seconds, age=now - admission.at, **_named(told))
        self._changed(closed=True)

    def settle(self, admission: Turn, told: Told | None = None) -> None:
        """The request was answered and not refused; ``told`` are limits that the answer names."""
        if not self._engaged and told is None:
            self._limiter.pace.accept(self._timing.monotonic())
            return
        with self._lock:
            line = self._line_here() if self._exchange is not None else None
            if told is not None:
                self._limiter.tell(told)
                self._engaged = True
            self._limiter.accept(admission, self._timing.monotonic())
            if line is None and self._limiter.is_free and not self._waiters:
                self._engaged = False
        if line is not None:
            line.answer(admission, "accepted", **_named(told))
        self._changed()

    def abandon(self, admission: Turn) -> None:
        """The request ended without saying anything about the limit."""
        self.finish(admission)

    def finish(self, admission: Turn) -> None:
        """The request is over, its answer read; ``admission.used`` says what it used, if that is known."""
        if admission.key is None:
            return
        with self._lock:
            self._limiter.end(admission, admission.used)
            line = self._line
        if line is not None:
            line.answer(admission, "ended", tokens=admission.used)
        self._changed()

    async def _in_turn(self, tokens: int) -> Turn:
        now = self._timing.monotonic()
        allowance = _allowance.get()
        deadline = allowance.deadline if allowance is not None else now + self._patience
        self._refuse_beyond(deadline, now)
        turn = Turn(next(_keys), current_share() or DEFAULT, tokens, again=allowance is not None and allowance.again)
        closed = max(self._closed_until() - now, 0.0)
        if allowance is not None and allowance.on_wait is not None and (wait := self.wait_for()) > QUIET_SECONDS:
            told = allowance.on_wait(
                wait, f"{self._endpoint or 'the endpoint'} is rate limited: this request waits for its turn"
            )
            if isawaitable(told):
                await told
        await self._wait(turn, deadline)
        waited = self._timing.monotonic() - now
        if allowance is not None and deadline > now:
            allowance.deadline += max(waited - closed, 0.0)
        return turn

    async def _wait(self, turn: Turn, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        missed = 0
        while True:
            self._waiters[turn] = waiter = _Waiter(loop, deadline)
            try:
                self._queue(turn)
                await waiter.future
                if (early := turn.at - self._timing.monotonic()) > 0:
                    await self._timing.sleep(early)
            except BaseException:  # also a cancellation gives the place back
                self._leave(turn)
                raise
            finally:
                self._waiters.pop(turn, None)
            missed += 1
            if self._timing.monotonic() - turn.at <= LATE_SECONDS or missed >= MISSED:
                return
            self._leave(turn)
            turn.again = True

    def _queue(self, turn: Turn) -> None:
        with self._lock:
            line = self._line_here() if self._exchange is not None else None
            if line is not None and not self._alone(line):
                line.ask(turn)
                return
            self._limiter.ask(turn)
        self._changed()

    def _leave(self, turn: Turn) -> None:
        with self._lock:
            self._limiter.withdraw(turn)
            if self._line is not None:
                self._line.withdraw(turn)
                self._line.answer(turn, "ended")
        self._changed()

    def _changed(self, *, closed: bool = False) -> None:
        """Let those go who may, and tell those who wait too long."""
        if closed:
            now = self._timing.monotonic()
            for waiter in list(self._waiters.values()):
                if self._closed_until() > waiter.deadline and not waiter.future.done():
                    _in_loop(waiter, self._too_long(now))
        with self._lock:
            if not len(self._limiter.queue):
                return
            loop = asyncio.get_running_loop()
            if loop not in self._drivers or self._drivers[loop][1].done():
                alarm = Alarm(self._timing)
                self._drivers[loop] = alarm, asyncio.ensure_future(self._drive(alarm))
            for other, (alarm, _) in list(self._drivers.items()):
                if other is loop:
                    alarm.ring()
                elif not other.is_closed():
                    other.call_soon_threadsafe(alarm.ring)

    async def _drive(self, alarm: Alarm) -> None:
        """Let the requests of this process go as they come up, while any wait."""
        while True:
            with self._lock:
                now = self._timing.monotonic()
                granted = self._limiter.grant(now)
                at = self._limiter.next_at(now)
                if not len(self._limiter.queue):
                    at = now
            for turn in granted:
                self._let_go(turn)
            if at == now:
                return
            await alarm.sleep(at - now if at is not None else None)

    def _let_go(self, turn: Turn) -> None:
        waiter = self._waiters.get(turn)
        if waiter is None or waiter.loop.is_closed():
            self._leave(turn)
        else:
            _in_loop(waiter, None)

    def _closed_until(self) -> float:
        line = self._line.closed_until if self._line is not None else 0.0
        return max(self._limiter.closed_until, line)

    def _refuse_beyond(self, deadline: float, now: float) -> None:
        if self._closed_until() > deadline or (deadline <= now and self.wait_for() > NO_WAIT):
            raise self._too_long(now)

    def _too_long(self, now: float) -> RateLimited:
        wait = max(self._closed_until() - now, self.wait_for())
        return RateLimited(
            f"{self._endpoint or 'the endpoint'} is rate limited for {wait:.1f} s more, beyond this call's budget",
            retry_after=wait,
            sent=False,
        )

    def _line_here(self) -> Line | None:
        """The line to the cluster's desk, on the event loop that first needs it; other loops keep to themselves."""
        loop = asyncio.get_running_loop()
        if self._line is None and self._exchange is not None:
            client = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
            self._line = Line(client, self._exchange, self._timing, self._let_go, self._follow)
            self._line.limits = self._limiter.limits if self._limiter.limits != Limits() else None
            self._line_loop = loop
        return self._line if self._line_loop is loop else None

    def _alone(self, line: Line) -> bool:
        return line.is_lost and line.share is not None

    def _follow(self) -> None:
        """The desk was reached, or lost."""
        line = self._line
        if line is None:
            return
        now = self._timing.monotonic()
        with self._lock:
            if line.is_up:
                self._limiter.share = 1.0
                for turn in [turn for turn in self._waiters if turn.waits]:
                    self._limiter.withdraw(turn)
                    line.ask(turn)
                if line.is_free and not self._waiters:
                    self._limiter.free()
                    self._engaged = not self._limiter.is_free
            elif self._alone(line):
                self._limiter.share = line.share if line.share is not None else 1.0
                self._limiter.adopt(line.rate, line.closed_until - now, now)
                for turn in line.take_back():
                    self._limiter.ask(turn)
        self._changed()


def _named(told: Told | None) -> dict[str, float | None]:
    return {"requests_per_minute": told.requests, "tokens_per_minute": told.tokens} if told is not None else {}


def _in_loop(waiter: _Waiter, error: Exception | None) -> None:
    def tell() -> None:
        if not waiter.future.done():
            if error is None:
                waiter.future.set_result(None)
            else:
                waiter.future.set_exception(error)

    if waiter.loop is asyncio.get_running_loop():
        tell()
    else:
        waiter.loop.call_soon_threadsafe(tell)


_shared: dict[tuple[str, str], Gate] = {}


_configured: dict[str, Limits] = {}


def configure_limits(limits: Mapping[str, Limits]) -> None:
    """What endpoints allow, by provider prefix or base URL, for the models of this process that are made from now on."""
    _configured.update({name.rstrip("/"): limit for name, limit in limits.items()})


def limits_of(provider: str, address: str) -> Limits | None:
    """What is configured for an endpoint; its base URL wins over the provider's prefix."""
    return _configured.get(address) or _configured.get(provider)


def shared_gate(endpoint: str, account: str, limits: Limits | None = None) -> Gate:
    """The gate that all models of this process share for one base URL and account (a digest, never a key)."""
    gate = _shared.get((endpoint, account))
    if gate is None:
        gate = _shared[endpoint, account] = Gate(endpoint, exchange=way_to(endpoint, account))
    if limits is not None:
        gate.limit(limits)
    return gate
