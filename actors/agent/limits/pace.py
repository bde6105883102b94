"""How fast an endpoint may be asked: what is configured, what it tells, and what its refusals teach."""

from __future__ import annotations

MARGIN = 0.94
"""Share of a known limit that is used: a window then holds no more than the limit even where requests arrive late."""
DECREASE = 0.7
FIRST = 2.0  # requests a second, after a refusal before anything was accepted
SLOWEST = 1 / 60
PLATEAU = 0.95  # of the rate that was refused: up to there the way back is quick
CREEP = 0.01  # of it, a second: beyond
RECOVERY = 0.1
TRUST = 1.05  # a rate that much above the refused one, and not refused: the limit has been raised
FORGET = 120.0  # seconds without a refusal, after which an endpoint that tells no limit counts as unlimited
METER = 2.0


class Pace:
    """Requests a second, or None where nothing is known to limit them.

    A refusal lowers it to a share of itself, once for all requests that were on their way; from there it rises quickly to
    just below where it was refused, and creeps from there on (additive increase, multiplicative decrease with memory).

    Args:
        limit: requests a second that are configured.
    """

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._told: float | None = None
        self._found: float | None = None
        self._refused: float | None = None
        self._refused_at = 0.0
        self._grown_at = 0.0
        self._meter = _Meter()

    @property
    def rate(self) -> float | None:
        """Requests a second to send."""
        known = [rate * MARGIN for rate in (self._limit, self._told) if rate is not None]
        return min([*known, *([self._found] if self._found is not None else [])], default=None)

    @property
    def is_free(self) -> bool:
        """Whether nothing limits it."""
        return self._limit is None and self._told is None and self._found is None

    def configure(self, limit: float | None) -> None:
        """Another limit from now on."""
        self._limit = limit

    def tell(self, limit: float) -> None:
        """The endpoint says what it allows, requests a second."""
        self._told = limit

    def start(self, rate: float | None, now: float) -> None:
        """Go on with the rate that somebody else had found."""
        if rate is not None:
            self._found = self._refused = rate
            self._refused_at = self._grown_at = now

    def forget(self) -> None:
        """Nothing was found."""
        self._found = self._refused = None

    def accept(self, now: float) -> None:
        """A request was let in."""
        self._meter.count(now)
        if self._found is None:
            return
        elapsed, self._grown_at = min(now - self._grown_at, 1.0 + 1.0 / self._found), now
        refused = self._refused
        if refused is not None and self._told is not None:
            refused = max(refused, self._told * MARGIN / 2)  # what it tells is worth trying again soon
        if now - self._refused_at > FORGET:
            self._found = self._refused = None
        elif refused is None:
            self._found += 1.0  # slow start: doubles with every second, until it is refused
        elif self._found < PLATEAU * refused:
            self._found = min(self._found + RECOVERY * refused * elapsed, PLATEAU * refused)
        elif self._found < TRUST * refused:
            self._found += CREEP * refused * elapsed
        else:
            self._refused = self._found

    def refuse(self, now: float) -> None:
        """A request was refused, for the first time since the pace was lowered."""
        before = self.rate
        seen = self._meter.rate(now)
        if before is None:
            self._found = max(DECREASE * seen, FIRST) if seen else FIRST
        else:
            self._refused = before
            self._found = max(DECREASE * before, SLOWEST)
        self._refused_at = self._grown_at = now


class _Meter:
    """Events a second, over the last seconds."""

    __slots__ = ("_before", "_count", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        self._count = 0
        self._before = 0.0

    def count(self, now: float) -> None:
        if now - self._since > METER:
            self._before = self._count / (now - self._since)
            self._since, self._count = now, 0
        self._count += 1

    def rate(self, now: float) -> float:
        return max(self._before if now - self._since < METER else 0.0, self._count / max(now - self._since, METER))
