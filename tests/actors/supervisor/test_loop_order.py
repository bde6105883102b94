"""The order of things in a run: set-up, the checks of a boundary, notes, events. Inline and on Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Hook, Message, ModelResponse, Runtime, Usage, tool
from umbel.errors import RunFailed
from umbel.events import CustomEvent, SubagentEvent, TerminateEvent, ThinkEvent, ToolStartEvent
from umbel.termination import CustomCondition, MaxIterations, NoToolCalls
from umbel.testing import ScriptedModel, text, tool_call, tool_calls

USAGE = Usage(prompt_tokens=25, completion_tokens=5)


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool
async def finish() -> str:
    """Finish."""
    return "finished"


@tool
async def write_file(path: str) -> str:
    """Write a file."""
    return f"wrote {path}"


def metered(*replies: ModelResponse) -> list[ModelResponse]:
    return [reply.evolve(usage=USAGE) for reply in replies]


def write(path: Path, line: str) -> None:
    with path.open("a") as log:
        log.write(line + "\n")


async def events_of(agent: Agent, prompt: str = "go", **options: Any) -> list[Any]:
    return [event async for event in agent.run(prompt, **options)]


class Witness(Hook):
    """Writes down what it sees of a run's beginning and of its iterations."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def on_before_invocation(self, prompt: str, state: Any) -> Any:
        write(self.path, f"invocation {[message.role for message in state.messages]}")
        return state

    async def on_iteration_start(self, iteration: int, state: Any) -> None:
        write(self.path, f"start {iteration}")

    async def on_iteration_end(self, iteration: int, state: Any) -> None:
        write(self.path, f"end {iteration}")

    async def on_before_model_call(self, event: Any) -> None:
        write(self.path, "model")


@pytest.mark.spec("LOOP-2", "LOOP-10")
async def test_the_state_is_built_before_hooks_see_it_and_hooks_come_before_the_loop(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def prompt(context: dict[str, Any]) -> Any:
        write(log, f"prompt {sorted(context)} {context['prompt']} {context['metadata']}")
        return 42

    settings: dict[str, Any] = {"system_prompt": prompt, "checkpointer": f"sqlite:///{tmp_path}/t.db"}
    agent = Agent(ScriptedModel([text("ok")]), hooks=[Witness(log)], **settings)
    first = await agent.arun("ships", thread_id="t", metadata={"who": "Ann"})
    assert first.messages[0].content == "42"
    assert log.read_text().splitlines() == [
        "prompt ['metadata', 'prompt'] ships {'who': 'Ann'}",
        "invocation ['system', 'user']",
        "start 0",
        "model",
        "end 0",
    ]
    log.unlink()
    await agent.arun("more", thread_id="t")
    assert log.read_text().splitlines()[1] == "invocation ['system', 'user', 'assistant', 'user']"


class Gate(Hook):
    async def on_before_invocation(self, prompt: str, state: Any) -> Any:
        if "forbidden" in prompt:
            raise PermissionError("not this prompt")
        return state


@pytest.mark.spec("LOOP-11")
async def test_a_prompt_that_a_hook_refuses_leaves_no_trace(runtime: Runtime, tmp_path: Path) -> None:
    agent = Agent(ScriptedModel([text("ok")]), hooks=[Gate()], checkpointer=f"sqlite:///{tmp_path}/t.db")
    await agent.arun("first", thread_id="t")
    events: list[Any] = []
    with pytest.raises(RunFailed, match="not this prompt"):
        await agent.with_settings(callback_handler=events.append).arun("forbidden", thread_id="t")
    assert events == []
    result = await agent.arun("second", thread_id="t")
    assert [message.content for message in result.messages if message.role == "user"] == ["first", "second"]
    assert agent.cancel("t") == 0, "the refused run is not running any more"


class Teller(Hook):
    async def on_before_model_call(self, event: Any) -> None:
        prompt = event.messages[-1].content
        event.emit(
            CustomEvent(name="about", data={"prompt": prompt, "own": event.ephemeral_metadata["secret"] == f"s-{prompt}"})
        )


@pytest.mark.spec("LOOP-12")
async def test_runs_of_one_agent_share_nothing(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([text("ok")], delay=0.02), hooks=[Teller()], termination=MaxIterations(1))

    async def one(prompt: str) -> list[Any]:
        return await events_of(agent, prompt, ephemeral={"secret": f"s-{prompt}"})

    streams = await asyncio.gather(*(one(f"p{number}") for number in range(8)))
    for number, events in enumerate(streams):
        told = [event.data for event in events if isinstance(event, CustomEvent)]
        assert told == [{"prompt": f"p{number}", "own": True}]
        assert len({event.run_id for event in events}) == 1 and events[-1].reason == "complete"


@pytest.mark.spec("OURS-19", "STATE-19")
async def test_ephemeral_metadata_reaches_hooks_and_stays_out_of_everything_else(runtime: Runtime, tmp_path: Path) -> None:
    @tool
    async def echo(words: str) -> str:
        """Say it."""
        return words

    path = tmp_path / "t.db"
    agent = Agent(
        ScriptedModel([tool_call("echo", words="x"), text("ok")]), [echo], hooks=[Key()], checkpointer=f"sqlite:///{path}"
    )
    events: list[Any] = []
    watched = agent.with_settings(callback_handler=events.append)
    result = await watched.arun("go", thread_id="t", ephemeral={"api_key": "sk-verysecret"})
    assert result.tool_executions[0].result == "key of 13 characters"
    everything = result.outcome.model_dump_json() + "".join(event.model_dump_json() for event in events)
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("t.db*"))  # noqa: ASYNC240 - the run is over
    assert "sk-verysecret" not in everything and "api_key" not in everything
    assert stored and b"sk-verysecret" not in stored


