"""A member with a store of its own keeps its thread there, and goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from umbel import Agent, Runtime, ToolContext, sequential, tool
from umbel.testing import ScriptedModel, text, tool_call


@tool(idempotent=True)
async def ask(ctx: ToolContext) -> str:
    """Ask whether to go on."""
    return f"the answer was {ctx.interrupt('Go on?')}"


async def test_a_member_that_paused_goes_on_from_its_own_store(tmp_path: Path) -> None:
    def pattern() -> Any:
        store = f"sqlite:///{tmp_path}/member.db"
        member = Agent(ScriptedModel([tool_call("ask"), text("done")]), tools=[ask], name="asker", checkpointer=store)
        return sequential(member, checkpointer=f"sqlite:///{tmp_path}/pattern.db")

    async with Runtime(inline=True) as runtime:
        paused = await pattern().arun("Go.", thread_id="t")
        fork = await pattern().fork("t", "fork")
        for thread in ("t", fork):
            result = await pattern().aresume("yes", thread_id=thread)
            assert result.success and result.final_output == "done"
        threads = Agent(ScriptedModel([]), checkpointer=f"sqlite:///{tmp_path}/member.db").threads_in(runtime)
        assert [found.thread_id for found in await threads.page("", members=True)] == ["fork#1.0.asker", "t#1.0.asker"]
    assert paused.stop_reason == "interrupted"
