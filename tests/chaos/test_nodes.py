"""A node of a cluster is lost: its actors come back elsewhere, or those who need them are told so within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from .scripts import play

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.case(26), pytest.mark.timeout(300)]


async def test_actors_of_a_lost_node_come_back_on_another(tmp_path: Path) -> None:
    found = await play("node_loss", "spare", tmp_path)
    assert found["success"] and found["message"] == "done", found
    before, crawl, after = found["executions"]
    assert before["result"] == found["lost"]
    assert crawl["code"] == "outcome_unknown", "it ran there, and may not run again"
    assert after["result"] not in (None, found["lost"]), "the tools' actor is somewhere else now"


async def test_actors_that_have_nowhere_to_go_are_a_typed_error(tmp_path: Path) -> None:
    found = await play("node_loss", "nowhere", tmp_path)
    assert found["error"] == "peer_lost", found
    assert "did not come back within 8 s" in found["message"]
