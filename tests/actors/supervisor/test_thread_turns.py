"""Turns that wait for their thread, and streams that are closed. Inline and on Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from umbel import Agent, Message, ModelResponse, Runtime, ToolContext, tool
from umbel.actors.builtin_tools import CATALOGUE_NOTE
from umbel.errors import NotPaused
from umbel.termination import NoToolCalls, TextMention
from umbel.testing import ScriptedModel, text, tool_call, validate_history


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


@pytest.mark.spec("BUG-28", "BUG-29")
async def test_what_an_earlier_turn_said_ends_no_later_one(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpointer": f"sqlite:///{tmp_path}/t.db", "completion_mode": "explicit"}
    condition = TextMention("one") | NoToolCalls()
    with Runtime(inline=True):
        agents = [Agent(ScriptedModel([text(word)]), termination=condition, **settings) for word in ("one", "two")]
        results = [await agent.arun("go", thread_id="t") for agent in agents]
    assert [(result.message, result.metrics.iterations) for result in results] == [("one", 1), ("two", 1)]
    assert [result.stop_reason for result in results] == ["complete", "no_tools"]


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


@tool
async def ask(question: str, ctx: ToolContext) -> str:
    """Ask a person."""
    return str(ctx.interrupt(question))


@pytest.mark.spec("LOOP-4", "LOOP-8")
async def test_a_new_message_ends_the_pause_of_its_thread(runtime: Runtime, tmp_path: Path) -> None:
    agent = Agent(
        ScriptedModel([lambda messages: text("Never mind.") if messages[-1].content == "Forget it." else CALL]),
        [ask],
        checkpointer=f"sqlite:///{tmp_path}/t.db",
    )
    assert (await agent.arun("Ask.", thread_id="t")).stop_reason == "interrupted"
    assert (await agent.arun("Ask, too.", thread_id="other")).stop_reason == "interrupted"
    again = await agent.arun("Forget it.", thread_id="t")
    assert again.message == "Never mind."
    validate_history(again.messages)
    assert [asked["thread_id"] for asked in agent.pending_interrupts()] == ["other"]
    with pytest.raises(NotPaused, match="finished"):
        await agent.aresume("yes", thread_id="t")


class Trip(BaseModel):
    city: str


CALL = tool_call("ask", question="Really?")


@pytest.mark.spec("LOOP-7", "LOOP-10")
async def test_the_system_prompt_is_rendered_anew_at_its_place_only(runtime: Runtime, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpointer": f"sqlite:///{tmp_path}/t.db"}

    def prompt(context: dict[str, Any]) -> str:
        return f"About {context['prompt']}."

    agent = Agent(ScriptedModel([text("ok")]), system_prompt=prompt, **settings)
    await agent.arun("ships", thread_id="t")
    again = await agent.arun("trees", thread_id="t")
    assert [m.content for m in again.messages if m.role == "system"] == ["About trees."] == [again.messages[0].content]
    await Agent(ScriptedModel([text("ok")]), system_prompt="", **settings).arun("one", thread_id="bare")
    bare = await agent.arun("two", thread_id="bare")
    assert [message.role for message in bare.messages] == ["user", "assistant", "user", "assistant"]


@pytest.mark.spec("LOOP-9")
async def test_the_system_prompt_names_what_the_model_must_know_of_the_set_up(runtime: Runtime) -> None:
    @tool(deferred=True)
    async def rare() -> str:
        """Do something rare."""
        return "done"

    plain = await Agent(ScriptedModel([text("ok")]), system_prompt="You travel.").arun("go")
    assert plain.messages[0].content == "You travel."
    schema = await Agent(ScriptedModel([text('{"city": "Rome"}')]), system_prompt="You travel.", output_schema=Trip).arun("go")
    assert "city" in (schema.messages[0].content or "") and "JSON" in (schema.messages[0].content or "")
    deferred = await Agent(ScriptedModel([text("ok")]), [rare], system_prompt="You travel.").arun("go")
    assert (deferred.messages[0].content or "").startswith("You travel.\n\n")
    assert CATALOGUE_NOTE in (deferred.messages[0].content or "") and "\n" not in CATALOGUE_NOTE
