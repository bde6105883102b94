"""What members used is the pattern's, once: also of a member that paused, or was stopped and went on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Runtime, ToolContext, ToolStartEvent, parallel, sequential, tool
from umbel.testing import ScriptedModel, text, tool_call

TURNS = [tool_call("ask"), text("done")]


@tool(idempotent=True)
async def ask(ctx: ToolContext) -> str:
    """Ask whether to go on."""
    return f"the answer was {ctx.interrupt('Go on?')}"


def asker() -> Agent:
    return Agent(ScriptedModel(TURNS), tools=[ask], name="asker")


@pytest.mark.parametrize("stored", [False, True])
async def test_a_member_that_paused_counts_once(runtime: Runtime, tmp_path: Path, stored: bool) -> None:
    settings: dict[str, Any] = {"checkpointer": f"sqlite:///{tmp_path}/t.db"} if stored else {}
    where: dict[str, Any] = {"thread_id": "t"} if stored else {}
    pattern = sequential(asker(), parallel(asker(), asker(), name="both"), **settings)
    result: Any = await pattern.arun("Go.", **where)
    while result.interrupts:
        answers = {asked["interrupt_id"]: "yes" for asked in result.interrupts}
        result = await pattern.aresume(answers=answers, **(where or {"result": result}))
    assert result.success
    used = [member.metrics for member in result.members]
    assert result.metrics.total_tokens == sum(one.total_tokens for one in used)
    assert result.metrics.model_calls == sum(one.model_calls for one in used) == 6
    assert result.metrics.tool_calls == 3


async def test_an_agent_behind_a_tool_that_paused_counts_once(runtime: Runtime) -> None:
    alone: Any = await asker().arun("Go.")
    alone = await asker().aresume("yes", result=alone)
    boss = Agent(ScriptedModel([tool_call("asker", prompt="Go."), text("all done")]), tools=[asker().as_tool()])
    paused: Any = await boss.arun("Go.")
    before = paused.metrics
    result = await boss.aresume("yes", result=paused)
    assert result.metrics.model_calls == before.model_calls + 2 == 4
    own = 2  # requests of the boss
    assert alone.metrics.model_calls == result.metrics.model_calls - own
    assert result.metrics.total_tokens - before.total_tokens < alone.metrics.total_tokens + before.total_tokens


async def test_a_member_that_was_cancelled_and_goes_on_counts_once(runtime: Runtime, tmp_path: Path) -> None:
    @tool(idempotent=True)
    async def wait(go: str) -> str:
        """Wait until there is a file."""
        import asyncio

        while not Path(go).exists():  # noqa: ASYNC240 - a file of this test
            await asyncio.sleep(0.01)
        return "it is there"

    file = tmp_path / "go"
    turns = [tool_call("wait", go=str(file)), text("done")]
    pattern = sequential(Agent(ScriptedModel(turns), tools=[wait], name="waiter"), checkpointer=f"sqlite:///{tmp_path}/t.db")
    handle = await pattern.start("Go.", thread_id="t")
    async for event in handle.events():
        if isinstance(getattr(event, "innermost", event), ToolStartEvent):
            await handle.cancel()
    cancelled: Any = await handle.result()
    assert cancelled.stop_reason == "cancelled"
    file.touch()
    result: Any = await pattern.continue_turn("t")
    assert result.success, result.error
    assert result.metrics.model_calls == result.members[0].metrics.model_calls == 2
    assert result.metrics.total_tokens == result.members[0].metrics.total_tokens
