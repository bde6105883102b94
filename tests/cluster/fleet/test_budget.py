from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from umbel import Agent, Runtime, tool
from umbel.cluster.fleet import Backoff, Budget, Fleet, Retries, resume_advice
from umbel.cluster.fleet.budget import PROBES, FleetPurse, RunLease
from umbel.protocol.errors import BadRequest, ContextOverflow, RateLimited, RunLost
from umbel.testing import ScriptedModel, text, tool_call

FAST = Backoff(first=0.0)


def no_time() -> float:
    return 0.0


async def test_leases_are_never_more_than_what_is_left() -> None:
    purse = FleetPurse(Budget(tokens=1_000), 100, no_time)
    out: list[RunLease] = []
    while len(out) < PROBES:
        lease = await purse.lease()
        assert lease is not None
        out.append(lease)
    waiting = asyncio.ensure_future(purse.lease())
    await asyncio.sleep(0)
    assert not waiting.done()  # nobody knows yet what a task takes
    assert sum(lease.tokens or 0 for lease in out) <= 1_000
    purse.give_back(out.pop(), 40, None)
    next_one = await waiting
    assert next_one is not None and next_one.tokens is not None
    assert next_one.tokens >= 80  # twice what the dearest took, although an even share would be less
    assert sum(lease.tokens or 0 for lease in [*out, next_one]) + 40 <= 1_000


async def test_what_does_not_fit_waits_for_others_and_then_gets_everything() -> None:
    purse = FleetPurse(Budget(cost_usd=1.0), 2, no_time)
    first, second = await purse.lease(), await purse.lease()
    assert first is not None and second is not None and (first.cost_usd, second.cost_usd) == (0.5, 0.5)
    purse.give_back(first, 0, 0.5)
    larger = asyncio.ensure_future(purse.lease(first))
    await asyncio.sleep(0)
    assert not larger.done()
    purse.give_back(second, 0, 0.2)
    lease = await larger
    assert lease is not None and lease.cost_usd == pytest.approx(0.3) and lease.largest
    purse.give_back(lease, 0, 0.3)
    assert (purse.used_up, await purse.lease()) == ("cost_usd", None)


@pytest.mark.spec("OURS-13")
@pytest.mark.parametrize("tokens", [50, 500, 2_000])
async def test_a_fleet_overspends_by_one_call_each_at_most_and_goes_on_with_more(
    tokens: int, out: Any, read_results: Any
) -> None:
    model = ScriptedModel([tool_call("look"), tool_call("look"), text("done")])

    @tool(idempotent=True)
    def look() -> str:
        """Look."""
        return "x" * 40

    agent = Agent(model=model, tools=[look])
    tasks = [{"id": str(n), "prompt": "p" * 20} for n in range(60)]
    async with Runtime(inline=True) as runtime:
        alone = await agent.arun("p" * 20, runtime=runtime)
        each = alone.metrics.total_tokens
        fleet = Fleet(agent, concurrency=10, runtime=runtime, budget={"tokens": tokens}, backoff=FAST)
        report = await fleet.run(tasks, out)
        assert report.stopped == "budget_tokens" and report.exit_code == 1
        assert report.tokens <= tokens + PROBES * each // 2  # the dearest of its three calls takes less than half
        assert tokens // each - PROBES <= report.ok <= report.tokens // each < 60
        assert all(one["status"] in ("ok", "cancelled") for one in read_results(out).values())
        assert "the budget (tokens) is used up" in resume_advice(report) and "more of it" in resume_advice(report)
        again = await Fleet(agent, concurrency=10, runtime=runtime, budget={"tokens": 10**6}).run(tasks, out, resume=True)
        assert (again.ok + again.skipped, again.stopped) == (60, None)


async def test_nothing_begins_once_the_money_is_spent(make_agent: Any, out: Any) -> None:
    report = await Fleet(make_agent(), concurrency=1, budget=Budget(cost_usd=1.0)).run([str(n) for n in range(10)], out)
    assert (report.ok, report.total, report.cost_usd, report.stopped) == (4, 4, 1.0, "budget_cost_usd")


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"deadline": 0.2}, "deadline"),
        ({"deadline": datetime.now(UTC) - timedelta(hours=1)}, "deadline"),
        ({"budget": {"seconds": 0.2}}, "budget_seconds"),
    ],
)
async def test_when_time_is_over_what_runs_is_stopped_and_the_rest_stays_undone(
    make_agent: Any, out: Any, limit: Any, reason: str
) -> None:
    async def forever(prompt: str) -> None:
        await asyncio.Event().wait()

    agent = make_agent(reply=lambda prompt, _: forever(prompt))
    report = await Fleet(agent, concurrency=3, grace=0.3, **limit).run([str(n) for n in range(10)], out)
    assert (report.stopped, report.ok, report.exit_code) == (reason, 0, 1)
    assert report.cancelled <= 3


async def test_retries_go_by_the_kind_of_failure(make_agent: Any, outcome: Any) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        match prompt:
            case "busy":
                raise RateLimited("slow down")
            case "long":
                raise ContextOverflow("too long")
            case "wrong":
                raise BadRequest("no")
            case "lost" if attempt == 1:
                raise RunLost("gone")
            case "loop":
                return outcome(success=False, stop_reason="max_iterations")
            case "mixed":
                raise RateLimited("x") if attempt % 2 else RunLost("gone")
        return outcome()

    agent = make_agent(reply=reply)
    retries = {"default": 1, "rate_limit": 4, "context_overflow": 0, "max_iterations": 2}
    report = await Fleet(agent, retries=retries, backoff=FAST, quarantine_after=9).run(
        ["busy", "long", "wrong", "lost", "loop", "fine"]
    )
    assert agent.attempts == {"busy": 5, "long": 1, "wrong": 1, "lost": 2, "loop": 3, "fine": 1}
    assert report.ok == 2


def test_timeout_is_one_name_for_everything_that_did_not_end_in_time() -> None:
    from collections import Counter

    retries = Retries.of({"default": 0, "timeout": 1})
    failures: Counter[str] = Counter()
    assert retries.allows(None, "time_budget", failures)
    assert not retries.allows({"code": "deadline_exceeded", "message": "", "details": {}}, "error", failures)
