"""Which failures of a task are worth another attempt, and how long to wait before it."""

from __future__ import annotations

import asyncio
import difflib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, get_args

from ...protocol.errors import (
    AuthenticationFailed,
    ConfigurationError,
    MemberFailed,
    PeerLost,
    RestartsExceeded,
    RunLost,
    RuntimeClosed,
    UmbelError,
    error_codes,
    from_wire,
)
from ...protocol.results import StopReason
from .durations import read_count


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


_TIMEOUT_CODES = ("timeout", "deadline_exceeded", "time_budget")  # one name for people: it did not end in time


@dataclass(frozen=True, slots=True)
class Retries:
    """How many further attempts a task gets, by the kind of its failure.

    Attributes:
        default: after errors that another attempt can mend and that ``by_code`` does not name, together. 0 also rules out
            another attempt after the loss of an actor.
        by_code: after each of these codes of errors (``rate_limit``, ``timeout``, ``context_overflow``...) or reasons why a
            run stopped (``max_iterations``...); what is named here is tried again even if it is not expected to help.
    """

    default: int = 2
    by_code: Mapping[str, int] | None = None

    @classmethod
    def of(cls, value: Any) -> Self:
        """What a setting means: a number, a mapping of codes (and ``default``) to numbers, or this.

        Raises:
            ValueError: a number below 0, or a code that no error has; the message names a close one.
        """
        if isinstance(value, cls):
            return value
        given = dict(value) if isinstance(value, Mapping) else {"default": value}
        counts = {str(code): read_count(number) for code, number in given.items()}
        known = {*error_codes(), *get_args(StopReason), "default"}
        for code, number in counts.items():
            if number < 0:
                raise ValueError(f"{code}: expected 0 or more, found {number}")
            if code not in known:
                close = difflib.get_close_matches(code, known, 1)
                raise ValueError(f"no error has the code {code!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        default = counts.pop("default", 2)
        return cls(default, counts)

    def allows(self, error: Any, stop_reason: str | None, failures: Counter[str]) -> bool:
        """Count a failure, and say whether another attempt may follow it."""
        name = self._name(error, stop_reason)
        failures[name] += 1
        if name == "default":
            return is_retryable(error) and failures[name] <= self.default
        return failures[name] <= (self.by_code or {})[name]

    def _name(self, error: Any, stop_reason: str | None) -> str:
        """The entry that a failure belongs to."""
        codes = [cls.code for cls in _classes_of(error)] or ([stop_reason] if stop_reason else [])
        named = self.by_code or {}
        if "timeout" in named and codes and all(code in _TIMEOUT_CODES for code in codes):
            return next((code for code in codes if code in named), "timeout")
        return next((code for code in codes if code in named), "default")


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
