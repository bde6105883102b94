"""What ``umbel doctor --address`` makes of what it finds, and which node ``umbel drain`` takes; without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from umbel.cluster.cli import cluster_checks as checks
from umbel.cluster.cli.node_view import node_rows
from umbel.cluster.leaving import chosen
from umbel.cluster.nodes import ClusterNode
from umbel.cluster.services import Service, ServiceActor
from umbel.errors import ConfigurationError

HEAD = ClusterNode("aa11", "10.0.0.1", "one", head=True)
WORKER = ClusterNode(
    "bb22", "10.0.0.2", "two", labels={"zone": "b", "ray.io/node-id": "bb22"}, resources={"CPU": 2, "memory": 2**31}
)
LEAVING = ClusterNode("bb33", "10.0.0.3", "three", drained_until=130.0)
OWN = {"ray": "2.60.0", "python": "3.11.7", "umbel": "1.0"}


def facts(**other: Any) -> dict[str, Any]:
    return {**OWN, "time": 100.0, "niceness": 0, "free": {"/tmp": 2**40}, "store": "", "health": None, **other}


def test_versions_must_be_the_same_everywhere() -> None:
    assert checks.versions_check([facts()], OWN).status == "ok"
    found = checks.versions_check([facts(), facts(umbel="0.9")], OWN)
    assert found.status == "fail" and found.detail == "umbel 0.9 and 1.0"


def test_clocks_may_differ_by_what_the_question_took() -> None:
    assert checks.clocks_check({"n": facts(time=100)}, 99.5, 103).status == "ok"
    found = checks.clocks_check({"early": facts(time=90), "late": facts(time=110)}, 100, 103)
    assert found.status == "warn" and found.detail == "early is off by 10.0 s; late is off by 7.0 s"


def test_a_slow_health_check_is_told_with_what_to_set() -> None:
    slow = checks.health_check({"n": facts(), "head": facts(health={})})
    assert (slow.status, slow.detail) == ("warn", "a node that hangs is noticed after about 65 s at most")
    assert "RAY_health_check_period_ms=1000" in slow.remedy
    fast = {
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
    }
    assert checks.health_check({"head": facts(health=fast)}).status == "ok"
    assert checks.health_check({"n": facts()}).detail == "cannot be read"


@pytest.mark.parametrize(
    ("url", "nodes", "store", "status"),
    [
        ("sqlite:////a.db", [HEAD], "", "ok"),
        ("sqlite:////a.db", [HEAD, WORKER], "", "warn"),
        ("redis://r", [HEAD, WORKER], "", "ok"),
        ("redis://r", [HEAD, WORKER], "no answer within 15 s", "fail"),
    ],
)
def test_the_store_must_be_reached_and_outlive_a_node(url: str, nodes: list[ClusterNode], store: str, status: str) -> None:
    assert checks.store_check(url, nodes, {"n": facts(store=store)}).status == status


def test_disks_priority_nodes_and_answers() -> None:
    assert (
        checks.disks_check({"n": facts(free={"/tmp": 1})}).status == "warn"
        and checks.disks_check({"n": facts()}).status == "ok"
    )
    assert checks.niceness_check({"n": facts(niceness=15)}).status == "warn"
    assert checks.nodes_check([HEAD, WORKER]).detail == "2 on 2 machines"
    assert "drained: 10.0.0.3" in checks.nodes_check([HEAD, LEAVING]).detail
    assert checks.answer_check([HEAD], {"n": {"error": "no umbel"}}).status == "fail"


def test_a_node_is_meant_by_its_address_or_the_first_letters_of_its_id() -> None:
    nodes = {node.node_id: node.address for node in (HEAD, WORKER, LEAVING)}
    assert (
        chosen(nodes, None, "10.0.0.2") == chosen(nodes, "10.0.0.2", "10.0.0.1") == chosen(nodes, "bb2", "10.0.0.1") == "bb22"
    )
    for unclear, what in (("bb", "2 nodes 'bb'"), ("cc", "no node 'cc'"), ("10.0.0.9", "no node '10.0.0.9'")):
        with pytest.raises(ConfigurationError, match=what):
            chosen(nodes, unclear, "10.0.0.1")


def test_the_table_of_nodes_says_what_each_carries() -> None:
    actors = (
        ServiceActor("supervisor/default/0", answers=True, node_id="bb22", runs=7),
        ServiceActor("agent/default/0", answers=True, node_id="bb22"),
        ServiceActor("tools/default/0"),
    )
    head, worker, leaving = node_rows([HEAD, WORKER, LEAVING], [Service("s", True, actors)], now=100.0)
    assert head[2:5] == ("head", "0", "0") and worker[2:] == ("ready", "2", "7", "CPU:2 memory:2.0 GiB", "zone=b")
    assert leaving[2] == "drained, gone in 30 s"
