"""A node of a cluster is lost: its actors come back elsewhere, or those who need them are told so within bounds."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.case(26), pytest.mark.timeout(300)]
SCRIPT = Path(__file__).with_name("node_loss.py")
BOUND_SECONDS = 240


async def play(case: str, folder: Path) -> dict[str, Any]:
    """Play a case in a process of its own, because a process can be part of one cluster only."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = (sys.executable, str(SCRIPT), case, str(folder))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            said, complaints = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        pytest.fail(f"{case}: somebody waits for ever")
    assert process.returncode == 0, complaints.decode()[-3000:]
    found: dict[str, Any] = json.loads(said)
    return found


async def test_actors_of_a_lost_node_come_back_on_another(tmp_path: Path) -> None:
    found = await play("spare", tmp_path)
    assert found["success"] and found["message"] == "done", found
    before, crawl, after = found["executions"]
    assert before["result"] == found["lost"]
    assert crawl["code"] == "outcome_unknown", "it ran there, and may not run again"
    assert after["result"] not in (None, found["lost"]), "the tools' actor is somewhere else now"


async def test_actors_that_have_nowhere_to_go_are_a_typed_error(tmp_path: Path) -> None:
    found = await play("nowhere", tmp_path)
    assert found["error"] == "peer_lost", found
    assert "did not come back within 8 s" in found["message"]
