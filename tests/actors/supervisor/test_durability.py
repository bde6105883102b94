"""When steps are stored: before the next one, behind the run's back, or only at its end. Public case 30."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, AgentState, Message, ModelResponse, Runtime, tool
from umbel.actors.checkpoints import build_save, restore
from umbel.actors.checkpoints.memory import MemoryStore
from umbel.actors.checkpoints.registry import open_store
from umbel.actors.supervisor.backlog import Backlog
from umbel.errors import ConfigurationError, StoreUnavailable
from umbel.testing import ScriptedModel, text, tool_call

pytestmark = pytest.mark.case(30)
STEPS = 20_000


@tool(idempotent=True)
async def step(number: int) -> int:
    """One step."""
    return number


@tool
async def pay(number: int) -> int:
    """A side effect."""
    return number


async def saves_of(url: str) -> list[bool]:
    """Of each checkpoint, oldest first, whether the turn was over."""
    store = open_store(url)
    try:
        return [bool(found.metadata["finished"]) for found in reversed(await store.history("t", 1_000))]
    finally:
        await store.close()


class SlowThread:
    """A thread in a store that takes a hundred turns of the event loop for every save."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.newest: Any = None
        self.saved = 0

    async def write(self, state: AgentState) -> None:
        save, baseline = build_save(
            state, store="memory://", thread_id="t", checkpoint_id=f"c{self.saved}", created_at=1.0, baseline=self.newest
        )
        for _ in range(100):
            await asyncio.sleep(0)
        await self.store.save([save])
        self.newest, self.saved = baseline, self.saved + 1


async def test_a_slow_store_never_has_more_than_two_steps_before_it() -> None:
    thread = SlowThread()
    backlog: Backlog[AgentState] = Backlog(thread.write, lambda error: pytest.fail(str(error)))
    state, largest = AgentState(messages=(Message.user("go"),)), 0
    for number in range(STEPS):
        state = state.evolve(iteration=number)
        backlog.add(state)
        largest = max(largest, backlog.size)
        await asyncio.sleep(0)
    assert largest == 2 and 0 < thread.saved <= STEPS / 50
    await backlog.settle()
    assert backlog.size == 0
    await thread.write(state)
    found = restore(await thread.store.load("t"))
    assert found is not None and found.state.iteration == STEPS - 1


async def test_the_error_of_an_early_write_is_told_and_kept() -> None:
    told: list[Exception] = []
    tried: list[int] = []

    async def write(number: int) -> None:
        tried.append(number)
        raise StoreUnavailable("away")

    backlog: Backlog[int] = Backlog(write, told.append)
    backlog.add(1)
    await asyncio.sleep(0)  # where it fails
    with pytest.raises(StoreUnavailable, match="away"):
        await backlog.settle()
    with pytest.raises(StoreUnavailable, match="away"):
        backlog.add(3)
    assert len(told) == len(tried) == 1


@pytest.mark.parametrize("kind", [step, pay])
async def test_steps_in_the_background_are_all_in_the_end(runtime: Runtime, tmp_path: Path, kind: Any) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    script = [*(tool_call(kind.name, number=n) for n in range(30)), text("done")]
    settings: dict[str, Any] = {"checkpointer": url, "durability": "async", "keep_iteration_checkpoints": True}
    agent = Agent(ScriptedModel(script), [kind], max_iterations=40, **settings)
    result = await agent.arun("go", thread_id="t")
    store = open_store(url)
    found = restore(await store.load("t"))
    await store.close()
    assert found is not None and found.state.messages == result.messages and len(found.state.tool_executions) == 30
    saves = await saves_of(url)
    assert saves[-1] and not any(saves[:-1])
    assert 1 <= len(saves) <= 31 if kind is step else 31 <= len(saves) <= 61


@pytest.mark.parametrize(("kind", "count"), [(step, 1), (pay, 4)])
async def test_only_the_end_and_what_is_about_to_be_done(runtime: Runtime, tmp_path: Path, kind: Any, count: int) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    script = [*(tool_call(kind.name, number=n) for n in range(3)), text("done")]
    settings: dict[str, Any] = {"checkpointer": url, "durability": "exit", "keep_iteration_checkpoints": True}
    await Agent(ScriptedModel(script), [kind], **settings).arun("go", thread_id="t")
    assert len(await saves_of(url)) == count


@pytest.mark.parametrize("then", ["thinks on", "ends"])
async def test_a_run_ends_as_soon_as_a_write_behind_its_back_has_failed(tmp_path: Path, then: str) -> None:
    connection = sqlite3.connect(tmp_path / "t.db", isolation_level=None)

    class Locks(ScriptedModel):
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            if messages[-1].role != "tool":
                connection.execute("BEGIN IMMEDIATE")
            elif then == "thinks on":
                await asyncio.sleep(600)  # it is cut off
            return await super().complete(messages, tools, **settings)

    url = f"sqlite:///{tmp_path}/t.db?timeout=0.1"
    agent = Agent(Locks([tool_call("step", number=1), text("done")]), [step], checkpointer=url, durability="async")
    async with Runtime(inline=True) as runtime, asyncio.timeout(60):
        with pytest.raises(StoreUnavailable):
            await agent.arun("go", thread_id="t", runtime=runtime)
    connection.close()


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="durability"):
        Agent(ScriptedModel([]), durability="later")
