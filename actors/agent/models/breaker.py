"""A circuit breaker: an endpoint that failed several times in a row is left alone for a while, then tried by one request."""

from __future__ import annotations


class Breaker:
    """What is known of one endpoint. Times are monotonic seconds, given by the caller."""

    __slots__ = ("_failures", "_opened_at", "_probing")

    def __init__(self) -> None:
        self._failures = 0
        self._opened_at: float | None = None
        self._probing = False

    def admit(self, now: float, rest: float) -> bool:
        """Whether a request may be made; every admitted one ends in ``succeed``, ``fail`` or ``abandon``.

        Args:
            now: the time.
            rest: seconds that an open breaker refuses everything; then it admits one probe at a time.
        """
        if self._opened_at is None:
            return True
        if self._probing or now - self._opened_at < rest:
            return False
        self._probing = True
        return True

    def reopens(self, now: float, rest: float) -> float:
        """Seconds until the next probe may be made, at least."""
        return 0.0 if self._opened_at is None else max(self._opened_at + rest - now, 0.0)

    def succeed(self) -> None:
        """The endpoint answered: whatever was held against it is forgotten."""
        self._failures = 0
        self._opened_at = None
        self._probing = False

    def fail(self, now: float, limit: int) -> None:
        """The endpoint failed: opens at ``limit`` failures in a row, and again after a failed probe."""
        self._failures += 1
        if self._probing or (self._opened_at is None and self._failures >= limit):
            self._opened_at = now
        self._probing = False

    def abandon(self) -> None:
        """The request ended without saying anything about the endpoint: let another one probe."""
        self._probing = False


_shared: dict[str, Breaker] = {}


def shared_breaker(key: str) -> Breaker:
    """The breaker that all models of this process share for one endpoint."""
    return _shared.setdefault(key, Breaker())
