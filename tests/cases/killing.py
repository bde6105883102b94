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


def kill(runtime: Runtime, actor: str) -> int:
    """SIGKILL the process of an actor."""
    pid: int = runtime.backend.reports()[f"{actor}/default/0"]["pid"]  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGKILL)
    return pid


def kill_all(runtime: Runtime, actor: str) -> int:
    """SIGKILL the processes of all actors of a kind; how many there were."""
    reports = runtime.backend.reports()  # type: ignore[attr-defined]
    pids = [report["pid"] for name, report in reports.items() if name.startswith(f"{actor}/")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)
