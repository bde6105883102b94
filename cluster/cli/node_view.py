"""The nodes of a cluster as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .thread_views import printable, size

if TYPE_CHECKING:
    from ..nodes import ClusterNode
    from ..services import Service

NODE_COLUMNS = ("node", "address", "state", "actors", "runs", "resources", "labels")
SHORT_ID = 8  # characters of a node's id, which tell the nodes of a cluster apart
BYTES = ("memory", "object_store_memory")


def node_rows(nodes: Iterable[ClusterNode], services: Iterable[Service], now: float) -> list[tuple[str, ...]]:
    """One row a node: where it is, what it has and what it carries.

    Args:
        nodes: of the cluster.
        services: the runtimes on it.
        now: seconds since the epoch.
    """
    actors = [actor for service in services for actor in service.actors]
    rows: list[tuple[str, ...]] = []
    for node in nodes:
        here = [actor for actor in actors if actor.node_id == node.node_id]
        rows.append(
            (
                node.node_id[:SHORT_ID],
                printable(node.address),
                state(node, now),
                f"{len(here):,}",
                f"{sum(actor.runs or 0 for actor in here):,}",
                " ".join(amounts(node.resources)),
                " ".join(
                    printable(f"{name}={value}") for name, value in sorted(node.labels.items()) if name != "ray.io/node-id"
                ),
            )
        )
    return rows


def state(node: ClusterNode, now: float) -> str:
    """Whether it is the head, and whether it is about to go."""
    if node.drained_until is None:
        return "head" if node.head else "ready"
    return "drained" + (f", gone in {max(0, node.drained_until - now):.0f} s" if node.drained_until else "")


def amounts(resources: Mapping[str, float]) -> list[str]:
    """What a node has, as text."""
    return [f"{name}:{size(int(amount)) if name in BYTES else f'{amount:g}'}" for name, amount in sorted(resources.items())]
