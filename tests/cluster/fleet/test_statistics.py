from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from umbel.cluster.fleet.results import TaskResult
from umbel.cluster.fleet.statistics import Difference, Statistics, generalise


async def stream(*results: TaskResult) -> AsyncIterator[TaskResult]:
    for result in results:
        yield result


def result(task_id: str, status: Any = "ok", **fields: Any) -> TaskResult:
    return TaskResult(id=task_id, status=status, **{"attempts": 1, **fields})


async def test_statistics_of_a_fleet() -> None:
    timed = [result(f"t{n}", duration_s=n / 100, tokens=2, cost_usd=0.5) for n in range(1, 101)]
    bad = [result(f"b{n}", "failed", error=f"model_timeout: no answer in {n}.5 s", duration_s=9) for n in range(5)]
    invalid = result("x", "invalid", error="not JSON", attempts=0)
    found = await Statistics.of(stream(*timed, *bad, invalid))
    assert (found.total, dict(found.counts)) == (106, {"ok": 100, "failed": 5, "invalid": 1})
    assert (found.tokens, found.cost_usd, found.attempts) == (200, 50.0, 105)
    assert found.percentiles() == {"p50": 0.53, "p95": 1.0, "p99": 9.0, "max": 9.0}
    assert [(group.count, group.error, group.examples) for group in found.errors()] == [
        (5, "model_timeout: no answer in N s", ("b0", "b1", "b2")),
        (1, "not JSON", ("x",)),
    ]
    assert found.slowest()[5:] == [("t100", 1.0), ("t99", 0.99), ("t98", 0.98), ("t97", 0.97), ("t96", 0.96)]
    assert found.facts()["errors"][0]["status"] == "failed"


async def test_statistics_of_nothing() -> None:
    found = await Statistics.of(stream())
    assert (found.total, found.percentiles(), found.errors(), found.slowest()) == (0, {}, [], [])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("peer_lost: process 4711 at 0x7f00aa", "peer_lost: process N at N"),
        ("run 5f0c9a3b1d2e4f60 ended", "run N ended"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id N"),
        ("bad_request: no such model", "bad_request: no such model"),
    ],
)
def test_errors_of_one_kind(error: str, kind: str) -> None:
    assert generalise(error) == kind


async def test_what_changed_between_two_fleets() -> None:
    before = stream(result("same", message="a"), result("other", message="a"), result("gone"), result("mended", "failed"))
    after = stream(
        result("mended"), result("other", message="b", tokens=3), result("same", message="a"), result("new", cost_usd=2.0)
    )
    found = await Difference.between(before, after)
    assert found.same == 1
    assert [(change.id, change.kind, change.before, change.after) for change in found.changes] == [
        ("mended", "status", "failed", "ok"),
        ("other", "answer", "ok", "ok"),
        ("new", "added", None, "ok"),
        ("gone", "removed", "ok", None),
    ]
    assert (found.tokens, found.cost_usd) == ((0, 3), (0.0, 2.0))
