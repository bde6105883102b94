"""Turns that wait for their thread, and streams that are closed. Inline and on Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime
from umbel.testing import text


class Gated:
    """Answers when the gate is open; writes down who asks."""

    def __init__(self, folder: Path) -> None:
        self.gate = folder / "gate"
        self.log = folder / "log"

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        with self.log.open("a") as log:
            log.write(f"{messages[-1].content}\n")
        while not self.gate.exists():
            await asyncio.sleep(0.01)
        return text("done")


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.spec("OURS-5", "OURS-15", "API-37")
@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_turn_that_waits_for_its_thread_can_be_stopped(runtime: Runtime, tmp_path: Path, how: str) -> None:
    model = Gated(tmp_path)
    settings: dict[str, Any] = {"checkpointer": f"sqlite:///{tmp_path}/t.db"}
    first, second = Agent(model, name="first", **settings), Agent(model, name="second", **settings)
    running = asyncio.ensure_future(first.arun("one", thread_id="t"))
    await until(model.log.exists)
    if how == "cancel":
        waiting = asyncio.ensure_future(second.arun("two", thread_id="t"))
        await until(lambda: second._active)
        await asyncio.sleep(0.1)
        second.cancel("t")
        assert (await waiting).stop_reason == "cancelled"
    else:
        stream = second.run("two", thread_id="t")
        asking = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await stream.aclose()
    model.gate.touch()
    assert (await running).success
    last = await first.arun("three", thread_id="t")
    assert [message.content for message in last.messages if message.role == "user"] == ["one", "three"]
    assert model.log.read_text().split() == ["one", "three"]
