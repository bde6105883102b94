"""Suspended runs: they end between two steps, whoever comes goes on exactly there, and nothing is paid for twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime, parallel, sequential, tool
from umbel.errors import NotPaused
from umbel.testing import ScriptedModel, text, tool_call


async def until(condition: Any, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


class Gated(ScriptedModel):
    """Writes each call down, and answers once the gate of that call is open."""

    def __init__(self, folder: Path, name: str, *turns: Any) -> None:
        super().__init__(turns)
        self.folder = folder
        self.name = name

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        asked = sum(message.role == "assistant" for message in messages)
        with (self.folder / "calls").open("a") as log:
            log.write(f"{self.name}{asked}\n")
        await until((self.folder / "open").exists)
        return await super().complete(messages, tools, **settings)


@tool
async def note(folder: str, line: str) -> str:
    """Write a line down: a side effect."""
    with (Path(folder) / "done").open("a") as log:
        log.write(line + "\n")
    return "noted"


def works(folder: Path, name: str, **settings: Any) -> Agent:
    turns = [tool_call("note", folder=str(folder), line=f"{name}{number}") for number in (0, 1)]
    return Agent(Gated(folder, name, *turns, text(f"{name} is done")), [note], name=name, **settings)


@pytest.mark.case(27)
async def test_a_durable_agent_goes_on_where_it_was_suspended(runtime: Runtime, tmp_path: Path) -> None:
    agent = works(tmp_path, "a", checkpointer=f"sqlite:///{tmp_path}/t.db")
    run = asyncio.ensure_future(agent.arun("go", thread_id="t"))
    other = asyncio.ensure_future(agent.arun("go"))  # has no thread
    await until(lambda: lines(tmp_path / "calls") == ["a0", "a0"])
    assert agent.suspend(["elsewhere"]) == 0
    assert agent.suspend() == 1
    (tmp_path / "open").touch()
    result = await run
    assert (result.stop_reason, result.success, result.error) == ("suspended", False, None)
    assert (await other).success
    assert sorted(lines(tmp_path / "done")) == ["a0", "a0", "a1"]
    assert (await agent.get_state("t")).turn.stop_reason is None
    (tmp_path / "calls").unlink()
    result = await agent.continue_turn("t")
    assert (result.message, result.metrics.model_calls, result.metrics.tool_calls) == ("a is done", 3, 2)
    assert lines(tmp_path / "calls") == ["a1", "a2"]
    assert sorted(lines(tmp_path / "done")) == ["a0", "a0", "a1", "a1"]
    with pytest.raises(NotPaused):
        await agent.continue_turn("t")


@pytest.mark.case(27)
async def test_taking_up_a_thread_gives_what_is_stored_or_goes_on(tmp_path: Path) -> None:
    agent = works(tmp_path, "a", checkpointer=f"sqlite:///{tmp_path}/t.db")
    async with Runtime(inline=True):
        run = asyncio.ensure_future(agent.take_up("go", "t"))
        await until(lambda: lines(tmp_path / "calls") == ["a0"])
        agent.suspend()
        (tmp_path / "open").touch()
        assert (await run).stop_reason == "suspended"
    async with Runtime(inline=True):
        first = await agent.take_up("unused", "t")
        again = await agent.take_up("unused", "t")
    assert (first.message, first.success) == ("a is done", True)
    assert (again.message, again.success, again.metrics.model_calls) == ("a is done", True, 3)
    assert lines(tmp_path / "calls") == ["a0", "a1", "a2"]


@pytest.mark.case(27)
async def test_a_durable_pattern_is_suspended_with_its_members(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    first, second, third = (works(folder, folder.name) for folder in folders)
    pattern = sequential(parallel(first, second, name="both"), third, name="all", checkpointer=url)
    run = asyncio.ensure_future(pattern.arun("go", thread_id="t"))
    await until(lambda: lines(folders[0] / "calls") == ["a0"] and lines(folders[1] / "calls") == ["b0"])
    pattern.suspend()
    for folder in folders:
        (folder / "open").touch()
    result = await run
    assert (result.stop_reason, result.success) == ("suspended", False)
    assert not lines(folders[2] / "calls")  # the others may have been at their next step when they heard of it
    result = await pattern.continue_turn("t")
    assert result.success, result
    assert [lines(folder / "calls") for folder in folders] == [[f"{name}{n}" for n in range(3)] for name in "abc"]
    assert [lines(folder / "done") for folder in folders] == [[f"{name}0", f"{name}1"] for name in "abc"]
    assert result.metrics.model_calls == 9
