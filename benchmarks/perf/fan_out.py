"""A pattern fans out to 2,000 agents on four Ray nodes of this machine: is it complete, spread evenly, and bounded in memory?

python benchmarks/perf/fan_out.py [--members 2000] [--nodes 4] [--max-concurrency N] [--durable] [--json]

Every member does a tool turn, and its tool says which node it runs on. While they run, what each supervisor has in
progress and how much memory each actor uses are taken ten times a second. Exit code 1 unless every member answered once,
every node's share of the tool calls and of the runs is within 25 % of an even one, and no actor's memory grew by more than
200 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from umbel import Agent, Message, ModelResponse, PatternResult, Runtime, Topology, parallel, tool
from umbel.testing import text, tool_call

TOLERANCE = 0.25
MEMORY_MIB = 200
SAMPLE_SECONDS = 0.1


@tool(idempotent=True)
async def where() -> str:
    """The node that this runs on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


class Reporter:
    """Asks where it is, and says it."""

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        await asyncio.sleep(0.2)
        last = messages[-1]
        return text(last.content or "") if last.role == "tool" else tool_call("where")


@contextlib.contextmanager
def cluster(count: int) -> Iterator[str]:
    """The address of a cluster of so many nodes."""
    os.environ |= {"RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ur", ignore_cleanup_errors=True) as short:  # Ray's sockets need short paths
        head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": short, "object_store_memory": 100_000_000}
        made: Any = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(count - 1):
                made.add_node(num_cpus=1, object_store_memory=100_000_000)
            yield made.address
        finally:
            made.shutdown()


class Watch:
    """What the actors have in progress, and their memory, while something runs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.runs: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.peak: dict[str, int] = {}

    def take(self) -> None:
        backend: Any = self._runtime.backend
        for name, report in backend.reports().items():
            self.first.setdefault(name, report["rss_bytes"])
            self.peak[name] = max(self.peak.get(name, 0), report["rss_bytes"])
            if name.startswith("supervisor/"):
                self.runs[name] = max(self.runs.get(name, 0), report["stats"]["runs"])

    async def keep(self) -> None:
        while True:
            await asyncio.to_thread(self.take)
            await asyncio.sleep(SAMPLE_SECONDS)


async def measure(address: str, options: argparse.Namespace) -> dict[str, Any]:
    shards = options.nodes
    topology = Topology(supervisors=shards, agents=shards, tool_executors=shards)
    with tempfile.TemporaryDirectory(prefix="umbel-fan-") as folder:
        store = {"checkpointer": f"sqlite:///{folder}/fan.db"} if options.durable else {}
        agent = Agent(Reporter(), tools=[where], name="member")
        pattern = parallel([agent] * options.members, merge="list", max_concurrency=options.max_concurrency, **store)
        async with Runtime(address=address, topology=topology) as runtime:
            warm: Any = await parallel([agent] * 20, merge="list").arun("Where are you?")
            watch = Watch(runtime)
            watch.take()
            watching = asyncio.ensure_future(watch.keep())
            start = time.perf_counter()
            result: Any = await pattern.arun("Where are you?", thread_id="fan" if options.durable else None, full=False)
            seconds = time.perf_counter() - start
            watching.cancel()
            await asyncio.to_thread(watch.take)
    return figures(result, warm, watch, seconds)


def figures(result: PatternResult, warm: PatternResult, watch: Watch, seconds: float) -> dict[str, Any]:
    nodes = Counter(result.outputs)
    return {
        "success": result.success and warm.success,
        "error": str(result.error or ""),
        "members": len(result.members),
        "distinct_steps": len({member.step for member in result.members}),
        "seconds": round(seconds, 2),
        "members_per_s": round(len(result.members) / seconds),
        "calls_by_node": sorted(nodes.values()),
        "most_runs_by_supervisor": dict(sorted(watch.runs.items())),
        "growth_mib": {name: round((watch.peak[name] - watch.first[name]) / 2**20, 1) for name in sorted(watch.first)},
    }


def complaints(found: dict[str, Any], options: argparse.Namespace) -> list[str]:
    problems = []
    if not found["success"] or found["members"] != options.members or found["distinct_steps"] != options.members:
        problems.append(f"incomplete: {found['members']} of {options.members} {found['error']}")
    even = options.members / options.nodes
    shares = found["calls_by_node"]
    if len(shares) != options.nodes or any(abs(share - even) > TOLERANCE * even for share in shares):
        problems.append(f"tool calls are not spread evenly: {shares}")
    runs = list(found["most_runs_by_supervisor"].values())
    mean = sum(runs) / len(runs)
    if any(abs(most - mean) > max(TOLERANCE * mean, 5) for most in runs):
        problems.append(f"runs are not spread evenly: {runs}")
    large = {name: grown for name, grown in found["growth_mib"].items() if grown > MEMORY_MIB}
    if large:
        problems.append(f"memory grew by more than {MEMORY_MIB} MiB: {large}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=2_000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--max-concurrency", type=int, default=None)
    parser.add_argument("--durable", action="store_true", help="with a SQLite store and a thread")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with cluster(options.nodes) as address:
        found = asyncio.run(measure(address, options))
    problems = complaints(found, options)
    if options.json:
        print(json.dumps(found | {"problems": problems}))
    else:
        for name, value in found.items():
            print(f"{name:26} {value}")
        for problem in problems:
            print(f"FAILS: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
