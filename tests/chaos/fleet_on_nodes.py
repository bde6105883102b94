"""A fleet while processes of every kind, the nodes they are on, and the server of their store are killed.

python -m tests.chaos.fleet_on_nodes FOLDER REDIS_SERVER RUNS KILLS SEED DEADLINE [ROLE...]

Without roles every kind is killed. Run by ``test_fleet_on_nodes.py`` in a process of its own. One JSON line on stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

os.environ |= {"UMBEL_HOME": sys.argv[1]}

from umbel import Runtime, Topology

from ..actors.checkpoints.redis_server import RedisServer
from .killer import ROLES
from .scenario import Scenario
from .work_nodes import RESOURCE, WorkNodes, cluster_here

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def main(folder: Path, redis: str, numbers: list[int], roles: list[str]) -> dict[str, Any]:
    """Start the cluster and the store, play, and end everything."""
    runs, kills, seed, deadline = numbers
    server = RedisServer(redis, folder / "redis", *DURABLE).start()
    try:
        with cluster_here() as cluster:
            nodes = WorkNodes(cluster, random.Random(seed))
            shape = Topology(resources={RESOURCE: 1}, max_restarts=10_000, max_recoveries=1_000, recovery_seconds=600)
            with Runtime(address=cluster.address, topology=shape).start() as runtime:
                more = {"node": lambda: nodes.lose(runtime), "redis-server": server.interrupt}
                scenario = Scenario(
                    folder,
                    runs=runs,
                    kills=kills,
                    concurrency=20,
                    seed=seed,
                    deadline=deadline,
                    store=server.url,
                    roles=[role for role in ROLES if not roles or role in roles],
                    more={role: lose for role, lose in more.items() if not roles or role in roles},
                )
                runtime.run_sync(scenario.play(runtime))
                return {"facts": scenario.facts, "table": scenario.table(), "timeline": str(scenario.timeline)}
    finally:
        server.kill()


if __name__ == "__main__":
    where, program, *numbers = sys.argv[1:7]
    with contextlib.redirect_stdout(sys.stderr):
        found = main(Path(where), program, [int(number) for number in numbers], sys.argv[7:])
    print(json.dumps(found), flush=True)  # noqa: T201 - the answer to who ran this
