"""A fleet of durable runs while processes of every kind are killed: nothing lost, nothing doubled, nobody waits for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from umbel import Runtime

from .scenario import Scenario, seed_of

pytestmark = [pytest.mark.ray, pytest.mark.case(25)]


@pytest.mark.spec("OURS-18", "OURS-22")
async def test_thirty_runs_and_five_kills(fragile_runtime: Runtime, tmp_path: Path) -> None:
    """The short form: one process of each kind is killed."""
    scenario = Scenario(tmp_path, runs=30, kills=5, concurrency=8, seed=seed_of(11), deadline=100)
    await scenario.play(fragile_runtime)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
async def test_a_thousand_runs_and_two_hundred_kills(
    fragile_runtime: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The long form; UMBEL_CHAOS_RUNS and UMBEL_CHAOS_KILLS make it shorter or longer."""
    runs, kills = int(os.environ.get("UMBEL_CHAOS_RUNS", "1000")), int(os.environ.get("UMBEL_CHAOS_KILLS", "200"))
    scenario = Scenario(tmp_path, runs=runs, kills=kills, concurrency=40, seed=seed_of(), deadline=7000)
    await scenario.play(fragile_runtime)
    with capsys.disabled():
        print(f"\n{scenario.table()}")  # noqa: T201 - what a long run is made for
