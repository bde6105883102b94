"""Case 17: a long conversation costs what is new in it, in every place where it is held."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from umbel import Agent, Message, Runtime, ToolCall, tool
from umbel.testing import ScriptedModel, text, tool_calls

pytestmark = pytest.mark.case(17)
MESSAGES, TURNS = 400, 12


@tool(idempotent=True)
async def step(number: int) -> int:
    """One step."""
    return number


async def test_the_conversations_of_turns_that_are_over_are_dropped(tmp_path: Path) -> None:
    earlier = [Message.user(str(number)) for number in range(MESSAGES)]
    agent = Agent(ScriptedModel([text("ok")]), checkpointer=f"sqlite:///{tmp_path}/t.db", context_window=10**9)
    async with Runtime(inline=True) as runtime:
        await agent.arun("hello", thread_id="t", runtime=runtime)
        await agent.update_state("t", messages=earlier, runtime=runtime)
        del earlier
        for _ in range(TURNS):
            result = await agent.arun("and now?", thread_id="t", runtime=runtime)
        assert len(result.messages) >= MESSAGES
        gc.collect()
        alive = sum(isinstance(thing, Message) for thing in gc.get_objects())
    assert alive < 3 * len(result.messages), "not once for each turn"


async def test_call_ids_stay_unique_however_long_a_run_is(tmp_path: Path) -> None:
    calls = [ToolCall(id="call_1", name="step", arguments={"number": number}) for number in range(80)]
    agent = Agent(
        ScriptedModel([*map(tool_calls, calls), text("done")]),
        [step],
        checkpointer=f"sqlite:///{tmp_path}/t.db?synchronous=normal",
        max_iterations=200,
        context_window=10**9,
    )
    async with Runtime(inline=True) as runtime:
        for turn in (1, 2):
            result = await agent.arun("go", thread_id="t", runtime=runtime)
            made = [call for message in result.messages for call in message.tool_calls]
            assert len({call.id for call in made}) == len(made) == 80 * turn
            assert {call.provider_id or call.id for call in made} == {"call_1"}
