"""Ray nodes on this machine for ``recovery.py``: a head, a node that the actors are on, and one that could take them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import psutil

# What the README says for a cluster.
HEALTH = {"initial_delay_ms": "0", "period_ms": "1000", "timeout_ms": "2000", "failure_threshold": "3"}
RESOURCE = "work"
ROOM = 16  # for all actors, so that they are on one node


class Nodes:
    """The nodes beside the head.

    Args:
        cluster: of ``ray.cluster_utils``.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes: list[Any] = []
        self.join()
        self.join()

    def join(self) -> None:
        """One more."""
        self._nodes.append(self._cluster.add_node(num_cpus=2, resources={RESOURCE: ROOM}, object_store_memory=80_000_000))

    def lose(self, pid: int) -> None:
        """The node that this process is on loses its power, with all that is on it."""
        node, family = next(each for each in map(family_of, self._nodes) if any(one.pid == pid for one in each[1]))
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.remove(node)


def family_of(node: Any) -> tuple[Any, list[psutil.Process]]:
    """A node with its processes, the raylet first."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return node, [raylet, *raylet.children(recursive=True)]


@contextlib.contextmanager
def cluster() -> Iterator[tuple[str, Nodes]]:
    """A cluster's address, and its nodes beside the head, on which there is no room for actors."""
    os.environ |= {f"RAY_health_check_{name}": value for name, value in HEALTH.items()}
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ur", ignore_cleanup_errors=True) as short:  # Ray's sockets need short paths
        head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": short}
        made: Any = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield made.address, Nodes(made)
        finally:
            made.shutdown()
