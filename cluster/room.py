"""Room for the actors of a runtime: what no node can host is refused, or waited for where the cluster grows by itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from ..protocol.config import Placement, Topology
from ..protocol.errors import ConfigurationError
from .nodes import ClusterNode, cluster_nodes
from .spreading import able_nodes, needs

logger = logging.getLogger("umbel.runtime")
LOOK_SECONDS = 0.5
Need = tuple[Mapping[str, float], Mapping[str, str]]  # resources, and labels, of one actor


class Room:
    """What is asked of the autoscaler for one runtime.

    Args:
        wanted: whether anything is.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._needs: list[Need] = []

    def ask(self, more: Sequence[Need]) -> None:
        """Ask for room for further actors; those that reserve nothing fit anywhere."""
        real = [need for need in more if need[0] or need[1]] if self._wanted else []
        if real:
            self._needs += real
            self._request(self._needs)

    def give_back(self) -> None:
        """The room is not needed any more."""
        import ray

        if self._needs and ray.is_initialized():
            self._needs.clear()
            self._request(())

    def _request(self, needs: Sequence[Need]) -> None:
        from ray.autoscaler.sdk import request_resources

        bundles = [dict(resources) or {"CPU": 0.001} for resources, _ in needs]
        selectors = [dict(labels) for _, labels in needs]
        request_resources(bundles=bundles, bundle_label_selectors=selectors if any(selectors) else None)


def check_placement(role: str, placement: Placement, shape: Topology) -> None:
    """Refuse what this cluster can never give, for which Ray would wait for ever; wait for it where the cluster grows.

    Raises:
        ConfigurationError: no node can host such an actor, and none came in time.
    """
    deadline = time.monotonic() + (shape.patience_seconds if shape.autoscale else 0)
    told = False
    while True:
        nodes = cluster_nodes()
        if able_nodes(nodes, needs(placement), (placement.labels, *placement.fallback)):
            return
        if time.monotonic() >= deadline:
            waited = f", and none joined within {shape.patience_seconds:g} s" if shape.autoscale else ""
            raise ConfigurationError(f"the cluster cannot place a {role} actor: {shortage(placement, nodes)}{waited}")
        if not told:
            told = True
            logger.warning("waiting for a node that can host an actor of kind %s: %s", role, shortage(placement, nodes))
        time.sleep(LOOK_SECONDS)


def shortage(placement: Placement, nodes: Sequence[ClusterNode]) -> str:
    """What a placement needs that no node has."""
    staying = [node for node in nodes if node.drained_until is None]
    most = {name: max((node.resources.get(name, 0) for node in staying), default=0) for name in needs(placement)}
    short = [f"{name} {need:g} (there is {most[name]:g})" for name, need in needs(placement).items() if need > most[name]]
    labels = [f"{name}={wanted}" for name, wanted in placement.labels.items()]
    if labels and not any(node.has_labels(placement.labels) for node in staying):
        short.append(f"a node with the labels {', '.join(labels)}")
    if short:
        return f"no node has {', '.join(short)}"
    return "no single node has all that it asks for: " + ", ".join(
        [*map("{0[0]} {0[1]:g}".format, needs(placement).items()), *labels]
    )
