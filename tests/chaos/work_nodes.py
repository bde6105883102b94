"""Nodes of a Ray cluster on this machine that lose their power, and others that join. For scripts of this folder."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from typing import Any

HEALTH = {"initial_delay_ms": 0, "period_ms": 500, "timeout_ms": 1000, "failure_threshold": 3}
os.environ |= {f"RAY_health_check_{name}": str(value) for name, value in HEALTH.items()}
os.environ |= {"RAY_worker_niceness": "0"}

import psutil  # noqa: E402 - the environment comes first
from ray.cluster_utils import Cluster  # noqa: E402
from ray.exceptions import RayError  # noqa: E402

from umbel import Runtime  # noqa: E402
from umbel.cluster.leaving import control_store, drain, wait_gone  # noqa: E402

RESOURCE = "work"
DRAIN_SECONDS = 40.0
ROOM = 2  # actors that fit on one node, so that they are on several


@contextlib.contextmanager
def cluster_here() -> Iterator[Any]:
    """A cluster whose head has no room for actors."""
    with tempfile.TemporaryDirectory(prefix="ur", ignore_cleanup_errors=True) as short:  # Ray's sockets need short paths
        head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": short}
        # Nodes join from a thread, where no signal handlers can be set, and which they shall outlive.
        cluster: Any = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        try:
            yield cluster
        finally:
            cluster.shutdown()


class WorkNodes:
    """The nodes that host a runtime's actors.

    Args:
        cluster: theirs, and the head's.
        chance: decides who is lost, and whether the other one joins before.
        count: nodes at a time.
    """

    def __init__(self, cluster: Any, chance: random.Random, count: int = 2) -> None:
        self._cluster = cluster
        self._chance = chance
        self._nodes: list[Any] = []
        for _ in range(count):
            self.join()

    def join(self) -> None:
        """One more."""
        self._nodes.append(self._cluster.add_node(num_cpus=2, resources={RESOURCE: ROOM}, object_store_memory=80_000_000))

    def lose(self, runtime: Runtime) -> str:
        """A node that hosts actors loses its power with everything on it; another one joins."""
        node, processes, actors = self._chance.choice(self._hosts(runtime))
        before = self._chance.random() < 0.5
        if before:
            self.join()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.remove(node)
        if not before:
            self.join()
        when = "before" if before else "after"
        return f"a node with {', '.join(actors)} ({len(processes)} processes; another joined {when} that)"

    def send_away(self, runtime: Runtime) -> str:
        """A node that hosts actors is drained, and leaves the cluster once they have moved; another one joins."""
        node, _, actors = self._chance.choice(self._hosts(runtime))
        before = self._chance.random() < 0.5
        if before:
            self.join()
        client, began = control_store(self._cluster.address), time.monotonic()
        drain(client, node.node_id, DRAIN_SECONDS, "a test")
        if not before:
            self.join()
        assert wait_gone(client, node.node_id, DRAIN_SECONDS), f"{actors} have not left in time"
        self._cluster.remove_node(node)
        self._nodes.remove(node)
        when = "before" if before else "after"
        seconds = time.monotonic() - began
        return f"nothing: a node with {', '.join(actors)} left within {seconds:.1f} s (another joined {when} that)"

    def _hosts(self, runtime: Runtime) -> list[tuple[Any, list[psutil.Process], list[str]]]:
        """Nodes that host actors: their processes, the raylet first, and the actors' names."""
        backend: Any = runtime.backend
        while True:
            with contextlib.suppress(RayError):  # one is being restarted
                names = {report["pid"]: name for name, report in backend.reports().items()}
                families = [(node, family(node)) for node in self._nodes]
                found = [(node, all_, [names[one.pid] for one in all_ if one.pid in names]) for node, all_ in families]
                if hosts := [each for each in found if each[2]]:
                    return hosts
            time.sleep(0.05)


def family(node: Any) -> list[psutil.Process]:
    """A node's processes."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [raylet, *raylet.children(recursive=True)]
