"""Scripts that play a case in a process of its own, because a process can be part of one cluster only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]


async def play(script: str, *arguments: object, seconds: float = 240.0) -> dict[str, Any]:
    """Run a script of this folder, and give what it printed.

    Args:
        script: its module's name.
        *arguments: on its command line.
        seconds: after which somebody waits for ever.
    """
    command = (sys.executable, "-m", f"tests.chaos.{script}", *map(str, arguments))
    environment, pipe = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment, cwd=ROOT)
    try:
        async with asyncio.timeout(seconds):
            said, complaints = await process.communicate()
    except TimeoutError:
        script_process = psutil.Process(process.pid)
        for one in [*script_process.children(recursive=True), script_process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        await process.wait()
        pytest.fail(f"{' '.join(command)}: somebody waits for ever")
    assert process.returncode == 0, complaints.decode(errors="replace")[-10_000:]
    found: dict[str, Any] = json.loads(said)
    return found
