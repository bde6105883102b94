"""A segment after a pause is like the first one: every feature is on, every count goes on. Inline and on Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, AgentResult, GroundingConfig, Hook, Message, ModelResponse, ReflexionConfig, Runtime, ToolContext, tool
from umbel.actors.tools.verification import REMINDER
from umbel.events import CustomEvent, GroundingEvent, InterruptEvent, ModelChunkEvent, ToolCompleteEvent, ToolStartEvent
from umbel.termination import TimeLimit
from umbel.testing import ScriptedModel, text, tool_call, tool_calls, validate_history


@tool
async def book(hotel: str, ctx: ToolContext) -> str:
    """Book a hotel, once a person has agreed."""
    return f"booked {hotel}: {ctx.interrupt(f'Book {hotel}?')}"


@tool
async def twice(ctx: ToolContext) -> str:
    """Ask two things, one after the other."""
    return f"{ctx.interrupt('First?')} and {ctx.interrupt('Second?')}"


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool
async def write_file(path: str) -> str:
    """Write a file."""
    return f"wrote {path}"


@tool
async def dump(size: int) -> str:
    """Return much text."""
    return "begin " + "x" * size + " end"


def write(path: Path, line: str) -> None:
    with path.open("a") as log:
        log.write(line + "\n")


class Recorder(Hook):
    def __init__(self, path: Path) -> None:
        self.path = path

    async def on_before_invocation(self, prompt: str, state: Any) -> Any:
        write(self.path, "before_invocation")
        return state

    async def on_after_invocation(self, state: Any, success: bool) -> None:
        write(self.path, f"after_invocation {success}")

    async def on_iteration_start(self, iteration: int, state: Any) -> None:
        write(self.path, f"start {iteration}")

    async def on_iteration_end(self, iteration: int, state: Any) -> None:
        write(self.path, f"end {iteration}")

    async def on_after_tool_call(self, event: Any) -> None:
        write(self.path, f"after_tool {event.tool_name}")


@pytest.mark.spec("OURS-1", "OURS-18", "LOOP-78", "LOOP-111", "LOOP-112", "LOOP-94", "LOOP-105", "LOOP-106", "STATE-40")
async def test_after_a_pause_every_feature_is_on(runtime: Runtime, tmp_path: Path) -> None:
    log, ledger, meeting = tmp_path / "log", tmp_path / "ledger", tmp_path / "meeting"

    @tool(idempotent=True)
    async def refund(order: str) -> str:
        """Refund an order."""
        write(ledger, order)
        return f"receipt for {order}"

    @tool
    async def meet(name: str) -> str:
        """Wait until the other one is there, too."""
        write(meeting, name)
        while len(meeting.read_text().split()) < 2:
            await asyncio.sleep(0.01)
        return "met"

    second = tool_calls(
        ("meet", {"name": "a"}),
        ("meet", {"name": "b"}),
        ("refund", {"order": "1"}),
        ("dump", {"size": 5_000}),
    )
    model = ScriptedModel(
        [
            tool_calls(("book", {"hotel": "Ritz"}), ("refund", {"order": "1"}), ("write_file", {"path": "x"})),
            second,
            text("Done."),
        ]
    )
    agent = Agent(
        model,
        [book, refund, meet, dump, write_file],
        hooks=[Recorder(log)],
        reflexion=ReflexionConfig(confidence_threshold=1.0),
        max_tool_result_length=1_000,
        output_key="answer",
        checkpointer=f"sqlite:///{tmp_path}/t.db",
    )
    await agent.arun("go", thread_id="t")
    events = [event async for event in agent.resume("yes", thread_id="t", stream_tokens=True)]
    reader = Agent(ScriptedModel([text("later")]), checkpointer=f"sqlite:///{tmp_path}/t.db")
    state = (await reader.arun("and now?", thread_id="t")).state
    kinds = [event.event_type for event in events]
    assert kinds.count("reflect") == 2, "the iteration that was paused, and the next one"
    assert "".join(event.content or "" for event in events if isinstance(event, ModelChunkEvent)) == "Done."
    assert ledger.read_text().split() == ["1"], "what succeeded before the pause does not run again"
    [long] = [message.content or "" for message in state.messages if message.name == "dump"]
    assert len(long) < 1_300 and long.endswith("x end")
    [reminder] = [message for message in state.messages if message.content == REMINDER]
    place = state.messages.index(reminder)
    assert [message.role for message in state.messages[:place]] == ["system", "user", "assistant", "tool", "tool", "tool"]
    assert state.metadata["answer"] == "Done."
    assert log.read_text().splitlines()[:13] == [
        "before_invocation",
        "start 0",
        "after_tool refund",
        "after_tool write_file",
        "end 0",
        "after_invocation False",
        "before_invocation",
        "after_tool book",
        "start 1",
        "after_tool meet",
        "after_tool meet",
        "after_tool dump",
        "end 1",
    ]


@pytest.mark.spec("OURS-1", "LOOP-97", "STATE-9")
async def test_a_step_that_a_pause_broke_off_is_completed(runtime: Runtime) -> None:
    calls = tool_calls(("book", {"hotel": "Ritz"}), ("add", {"a": 1, "b": 2}))
    agent = Agent(ScriptedModel([calls, tool_call("add", a=2, b=2), text("ok")]), [book, add])
    paused = await agent.arun("go")
    assert [[result.content for result in step.tool_results] for step in paused.reasoning_steps] == [["3"]]
    result = await agent.aresume("yes")
    assert [sorted(r.content for r in step.tool_results) for step in result.reasoning_steps] == [
        ["3", "booked Ritz: yes"],
        ["4"],
    ]


@pytest.mark.spec("STATE-40", "STATE-36", "OURS-12")
async def test_the_same_question_is_a_loop_only_if_the_answer_is_the_same_too(runtime: Runtime) -> None:
    def asking() -> Agent:
        return Agent(ScriptedModel([tool_call("book", hotel="Ritz")] * 6 + [text("enough")]), [book])

    agent = asking()
    result = await agent.arun("go")
    for number in range(6):
        assert result.stop_reason == "interrupted"
        result = await agent.aresume(f"answer {number}")
    assert (result.stop_reason, result.message) == ("complete", "enough")
    agent = asking()
    result = await agent.arun("go")
    warnings = 0
    for _ in range(4):
        assert result.stop_reason == "interrupted"
        events: list[Any] = []
        result = await agent.with_settings(callback_handler=events.append).aresume("later", result=result)
        warnings += sum(isinstance(event, CustomEvent) for event in events)
    assert (result.stop_reason, warnings) == ("tool_loop", 1)


@pytest.mark.spec("OURS-1", "OURS-11")
async def test_an_answer_after_a_pause_is_grounded(runtime: Runtime) -> None:
    class Severe:
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            return text("\n".join(f"{number}: 0.0 - made up" for number in range(1, 9)))

    claim = text("The hotel is certainly the best one of the whole town.")
    agent = Agent(
        ScriptedModel([tool_call("book", hotel="Ritz"), claim]),
        [book],
        grounding=GroundingConfig(model=Severe(), max_replans=0),
    )
    await agent.arun("go")
    events: list[Any] = []
    watched = agent.with_settings(callback_handler=events.append)
    paused = await watched.arun("go")
    result = await watched.aresume("yes", result=paused)
    assert result.stop_reason == "grounding_failed" and result.message == claim.content
    assert len([event for event in events if isinstance(event, GroundingEvent)]) == 1


@pytest.mark.spec("OURS-1", "LOOP-33", "LOOP-111")
async def test_limits_notes_and_the_summary_hold_after_a_pause(runtime: Runtime) -> None:
    def turn(messages: list[Message]) -> ModelResponse:
        if "limit of model calls" in (messages[-1].content or ""):
            return text("summary")
        done = sum(message.role == "tool" for message in messages)
        return tool_call("add", a=done, b=1) if done else tool_call("book", hotel="Ritz")

    agent = Agent(ScriptedModel([turn], loop=True), [book, add], completion_mode="explicit", max_iterations=4)
    await agent.arun("go")
    result = await agent.aresume("yes")
    assert (result.stop_reason, result.message, result.metrics.iterations) == ("max_iterations", "summary", 4)
    notes = [message.content or "" for message in result.messages if message.metadata.get("automated")]
    assert ["Two more" in notes[0], "last reply" in notes[1], "sum up" in notes[2]] == [True, True, True] and len(notes) == 3


def later(paused: AgentResult, seconds: float) -> AgentResult:
    """The paused run as if its first segment had taken so long."""
    state = paused.state
    assert state.turn.elapsed_seconds > 0
    aged = state.evolve(turn=state.turn.evolve(elapsed_seconds=seconds))
    return AgentResult(paused.outcome.evolve(state=aged, state_json=None))


@pytest.mark.spec("LOOP-110", "OURS-1", "OURS-6", "TERM-7")
@pytest.mark.parametrize("limit", [{"time_budget_seconds": 1_000.0}, {"termination": TimeLimit(1_000)}])
async def test_time_goes_on_where_it_stopped(runtime: Runtime, limit: dict[str, Any]) -> None:
    agent = Agent(ScriptedModel([tool_call("book", hotel="Ritz"), text("ok")]), [book], **limit)
    paused = await agent.arun("go")
    spent = await agent.aresume("yes", result=later(paused, 1_001))
    assert spent.stop_reason == "time_budget"
    assert (await agent.aresume("yes", result=later(paused, 100))).stop_reason == "complete"


@pytest.mark.spec("EVT-27", "EVT-26", "OURS-2")
async def test_only_the_call_that_asks_has_no_completion(runtime: Runtime) -> None:
    calls = tool_calls(("add", {"a": 1, "b": 1}), ("book", {"hotel": "Ritz"}), ("add", {"a": 2, "b": 2}))
    agent = Agent(ScriptedModel([calls, text("ok")]), [book, add], tool_execution="sequential")
    events = [event async for event in agent.run("go")]
    starts = [event.tool_call_id for event in events if isinstance(event, ToolStartEvent)]
    completes = [event.tool_call_id for event in events if isinstance(event, ToolCompleteEvent)]
    [asked] = [event for event in events if isinstance(event, InterruptEvent)]
    assert len(starts) == 3 and completes == [starts[0], starts[2]]
    assert asked.interrupt_id == starts[1] and events[-1] is asked


@pytest.mark.spec("EVT-30", "EVT-26", "EVT-18")
async def test_a_call_that_asks_again_yields_nothing_but_its_question(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([tool_call("twice"), text("Good.")]), [twice])
    await agent.arun("go")
    again = [event async for event in agent.resume("one")]
    assert [event.event_type for event in again] == ["interrupt"]
    last = [event.event_type async for event in agent.resume("two")]
    assert last == ["tool_start", "tool_complete", "think", "terminate"]


@pytest.mark.spec("OURS-2")
@pytest.mark.parametrize(("how", "said"), [("concurrent", "unknown"), ("sequential", "did nothing")])
async def test_siblings_of_a_question_are_stopped_if_so_configured(
    runtime: Runtime, tmp_path: Path, how: Any, said: str
) -> None:
    started = tmp_path / "started"

    @tool
    async def wait() -> str:
        """Wait for a minute."""
        write(started, "waiting")
        await asyncio.sleep(60)
        return "waited"

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask, once the other one is running, if it runs at the same time."""
        while how == "concurrent" and not started.exists():
            await asyncio.sleep(0.01)
        return str(ctx.interrupt("Well?"))

    calls = tool_calls(("ask", {}), ("wait", {}))
    agent = Agent(ScriptedModel([calls, text("ok")]), [ask, wait], on_interrupt="cancel", tool_execution=how)
    paused = await agent.arun("go")
    [stopped] = paused.tool_executions
    assert (paused.stop_reason, stopped.tool_name, stopped.code) == ("interrupted", "wait", "cancelled")
    assert said in (stopped.error or "")
    result = await agent.aresume("yes")
    assert result.stop_reason == "complete"
    validate_history(result.messages)
