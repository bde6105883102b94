from __future__ import annotations

import asyncio
from typing import Any

import pytest

from umbel import Agent, Runtime, sequential, tool
from umbel.cluster.fleet import Fleet, Hedge
from umbel.cluster.fleet.hedging import LEAST_SEEN, Hedging, check_idempotent
from umbel.protocol.errors import ConfigurationError
from umbel.testing import ScriptedModel, text, tool_call


@tool(idempotent=True)
async def look(where: str) -> str:
    """Look there."""
    return where


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


class Straggler:
    """The first attempt at ``slow`` hangs until it is cancelled; any other answers."""

    idempotent = True

    def __init__(self, outcome: Any, *, good: bool = True) -> None:
        self.outcome = outcome
        self.good = good
        self.calls: list[str] = []
        self.cancelled = self.running = self.most = 0

    async def arun(self, prompt: str, **options: Any) -> Any:
        self.calls.append(prompt)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if prompt.startswith("slow") and self.calls.count(prompt) == 1:
                await asyncio.Event().wait()
            return self.outcome(message=f"{prompt}:{self.calls.count(prompt)}", success=self.good or prompt == "fine")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


async def test_the_first_good_attempt_wins_and_the_other_is_cancelled(outcome: Any) -> None:
    agent = Straggler(outcome)
    report = await Fleet(agent, concurrency=2, hedge={"after": 0.01}).run(["slow"])
    (result,) = report.results
    assert (result.message, result.attempts, result.status) == ("slow:2", 2, "ok")
    assert (agent.calls, agent.cancelled, agent.running) == (["slow", "slow"], 1, 0)


async def test_hedges_are_a_small_share_and_within_the_concurrency(outcome: Any) -> None:
    agent = Straggler(outcome)
    fleet = Fleet(agent, concurrency=4, hedge={"after": 0.01, "limit": 0.5})
    running = asyncio.ensure_future(fleet.run(["slow-1", "slow-2", "slow-3", "fine"]))
    while len(agent.calls) < 6:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert sorted(agent.calls).count("slow-3") + sorted(agent.calls).count("slow-2") + agent.calls.count("slow-1") == 5
    assert agent.most <= 4
    fleet.stop("enough")
    report = await running
    assert (report.ok, report.cancelled, agent.running) == (3, 1, 0)


async def test_a_bad_hedge_does_not_end_a_good_attempt(outcome: Any) -> None:
    gate = asyncio.Event()

    class Late(Straggler):
        async def arun(self, prompt: str, **options: Any) -> Any:
            self.calls.append(prompt)
            if len(self.calls) == 1:
                await gate.wait()
                return self.outcome(message="late but good")
            gate.set()
            return self.outcome(message="bad", success=False)

    report = await Fleet(Late(outcome), concurrency=2, hedge={"after": 0.01}).run(["p"])
    (result,) = report.results
    assert (result.message, result.status, result.tokens) == ("late but good", "ok", 20)


async def test_what_the_loser_spent_is_counted() -> None:
    gate = asyncio.Event()
    seen: list[int] = []

    @tool(idempotent=True)
    async def wait_once() -> str:
        """Wait, the first time."""
        seen.append(1)
        if len(seen) == 1:
            await gate.wait()
        return "there"

    agent = Agent(model=ScriptedModel([tool_call("wait_once"), text("done")]), tools=[wait_once])
    async with Runtime(inline=True) as runtime:
        gate.set()
        alone = (await agent.arun("p", runtime=runtime)).metrics.total_tokens
        gate.clear()
        seen.clear()
        report = await Fleet(agent, concurrency=2, hedge={"after": 0.05}, runtime=runtime).run(["p"])
    (result,) = report.results
    assert (result.status, result.attempts, len(seen)) == ("ok", 2, 2)
    assert alone < result.tokens < 2 * alone


def test_patience_is_a_percentile_of_what_finished_took() -> None:
    hedging = Hedging(Hedge(after="p95", factor=2))
    for n in range(1, LEAST_SEEN):
        hedging.end(float(n))
    assert hedging.patience() is None
    hedging.end(20.0)
    assert hedging.patience() == 38.0
    assert Hedging(Hedge(after="30s")).patience() == 30.0


def test_the_share_counts_tasks_that_have_begun() -> None:
    hedging = Hedging(Hedge(limit=0.1))
    for _ in range(30):
        hedging.begin()
    assert [hedging.take() for _ in range(5)] == [True, True, True, False, False]


def test_only_what_may_run_twice_is_hedged(outcome: Any, make_agent: Any) -> None:
    good = Agent(model="offline:x", tools=[look], name="good")
    bad = Agent(model="offline:x", tools=[look, pay], name="bad")
    check_idempotent(good)
    check_idempotent(sequential([good, good]))
    for agent in (bad, sequential([good, bad])):
        with pytest.raises(
            ConfigurationError, match=r"could repeat what tool 'pay' did; declare them @tool\(idempotent=True\)"
        ):
            Fleet(agent, hedge=True)
    with pytest.raises(ConfigurationError, match="idempotent = True"):
        Fleet(make_agent(), hedge=True)


def test_tasks_with_threads_are_not_hedged(outcome: Any) -> None:
    kept = Agent(model="offline:x", tools=[look], checkpointer="memory://")
    for agent, options in ((Straggler(outcome), {"threads": "t"}), (kept, {"name": "kept"})):
        with pytest.raises(ConfigurationError, match="hedge: tasks with threads are not hedged"):
            Fleet(agent, hedge=True, **options)  # type: ignore[arg-type]
    Fleet(kept, hedge=True)
