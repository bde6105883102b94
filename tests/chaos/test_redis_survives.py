"""The same with checkpoints in Redis, whose server is the victim: what it acknowledged is there when it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from umbel import Runtime

from ..actors.checkpoints.redis_server import RedisServer
from .scenario import Scenario, seed_of

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.ray
@pytest.mark.case(25)
async def test_a_fleet_on_redis(fragile_runtime: Runtime, tmp_path: Path, require_service: Callable[[str], str]) -> None:
    server = RedisServer(require_service("redis-server"), tmp_path / "redis", *DURABLE).start()
    scenario = Scenario(
        tmp_path,
        runs=30,
        kills=3,
        concurrency=8,
        seed=seed_of(12),
        deadline=100,
        store=server.url,
        roles=(),
        more={"redis-server": server.interrupt},
    )
    try:
        await scenario.play(fragile_runtime)
    finally:
        server.kill()
