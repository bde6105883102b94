"""How people write numbers in a fleet's file: durations, points in time, large counts."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.IGNORECASE)
EXPECTED = "expected seconds, or a duration like 90s, 2h or 1h30m"


def read_seconds(value: Any) -> float:
    """Seconds: a number, or text like ``90s``, ``2h``, ``1h30m``, ``1d``, ``500ms``.

    Raises:
        ValueError: it is neither; the message says what was expected.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        raise ValueError(f"{EXPECTED}, found {value!r}")  # noqa: TRY004 - pydantic reports ValueErrors by field
    try:
        return float(value)
    except ValueError:
        parts = [_PART.match(value)]
        while (last := parts[-1]) is not None and last.end() < len(value.rstrip()):
            parts.append(_PART.match(value, last.end()))
        if parts[-1] is None:
            raise ValueError(f"{EXPECTED}, found {value!r}") from None
        return sum(float(part[1]) * _UNITS[part[2].lower()] for part in parts if part is not None)


def read_count(value: Any) -> int:
    """A whole number, also written ``1e6`` or ``1_000_000``.

    Raises:
        ValueError: it is none.
    """
    number: Any = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"expected a whole number, found {value!r}") from None
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number // 1:
        raise ValueError(f"expected a whole number, found {value!r}")
    return int(number)


def read_deadline(value: Any) -> float | datetime:
    """Seconds from the start, or a point in time (ISO 8601; without a zone it is local time).

    Raises:
        ValueError: it is neither, or no time is left before it begins.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            try:
                value = read_seconds(value)
            except ValueError:
                expected = "expected a duration like 2h, or a time like 2026-12-01T18:00"
                raise ValueError(f"{expected}, found {value!r}") from None
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, date):
        raise ValueError(f"expected a time of day, too, like {value}T18:00")  # noqa: TRY004 - as above
    seconds = read_seconds(value)
    if seconds <= 0:
        raise ValueError(f"expected more than 0 seconds, found {value!r}")
    return seconds


Seconds = Annotated[float, BeforeValidator(read_seconds), Field(gt=0)]
Count = Annotated[int, BeforeValidator(read_count), Field(ge=1)]
Deadline = Annotated[float | datetime, BeforeValidator(read_deadline)]
