"""Nodes, labels, and where the shards of a pool go; without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from umbel import Placement, Topology
from umbel.cluster import room
from umbel.cluster.nodes import ClusterNode, chosen
from umbel.cluster.room import check_placement
from umbel.cluster.spreading import ANY, NODE, able_nodes, for_nodes, needs, on_node
from umbel.errors import ConfigurationError

A = ClusterNode("a1", "10.0.0.1", "one", head=True, labels={"zone": "a"}, resources={"CPU": 8})
B = ClusterNode("b1", "10.0.0.2", "two", labels={"zone": "b"}, resources={"CPU": 4, "GPU": 2, "accelerator_type:A100": 1})
C = ClusterNode("c1", "10.0.0.3", "three", labels={"zone": "c"}, resources={"CPU": 4, "GPU": 1, "browser": 2})


@pytest.mark.parametrize(
    ("value", "wanted", "fits"),
    [
        ("a", "a", True),
        ("a", "b", False),
        (None, "a", False),
        ("a", "!a", False),
        ("b", "!a", True),
        (None, "!a", True),
        ("a", "in(a,b)", True),
        ("c", "in(a, b)", False),
        ("a", "!in(a,b)", False),
        ("c", "!in(a,b)", True),
    ],
)
def test_labels_are_read_as_ray_reads_them(value: str | None, wanted: str, fits: bool) -> None:
    assert chosen(value, wanted) is fits


def ids(nodes: list[ClusterNode]) -> list[str]:
    return [node.node_id for node in nodes]


def test_a_node_is_able_when_it_has_everything_and_stays() -> None:
    assert ids(able_nodes([A, B, C], {"GPU": 1})) == ["b1", "c1"]
    assert ids(able_nodes([A, B, C], {"GPU": 1}, [{"zone": "!b"}])) == ["c1"]
    assert ids(able_nodes([A, B, C], {"GPU": 1}, [{"zone": "a"}, {"zone": "b"}])) == ["b1"], "the fallback"
    assert able_nodes([A, B, C], {"GPU": 3}) == [], "two nodes together do not count"
    leaving = ClusterNode("b1", "10.0.0.2", "two", drained_until=0.0, resources=B.resources)
    assert ids(able_nodes([A, leaving, C], {"GPU": 1})) == ["c1"]


def test_shards_go_to_the_nodes_in_turn_and_elsewhere_only_if_they_must() -> None:
    selectors: tuple[dict[str, str], ...] = ({"zone": "!a"}, {})
    options = [on_node(shard, ["b1", "c1"], selectors) for shard in range(3)]
    assert [one["label_selector"] for one in options] == [{"zone": "!a", NODE: node} for node in ("b1", "c1", "b1")]
    assert options[0]["fallback_strategy"] == [{"label_selector": {"zone": "!a"}}, {"label_selector": ANY}]
    assert on_node(0, ["b1"], ({"zone": "b"},)) == {"label_selector": {"zone": "b"}}
    assert on_node(0, ["b1"]) == {}


def test_what_a_placement_needs_and_the_name_of_its_pool() -> None:
    gpu = Placement(gpus=0.5, accelerator="A100", resources={"browser": 1}, replicas=4)
    assert needs(gpu) == {"GPU": 0.5, "browser": 1, "accelerator_type:A100": 0.001}
    pools = {
        Placement(labels={"zone": "a"}).pool,
        Placement(labels={"zone": "b"}).pool,
        Placement(labels={"zone": "a"}, fallback=({"zone": "b"},)).pool,
        Placement(dedicated=True).pool,
        Placement(spread=False).pool,
        gpu.pool,
    }
    assert len(pools) == 6 and not any("/" in pool for pool in pools)
    assert Placement(labels={"ray.io/market-type": "spot"}).pool == Placement(labels={"ray.io/market-type": "spot"}).pool


def test_a_topology_per_node() -> None:
    shape = for_nodes(Topology(per_node=True, supervisors=1, agents=2), 3)
    assert (shape.supervisors, shape.agents, shape.tool_executors) == (3, 6, 3)
    assert for_nodes(Topology(agents=2), 3).agents == 2


def test_what_no_node_can_host_is_refused_with_what_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "cluster_nodes", lambda: [A, B, C])
    check_placement("agent", Placement(gpus=2), Topology())
    with pytest.raises(ConfigurationError, match=r"no node has GPU 3 \(there is 2\), moon 1 \(there is 0\)$"):
        check_placement("agent", Placement(gpus=3, resources={"moon": 1}), Topology())
    with pytest.raises(ConfigurationError, match=r"a node with the labels zone=d"):
        check_placement("tools", Placement(labels={"zone": "d"}), Topology())
    with pytest.raises(ConfigurationError, match=r"no single node has all"):
        check_placement("tools", Placement(cpus=8, gpus=1), Topology())


def test_a_cluster_that_grows_is_given_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    known: list[Any] = [A]

    def join(seconds: float) -> None:
        known.append(B)

    monkeypatch.setattr(room, "cluster_nodes", lambda: known)
    monkeypatch.setattr("umbel.cluster.room.time.sleep", join)
    check_placement("agent", Placement(gpus=2), Topology(autoscale=True))
    assert "waiting for a node that can host an actor of kind agent: no node has GPU 2" in caplog.text
    with pytest.raises(ConfigurationError, match=r"and none joined within 0.001 s"):
        check_placement("agent", Placement(gpus=9), Topology(autoscale=True, patience_seconds=0.001))
