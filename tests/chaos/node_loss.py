"""A Ray cluster of several nodes on this machine, one of which is lost. Run by ``test_nodes.py`` in a process of its own.

python -m tests.chaos.node_loss spare|nowhere FOLDER

The agent's and the tools' actors sit on a node of their own, which is killed while a tool runs there. ``spare``: another node
has room for them. ``nowhere``: none has. One JSON line on stdout says what became of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HEALTH = {"initial_delay_ms": 0, "period_ms": 500, "timeout_ms": 1000, "failure_threshold": 3}
os.environ |= {f"RAY_health_check_{name}": str(value) for name, value in HEALTH.items()}
os.environ |= {"RAY_worker_niceness": "0", "UMBEL_HOME": sys.argv[2]}

from ray.cluster_utils import Cluster  # noqa: E402 - the environment comes first

from umbel import Agent, Placement, Runtime, ToolContext, Topology, tool  # noqa: E402
from umbel.errors import UmbelError  # noqa: E402
from umbel.testing import ScriptedModel, text, tool_call  # noqa: E402

THERE = Placement(resources={"work": 1})
PATIENCE = 8.0


@tool(placement=THERE)
async def crawl(ctx: ToolContext) -> str:
    """Hangs, on the node that is lost."""
    Path(ctx.metadata["begun"]).write_text(str(os.getpid()))  # noqa: ASYNC240 - a few bytes
    await asyncio.sleep(600)
    return "never"


@tool(placement=THERE, idempotent=True)
async def where(step: int) -> str:
    """Which node this is."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


async def scenario(cluster: Any, folder: Path, *, spare: bool) -> dict[str, Any]:
    begun = folder / "begun"
    async with Runtime(address=cluster.address, topology=Topology(patience_seconds=PATIENCE)) as runtime:
        runtime.start()  # on the head: there is no other node yet
        lost = cluster.add_node(num_cpus=1, resources={"work": 2})
        agent = Agent(
            ScriptedModel([tool_call("where", step=1), tool_call("crawl"), tool_call("where", step=2), text("done")]),
            [crawl, where],
            placement=THERE,
            checkpointer=f"sqlite:///{folder / 'threads.db'}",
        )
        options: dict[str, Any] = {"thread_id": "t", "metadata": {"begun": str(begun)}, "runtime": runtime}
        run = asyncio.ensure_future(agent.arun("go", **options))
        while not begun.exists():
            if run.done():
                return {"early": repr(run.exception() or run.result())}
            await asyncio.sleep(0.05)
        if spare:
            cluster.add_node(num_cpus=1, resources={"work": 2})
        killed_at = time.monotonic()
        cluster.remove_node(lost, allow_graceful=False)
        return {**await outcome(run), "seconds": time.monotonic() - killed_at, "lost": lost.node_id}


async def outcome(run: asyncio.Future[Any]) -> dict[str, Any]:
    """How a run ended."""
    try:
        result = await run
    except UmbelError as error:
        return {"error": error.code, "message": error.message}
    executions = [{"tool": done.tool_name, "result": done.result, "code": done.code} for done in result.tool_executions]
    return {"message": result.message, "success": result.success, "stop": result.stop_reason, "executions": executions}


def main(case: str, folder: Path) -> dict[str, Any]:
    """Start the cluster, play the case, and end everything."""
    with tempfile.TemporaryDirectory(prefix="ur", ignore_cleanup_errors=True) as short:  # Ray's sockets need short paths
        head = {"num_cpus": 2, "include_dashboard": False, "temp_dir": short}
        cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        try:
            return asyncio.run(scenario(cluster, folder, spare=case == "spare"))
        finally:
            cluster.shutdown()


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        found = main(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps(found), flush=True)  # noqa: T201 - the answer to who ran this