class Key(Hook):
    async def on_before_tool_call(self, event: Any) -> None:
        event.arguments = {"words": f"key of {len(event.ephemeral_metadata['api_key'])} characters"}


@pytest.mark.spec("LOOP-13", "EVT-1", "EVT-11")
async def test_events_carry_the_name_of_the_agent_that_they_are_of(runtime: Runtime) -> None:
    child = Agent(ScriptedModel([text("23")]), name="calculator", agent_id="c-1")
    parent = Agent(
        ScriptedModel([tool_call("calculator", prompt="20 + 3"), text("it is 23")]), [child.as_tool()], agent_id="p-1"
    )
    events = await events_of(parent)
    assert {event.agent_name for event in events} == {"p-1"}
    inner = [event.event for event in events if isinstance(event, SubagentEvent)]
    assert [event.event_type for event in inner] == ["think", "terminate"]
    assert {event.agent_name for event in inner} == {"calculator"}


@pytest.mark.spec("LOOP-15", "LOOP-16", "LOOP-22", "LOOP-33", "LOOP-35", "LOOP-127")
async def test_the_checks_of_a_boundary_come_in_their_order(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def condition(state: Any, **context: Any) -> tuple[bool, str | None]:
        write(log, f"condition {state.iteration} {len(state.tool_loop_warnings)}")
        return False, None

    step = tool_call("add", a=1, b=1)
    agent = Agent(
        ScriptedModel([*metered(step, step, step), tool_call("finish").evolve(usage=Usage())]),
        [add, finish],
        hooks=[Witness(log)],
        termination=CustomCondition(condition),
        completion_mode="explicit",
        max_iterations=6,
        token_budget=110,
    )
    events: list[Any] = []
    result = await agent.with_settings(callback_handler=events.append).arun("go")
    assert result.stop_reason == "terminal_tool"
    # the fourth boundary, where everything is due: hooks, condition, loop warning, iteration, notes, nudge, model
    lines = log.read_text().splitlines()
    assert lines[lines.index("end 2") :][:5] == ["end 2", "start 3", "condition 3 0", "model", "end 3"]
    notes = [message for message in result.messages if message.metadata.get("automated")]
    assert [message.role for message in notes] == ["system", "system", "user"]
    assert ["repeated" in (notes[0].content or ""), "left" in (notes[1].content or ""), "82%" in (notes[2].content or "")] == [
        True,
        True,
        True,
    ]
    assert result.messages[-5:-2] == tuple(notes), "notes stand at the end of the conversation, before the reply they led to"
    custom = [event.name for event in events if isinstance(event, CustomEvent)]
    assert custom == ["tool_loop_warning", "budget_nudge"]
    kinds = [event.event_type for event in events]
    assert kinds[-6:] == ["custom", "custom", "think", "tool_start", "tool_complete", "terminate"]


@pytest.mark.spec("LOOP-35")
async def test_notes_stand_last_and_stay_with_the_thread(runtime: Runtime, tmp_path: Path) -> None:
    def first(messages: list[Message]) -> ModelResponse:
        assert messages[-1].role == "system" and "plan" in (messages[-1].content or "")
        return tool_call("write_file", path="a.py")

    def second(messages: list[Message]) -> ModelResponse:
        assert messages[-1].role == "system" and messages[-2].role == "tool"
        return text("done")

    url = f"sqlite:///{tmp_path}/t.db"
    await Agent(ScriptedModel([first, second]), [write_file], planning=True, checkpointer=url).arun("go", thread_id="t")
    later = await Agent(ScriptedModel([text("hello")]), checkpointer=url).arun("again", thread_id="t")
    roles = [message.role for message in later.messages]
    assert roles == ["system", "user", "system", "assistant", "tool", "system", "assistant", "user", "assistant"]
    assert [later.messages[index].metadata.get("automated") for index in (2, 5)] == [True, True]


@pytest.mark.spec("LOOP-19", "TERM-1", "TERM-18", "TERM-20")
@pytest.mark.parametrize(("given", "told"), [("house rule", "house rule"), ("", "complete"), (None, "complete")])
async def test_a_condition_gets_the_last_reply_and_its_reason_is_passed_on(
    runtime: Runtime, tmp_path: Path, given: str | None, told: str
) -> None:
    log = tmp_path / "log"

    def condition(state: Any, **context: Any) -> tuple[bool, str | None]:
        write(log, f"{context['last_message']}|{context['no_tool_calls']}")
        return state.iteration == 2, given

    model = ScriptedModel([text("thinking aloud"), tool_call("add", a=1, b=1), text("never")])
    agent = Agent(model, [add], termination=CustomCondition(condition), completion_mode="explicit")
    events = await events_of(agent)
    assert log.read_text().splitlines() == ["|False", "thinking aloud|True", "|False"]
    assert isinstance(events[-1], TerminateEvent) and events[-1].reason == told


@pytest.mark.spec("TERM-23", "TERM-10", "LOOP-21")
async def test_a_condition_stop_gives_the_last_reply_and_no_summary(runtime: Runtime) -> None:
    step = tool_call("add", a=1, b=1)
    said = step.evolve(message=step.message.evolve(content="Adding."))
    silent = await Agent(ScriptedModel([said, step], loop=True), [add], termination=MaxIterations(2), max_iterations=2).arun(
        "go"
    )
    assert (silent.stop_reason, silent.message, silent.metrics.model_calls) == ("max_iterations", "", 2)
    spoke = await Agent(ScriptedModel([step, said], loop=True), [add], termination=MaxIterations(2)).arun("go")
    assert (spoke.message, spoke.metrics.model_calls) == ("Adding.", 2)


@pytest.mark.spec("LOOP-21")
async def test_time_beats_cancel_and_cancel_beats_a_condition(runtime: Runtime) -> None:
    always = CustomCondition(lambda state, **context: (True, "house rule"))
    agent = Agent(ScriptedModel([text("never")]), termination=always)
    agent.cancel()
    assert (await agent.arun("go")).stop_reason == "cancelled"
    assert (await agent.arun("go")).outcome.reason == "house rule"
    late = agent.with_settings(time_budget_seconds=1e-9)
    late.cancel()
    assert (await late.arun("go")).stop_reason == "time_budget"


@pytest.mark.spec("LOOP-25", "TERM-17")
async def test_a_reply_without_calls_is_complete_before_any_condition_sees_it(runtime: Runtime) -> None:
    result = await Agent(ScriptedModel([text("hi")]), termination=NoToolCalls()).arun("go")
    assert (result.outcome.reason, result.success) == ("complete", True)
    explicit = await Agent(ScriptedModel([text("hi")]), termination=NoToolCalls(), completion_mode="explicit").arun("go")
    assert (explicit.outcome.reason, explicit.success, explicit.message) == ("no_tools", False, "hi")


class AfterCall(Hook):
    async def on_after_model_call(self, event: Any) -> None:
        event.emit(CustomEvent(name="answered", data={}))


@pytest.mark.spec("LOOP-52", "STATE-41")
async def test_after_a_call_come_its_hooks_events_its_usage_and_its_thought(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def condition(state: Any, **context: Any) -> tuple[bool, str | None]:
        write(log, f"{state.total_tokens_used} {context['last_message']}")
        return False, None

    step = tool_call("add", a=1, b=1)
    turns = metered(step.evolve(message=step.message.evolve(content="Adding.")), text("2"))
    agent = Agent(ScriptedModel(turns), [add], hooks=[AfterCall()], termination=CustomCondition(condition))
    events = await events_of(agent)
    assert [event.event_type for event in events] == [
        "custom", "think", "tool_start", "tool_complete", "custom", "think", "terminate",
    ]  # fmt: skip
    assert log.read_text().splitlines() == ["0 ", "30 Adding."]
    assert events[-1].usage == Usage(prompt_tokens=50, completion_tokens=10)


@pytest.mark.spec("LOOP-53", "LOOP-57", "EVT-6")
async def test_a_thought_shows_the_reasoning_and_only_structured_calls(runtime: Runtime) -> None:
    written = text('{"name": "add", "arguments": {"a": 1, "b": 2}}')
    turns = [written.evolve(reasoning="I should add."), text("3")]
    events = await events_of(Agent(ScriptedModel(turns), [add], text_tool_calls="on"))
    thoughts = [event for event in events if isinstance(event, ThinkEvent)]
    assert [thought.reasoning for thought in thoughts] == ["I should add.", "3"]
    assert [thought.tool_calls for thought in thoughts] == [(), ()]
    [start] = [event for event in events if isinstance(event, ToolStartEvent)]
    assert start.tool_name == "add" and start.arguments == {"a": 1, "b": 2}


class Loud(Hook):
    """Says something after every call of a tool."""

    async def on_before_tool_call(self, event: Any) -> None:
        event.emit(CustomEvent(name=f"before {event.arguments['a']}", data={}))

    async def on_after_tool_call(self, event: Any) -> None:
        event.emit(CustomEvent(name=f"after {event.arguments['a']}", data={}))
        if event.arguments["a"] == 1:
            event.result = "replaced"


@pytest.mark.spec("EVT-28", "EVT-29", "LOOP-85", "LOOP-127")
@pytest.mark.parametrize("order", ["sequential", "completion"])
async def test_what_hooks_emit_follows_the_event_of_its_call(runtime: Runtime, order: Any) -> None:
    calls = tool_calls(("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2}))
    settings: dict[str, Any] = {"tool_event_order": order, "tool_execution": "sequential"}
    agent = Agent(ScriptedModel([calls, text("ok")]), [add], hooks=[Loud()], **settings)
    told = [getattr(event, "name", event.event_type) for event in await events_of(agent)]
    assert told == [
        "think", "tool_start", "before 1", "tool_start", "before 2",
        "tool_complete", "after 1", "tool_complete", "after 2", "think", "terminate",
    ]  # fmt: skip
    result = await agent.arun("go")
    assert [done.result for done in result.tool_executions] == ["replaced", "4"]
    assert [message.content for message in result.messages if message.role == "tool"] == ["replaced", "4"]


class Unmetered:
    """Reports a cost, or nothing at all."""

    def __init__(self, cost_usd: float | None = None) -> None:
        self.cost_usd = cost_usd

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        return text("hi").evolve(cost_usd=self.cost_usd)


@pytest.mark.spec("LOOP-126", "STATE-44", "EVT-17")
async def test_what_was_not_measured_is_absent_from_the_last_event(runtime: Runtime) -> None:
    last = (await events_of(Agent(Unmetered())))[-1]
    assert (last.usage, last.cost_usd, last.reported_cost_usd) == (None, None, None)
    assert (last.iterations_used, last.final_confidence, last.total_tool_calls) == (1, 0.0, 0)
    reported = (await events_of(Agent(Unmetered(0.25))))[-1]
    assert (reported.usage, reported.cost_usd, reported.reported_cost_usd) == (None, 0.25, 0.25)
