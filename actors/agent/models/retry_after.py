"""Reads how long a server asks its clients to stay away."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_EPOCH_SECONDS = 1e9
_EPOCH_MILLISECONDS = 1e12
_RESETS = ("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens", "x-ratelimit-reset")


def retry_after_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait before the next request, or None when the server names no time.

    Understands, in this order: ``retry-after-ms``; ``retry-after`` as seconds or as an HTTP date (measured against the
    response's own ``date``, so that clock differences don't matter); ``x-ratelimit-reset-*`` as ``2s``, ``150ms``,
    ``1m30s``, plain seconds or an epoch time, of those limits that are used up.

    Args:
        headers: of the response, with lower-case or case-insensitive keys.
        now: the wall clock, seconds since the epoch.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if text is not None:
        seconds = _duration(text, now)
        return _until_date(text, headers.get("date"), now) if seconds is None else seconds
    return _until_reset(headers, now)


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").strip())
    except ValueError:
        return None
    return max(value, 0.0) if math.isfinite(value) else None


def _duration(text: str, now: float) -> float | None:
    value = _number(text)
    if value is None:
        compact = text.strip().lower()
        if _DURATION.fullmatch(compact):
            return sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in _PART.findall(compact))
        return None
    if value >= _EPOCH_MILLISECONDS:
        return max(value / 1000 - now, 0.0)
    return max(value - now, 0.0) if value >= _EPOCH_SECONDS else value


def _until_date(text: str, sent: str | None, now: float) -> float | None:
    then = _timestamp(text)
    if then is None:
        return None
    reference = _timestamp(sent) if sent else None
    return max(then - (now if reference is None else reference), 0.0)


def _timestamp(text: str) -> float | None:
    try:
        parsed = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return (parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed).timestamp()


def _until_reset(headers: Mapping[str, str], now: float) -> float | None:
    waits: list[float] = []
    for name in _RESETS:
        left = _number(headers.get(name.replace("reset", "remaining")))
        wait = _duration(headers.get(name, ""), now)
        if wait is not None and not left:
            waits.append(wait)
    return max(waits, default=None)


def duration_seconds(text: str) -> float | None:
    """``2s``, ``150ms``, ``1m30s`` or plain seconds, as seconds; None for anything else."""
    return _duration(text, 0.0)
