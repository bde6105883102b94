"""Which node a shard is on: the shards of a kind are spread evenly, and those of one number are together.

A run whose supervisor, agent and executor have the same number (with as many of each, that is most of them) then crosses
no network. It is a wish: where a node is lost or full, Ray puts the actor elsewhere. (Its own ``SPREAD`` and soft affinity
left nodes empty: of four nodes two had all eight actors.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NODE = "ray.io/node-id"  # a label that every node has


def node_ids(resources: Mapping[str, float]) -> list[str]:
    """The nodes that have these resources, this process's own first."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    able = [
        str(node["NodeID"])
        for node in ray.nodes()  # type: ignore[no-untyped-call]  # of Ray
        if node["Alive"] and all(node["Resources"].get(name, 0) >= amount for name, amount in resources.items())
    ]
    return sorted(able, key=lambda node: (node != here, node))


def on_node(shard: int, nodes: list[str]) -> dict[str, Any]:
    """Options of the actor of a shard; none where there is nothing to choose."""
    if len(nodes) < 2:
        return {}
    wish = {NODE: nodes[shard % len(nodes)]}
    return {"label_selector": wish, "fallback_strategy": [{"label_selector": {NODE: "!none"}}]}
