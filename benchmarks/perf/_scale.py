"""One measurement for ``scale.py``, in a process of its own; prints one JSON line.

python benchmarks/perf/_scale.py run NODES RUNS CONCURRENCY [STORE CHECKPOINTERS]   tool turns on so many Ray nodes
python benchmarks/perf/_scale.py store URL SAVES                                      how fast a store takes checkpoints
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from _measure import kib, seconds
from _workloads import ANSWER, PROMPT, tool_turn
from fan_out import cluster
from redis import Redis

from umbel import Runtime, Topology
from umbel.actors.checkpoints.group_commit import GroupCommit
from umbel.actors.checkpoints.registry import open_store
from umbel.protocol.commands import SaveCheckpoint

STATE_BYTES = 2_000  # of a checkpoint of a tool turn, about
Figures = dict[str, Any]


def redis_pid(url: str) -> int:
    with Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


class Roles:
    """CPU seconds, memory and link traffic of a runtime's processes, by role; all that is Ray's own under ``ray``."""

    def __init__(self, runtime: Runtime, store: str | None) -> None:
        self._backend: Any = runtime.backend
        self._me = psutil.Process()
        self._server = None if store is None or not store.startswith("redis:") else psutil.Process(redis_pid(store))

    def take(self) -> Figures:
        reports = self._backend.reports()
        pids = {report["pid"]: name.split("/")[0] for name, report in reports.items()} | {self._me.pid: "driver"}
        cpu: dict[str, float] = {}
        for process in (self._me, *self._me.children(recursive=True)):
            role = pids.get(process.pid, "ray")
            cpu[role] = cpu.get(role, 0.0) + seconds(process)
        if self._server is not None:
            cpu["store"] = seconds(self._server)
        rss = {pid: kib(Path(f"/proc/{pid}/status"), "VmRSS") for pid in pids}
        links = [("driver", link.peer, link.stats) for shards in self._backend._links.values() for _, link in shards]
        links += [
            (name.split("/")[0], peer, stats)
            for name, report in reports.items()
            for peer, stats in report["stats"]["links"].items()
        ]
        traffic: dict[str, dict[str, int]] = {}
        for asker, peer, stats in links:
            edge = traffic.setdefault(f"{asker}>{peer.split('/')[0]}", {})
            for figure in ("messages", "frames", "polls", "bytes_out", "bytes_in"):
                edge[figure] = edge.get(figure, 0) + stats[figure]
        return {"cpu": cpu, "links": traffic, "kib": sum(rss.values())}


async def burst(address: str, nodes: int, runs: int, concurrency: int, store: str | None, writers: int) -> Figures:
    topology = Topology(supervisors=nodes, agents=nodes, tool_executors=nodes, checkpointers=writers)
    agent = tool_turn(checkpointer=store)
    done = 0

    async def work(label: str, numbers: Any) -> None:
        nonlocal done
        for number in numbers:
            thread_id = None if store is None else f"{label}-{number}"
            result = await agent.arun(PROMPT, full=False, thread_id=thread_id)
            if result.message != ANSWER:
                raise RuntimeError(f"{result.message!r} ({result.stop_reason})")
            done += 1

    async def all_of(label: str, count: int) -> None:
        numbers = iter(range(count))
        await asyncio.gather(*(work(label, numbers) for _ in range(concurrency)))

    async with Runtime(address=address, topology=topology) as runtime:
        runtime.start()
        await all_of("warm", max(concurrency, runs // 10))
        roles = Roles(runtime, store)
        done = 0
        before, start = await asyncio.to_thread(roles.take), time.perf_counter()
        await all_of("run", runs)
        wall = time.perf_counter() - start
        after = await asyncio.to_thread(roles.take)
    return {
        "nodes": nodes,
        "checkpointers": writers,
        "concurrency": concurrency,
        "store": None if store is None else store.split(":")[0],
        "runs": done,
        "wall_s": wall,
        "cpu": {role: used - before["cpu"].get(role, 0.0) for role, used in after["cpu"].items()},
        "links": {
            edge: {name: value - before["links"].get(edge, {}).get(name, 0) for name, value in figures.items()}
            for edge, figures in after["links"].items()
        },
        "kib_growth": after["kib"] - before["kib"],
    }


async def commits(url: str, saves: int, at_once: int = 256) -> Figures:
    """Checkpoints a second that one writer with group commit gets stored, a new thread each, and what it spends on one."""
    store = open_store(url)
    await store.open()
    commit = GroupCommit(store)
    state = json.dumps({"messages": [], "text": "x" * STATE_BYTES}).encode()
    numbers = iter(range(saves))

    async def writer() -> None:
        for number in numbers:
            await commit.save(
                SaveCheckpoint(
                    store=url,
                    thread_id=f"capacity-{number}",
                    checkpoint_id=f"c-{number}",
                    parent_id=None,
                    kind="snapshot",
                    base=0,
                    state=state,
                    metadata={},
                    created_at=time.time(),
                )
            )

    used, start = time.process_time(), time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(at_once)))
    wall, used = time.perf_counter() - start, time.process_time() - used
    await commit.flush()
    await store.close()
    return {
        "store": url.split(":", maxsplit=1)[0],
        "saves": saves,
        "saves_per_s": saves / wall,
        "writer_cpu_us": used / saves * 1e6,
    }


def main() -> None:
    kind, *rest = sys.argv[1:]
    os.environ.pop("RAY_ADDRESS", None)  # a cluster of our own
    if kind == "store":
        print(json.dumps(asyncio.run(commits(rest[0], int(rest[1])))))
        return
    nodes, runs, concurrency = map(int, rest[:3])
    store, writers = (rest[3], int(rest[4])) if rest[3:] else (None, 1)
    with cluster(nodes) as address:
        print(json.dumps(asyncio.run(burst(address, nodes, runs, concurrency, store, writers))))


if __name__ == "__main__":
    main()
