"""Pause and resume: questions to a person, answered in any order, from any process. On the inline runtime and on Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Runtime, ToolContext, tool
from umbel.errors import NotPaused
from umbel.events import InterruptEvent, TerminateEvent, ToolCompleteEvent, ToolStartEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls, validate_history


@tool
async def book(hotel: str, ctx: ToolContext) -> str:
    """Book a hotel, once a person has agreed."""
    agreed = ctx.interrupt(f"Book {hotel}?", options=["yes", "no"])
    return f"booked {hotel}" if agreed == "yes" else f"did not book {hotel}"


@tool
async def twice(ctx: ToolContext) -> str:
    """Ask two things, one after the other."""
    return f"{ctx.interrupt('First?')} and {ctx.interrupt('Second?')}"


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def booking(checkpointer: str | None = None, **settings: Any) -> Agent:
    model = ScriptedModel([tool_call("book", hotel="Ritz"), text("All set.")])
    return Agent(model, [book, add], checkpointer=checkpointer, name="booker", **settings)


def both(checkpointer: str | None = None, **settings: Any) -> Agent:
    calls = tool_calls(("book", {"hotel": "Ritz"}), ("add", {"a": 1, "b": 2}), ("book", {"hotel": "Savoy"}))
    return Agent(ScriptedModel([calls, text("All set.")]), [book, add], checkpointer=checkpointer, **settings)


@pytest.mark.spec("OURS-2", "OURS-3", "LOOP-125", "EVT-18", "API-22", "LOOP-128", "TOOL-36", "BUG-11")
async def test_a_pause_is_visible(runtime: Runtime) -> None:
    result = await booking().arun("Book the Ritz.")
    assert (result.stop_reason, result.success, result.message) == ("interrupted", False, "")
    [asked] = result.interrupts
    assert asked["question"] == "Book Ritz?" and asked["options"] == ["yes", "no"] and asked["tool_name"] == "book"
    events = [event async for event in booking().run("Book the Ritz.")]
    assert [event.event_type for event in events] == ["think", "tool_start", "interrupt"]
    last = events[-1]
    assert isinstance(last, InterruptEvent) and last.question == "Book Ritz?"
    assert not any(isinstance(event, TerminateEvent | ToolCompleteEvent) for event in events)


@pytest.mark.spec("OURS-1", "OURS-2", "TOOL-37", "LOOP-110", "EVT-25")
async def test_an_answer_goes_on_with_the_same_run(runtime: Runtime) -> None:
    agent = booking()
    paused = await agent.arun("Book the Ritz.")
    result = await agent.aresume("yes")
    assert (result.stop_reason, result.message, result.run_id) == ("complete", "All set.", paused.run_id)
    assert [done.result for done in result.tool_executions] == ["booked Ritz"]
    assert [message.role for message in result.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert result.metrics.iterations == 2 and result.metrics.total_tokens > paused.metrics.total_tokens
    assert agent.pending_interrupts() == []


@pytest.mark.spec("OURS-2", "MEM-41")
async def test_another_process_resumes_a_thread(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    paused = await booking(url).arun("Book the Ritz.", thread_id="t")
    assert paused.stop_reason == "interrupted"
    result = await booking(url).aresume("no", thread_id="t")  # another object, which has seen nothing
    assert [done.result for done in result.tool_executions] == ["did not book Ritz"]
    with pytest.raises(NotPaused):
        await booking(url).aresume("yes", thread_id="t")


@pytest.mark.spec("OURS-2", "LOOP-90", "TOOL-39", "BUG-10")
async def test_siblings_finish_and_answers_find_their_call_in_any_order(runtime: Runtime, tmp_path: Path) -> None:
    agent = both(f"sqlite:///{tmp_path}/threads.db")
    paused = await agent.arun("Book both.", thread_id="t")
    first, second = paused.interrupts
    assert [done.result for done in paused.tool_executions] == ["3"]
    with pytest.raises(NotPaused, match="which one"):
        await agent.aresume("yes", thread_id="t")
    with pytest.raises(NotPaused, match="does not wait"):
        await agent.aresume("yes", thread_id="t", interrupt_id="nobody")
    still = await agent.aresume("no", thread_id="t", interrupt_id=second["interrupt_id"])
    assert still.stop_reason == "interrupted" and [asked["question"] for asked in still.interrupts] == ["Book Ritz?"]
    result = await agent.aresume("yes", thread_id="t", interrupt_id=first["interrupt_id"])
    assert result.stop_reason == "complete"
    assert [done.result for done in result.tool_executions] == ["3", "did not book Savoy", "booked Ritz"]


@pytest.mark.spec("OURS-2", "BUG-6")
async def test_a_call_may_ask_again(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([tool_call("twice"), text("Good.")]), [twice])
    first = await agent.arun("Ask.")
    second = await agent.aresume("one")
    assert [asked["question"] for asked in (*first.interrupts, *second.interrupts)] == ["First?", "Second?"]
    assert first.interrupts[0]["interrupt_id"] != second.interrupts[0]["interrupt_id"]
    result = await agent.aresume("two")
    assert [done.result for done in result.tool_executions] == ["one and two"]


@pytest.mark.spec("LOOP-4", "LOOP-8")
async def test_a_new_prompt_supersedes_the_pause(runtime: Runtime, tmp_path: Path) -> None:
    agent = Agent(
        ScriptedModel([tool_call("book", hotel="Ritz"), text("Never mind.")], loop=True),
        [book],
        checkpointer=f"sqlite:///{tmp_path}/threads.db",
    )
    await agent.arun("Book the Ritz.", thread_id="t")
    again = await agent.arun("Forget it.", thread_id="t")
    assert again.stop_reason in {"complete", "interrupted"}
    unanswered = {call.id for message in again.messages for call in message.tool_calls} - {
        message.tool_call_id for message in again.messages
    }
    assert unanswered <= {asked["tool_call_id"] for asked in again.interrupts}


@pytest.mark.spec("OURS-3", "OURS-24", "EVT-11", "API-58")
async def test_a_child_that_pauses_pauses_its_parent(runtime: Runtime) -> None:
    child = booking()
    parent = Agent(ScriptedModel([tool_call("booker", prompt="Book it."), text("Booked.")]), [child.as_tool()])
    paused = await parent.arun("Travel.")
    assert paused.stop_reason == "interrupted" and paused.interrupts[0]["question"] == "Book Ritz?"
    result = await parent.aresume("yes")
    assert result.stop_reason == "complete" and [done.result for done in result.tool_executions] == ["All set."]


@pytest.mark.spec("EVT-26", "OURS-2", "BUG-3")
async def test_a_resumed_call_announces_itself(runtime: Runtime) -> None:
    agent = booking()
    await agent.arun("Book the Ritz.")
    events = [event async for event in agent.resume("yes")]
    assert [event.event_type for event in events] == ["tool_start", "tool_complete", "think", "terminate"]
    start, complete = events[:2]
    assert isinstance(start, ToolStartEvent) and isinstance(complete, ToolCompleteEvent)
    assert start.tool_call_id == complete.tool_call_id and complete.result == "booked Ritz"


@tool
async def hang(name: str) -> str:
    """Never come back."""
    await asyncio.sleep(600)
    return name


@pytest.mark.spec("OURS-2", "LOOP-90")
async def test_a_question_may_stop_the_other_calls_of_its_batch(runtime: Runtime) -> None:
    calls = tool_calls(("hang", {"name": "a"}), ("book", {"hotel": "Ritz"}), ("hang", {"name": "b"}))
    agent = Agent(ScriptedModel([calls, text("All set.")]), [book, hang], on_interrupt="cancel")
    paused = await agent.arun("Book the Ritz.")
    assert [asked["question"] for asked in paused.interrupts] == ["Book Ritz?"]
    assert [(done.tool_name, done.code) for done in paused.tool_executions] == [("hang", "cancelled")] * 2
    result = await agent.aresume("yes")
    assert result.message == "All set." and result.tool_executions[-1].result == "booked Ritz"
    validate_history(result.messages)
