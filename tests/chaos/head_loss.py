"""A Ray cluster whose head dies and is started again, while a run goes on. Run by ``test_head.py`` in a process of its own.

python -m tests.chaos.head_loss FOLDER [REDIS_SERVER]

The head keeps its tables in RocksDB; or in Redis, and then the actors are detached and a second driver joins them in the end.
It runs in a PID namespace of its own: then it can be killed whole, and ``ray start
--head`` does not refuse because it finds the processes of the other node. That node, with another loopback address, hosts the
runtime's actors, and the driver is attached to it. One JSON line on stdout says what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"RAY_worker_niceness": "0", "UMBEL_HOME": sys.argv[1], "RAY_AUTH_MODE": "disabled"}
HEAD, WORKER = "127.0.0.1", "127.0.0.2"
RAY = str(Path(sys.executable).with_name("ray"))
COMMON = ["--block", "--disable-usage-stats", "--num-cpus=2", "--object-store-memory=80000000"]
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]

from umbel import Agent, Runtime, ToolContext, Topology, tool  # noqa: E402 - the environment comes first
from umbel.testing import ScriptedModel, text, tool_call  # noqa: E402

from ..actors.checkpoints.redis_server import RedisServer  # noqa: E402


@tool
async def wait_for(name: str, ctx: ToolContext) -> str:
    """Wait until a file is there."""
    folder = Path(ctx.metadata["folder"])
    await asyncio.to_thread((folder / f"{name}-reached").touch)
    while not await asyncio.to_thread((folder / f"{name}-open").exists):
        await asyncio.sleep(0.02)
    return name


class Nodes:
    """The head and the other node, as processes of this one."""

    def __init__(self, folder: Path, short: str, storage: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind((HEAD, 0))
            self.port = free.getsockname()[1]
        self._folder = folder
        self._short = short
        self._storage = storage
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_head(self) -> None:
        """Start it, or start it again on the same tables."""
        head = ["--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self._short}/h"]
        self._start("head", [*NAMESPACE, RAY, "start", *head, f"--node-ip-address={HEAD}", *COMMON], self._storage)

    def start_worker(self) -> None:
        """Start the node that has the resource ``work``."""
        address = [f"--address={HEAD}:{self.port}", f"--node-ip-address={WORKER}", '--resources={"work": 100}']
        self._start("worker", [RAY, "start", *address, *COMMON], {})

    def kill_head(self) -> None:
        """Every process of the head at once."""
        head = self._processes.pop("head")
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()

    def end(self) -> None:
        """End what is left."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _start(self, name: str, command: list[str], more: dict[str, str]) -> None:
        environment = {**os.environ, **more, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )


async def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait for a fact about other processes."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        await asyncio.sleep(0.05)


def listens(port: int) -> bool:
    """Whether the head's tables can be reached."""
    with socket.socket() as probe:
        return probe.connect_ex((HEAD, port)) == 0


async def scenario(nodes: Nodes, folder: Path, where: dict[str, Any]) -> dict[str, Any]:
    nodes.start_head()
    await until(lambda: listens(nodes.port), "the head listens")
    nodes.start_worker()
    address = f"{HEAD}:{nodes.port}"
    await until(lambda: (folder / "worker.log").read_text().find("Ray runtime started") >= 0, "the other node is there")
    shape = Topology(resources={"work": 1})
    script = [tool_call("wait_for", name="one"), tool_call("wait_for", name="two"), text("done")]
    agent = Agent(ScriptedModel(script), [wait_for], checkpointer=f"sqlite:///{folder / 'threads.db'}")
    async with Runtime(address=address, topology=shape, _node_ip_address=WORKER, **where) as runtime:
        backend: Any = runtime.backend
        before = {name: report["pid"] for name, report in backend.reports().items()}
        options: dict[str, Any] = {"metadata": {"folder": str(folder)}, "runtime": runtime}
        run = asyncio.ensure_future(agent.arun("go", thread_id="a", **options))
        await until((folder / "one-reached").exists, "the run has begun")
        nodes.kill_head()
        await until(lambda: not listens(nodes.port), "the head is gone")
        (folder / "one-open").touch()
        await until((folder / "two-reached").exists, "the run goes on without a head")
        headless = not listens(nodes.port)
        nodes.start_head()
        await until(lambda: listens(nodes.port), "the head is back")
        (folder / "two-open").touch()
        first = await run
        second = await agent.arun("again", thread_id="b", **options)
        after = {name: report["pid"] for name, report in (await asyncio.to_thread(backend.reports)).items()}
    found = {"headless": headless, "first": first.message, "second": second.message, "same": before == after}
    if where:
        async with Runtime(address=address, **where, _node_ip_address=WORKER) as runtime:
            joined: Any = runtime.backend
            found["joined"] = before == {name: report["pid"] for name, report in joined.reports().items()}
            third = await agent.arun("once more", thread_id="c", runtime=runtime, metadata={"folder": str(folder)})
            found["third"] = third.message
    return found


def main(folder: Path, redis: str | None = None) -> dict[str, Any]:
    """Start, play, end."""
    storage, where = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder / "gcs")}, {}
    server = None
    if redis is not None:
        server = RedisServer(redis, folder / "redis", "--appendonly", "yes").start()
        storage = {"RAY_REDIS_ADDRESS": f"127.0.0.1:{server.port}", "RAY_external_storage_namespace": "umbel"}
        where = {"namespace": "head", "detached": True}
    with tempfile.TemporaryDirectory(prefix="ur", ignore_cleanup_errors=True) as short:  # Ray's sockets need short paths
        nodes = Nodes(folder, short, storage)
        try:
            return asyncio.run(scenario(nodes, folder, where))
        finally:
            nodes.end()
            if server is not None:
                server.kill()


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        outcome = main(Path(sys.argv[1]), *sys.argv[2:])
    print(json.dumps(outcome), flush=True)  # noqa: T201 - the answer to who ran this
