"""What a fleet runs, and how: what the modules of a run share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from ...actors.sharing import Share
from .budget import Budget
from .hedging import Hedge
from .priority import priority_of
from .quarantine_file import QuarantineFile
from .retry import Backoff, Retries
from .tasks import BadTask, Task


class Runnable(Protocol):
    """What a fleet can run: an agent, a pattern, or anything with this method."""

    async def arun(
        self,
        prompt: Any,
        *,
        thread_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = None,
        full: bool = True,
    ) -> Any:
        """Run ``prompt`` to the end; the result has ``message``, ``success``, ``stop_reason``, ``metrics`` and ``error``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run: see :class:`~umbel.cluster.fleet.Fleet`."""

    concurrency: int
    retries: Retries
    timeout: float | None
    threads: str | None
    options: dict[str, Any]
    backoff: Backoff
    quarantine_after: int
    ready: Callable[[], Awaitable[None]] | None
    limit: int | None
    keep: bool
    budget: Budget
    deadline: float | datetime | None
    hedge: Hedge | None
    quarantine: QuarantineFile | None
    priority: str | None
    share: Share | None
    grace: float

    def share_of(self, task: Task) -> Share | None:
        """The claim of one task to the limits of endpoints: more urgent ones are served first."""
        if self.share is None or self.priority is None:
            return self.share
        urgency = priority_of(task, self.priority)
        return self.share.evolve(priority=0 if isinstance(urgency, BadTask) else round(urgency))

    def deadline_in(self, elapsed: float) -> float | None:
        """Seconds to the deadline, ``elapsed`` seconds after the start; None without one."""
        if isinstance(self.deadline, datetime):
            return (self.deadline - datetime.now(UTC)).total_seconds()
        return None if self.deadline is None else self.deadline - elapsed
