"""How far a fleet is: on a terminal a live bar, in a log one line every few seconds."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.progress import Progress

LOG_SECONDS = 5.0
_WINDOW_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A moment of a fleet.

    Attributes:
        total: tasks to do, None when unknown.
        done: ok, failed, cancelled, invalid and quarantined together.
        ok, failed, cancelled, invalid, quarantined: how those ended.
        skipped: finished by an earlier run.
        running: in flight.
        retries: attempts beyond the first.
        tokens: spent so far.
        cost_usd: spent so far, None when no model has a price.
        elapsed_s: seconds since the start.
        rate: tasks per second over the last half minute.
        eta_s: seconds to go, None when unknown.
        budget: how much of the fleet's budget is used, for people; empty without one.
        deadline_s: seconds to the deadline, None without one.
        waiting: model calls that wait for a rate limit, None when nobody counts them.
    """

    total: int | None = None
    done: int = 0
    ok: int = 0
    failed: int = 0
    cancelled: int = 0
    invalid: int = 0
    quarantined: int = 0
    skipped: int = 0
    running: int = 0
    retries: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    elapsed_s: float = 0.0
    rate: float = 0.0
    eta_s: float | None = None
    budget: str = ""
    deadline_s: float | None = None
    waiting: int | None = None


@runtime_checkable
class Reporter(Protocol):
    """Shows snapshots; called a few times a second from the event loop, so it must not block."""

    def update(self, snapshot: Snapshot) -> None:
        """Show it, if it is time."""

    def close(self, snapshot: Snapshot) -> None:
        """Show the last one and let go of the screen."""


@dataclass(slots=True)
class RateMeter:
    """Tasks per second over a sliding window."""

    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque([(0.0, 0)]))

    def rate(self, elapsed: float, done: int) -> float:
        """The rate at ``elapsed`` seconds, when ``done`` tasks are."""
        self.samples.append((elapsed, done))
        while len(self.samples) > 2 and elapsed - self.samples[0][0] > _WINDOW_SECONDS:
            self.samples.popleft()
        start, before = self.samples[0]
        return (done - before) / (elapsed - start) if elapsed > start else 0.0


def choose_reporter(progress: bool | Reporter | Callable[[Snapshot], Any], stream: IO[str] | None = None) -> Reporter:
    """The reporter for a ``progress`` argument: False nothing, True by the kind of ``stream`` (stderr), a function as is."""
    if progress is False:
        return _Called(lambda _: None)
    if not isinstance(progress, bool):
        return progress if isinstance(progress, Reporter) else _Called(progress)
    stream = stream or sys.stderr
    return _Bar(stream) if stream.isatty() else _LogLines(stream)


class _Called:
    """Hands each snapshot to a function."""

    def __init__(self, function: Callable[[Snapshot], Any]) -> None:
        self.update = self.close = function


class _LogLines:
    """One line every five seconds and one at the end."""

    def __init__(self, stream: IO[str], *, every: float = LOG_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every = every
        self._clock = clock
        self._next = clock() + every

    def update(self, snapshot: Snapshot) -> None:
        if self._clock() >= self._next:
            self._next = self._clock() + self._every
            self._write(snapshot)

    def close(self, snapshot: Snapshot) -> None:
        self._write(snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        print(f"fleet: {describe(snapshot)}", file=self._stream, flush=True)


class _Bar:
    """A live line with rate, time to go, failures and spend."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        columns = (SpinnerColumn(), BarColumn(bar_width=28), TextColumn("{task.fields[text]}"))
        self._progress: Progress = Progress(*columns, console=Console(file=stream), auto_refresh=False)
        self._task = self._progress.add_task("", total=None, text="starting")
        self._progress.start()

    def update(self, snapshot: Snapshot) -> None:
        done = snapshot.done + snapshot.skipped
        total = None if snapshot.total is None else max(snapshot.total, done)
        self._progress.update(self._task, completed=done, total=total, text=describe(snapshot))
        self._progress.refresh()

    def close(self, snapshot: Snapshot) -> None:
        self.update(snapshot)
        self._progress.stop()


def describe(snapshot: Snapshot) -> str:
    """A snapshot in one line."""
    done = snapshot.done + snapshot.skipped
    parts = [f"{done:,}/{snapshot.total:,}" if snapshot.total is not None else f"{done:,} done", f"{snapshot.rate:,.1f}/s"]
    if snapshot.eta_s is not None:
        parts.append(f"ETA {duration(snapshot.eta_s)}")
    if snapshot.deadline_s is not None:
        parts.append(f"deadline in {duration(max(0.0, snapshot.deadline_s))}")
    parts.append(f"{snapshot.running:,} running")
    if snapshot.waiting:
        parts.append(f"{snapshot.waiting:,} waiting for rate limits")
    for name in ("failed", "quarantined", "invalid", "cancelled", "skipped", "retries"):
        count = getattr(snapshot, name)
        if count or name == "failed":
            parts.append(f"{count:,} {name}")
    parts.append(f"{snapshot.tokens:,} tokens")
    if snapshot.cost_usd is not None:
        parts.append(f"${snapshot.cost_usd:,.4f}")
    if snapshot.budget:
        parts.append(f"budget: {snapshot.budget}")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as people write them: ``42s``, ``3m20s``, ``5h07m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
