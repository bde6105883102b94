"""Nodes are drained and lost, others join: durable work goes on elsewhere, and nothing is done twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .scenario import seed_of
from .scripts import play

pytestmark = [pytest.mark.ray, pytest.mark.case(25), pytest.mark.case(26)]
SCRIPT = "moving_nodes"


@pytest.mark.timeout(120)
@pytest.mark.chaos  # 25 s for the short form, too
async def test_a_node_is_drained(tmp_path: Path) -> None:
    """The short form: not even a call's outcome is unknown, for nothing is broken off."""
    found = await play(SCRIPT, tmp_path, "fleet", 2, 12, 1, seed_of(5), 90, "drain", seconds=110)
    assert found["facts"]["killed"] == {"drain": 1}, found
    assert found["facts"]["outcomes unknown"] == 0, found["timeline"]


@pytest.mark.chaos
@pytest.mark.timeout(150)
async def test_pools_grow_into_a_cluster_and_the_commands_show_it(tmp_path: Path) -> None:
    found = await play("growing_cluster", tmp_path, seconds=140)
    first, second = found["first"], found["second"]
    assert found["refused"] and found["alone"] == {first: 12}, "one replica has no room, and the other does its work"
    assert found["both"].keys() == {first, second}, "once a node has joined"
    (address, state, actors, runs, resources, labels) = found["rows"][first[:8]]
    assert (state, actors, runs, labels) == ("ready", "5", "0", "zone=b") and "browser:1" in resources and address
    assert found["rows"][second[:8]][2] == "1" and [row[1] for row in found["rows"].values()].count("head") == 1
    wrong = {name: status for name, status in found["checks"].items() if status != "ok"}
    assert not wrong, found["details"]


@pytest.mark.chaos
@pytest.mark.timeout(7200)
async def test_nodes_come_and_go_under_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The long form, on four nodes; UMBEL_CHAOS_NODE_RUNS and UMBEL_CHAOS_NODE_EVENTS make it shorter or longer."""
    runs, events = os.environ.get("UMBEL_CHAOS_NODE_RUNS", "300"), os.environ.get("UMBEL_CHAOS_NODE_EVENTS", "12")
    found = await play(SCRIPT, tmp_path, "fleet", 4, runs, events, seed_of(), 7000, "drain", "node", seconds=7100)
    with capsys.disabled():
        print(f"\n{found['table']}")  # noqa: T201 - what a long run is made for


@pytest.mark.chaos
@pytest.mark.timeout(7200)
async def test_nodes_come_and_go_under_patterns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind of pattern, while whole nodes are drained and lost."""
    events = os.environ.get("UMBEL_CHAOS_NODE_EVENTS", "8")
    found = await play(SCRIPT, tmp_path, "patterns", 4, 0, events, seed_of(), 7000, "drain", "node", seconds=7100)
    with capsys.disabled():
        print(f"\n{found['table']}")  # noqa: T201 - as above
