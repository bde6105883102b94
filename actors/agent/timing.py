"""The clock, sleep and randomness that model calls use, as a port: tests drive time instead of waiting for it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Timing:
    """Where time and chance come from.

    Attributes:
        monotonic: seconds on a clock that never goes back.
        wall: seconds since the epoch, to read dates that servers send.
        sleep: waits so many seconds.
        random: a number in [0, 1).
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = _sleep
    random: Callable[[], float] = random.random


SYSTEM = Timing()
