from __future__ import annotations

import asyncio
from typing import Any

import pytest

from umbel import Agent, Runtime, tool
from umbel.actors.charter import Charter, chartered
from umbel.errors import Overloaded
from umbel.testing import ScriptedModel, text, tool_call


@tool(idempotent=True)
async def look(number: int) -> str:
    """Look."""
    return "x" * 40


def script() -> list[Any]:
    return [*(tool_call("look", number=number) for number in range(6)), text("done")]


async def test_a_charter_names_one_run_and_limits_it() -> None:
    agent = Agent(ScriptedModel(script()), [look])
    async with Runtime(inline=True):
        with chartered(Charter(run_id="chosen", lease_tokens=40)):
            first = await agent.arun("go")
            second = await agent.arun("go")
    assert (first.outcome.run_id, first.stop_reason) == ("chosen", "token_budget")
    assert second.outcome.run_id != "chosen" and second.success


@pytest.mark.spec("OURS-13")
async def test_a_turn_that_goes_on_gets_a_lease_on_top_of_what_it_has_used(tmp_path: Any) -> None:
    class Flaky(ScriptedModel):
        calls = 0

        async def complete(self, messages: Any, tools: Any = None, **settings: Any) -> Any:
            Flaky.calls += 1
            if Flaky.calls in (3, 5):
                raise Overloaded("busy")
            return await super().complete(messages, tools, **settings)

    agent = Agent(Flaky(script()), [look], checkpointer=f"sqlite:///{tmp_path}/a.db", model_retry=False)
    async with Runtime(inline=True):
        with pytest.raises(Overloaded), chartered(Charter(lease_tokens=10_000)):
            await agent.arun("go", thread_id="t")
        used = (await agent.get_state("t")).total_tokens_used
        assert used > 0
        with pytest.raises(Overloaded), chartered(Charter(lease_tokens=10_000)):
            await agent.continue_turn("t")
        assert (await agent.get_state("t")).token_budget == used + 10_000
        before = Flaky.calls
        with chartered(Charter(lease_tokens=1)):
            result = await agent.continue_turn("t")
        assert (result.stop_reason, Flaky.calls - before) == ("token_budget", 1)


async def test_one_run_of_an_agent_is_cancelled_by_its_id() -> None:
    begun: list[str] = []
    gate = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        begun.append("")
        await gate.wait()
        return "x"

    agent = Agent(ScriptedModel([tool_call("wait"), text("done")]), [wait])

    async def run(run_id: str) -> Any:
        with chartered(Charter(run_id=run_id)):
            return await agent.arun("go")

    async with Runtime(inline=True):
        first, second = asyncio.ensure_future(run("a")), asyncio.ensure_future(run("b"))
        while len(begun) < 2:
            await asyncio.sleep(0.01)
        assert agent.cancel_run("a") and not agent.cancel_run("nobody")
        assert (await first).stop_reason == "cancelled"
        gate.set()
        assert (await second).success
