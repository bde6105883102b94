"""One gate per endpoint and process: a rate limit that one request meets holds back all of them.

Without it every worker meets the limit for itself, and all come back on the same beat. Here nobody asks again before
the stated time; then one request tries, and only when it is not refused do the others follow, spread out.
"""

from __future__ import annotations

from contextvars import ContextVar

from ....protocol.errors import RateLimited
from .timing import SYSTEM, Timing

DEFAULT_PATIENCE = 300.0
PROBE_SECONDS = 1.0
MAX_SPREAD = 1.0

_deadline: ContextVar[float | None] = ContextVar("umbel_model_deadline", default=None)


class wait_until:  # noqa: N801 - used like a function, in front of every model call: a generator would cost twice as much
    """``with wait_until(deadline)``: inside, no request waits at a gate beyond ``deadline`` (monotonic seconds)."""

    __slots__ = ("_before", "_value")

    def __init__(self, deadline: float) -> None:
        self._value = deadline

    def __enter__(self) -> None:
        self._before = _deadline.set(self._value)

    def __exit__(self, *_: object) -> None:
        _deadline.reset(self._before)


class Gate:
    """Holds back the requests to one endpoint while its rate limit is known to be used up.

    State is a few numbers and waiting is sleeping, so one gate serves any number of event loops.

    Args:
        endpoint: what errors call it.
        timing: clock, sleep and randomness.
        patience: seconds that a request waits at most when its caller set no deadline.
    """

    def __init__(self, endpoint: str = "", *, timing: Timing = SYSTEM, patience: float = DEFAULT_PATIENCE) -> None:
        self._endpoint = endpoint
        self._timing = timing
        self._patience = patience
        self._closed_until = 0.0
        self._open = True
        self._spread = 0.0
        self._round = 0
        self._probe_since: float | None = None

    async def admit(self) -> int:
        """Wait until a request may be sent. Returns a pass, to be given back by ``settle`` or ``abandon``.

        Raises:
            RateLimited: the gate opens only after the deadline; nothing was sent.
        """
        if not self._open:
            await self._wait()
        return self._round

    def close(self, seconds: float) -> None:
        """The server refused a request and asks to be left alone for ``seconds``."""
        now = self._timing.monotonic()
        if self._closed_until <= now:
            self._spread = 0.0
        self._closed_until = max(self._closed_until, now + seconds)
        self._spread = max(self._spread, min(seconds / 2, MAX_SPREAD))
        self._open = False
        self._round += 1
        self._probe_since = None

    def settle(self, admission: int) -> None:
        """The request was answered and not refused: let the others follow."""
        if admission == self._round:
            self._open = True
            self._probe_since = None

    def abandon(self, admission: int) -> None:
        """The request ended without saying anything about the limit: let another one try."""
        if admission == self._round:
            self._probe_since = None

    async def _wait(self) -> None:
        deadline = _deadline.get()
        if deadline is None:
            deadline = self._timing.monotonic() + self._patience
        while not self._open:
            now = self._timing.monotonic()
            if now < self._closed_until:
                self._refuse_beyond(deadline, now)
                await self._timing.sleep(self._closed_until - now + self._timing.random() * self._spread)
            elif self._probe_since is None:
                self._probe_since = now
                return
            elif now - self._probe_since >= PROBE_SECONDS:
                # A limit is refused at once; a probe that is still being answered has been let in.
                self.settle(self._round)
            else:
                self._refuse_beyond(deadline, now)
                await self._timing.sleep((0.5 + self._timing.random() / 2) * max(self._spread, 0.01))

    def _refuse_beyond(self, deadline: float, now: float) -> None:
        opens = max(self._closed_until, now)
        if opens > deadline or now >= deadline:
            raise RateLimited(
                f"{self._endpoint or 'the endpoint'} is rate limited for {opens - now:.1f} s more, beyond this call's budget",
                retry_after=opens - now,
                sent=False,
            )


_shared: dict[tuple[str, str], Gate] = {}


def shared_gate(endpoint: str, account: str) -> Gate:
    """The gate that all models of this process share for one base URL and account (a digest, never a key)."""
    return _shared.setdefault((endpoint, account), Gate(endpoint))
