"""What an endpoint says about its limits."""

from __future__ import annotations

from typing import NamedTuple


class Told(NamedTuple):
    """Limits by the minute that an answer names; None where it names none."""

    requests: float | None = None
    tokens: float | None = None
