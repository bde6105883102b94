"""A cluster that nodes join, some of them with labels: where actors go, what grows, and what the commands show.

python -m tests.chaos.growing_cluster FOLDER

Run by ``test_moving_nodes.py`` in a process of its own. One JSON line on stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from typing import Any

os.environ |= {"UMBEL_HOME": sys.argv[1], "RAY_AUTH_MODE": "disabled"}

from umbel import Agent, Placement, Runtime, Topology, tool
from umbel.cluster.cli.cluster_checks import examine_cluster
from umbel.cluster.cli.node_view import node_rows
from umbel.cluster.nodes import cluster_nodes
from umbel.cluster.services import find_services
from umbel.errors import ConfigurationError
from umbel.testing import ScriptedModel, text, tool_call

from .work_nodes import cluster_here

RUNS = 12


@tool(placement=Placement(resources={"browser": 1}, labels={"zone": "in(b,c)"}, replicas=2))
async def browse() -> str:
    """Which node this is."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


@tool(placement=Placement(labels={"zone": "z"}))
async def nowhere() -> str:
    """No node has this label."""
    return "never"


async def used(runtime: Runtime) -> dict[str, int]:
    """How many of some runs each node's browser served."""
    agent = Agent(ScriptedModel([tool_call("browse"), text("ok")]), [browse])
    results = await asyncio.gather(*(agent.arun("go", runtime=runtime) for _ in range(RUNS)))
    nodes = [str(result.tool_executions[0].result) for result in results]
    return {node: nodes.count(node) for node in nodes}


async def scenario(cluster: Any) -> dict[str, Any]:
    first = cluster.add_node(num_cpus=1, resources={"browser": 1}, labels={"zone": "b"}, object_store_memory=80_000_000)
    topology = Topology(labels={"zone": "in(a,b,c)"}, per_node=True)
    async with Runtime(address=cluster.address, topology=topology, namespace="growing") as runtime:
        alone = await used(runtime)
        with contextlib.suppress(ConfigurationError):
            await Agent(ScriptedModel([text("ok")]), [nowhere]).arun("go", runtime=runtime)
            return {"refused": False}
        second = cluster.add_node(num_cpus=1, resources={"browser": 1}, labels={"zone": "c"}, object_store_memory=80_000_000)
        deadline = time.monotonic() + 60
        while len(both := await used(runtime)) < 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        services = await asyncio.to_thread(find_services, "growing")
        rows = node_rows(cluster_nodes(), services, time.time())
        checks = await asyncio.to_thread(lambda: list(examine_cluster(cluster.address, None)))
        return {
            "refused": True,
            "first": first.node_id,
            "second": second.node_id,
            "alone": alone,
            "both": both,
            "rows": {row[0]: row[1:] for row in rows},
            "checks": {check.name: check.status for check in checks},
            "details": [f"{check.name}: {check.detail}" for check in checks],
        }


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr), cluster_here() as here:
        found = asyncio.run(scenario(here))
    print(json.dumps(found), flush=True)  # noqa: T201 - the answer to who ran this
