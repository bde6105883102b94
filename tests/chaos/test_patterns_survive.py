"""Patterns of every kind while processes of every kind are killed: each comes to its end, and nothing is done twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from umbel import Runtime

from ..patterns.test_matrix import KINDS
from .pattern_scenario import PatternScenario
from .scenario import seed_of

pytestmark = [pytest.mark.ray, pytest.mark.case(15), pytest.mark.case(25)]


@pytest.mark.spec("OURS-1", "OURS-18", "OURS-22", "OURS-24")
async def test_every_kind_and_six_kills(sharded_runtime: Runtime, tmp_path: Path) -> None:
    """The short form: one process of each kind is killed, and a second supervisor."""
    await PatternScenario(KINDS, tmp_path, kills=6, seed=seed_of(7), deadline=100).play(sharded_runtime)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
async def test_every_kind_and_a_hundred_kills(
    sharded_runtime: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The long form; UMBEL_CHAOS_KILLS makes it shorter or longer."""
    kills = int(os.environ.get("UMBEL_CHAOS_KILLS", "100"))
    scenario = PatternScenario(KINDS, tmp_path, kills=kills, seed=seed_of(), deadline=7000)
    await scenario.play(sharded_runtime)
    with capsys.disabled():
        print(f"\nseed {scenario.seed}: {scenario.runs} runs, killed {scenario.killed}")  # noqa: T201 - what a long run is made for
