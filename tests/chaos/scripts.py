"""Scripts that play a case in a process of its own, because a process can be part of one cluster only."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

BOUND_SECONDS = 240


async def play(script: str, *arguments: str) -> dict[str, Any]:
    """Run a script of this folder, and give what it printed.

    Args:
        script: its name.
        *arguments: on its command line.
    """
    command = (sys.executable, str(Path(__file__).with_name(script)), *arguments)
    environment, pipe = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            said, complaints = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        pytest.fail(f"{script} {' '.join(arguments)}: somebody waits for ever")
    assert process.returncode == 0, complaints.decode(errors="replace")[-3000:]
    found: dict[str, Any] = json.loads(said)
    return found
