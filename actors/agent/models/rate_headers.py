"""What an endpoint's answers say about its limits, read from their headers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..limits.told import Told
from .retry_after import duration_seconds

LONGEST_RESET = 90.0  # seconds; a limit that takes longer to fill up is not one by the minute
_REQUESTS = ("x-ratelimit-limit-requests", "anthropic-ratelimit-requests-limit")
_TOKENS = ("x-ratelimit-limit-tokens", "anthropic-ratelimit-tokens-limit")


def told_by(headers: Mapping[str, str]) -> Told | None:
    """The limits that the headers of an answer name, or None.

    ``x-ratelimit-limit-requests`` (OpenAI and those that follow it) and ``anthropic-ratelimit-requests-limit``, the same
    for tokens. A limit by the day, which Groq gives under the same name, is known by its long reset and left alone:
    429 answers tell when it is used up.
    """
    requests = _limit(headers, _REQUESTS, "x-ratelimit-reset-requests")
    tokens = _limit(headers, _TOKENS, "x-ratelimit-reset-tokens")
    return None if requests is None and tokens is None else Told(requests, tokens)


def _limit(headers: Mapping[str, str], names: tuple[str, ...], reset: str) -> float | None:
    for name in names:
        value = headers.get(name)
        if value is None:
            continue
        try:
            limit = float(value)
        except ValueError:
            return None
        if not math.isfinite(limit) or limit <= 0 or (duration_seconds(headers.get(reset, "")) or 0.0) > LONGEST_RESET:
            return None
        return limit
    return None
