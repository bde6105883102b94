"""Which node a shard is on: the shards of a kind are spread evenly, and those of one number are together.

A run whose supervisor, agent and executor have the same number (with as many of each, that is most of them) then crosses
no network. It is a wish: where a node is lost or full, Ray puts the actor elsewhere. (Its own ``SPREAD`` and soft affinity
left nodes empty: of four nodes two had all eight actors.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..protocol.config import Placement, Topology
from .nodes import ClusterNode, cluster_nodes

NODE = "ray.io/node-id"  # a label that every node has
ANY = {NODE: "!none"}


def able_nodes(
    nodes: Sequence[ClusterNode], resources: Mapping[str, float], selectors: Sequence[Mapping[str, str]] = ({},)
) -> list[ClusterNode]:
    """The nodes that can host an actor and stay: by the first of the selectors that finds any."""
    for selector in selectors:
        found = [node for node in nodes if node.drained_until is None and node.fits(resources, selector)]
        if found:
            return found
    return []


def own_first(nodes: Sequence[ClusterNode]) -> list[str]:
    """Their ids, this process's own node first."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    return sorted([node.node_id for node in nodes], key=lambda node: (node != here, node))


def node_ids(resources: Mapping[str, float], labels: Mapping[str, str]) -> list[str]:
    """The nodes that can host the actors without a placement of their own."""
    return own_first(able_nodes(cluster_nodes(), resources, (labels,)))


def on_node(shard: int, nodes: Sequence[str], selectors: Sequence[Mapping[str, str]] = ({},)) -> dict[str, Any]:
    """Options of the actor of a shard; none where there is nothing to choose.

    Args:
        shard: its number.
        nodes: where the shards shall be, in turn.
        selectors: of labels that its node must have; each but the first is tried where those before find nothing.
    """
    wishes = [dict(selector) or ANY for selector in selectors]
    if len(nodes) > 1:
        wishes.insert(0, {**selectors[0], NODE: nodes[shard % len(nodes)]})
    if wishes == [ANY]:
        return {}
    first, *others = wishes
    return {
        "label_selector": first,
        **({"fallback_strategy": [{"label_selector": other} for other in others]} if others else {}),
    }


def needs(placement: Placement) -> dict[str, float]:
    """What one actor of a placement reserves, in Ray's names."""
    wanted = {"CPU": placement.cpus, "GPU": placement.gpus, **placement.resources}
    if placement.accelerator is not None:
        wanted[f"accelerator_type:{placement.accelerator}"] = 0.001
    return {name: amount for name, amount in wanted.items() if amount}


def for_nodes(topology: Topology, count: int) -> Topology:
    """The topology with every kind of shared actor on each of so many nodes, if it asks for that."""
    if not topology.per_node or count < 2:
        return topology
    kinds = {"supervisors": topology.supervisors or 1, "agents": topology.agents, "tool_executors": topology.tool_executors}
    return topology.model_copy(update={kind: number * count for kind, number in kinds.items()})
