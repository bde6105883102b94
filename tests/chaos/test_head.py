"""The head of a cluster dies and is started again on the same tables: runs on other nodes go on, and new ones work."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .scripts import play

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.case(26), pytest.mark.timeout(400)]


def has_namespaces() -> bool:
    """Whether this machine lets a process have a PID namespace, as two nodes of a cluster on one machine need."""
    try:
        probe = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_namespaces = pytest.mark.skipif(
    not has_namespaces(), reason="unshare --pid --mount-proc is not allowed here (it takes root, or CAP_SYS_ADMIN)"
)


def check(found: dict[str, Any]) -> None:
    assert found["headless"], "the run made progress while there was no head"
    assert found["first"] == "done", "and came to its end after the head was back"
    assert found["second"] == "done", "as did a run that began then"
    assert found["same"], "no actor of the runtime had to be restarted"


@needs_namespaces
async def test_a_run_goes_on_while_the_head_is_away(tmp_path: Path) -> None:
    check(await play("head_loss", tmp_path))


@needs_namespaces
async def test_detached_actors_are_joined_after_a_head_on_redis_is_back(
    tmp_path: Path, require_service: Callable[[str], str]
) -> None:
    found = await play("head_loss", tmp_path, require_service("redis-server"))
    check(found)
    assert found["joined"] and found["third"] == "done", "a driver that comes later finds the same actors"
