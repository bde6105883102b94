"""Case 30: a long run with a slow store never has more than a few saves before it, and hears of an early one that failed."""

from __future__ import annotations

import asyncio
import gc

import pytest

from umbel import Agent, AgentState, Runtime, tool
from umbel.errors import StoreUnavailable
from umbel.testing import ScriptedModel, text, tool_call

from .counted_stores import CountedStore

pytestmark = pytest.mark.case(30)
STEPS = 300
alive: list[int] = []


@tool(idempotent=True)
async def step(number: int) -> int:
    """One step; every fiftieth looks how many states there are."""
    await asyncio.sleep(0.001)
    if number % 50 == 49:
        gc.collect()
        alive.append(sum(isinstance(thing, AgentState) for thing in gc.get_objects()))
    return number


def walker(store: CountedStore) -> Agent:
    script = [*(tool_call("step", number=number) for number in range(STEPS)), text("done")]
    url = store.register("counted")
    return Agent(ScriptedModel(script), [step], checkpointer=url, durability="async", max_iterations=500, context_window=10**9)


async def test_what_waits_for_a_slow_store_does_not_grow() -> None:
    alive.clear()
    store = CountedStore(seconds=0.02)
    agent = walker(store)
    async with Runtime(inline=True) as runtime:
        result = await agent.arun("go", thread_id="t", runtime=runtime)
        assert result.message == "done" and store.most_at_once == 1
        assert 2 < len(store.saves) < STEPS / 2, "steps that the store had no time for share a save"
        kept = await agent.get_state("t", runtime=runtime)
    assert len(kept.tool_executions) == STEPS
    assert len(alive) == STEPS // 50 and alive[-1] <= alive[0] + 2, alive


async def test_a_long_run_does_not_go_on_after_an_early_save_failed() -> None:
    store = CountedStore(seconds=0.01, fail_at=3)
    async with Runtime(inline=True) as runtime:
        with pytest.raises(StoreUnavailable, match="the disk is gone"):
            await walker(store).arun("go", thread_id="t", runtime=runtime)
    assert len(store.saves) <= 4, "the one that failed, and at most the one of the end"
