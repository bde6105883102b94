"""Which failures of a task are worth another attempt, and how long to wait before it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ...protocol.errors import (
    AuthenticationFailed,
    ConfigurationError,
    MemberFailed,
    PeerLost,
    RestartsExceeded,
    RunLost,
    RuntimeClosed,
    UmbelError,
    from_wire,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential waits with full jitter, never shorter than what a provider asked for.

    Attributes:
        first: upper bound of the first wait, seconds; it doubles with each attempt.
        cap: upper bound of any wait that nobody asked for.
        retry_after_cap: a provider's own figure is obeyed up to this.
        chance: a random number in [0, 1).
        sleep: waits that many seconds.
    """

    first: float = 0.5
    cap: float = 30.0
    retry_after_cap: float = 300.0
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep

    def delay(self, attempt: int, error: Any = None) -> float:
        """Seconds to wait after the failed ``attempt`` (from 1)."""
        bound: float = min(self.cap, self.first * 2 ** min(attempt - 1, 30))
        asked = _retry_after(error)
        if asked is None:
            return bound * self.chance()
        return min(asked, self.retry_after_cap) + bound * self.chance()


def _retry_after(error: Any) -> float | None:
    details = getattr(error, "details", None) or (error.get("details") if isinstance(error, dict) else None) or {}
    value = details.get("retry_after") if isinstance(details, dict) else None
    return float(value) if isinstance(value, int | float) and value >= 0 else None


def is_retryable(error: Any) -> bool:
    """Whether trying again can help. ``error``: an exception, its wire form (mapping or object with ``code``), or text.

    The failure of a pattern is what its members' failures are; all of them must be worth another attempt.
    """
    classes = _classes_of(error)
    return bool(classes) and all(cls.retryable for cls in classes)


def is_fatal(error: Any) -> bool:
    """Whether every other task would fail in the same way: wrong configuration, wrong key, closed runtime."""
    return any(issubclass(cls, ConfigurationError | AuthenticationFailed | RuntimeClosed) for cls in _classes_of(error))


def is_loss(error: Any) -> bool:
    """Whether an actor died that the attempt depended on: perhaps the task's doing, perhaps another's."""
    return any(issubclass(cls, PeerLost | RunLost) for cls in _classes_of(error))


def is_final(error: Any) -> bool:
    """Whether no task can succeed any more, whatever went well before: the runtime has given an actor up."""
    return any(issubclass(cls, RestartsExceeded) for cls in _classes_of(error))


def as_exception(error: Any) -> UmbelError:
    """The exception behind any of the forms that :func:`is_retryable` takes."""
    if isinstance(error, UmbelError):
        return error
    wire = error if isinstance(error, dict) else {name: getattr(error, name, None) for name in ("code", "message", "details")}
    return from_wire(wire)


def _classes_of(error: Any) -> list[type[UmbelError]]:
    """The kinds of error that an error is; of failed members those behind it."""
    code = error.get("code") if isinstance(error, dict) else getattr(error, "code", None)
    if not isinstance(code, str):
        return []
    details = error.get("details") if isinstance(error, dict) else getattr(error, "details", None)
    behind = details.get("codes") if code == MemberFailed.code and isinstance(details, dict) else None
    return [type(from_wire({"code": one})) for one in behind or [code]]
