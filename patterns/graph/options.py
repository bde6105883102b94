"""Options of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from ...protocol.settings import Settings


class NodeRetry(Settings):
    """Further attempts at a node that failed. Source: PAT-31.

    Attributes:
        max_attempts: attempts in all, the first included.
        initial_seconds: the pause before the second attempt; each further one is ``factor`` times as long.
        factor: growth of the pauses.
        max_seconds: the longest pause.
        jitter: the pause that is taken is a random share of the computed one, between ``1 - jitter`` and 1.
        on: names of error classes or codes that are tried again (``"ValueError"``, ``"rate_limit"``); empty: all but
            timeouts, lost outcomes and cancellations.
        timeouts: try again after a timeout, too: the node's work may then be done twice.
    """

    max_attempts: int = Field(default=3, ge=1, le=100)
    initial_seconds: float = Field(default=1.0, ge=0.0)
    factor: float = Field(default=2.0, ge=1.0)
    max_seconds: float = Field(default=60.0, ge=0.0)
    jitter: float = Field(default=0.5, ge=0.0, le=1.0)
    on: tuple[str, ...] = ()
    timeouts: bool = False

    def pause(self, attempt: int, share: float) -> float:
        """Seconds before the attempt after number ``attempt`` (from 1); ``share`` is a random number from 0 to 1."""
        longest = min(self.max_seconds, self.initial_seconds * self.factor ** (attempt - 1))
        return longest * (1.0 - self.jitter * share)


class CachePolicy(Settings):
    """Reuse a node's result for equal input, within one process of the runtime. Only successes are kept.

    Attributes:
        key: makes the cache's key (any JSON value) of the state that the node sees; default is the whole state.
        ttl: seconds that a result is reused; None: for as long as there is room.
        max_entries: results kept per node; the oldest go first.
    """

    key: Callable[[Mapping[str, Any]], Any] | None = None
    ttl: float | None = Field(default=300.0, gt=0.0)
    max_entries: int = Field(default=1_000, ge=1)
