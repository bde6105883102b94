"""Children that a program starts itself. On the inline runtime and on Ray."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime, Subagent, run_subagent, tool
from umbel.errors import ModelError
from umbel.testing import ScriptedModel, text, tool_call


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class Waits:
    """Never answers."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        await asyncio.sleep(600)
        return text("too late")


def heard(messages: list[Message]) -> ModelResponse:
    return text(" / ".join(message.content or "" for message in messages if message.role == "user"))


@pytest.mark.spec("API-52", "API-53", "API-54", "API-58")
async def test_a_child_gets_its_prompt_and_gives_its_counts(runtime: Runtime) -> None:
    events: list[str] = []

    async def listen(event: Any) -> None:
        events.append(f"{event.agent_name}:{event.event_type}")

    model = ScriptedModel([tool_call("add", a=1, b=2), text("three")])
    result = await run_subagent("1 + 2", model=model, tools=[add], name="adder", on_event=listen)
    assert (result.text, result.stop_reason, result.success) == ("three", "complete", True)
    assert (result.iterations, result.tool_calls, result.agent_name, result.task_id) == (2, 1, "adder", None)
    assert result.usage is not None and result.usage.completion_tokens > 0
    assert [event.removeprefix("adder:") for event in events] == ["think", "tool_start", "tool_complete", "think", "terminate"]
    endless = ScriptedModel([lambda messages: tool_call("add", a=len(messages), b=1)], loop=True)
    capped = await run_subagent("go", model=endless, tools=[add], completion_mode="explicit")
    assert (capped.stop_reason, capped.iterations, capped.success) == ("max_iterations", 10, False)


@pytest.mark.spec("API-52", "API-53")
async def test_a_child_of_an_agent_has_its_model_and_nothing_of_its_conversation(runtime: Runtime) -> None:
    parent = Agent(ScriptedModel([heard], loop=True), [add], "You are the parent.", reflexion=True)
    await parent.arun("secret of the parent")
    assert (await parent.run_subagent("task")).text == "task"
    other = await parent.run_subagent("task", model=ScriptedModel([text("another model")]), name="other")
    assert (other.text, other.agent_name) == ("another model", "other")


@pytest.mark.spec("API-57", "API-52")
async def test_cancelling_the_parent_or_the_signal_stops_the_child(runtime: Runtime) -> None:
    parent, signal = Agent(Waits()), asyncio.Event()
    child = asyncio.ensure_future(parent.run_subagent("wait"))
    await running(parent)
    assert parent.cancel() == 1 and not parent.is_cancelled
    assert (await child).stop_reason == "cancelled"
    signal.set()
    assert (await run_subagent("wait", model=Waits(), cancel_signal=signal)).stop_reason == "cancelled"


async def running(parent: Agent) -> None:
    """Wait until the parent's child has begun."""
    while not any(child._active for child in parent._children):
        await asyncio.sleep(0.01)


@pytest.mark.spec("API-58", "API-59")
async def test_errors_of_the_child_and_of_the_listener_reach_the_caller(runtime: Runtime) -> None:
    with pytest.raises(ModelError, match="no such model"):
        await run_subagent("go", model=ScriptedModel([ModelError("no such model")]))

    def refuse(event: Any) -> None:
        raise LookupError("no such screen")

    with pytest.raises(LookupError, match="no such screen"):
        await run_subagent("go", model=ScriptedModel([text("hi")]), on_event=refuse)


@pytest.mark.spec("API-59")
async def test_a_child_that_asks_a_person_ends_interrupted(runtime: Runtime) -> None:
    model = ScriptedModel([tool_call("ask_user", question="Which?"), text("never")])
    result = await run_subagent("go", model=model, completion_mode="explicit")
    assert (result.stop_reason, result.success, result.text) == ("interrupted", False, "")


@pytest.mark.spec("API-60")
async def test_a_resumable_child_goes_on_with_its_conversation(runtime: Runtime) -> None:
    child, other = Subagent(model=ScriptedModel([heard])), Subagent(model=ScriptedModel([heard]))
    assert len(child.task_id) == 17 and child.task_id.startswith("task_") and child.task_id != other.task_id
    turns = await asyncio.gather(child.run("one"), child.run("two"))
    assert sorted(turn.text.count("/") for turn in turns) == [0, 1], "one turn at a time"
    third = await child.run("three")
    assert third.text.endswith("/ three") and third.text.count("/") == 2 and third.task_id == child.task_id
    assert (await other.run("alone")).text == "alone"
    with pytest.raises(ValueError, match="checkpointer"):
        Subagent(model="openai:x", checkpointer="memory://")
