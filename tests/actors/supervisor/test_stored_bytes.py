"""What whole conversations take in a store: linear, however many turns."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Runtime, tool
from umbel.testing import ScriptedModel, text, tool_call

TURNS, SIZE = 120, 4_096


def stored(path: Path) -> tuple[int, int]:
    """Bytes of all states and texts, and how many checkpoints there are."""
    connection = sqlite3.connect(path)
    [(states, count)] = connection.execute("SELECT sum(length(state)), count(*) FROM umbel_checkpoints")
    [(texts,)] = connection.execute("SELECT coalesce(sum(length(body)), 0) FROM umbel_statics")
    connection.close()
    return states + texts, count


@pytest.mark.case(17)
@pytest.mark.case(18)
@pytest.mark.spec("OURS-22")
@pytest.mark.parametrize(
    "prompt", ["You are kind.", "Rules of the house. " * 1_500, lambda context: f"It is {len(context['prompt'])} o'clock."]
)
async def test_many_turns_of_4_kb_take_less_than_twice_their_bytes(tmp_path: Path, prompt: Any) -> None:
    path = tmp_path / "t.db"
    agent = Agent(
        ScriptedModel([text("ok")]),
        system_prompt=prompt,
        checkpointer=f"sqlite:///{path}?synchronous=normal",
        context_window=10**9,
    )
    async with Runtime(inline=True):
        for _ in range(TURNS):
            result = await agent.arun(os.urandom(SIZE // 2).hex(), thread_id="t")
    assert len(result.messages) == 1 + 2 * TURNS
    size, count = stored(path)
    fixed = len(prompt) if isinstance(prompt, str) else 0
    assert count == TURNS
    assert TURNS * SIZE < size < 2 * TURNS * SIZE + fixed


@tool(idempotent=True, scope="thread")
async def read(number: int) -> str:
    """Read 4 KB of something."""
    return f"{number} " + os.urandom(SIZE // 2).hex()


@pytest.mark.case(17)
@pytest.mark.spec("OURS-22")
@pytest.mark.parametrize("keep", [True, False])
async def test_many_tool_results_of_4_kb_take_less_than_twice_their_bytes(tmp_path: Path, keep: bool) -> None:
    path = tmp_path / "t.db"
    calls = [tool_call("read", number=number) for number in range(TURNS)]
    agent = Agent(
        ScriptedModel([*calls, text("ok")]),
        [read],
        checkpointer=f"sqlite:///{path}?synchronous=normal",
        context_window=10**9,
        max_iterations=500,
        keep_iteration_checkpoints=keep,
    )
    async with Runtime(inline=True):
        for turn in (1, 2):
            result = await agent.arun("go", thread_id="t")
            assert result.success and len(result.tool_executions) == TURNS
            size, count = stored(path)
            assert count > turn * TURNS if keep else count == turn
            assert turn * TURNS * SIZE < size < 2 * turn * TURNS * SIZE, "not once for each place where the state has them"
