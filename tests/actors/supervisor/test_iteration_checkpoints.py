"""The checkpoints of a run's iterations are there for a crash: its last one takes their place, unless they are to be kept."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime, ToolContext, tool
from umbel.actors.checkpoints import open_store
from umbel.errors import CheckpointNotFound
from umbel.protocol.storage import CollectGarbage
from umbel.testing import ScriptedModel, text, tool_call, validate_history

from ...cases.killing import kill, until

pytestmark = pytest.mark.spec("MEM-42")


@tool
async def step(number: int) -> str:
    """One step, with a side effect."""
    return f"did {number}"


@tool
async def book(hotel: str, ctx: ToolContext) -> str:
    """Book a hotel, once a person has agreed."""
    return f"booked {hotel}: {ctx.interrupt(f'Book {hotel}?')}"


def steps(count: int) -> list[Any]:
    return [*(tool_call("step", number=number) for number in range(count)), text("done")]


def agent_in(folder: Path, script: list[Any], *tools: Any, **settings: Any) -> Agent:
    return Agent(ScriptedModel(script), [step, book, *tools], checkpointer=f"sqlite:///{folder}/t.db", **settings)


async def reasons(agent: Agent, thread: str = "t") -> list[Any]:
    """How the segment of each checkpoint ended, oldest first; None of one in between."""
    history = await agent.get_state_history(thread, 1_000)
    return [(found.metadata.get("ending") or {}).get("reason") for found in reversed(history)]


async def test_a_thread_has_one_checkpoint_for_each_run(runtime: Runtime, tmp_path: Path) -> None:
    agent = agent_in(tmp_path, steps(4))
    seen = []
    for turn in range(3):
        result = await agent.arun(f"turn {turn}", thread_id="t")
        seen.append(result.messages)
        state = await agent.get_state("t")
        assert (state.messages, len(state.tool_executions), state.turn.stop_reason) == (result.messages, 4, "complete")
    history = await agent.get_state_history("t", 100)
    assert await reasons(agent) == ["complete"] * 3
    assert [found.parent_id for found in history] == [*(found.checkpoint_id for found in history[1:]), None]
    assert [(await agent.get_state("t", found.checkpoint_id)).messages for found in reversed(history)] == seen
    validate_history(seen[-1])


async def test_they_can_be_kept(runtime: Runtime, tmp_path: Path) -> None:
    agent = agent_in(tmp_path, steps(2), keep_iteration_checkpoints=True)
    for _ in range(2):
        await agent.arun("go", thread_id="t")
    assert await reasons(agent) == [None, None, None, None, "complete"] * 2, "before each call, after it, and the end"


@pytest.fixture
async def inline() -> Any:
    async with Runtime(inline=True) as runtime:
        yield runtime


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_pause_is_an_end_of_its_own(inline: Runtime, tmp_path: Path, durability: str) -> None:
    script = [tool_call("step", number=1), tool_call("book", hotel="Ritz"), tool_call("step", number=2), text("done")]
    agent = agent_in(tmp_path, script, durability=durability)
    paused = await agent.arun("go", thread_id="t")
    assert paused.stop_reason == "interrupted" and await reasons(agent) == ["interrupted"]
    result = await agent.aresume("yes", thread_id="t")
    assert await reasons(agent) == ["interrupted", "complete"]
    assert (await agent.get_state("t")).messages == result.messages
    assert [done.result for done in result.tool_executions] == ["did 1", "booked Ritz: yes", "did 2"]


async def test_they_are_there_while_the_run_goes_on(inline: Runtime, tmp_path: Path) -> None:
    @tool
    async def look() -> str:
        """What is stored now."""
        store = open_store(f"sqlite:///{tmp_path}/t.db")
        history = await store.history("t", 100)
        await store.close()
        return " ".join(found.checkpoint_id or "" for found in history)

    agent = agent_in(tmp_path, [tool_call("step", number=1), tool_call("look"), text("done")], look)
    result = await agent.arun("go", thread_id="t")
    seen = (result.tool_executions[1].result or "").split()
    assert len(seen) == 3, "before the first call, after it, and before the second"
    with pytest.raises(CheckpointNotFound):
        await agent.get_state("t", seen[0])


async def test_what_a_run_that_was_cut_off_has_stored_stays(inline: Runtime, tmp_path: Path) -> None:
    class Hangs(ScriptedModel):
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            if messages[-1].role == "tool" and not (tmp_path / "hung").exists():
                (tmp_path / "hung").touch()
                await asyncio.sleep(600)
            return await super().complete(messages, tools, **settings)

    agent = agent_in(tmp_path, []).with_settings(model=Hangs(steps(2)))
    running = asyncio.ensure_future(agent.arun("go", thread_id="t"))
    await until((tmp_path / "hung").exists)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    before = await reasons(agent)
    assert set(before) <= {None, "cancelled"} and before
    result = await agent.continue_turn("t")
    assert await reasons(agent) == [*before, "complete"], "it says that the segment had begun, should that be recovered"
    assert (await agent.get_state("t")).messages == result.messages


async def test_a_thread_that_was_folded_meanwhile_keeps_what_there_is(inline: Runtime, tmp_path: Path) -> None:
    @tool
    async def fold() -> str:
        """As a collector does that comes while the run's lease is out."""
        with sqlite3.connect(tmp_path / "t.db") as connection:
            connection.execute("UPDATE umbel_threads SET owner = NULL")
        connection.close()
        store = open_store(f"sqlite:///{tmp_path}/t.db")
        freed = await store.collect(CollectGarbage(store="", keep=1))
        await store.close()
        return str(freed.checkpoints)

    agent = agent_in(tmp_path, [tool_call("step", number=1), tool_call("fold"), text("done")], fold)
    await agent.with_settings(model=ScriptedModel([text("hello")])).arun("hello", thread_id="t")
    result = await agent.arun("go", thread_id="t")
    assert result.success and result.tool_executions[1].result == "3"
    assert await reasons(agent) == [None, None, "complete"]
    assert (await agent.get_state("t")).messages == result.messages


@pytest.mark.ray
async def test_a_recovered_run_leaves_one_checkpoint_too(fragile_runtime: Runtime, tmp_path: Path) -> None:
    @tool(idempotent=True)
    async def hang() -> str:
        """Comes back the second time."""
        if not (tmp_path / "hung").exists():
            (tmp_path / "hung").touch()
            await asyncio.sleep(600)
        return "back"

    script = [tool_call("step", number=1), tool_call("hang"), tool_call("step", number=2), text("done")]
    agent = agent_in(tmp_path, script, hang)
    await agent.with_settings(model=ScriptedModel([text("hello")])).arun("hello", thread_id="t", runtime=fragile_runtime)
    running = asyncio.ensure_future(agent.arun("go", thread_id="t", runtime=fragile_runtime))
    await until((tmp_path / "hung").exists)
    kill(fragile_runtime, "supervisor")
    async with asyncio.timeout(60):
        result = await running
    assert [done.result for done in result.tool_executions] == ["did 1", "back", "did 2"]
    history = await agent.get_state_history("t", runtime=fragile_runtime)
    assert [found.metadata["reason"] for found in history] == ["complete", "complete"]
    assert (await agent.get_state("t", runtime=fragile_runtime)).messages == result.messages
