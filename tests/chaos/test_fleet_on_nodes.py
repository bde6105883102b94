"""A fleet of durable runs while everything under it is killed: processes, whole nodes, and the server of its store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from .scenario import seed_of
from .scripts import play

pytestmark = [pytest.mark.ray, pytest.mark.case(25), pytest.mark.case(26)]
SCRIPT = "fleet_on_nodes"


@pytest.mark.chaos
async def test_a_node_is_lost(tmp_path: Path, require_service: Callable[[str], str]) -> None:
    """The short form: one node, with all that is on it."""
    found = await play(SCRIPT, tmp_path, require_service("redis-server"), 12, 1, seed_of(13), 100, "node")
    assert found["facts"]["killed"] == {"node": 1}


@pytest.mark.chaos
@pytest.mark.timeout(7200)
async def test_everything_is_killed(
    tmp_path: Path, require_service: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The long form; UMBEL_CHAOS_NODE_RUNS and UMBEL_CHAOS_NODE_KILLS make it shorter or longer."""
    runs, kills = os.environ.get("UMBEL_CHAOS_NODE_RUNS", "300"), os.environ.get("UMBEL_CHAOS_NODE_KILLS", "70")
    found = await play(SCRIPT, tmp_path, require_service("redis-server"), runs, kills, seed_of(), 7000, seconds=7100)
    with capsys.disabled():
        print(f"\n{found['table']}")  # noqa: T201 - what a long run is made for
