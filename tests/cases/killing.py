"""Killing actor processes in the middle of runs. For the test's own process: actors do not have this module."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from umbel import Runtime


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for a fact about the outside world (a file of another process), failing loudly when it does not come."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def kill(runtime: Runtime, actor: str, shard: int = 0) -> int:
    """SIGKILL the process of an actor."""
    pid: int = runtime.backend.reports()[f"{actor}/default/{shard}"]["pid"]  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGKILL)
    return pid
