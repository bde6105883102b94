"""Who may ask an endpoint when: its pace, tokens and concurrency, and one fair queue. Callers give the time."""

from __future__ import annotations

from ....protocol.config import Limits
from .pace import MARGIN, Pace
from .queue import FairQueue
from .told import Told
from .turns import Turn

HORIZON = 0.05
"""Seconds ahead that turns are given, so that the way to whoever takes them costs no pace."""
PROBE_SECONDS = 1.0


class Limiter:
    """The limits of one endpoint and account.

    Every request asks, is let go (``grant``), is answered (``accept`` or ``refuse``), and ends (``end``); one that was let
    go and not sent ends only. Send times are evenly spread and never made up for, so no window holds more than its share
    of the limit. After a refusal that names a time nobody is let go before it, then one request tries, and the others
    follow when it was not refused.

    Args:
        limits: those that are configured.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.queue = FairQueue()
        self.pace = Pace()
        self.round = 0
        self.closed_until = 0.0
        self.share = 1.0
        """Of the pace that may be used here: less than 1 where others use the rest without asking here."""
        self._limits = Limits()
        self._token_limit: float | None = None
        self._tokens_free = float("-inf")
        self._last = float("-inf")
        self._learned_at = float("-inf")
        self._open = True
        self._probe: Turn | None = None
        self._probe_since = 0.0
        self._away: dict[Turn, None] = {}
        if limits is not None:
            self.configure(limits)

    @property
    def is_free(self) -> bool:
        """Whether nothing is known to limit the endpoint: then nobody needs to ask."""
        return self._open and self.pace.is_free and self._limits.concurrency is None and self._tokens_a_second is None

    @property
    def limits(self) -> Limits:
        """Those that are configured."""
        return self._limits

    def configure(self, limits: Limits) -> None:
        """Set the limits that hold whatever the endpoint says."""
        self._limits = limits
        self.pace.configure(limits.requests_per_minute / 60 if limits.requests_per_minute else None)

    def tell(self, told: Told) -> None:
        """The endpoint names its limits."""
        if told.requests is not None:
            self.pace.tell(told.requests / 60)
        if told.tokens is not None:
            self._token_limit = told.tokens

    def ask(self, turn: Turn) -> None:
        """Wait in the queue."""
        self.queue.push(turn)

    def withdraw(self, turn: Turn) -> None:
        """It will not be sent."""
        self.queue.drop(turn)
        self.end(turn)

    def grant(self, now: float) -> list[Turn]:
        """Let go whoever may be sent until ``now`` plus the horizon; ``turn.at`` says when."""
        granted: list[Turn] = []
        while (at := self.next_at(now)) is not None and at <= now + HORIZON:
            turn = self.queue.pop()
            turn.at, turn.round = at, self.round
            self._last = at
            if (rate := self._tokens_a_second) is not None:
                self._tokens_free = max(self._tokens_free, at) + turn.tokens / rate
            self._away[turn] = None
            if not self._open:
                self._probe, self._probe_since = turn, at
            granted.append(turn)
        return granted

    def next_at(self, now: float) -> float | None:
        """When the next request of the queue may be sent; None while that depends on an answer, or nobody waits."""
        if not len(self.queue):
            return None
        most = self._limits.concurrency
        if most is not None and len(self._away) >= max(1, int(most * self.share)):
            return None
        at = max(now, self.closed_until)
        if not self._open and self._probe is not None:
            at = max(at, self._probe_since + PROBE_SECONDS)
            if at <= now:
                self._reopen()  # a limit is refused at once: a probe that is still being answered has been let in
        rate = self.pace.rate
        if rate is not None:
            at = max(at, self._last + 1 / (rate * self.share))
        if self._tokens_a_second is not None:
            at = max(at, self._tokens_free)
        return at

    def accept(self, turn: Turn | None, now: float) -> None:
        """The endpoint let the request in."""
        self.pace.accept(now)
        if turn is not None and turn.round == self.round:
            self._reopen()

    def refuse(self, turn: Turn | None, now: float, seconds: float | None, *, age: float = 0.0) -> None:
        """The endpoint refused the request for its rate, or as overloaded.

        Args:
            turn: the request; None for one that went without asking.
            now: the time.
            seconds: for how long it wants to be left alone, if it says so.
            age: how long ago a request without a turn was sent.
        """
        is_news = now - age >= self._learned_at if turn is None or turn.key is None else turn.round == self.round
        if is_news:
            self._learned_at = now
            if turn is None or turn is not self._probe:  # a refused probe was let go too soon, not too fast
                self.pace.refuse(now)
            self.round += 1
        self._probe = None
        if seconds:
            self.closed_until = max(self.closed_until, now + seconds)
            self._open = False

    def end(self, turn: Turn, tokens: int | None = None) -> None:
        """The request is over; ``tokens`` is what it really used."""
        if turn not in self._away:
            return
        del self._away[turn]
        if self._probe is turn:
            self._probe = None  # it said nothing: the next one tries
        rate = self._tokens_a_second
        if rate is not None and tokens is not None:
            self._tokens_free += (tokens - turn.tokens) / rate

    def wait_for(self, now: float) -> float:
        """Seconds that a request which asks now waits, at least."""
        rate = self.pace.rate
        ahead = len(self.queue) / (rate * self.share) if rate is not None else 0.0
        paced = self._last + 1 / (rate * self.share) - now if rate is not None else 0.0
        return max(self.closed_until - now, self._tokens_free - now if self._tokens_a_second else 0.0, paced, 0.0) + ahead

    def resume(self, turn: Turn) -> None:
        """A request that another limiter let go is on its way."""
        turn.round, turn.waits = self.round, False
        self._away[turn] = None

    def adopt(self, rate: float | None, closed_for: float, now: float) -> None:
        """Take over what another limiter of this endpoint had found: requests a second, and how long it is closed."""
        self.pace.start(rate, now)
        self._last = max(self._last, now)
        if closed_for > 0:
            self.closed_until, self._open = max(self.closed_until, now + closed_for), False

    def free(self) -> None:
        """Forget what was found: the endpoint limits nothing any more."""
        self.pace.forget()
        self._reopen()

    @property
    def _tokens_a_second(self) -> float | None:
        known = [limit for limit in (self._limits.tokens_per_minute, self._token_limit) if limit is not None]
        return min(known) * MARGIN / 60 if known else None

    def _reopen(self) -> None:
        self._open, self._probe = True, None
