"""The same with checkpoints in Redis, whose server is among the victims: what it acknowledged is there when it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from umbel import Runtime

from ..actors.checkpoints.redis_server import RedisServer
from .scenario import Scenario, seed_of

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.ray
@pytest.mark.chaos
@pytest.mark.case(25)
@pytest.mark.timeout(1800)
async def test_a_fleet_on_redis(fragile_runtime: Runtime, tmp_path: Path, require_service: Callable[[str], str]) -> None:
    server = RedisServer(require_service("redis-server"), tmp_path / "redis", *DURABLE).start()

    def outage() -> None:
        server.kill()
        server.start()

    scenario = Scenario(
        tmp_path, runs=100, kills=24, concurrency=20, seed=seed_of(), deadline=1700, store=server.url, outage=outage
    )
    try:
        await scenario.play(fragile_runtime)
    finally:
        server.kill()
