"""The nodes of a Ray cluster, and which of them can host what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

HEAD = "node:__internal_head__"  # a resource that only the head has
ADDRESS = "node:"  # what the others of that kind begin with: every node has one


@dataclass(frozen=True)
class ClusterNode:
    """A node that is part of the cluster.

    Attributes:
        node_id: hexadecimal, as Ray knows it.
        address: of its machine.
        host: name of its machine.
        head: the cluster's control store is there.
        drained_until: it is about to go, at this time (seconds since the epoch; 0 without a time); None is a node that stays.
        labels: what it is, as a placement's ``labels`` see it.
        resources: altogether; what is in use is not subtracted.
    """

    node_id: str
    address: str
    host: str
    head: bool = False
    drained_until: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)

    def fits(self, resources: Mapping[str, float], selector: Mapping[str, str]) -> bool:
        """Whether an actor with these needs can ever be here."""
        return self.has_labels(selector) and all(self.resources.get(name, 0) >= need for name, need in resources.items())

    def has_labels(self, selector: Mapping[str, str]) -> bool:
        """Whether its labels are as a selector wants them."""
        return all(chosen(self.labels.get(name), wanted) for name, wanted in selector.items())

    def facts(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def chosen(value: str | None, wanted: str) -> bool:
    """Whether a label has a value that a selector wants: ``b``, ``!b``, ``in(b,c)`` or ``!in(b,c)``, as Ray reads them."""
    other = wanted.startswith("!")
    text = wanted.removeprefix("!")
    values = text[3:-1].replace(" ", "").split(",") if text.startswith("in(") and text.endswith(")") else [text]
    return (value in values) is not other


def cluster_nodes() -> list[ClusterNode]:
    """The nodes that are alive, the head first, the others by address and id."""
    import ray
    from ray._private.state import state

    drained = state.get_draining_nodes()
    known = [_node(record, drained) for record in ray.nodes() if record["Alive"]]  # type: ignore[no-untyped-call]  # of Ray
    return sorted(known, key=lambda node: (not node.head, node.address, node.node_id))


def _node(record: Mapping[str, Any], drained: Mapping[str, int]) -> ClusterNode:
    node_id = str(record["NodeID"])
    return ClusterNode(
        node_id=node_id,
        address=str(record["NodeManagerAddress"]),
        host=str(record["NodeManagerHostname"]),
        head=HEAD in record["Resources"],
        drained_until=drained[node_id] / 1e3 if node_id in drained else None,
        labels=dict(record.get("Labels") or {}),
        resources={name: amount for name, amount in record["Resources"].items() if not name.startswith(ADDRESS)},
    )
