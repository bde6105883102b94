"""What a run of a fleet counts."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .budget import RunLease
from .results import Status, TaskResult
from .tasks import Task

_SAMPLE = 20


@dataclass(slots=True)
class Tally:
    """Counts of finished tasks, and what they cost."""

    ok: int = 0
    failed: int = 0
    cancelled: int = 0
    invalid: int = 0
    quarantined: int = 0
    skipped: int = 0
    retries: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    failures: list[TaskResult] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Tasks with a result."""
        return self.ok + self.failed + self.cancelled + self.invalid + self.quarantined

    def add(self, result: TaskResult) -> None:
        """Count one more."""
        setattr(self, result.status, getattr(self, result.status) + 1)
        self.retries += max(0, result.attempts - 1)
        self.tokens += result.tokens
        if result.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + result.cost_usd
        if result.status != "ok" and len(self.failures) < _SAMPLE:
            self.failures.append(result)


@dataclass(slots=True)
class Attempts:
    """A task in flight: what its attempts cost so far.

    Attributes:
        losses: attempts during which an actor died that the task depended on.
        alone: the last attempt was made while no other suspect ran (see ``quarantine.py``).
        verdicts: how many tasks were in quarantine when this one was lost the last time.
        thread: that the last attempt had; the next one goes on with its turn, whose counters go on, too.
        called: an attempt is being made now.
        includes_earlier: what it cost includes what an earlier session of the fleet has counted.
        earlier_tokens, earlier_cost_usd: of attempts on other threads.
        failures: how often it failed, by kind (see ``Retries``).
        deaths: what each attempt died of that an actor was lost with.
        outgrown: a lease on the fleet's budget that was too small for it.
    """

    task: Task
    order: int
    started: float
    count: int = 0
    losses: int = 0
    alone: bool = False
    verdicts: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    thread: str | None = None
    called: bool = False
    includes_earlier: bool = False
    earlier_tokens: int = 0
    earlier_cost_usd: float | None = None
    failures: Counter[str] = field(default_factory=Counter)
    deaths: list[str] = field(default_factory=list)
    outgrown: RunLease | None = None

    def begin(self, thread: str | None) -> None:
        """The next attempt begins anew, on ``thread``."""
        self.thread, self.earlier_tokens, self.earlier_cost_usd = thread, self.tokens, self.cost_usd

    def add(self, metrics: Any) -> None:
        """Count what the attempts on the thread have cost so far; None says nothing."""
        if metrics is None:
            return
        self.tokens = self.earlier_tokens + int(getattr(metrics, "total_tokens", 0) or 0)
        cost = getattr(metrics, "cost_usd", None)
        if cost is not None:
            self.cost_usd = (self.earlier_cost_usd or 0.0) + cost

    def add_other(self, metrics: Any) -> None:
        """Count what an attempt cost that is not the one that counts."""
        self.earlier_tokens += int(getattr(metrics, "total_tokens", 0) or 0)
        cost = getattr(metrics, "cost_usd", None)
        if cost is not None:
            self.earlier_cost_usd = (self.earlier_cost_usd or 0.0) + cost
        self.tokens = max(self.tokens, self.earlier_tokens)
        self.cost_usd = self.cost_usd if self.earlier_cost_usd is None else max(self.cost_usd or 0.0, self.earlier_cost_usd)

    def result(self, status: Status, **fields: Any) -> TaskResult:
        """The task's line, as of now."""
        return TaskResult(
            id=self.task.id,
            status=status,
            tokens=self.tokens,
            cost_usd=self.cost_usd,
            duration_s=round(time.monotonic() - self.started, 6),
            attempts=self.count,
            **fields,
        )
