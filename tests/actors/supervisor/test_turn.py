"""A turn from prompt to outcome: order of events, tools, limits. On the inline runtime and on Ray alike."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime, ToolCall, ToolContext, Usage, tool
from umbel.errors import ConfigurationError, ModelError, RunFailed
from umbel.events import Event, TerminateEvent, ThinkEvent, ToolCompleteEvent, ToolProgressEvent, ToolStartEvent
from umbel.termination import CustomCondition, MaxIterations, TextMention, ToolCalled
from umbel.testing import ScriptedModel, text, tool_call, tool_calls


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool
async def fail(why: str) -> str:
    """Raise."""
    raise ValueError(why)


@tool
async def slow(seconds: float, label: str) -> str:
    """Wait, then return the label."""
    await asyncio.sleep(seconds)
    return label


async def events_of(agent: Agent, prompt: str, **options: Any) -> list[Event]:
    return [event async for event in agent.run(prompt, **options)]


@pytest.mark.spec(
    "LOOP-1", "LOOP-73", "LOOP-75", "LOOP-127", "LOOP-128", "EVT-1", "EVT-6", "EVT-8", "EVT-9", "EVT-17", "API-15"
)
async def test_a_tool_turn_emits_its_events_in_order(runtime: Runtime) -> None:
    agent = Agent(
        ScriptedModel([tool_calls(("add", {"a": 2, "b": 2}), ("add", {"a": 1, "b": 5})), text("4 and 6")]), [add], name="adder"
    )
    events = await events_of(agent, "add")
    assert [event.event_type for event in events] == [
        "think",
        "tool_start",
        "tool_start",
        "tool_complete",
        "tool_complete",
        "think",
        "terminate",
    ]
    assert [event.seq for event in events] == list(range(7))
    assert {event.agent_name for event in events} == {"adder"}
    assert len({event.run_id for event in events}) == 1
    starts = [event for event in events if isinstance(event, ToolStartEvent)]
    completes = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert [event.tool_call_id for event in starts] == [event.tool_call_id for event in completes]
    assert [event.result for event in completes] == ["4", "6"]
    last = events[-1]
    assert isinstance(last, TerminateEvent)
    assert (last.reason, last.final_message, last.iterations_used, last.total_tool_calls) == ("complete", "4 and 6", 2, 2)


@pytest.mark.spec("API-16", "API-47", "API-48", "API-50", "LOOP-5", "STATE-7", "STATE-9")
async def test_the_result_holds_conversation_executions_and_counts(runtime: Runtime) -> None:
    model = ScriptedModel(
        [
            tool_call("add", a=2, b=2).evolve(usage=Usage(prompt_tokens=10, completion_tokens=3)),
            text("4", usage=Usage(prompt_tokens=20, completion_tokens=1)),
        ]
    )
    result = await Agent(model, [add], system_prompt="You add.").arun("2 + 2")
    assert result.success and result.stop_reason == "complete" and result.message == "4"
    assert [message.role for message in result.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [message.content for message in result.messages] == ["You add.", "2 + 2", None, "4", "4"]
    (execution,) = result.tool_executions
    assert (execution.tool_name, execution.arguments, execution.result, execution.error) == ("add", {"a": 2, "b": 2}, "4", None)
    assert execution.success and not execution.idempotent_cache_hit
    metrics = result.metrics
    assert (metrics.iterations, metrics.model_calls, metrics.tool_calls, metrics.tool_errors) == (2, 2, 1, 0)
    assert (metrics.prompt_tokens, metrics.completion_tokens, metrics.total_tokens) == (30, 4, 34)
    (step,) = result.reasoning_steps
    assert step.iteration == 1 and [call.name for call in step.tool_calls] == ["add"]


@pytest.mark.spec("LOOP-80", "LOOP-95", "TOOL-22", "TOOL-25", "BUG-38")
@pytest.mark.case(5)
async def test_a_failing_call_does_not_lose_its_siblings(runtime: Runtime, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"

    @tool
    async def note(line: str) -> str:
        """Write a line."""
        with ledger.open("a") as file:
            file.write(line + "\n")
        if line == "two":
            raise RuntimeError("no two")
        return f"noted {line}"

    model = ScriptedModel([tool_calls(*(("note", {"line": line}) for line in ("one", "two", "three"))), text("done")])
    result = await Agent(model, [note]).arun("note")
    assert sorted(ledger.read_text().split()) == ["one", "three", "two"]
    answers = [message.content for message in result.messages if message.role == "tool"]
    assert answers == ["noted one", "Error: RuntimeError: no two", "noted three"]
    assert [execution.success for execution in result.tool_executions] == [True, False, True]
    assert result.success


@pytest.mark.spec("LOOP-80", "BUG-33", "EVT-28")
async def test_calls_of_one_reply_overlap(runtime: Runtime) -> None:
    meeting = asyncio.Barrier(3)
    if runtime.inline:

        @tool
        async def meet(name: str) -> str:
            """Wait for the two others."""
            await meeting.wait()
            return name

        tools, names = [meet], "meet"
    else:
        tools, names = [slow], "slow"
    calls = [(names, {"name": str(i)} if names == "meet" else {"seconds": 0.2, "label": str(i)}) for i in range(3)]
    result = await Agent(ScriptedModel([tool_calls(*calls), text("ok")]), tools).arun("go")
    assert [execution.result for execution in result.tool_executions] == ["0", "1", "2"]


@pytest.mark.spec("EVT-28", "LOOP-84", "TOOL-19")
async def test_completion_order_reports_as_each_finishes(runtime: Runtime) -> None:
    script = [tool_calls(("slow", {"seconds": 0.3, "label": "late"}), ("slow", {"seconds": 0.0, "label": "early"})), text("ok")]
    for order, expected in (("completion", ["early", "late"]), ("sequential", ["late", "early"])):
        events = await events_of(Agent(ScriptedModel(script), [slow], tool_event_order=order), "go")
        assert [event.result for event in events if isinstance(event, ToolCompleteEvent)] == expected
    result = await Agent(ScriptedModel(script), [slow], tool_event_order="completion").arun("go")
    assert [execution.result for execution in result.tool_executions] == ["late", "early"]


@pytest.mark.spec("TOOL-20")
async def test_sequential_execution_runs_one_call_at_a_time(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @tool
    async def step(name: str) -> str:
        """Log begin and end."""
        with log.open("a") as file:
            file.write(f"+{name} ")
        await asyncio.sleep(0.02)
        with log.open("a") as file:
            file.write(f"-{name} ")
        return name

    model = ScriptedModel([tool_calls(*(("step", {"name": name}) for name in "abc")), text("ok")])
    await Agent(model, [step], tool_execution="sequential").arun("go")
    assert log.read_text().split() == ["+a", "-a", "+b", "-b", "+c", "-c"]


@pytest.mark.spec("TOOL-26", "LOOP-76", "LOOP-79", "STATE-39", "BUG-34", "BUG-35")
async def test_an_idempotent_call_runs_once_per_turn(runtime: Runtime, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"

    @tool(idempotent=True)
    async def refund(order: str) -> str:
        """Refund an order."""
        with ledger.open("a") as file:
            file.write(order + "\n")
        return f"receipt for {order}"

    script = [
        tool_calls(("refund", {"order": "1"}), ("refund", {"order": "1"}), ("refund", {"order": "2"})),
        tool_call("refund", order="1"),
        text("done"),
    ]
    agent = Agent(ScriptedModel(script), [refund])
    result = await agent.arun("refund")
    assert sorted(ledger.read_text().split()) == ["1", "2"]
    assert [execution.idempotent_cache_hit for execution in result.tool_executions] == [False, True, False, True]
    assert [execution.result for execution in result.tool_executions] == [
        f"receipt for {order}" for order in ("1", "1", "2", "1")
    ]
    events = await events_of(agent, "again")
    assert sum(isinstance(event, ToolCompleteEvent) for event in events) == 4
    assert sorted(ledger.read_text().split()) == ["1", "1", "2", "2"], "a new turn does not reuse the last one's results"


@pytest.mark.spec("LOOP-77")
async def test_a_failed_idempotent_call_may_be_tried_again(runtime: Runtime, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"

    @tool(idempotent=True)
    async def flaky() -> str:
        """Fail the first time."""
        tries = len(ledger.read_text()) if ledger.exists() else 0
        with ledger.open("a") as file:
            file.write(".")
        if not tries:
            raise OSError("not yet")
        return "worked"

    result = await Agent(ScriptedModel([tool_call("flaky"), tool_call("flaky"), text("ok")]), [flaky]).arun("go")
    assert [execution.success for execution in result.tool_executions] == [False, True]
    assert ledger.read_text() == ".."


@pytest.mark.spec("LOOP-26", "LOOP-28", "LOOP-30", "LOOP-31", "API-51")
async def test_max_iterations_ends_with_a_summary_in_the_conversation(runtime: Runtime) -> None:
    def reply(messages: list[Message]) -> ModelResponse:
        return text("summary of the work") if messages[-1].role == "system" else tool_call("add", a=len(messages), b=1)

    result = await Agent(ScriptedModel([reply], loop=True), [add], max_iterations=2).arun("go on")
    assert (result.stop_reason, result.success, result.message) == ("max_iterations", False, "summary of the work")
    assert result.metrics.iterations == 2 and result.metrics.model_calls == 3
    assert result.messages[-1].role == "assistant" and result.messages[-1].content == "summary of the work"


@pytest.mark.spec("LOOP-23", "LOOP-126")
async def test_the_token_budget_stops_the_run(runtime: Runtime) -> None:
    turn = tool_call("add", a=1, b=1).evolve(usage=Usage(prompt_tokens=60, completion_tokens=10))
    result = await Agent(ScriptedModel([turn, turn, turn]), [add], token_budget=100, tool_loop_threshold=9).arun("spend")
    assert (result.stop_reason, result.metrics.total_tokens, result.metrics.iterations) == ("token_budget", 140, 2)


@pytest.mark.spec("LOOP-24", "BUG-16", "BUG-17")
async def test_a_terminal_tool_ends_the_run_only_when_it_succeeds(runtime: Runtime) -> None:
    @tool
    async def submit(answer: str) -> str:
        """Submit."""
        if answer == "wrong":
            raise ValueError("not accepted")
        return "accepted"

    model = ScriptedModel([tool_call("submit", answer="wrong"), tool_call("submit", answer="right"), text("never asked")])
    result = await Agent(model, [submit]).arun("submit")
    assert (result.stop_reason, result.success, result.metrics.model_calls) == ("terminal_tool", True, 2)


@pytest.mark.spec("LOOP-20", "TERM-8", "TERM-13", "TERM-15", "TERM-20", "TERM-22")
@pytest.mark.parametrize(
    ("condition", "reason", "calls"),
    [
        (ToolCalled("add"), "terminal_tool", 1),
        (ToolCalled("add") & MaxIterations(2), "terminal_tool", 2),
        (MaxIterations(1) | ToolCalled("add"), "max_iterations", 1),
        (~MaxIterations(1) & ToolCalled("nothing"), "complete", 3),
        (TextMention("four"), "complete", 3),
    ],
)
async def test_a_condition_stops_at_the_next_boundary(runtime: Runtime, condition: Any, reason: str, calls: int) -> None:
    model = ScriptedModel([tool_call("add", a=1, b=1), tool_call("add", a=2, b=2), text("four")])
    result = await Agent(model, [add], termination=condition).arun("add")
    assert (result.stop_reason, result.metrics.model_calls) == (reason, calls)


@pytest.mark.spec("TERM-6")
async def test_concurrent_runs_do_not_share_a_condition(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([tool_call("add", a=1, b=1), text("done")]), [add], termination=MaxIterations(5))
    results = await asyncio.gather(*(agent.arun(f"run {i}") for i in range(20)))
    assert {result.stop_reason for result in results} == {"complete"}
    assert len({result.run_id for result in results}) == 20


@pytest.mark.spec("TERM-9", "LOOP-101")
async def test_an_exception_in_a_condition_is_an_error_termination(runtime: Runtime) -> None:
    def broken(state: Any, **context: Any) -> tuple[bool, str | None]:
        raise KeyError("oops")

    agent = Agent(ScriptedModel([text("hi")]), termination=CustomCondition(broken))
    with pytest.raises(RunFailed, match="KeyError"):
        await agent.arun("go")
    stream = agent.run("go")
    events = [await anext(stream)]
    with pytest.raises(RunFailed):
        await anext(stream)
    assert isinstance(events[-1], TerminateEvent) and events[-1].reason == "error" and "KeyError" in (events[-1].error or "")


@pytest.mark.spec("LOOP-101")
async def test_a_model_error_reaches_the_caller_as_its_own_class(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([ModelError("no such model")]))
    with pytest.raises(ModelError, match="no such model"):
        await agent.arun("hi")


@pytest.mark.spec("STATE-34", "STATE-38", "LOOP-22")
async def test_repeating_a_step_warns_then_stops(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([tool_call("add", a=1, b=1)], loop=True), [add])
    events = await events_of(agent, "loop")
    warnings = [event for event in events if event.event_type == "custom"]
    assert len(warnings) == 1
    assert isinstance(events[-1], TerminateEvent) and events[-1].reason == "tool_loop" and events[-1].iterations_used == 4


@pytest.mark.spec("TOOL-12", "TOOL-13", "API-20")
async def test_tools_see_metadata_and_ephemeral_values_never_leave(runtime: Runtime) -> None:
    @tool
    async def whoami(ctx: ToolContext) -> dict[str, Any]:
        """Report the context."""
        state = ctx.state
        return {
            "run": bool(ctx.run_id),
            "iteration": ctx.iteration,
            "tenant": ctx.metadata["tenant"],
            "plan": ctx.metadata["plan"],
            "token": ctx.ephemeral_metadata["token"][:2],
            "messages": len(state.messages) if state else 0,
        }

    agent = Agent(ScriptedModel([tool_call("whoami"), text("ok")]), [whoami], metadata={"plan": "pro"}, agent_id="a-1")
    result = await agent.arun("who", metadata={"tenant": "t-7"}, ephemeral={"token": "secret-token"})
    content = next(message.content for message in result.messages if message.role == "tool") or ""
    assert '"tenant": "t-7"' in content and '"plan": "pro"' in content and '"token": "se"' in content
    assert '"iteration": 1' in content and '"messages": 3' in content
    assert "secret-token" not in result.outcome.model_dump_json()
    assert result.state.metadata == {"plan": "pro", "tenant": "t-7"}


async def test_a_prompt_callable_is_asked_every_turn(runtime: Runtime) -> None:
    agent = Agent(
        ScriptedModel([text("ok")]), system_prompt=lambda context: f"About {context['prompt']} for {context['metadata']['who']}"
    )
    result = await agent.arun("ships", metadata={"who": "Ann"})
    assert result.messages[0].content == "About ships for Ann"


@pytest.mark.spec("LOOP-113", "LOOP-114", "EVT-7", "API-15")
async def test_streaming_tokens_gives_chunks_before_the_think_event(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([tool_call("add", a=1, b=1), text("the answer is two")]), [add])
    events = await events_of(agent, "add", stream_tokens=True)
    kinds = [event.event_type for event in events]
    assert kinds[0] == "model_chunk" and kinds[-1] == "terminate" and kinds[-2] == "think"
    said = "".join(getattr(event, "content", None) or "" for event in events if event.event_type == "model_chunk")
    assert said == "the answer is two"
    thoughts = [event for event in events if isinstance(event, ThinkEvent)]
    assert thoughts[-1].reasoning == "the answer is two"


@pytest.mark.spec("API-39")
async def test_an_agent_is_a_tool_of_another(runtime: Runtime) -> None:
    child = Agent(ScriptedModel([tool_call("add", a=20, b=3), text("23")]), [add], name="calculator")
    parent = Agent(ScriptedModel([tool_call("calculator", prompt="20 + 3"), text("it is 23")]), [child.as_tool()])
    result = await parent.arun("ask")
    assert result.message == "it is 23" and result.tool_executions[0].result == "23"
    assert result.metrics.model_calls == 4


async def test_a_failing_child_agent_is_an_error_result(runtime: Runtime) -> None:
    child = Agent(ScriptedModel([ModelError("child is broken")]), name="child")
    parent = Agent(ScriptedModel([tool_call("child", prompt="x"), text("gave up")]), [child.as_tool()])
    result = await parent.arun("ask")
    assert result.message == "gave up"
    assert "child is broken" in (result.tool_executions[0].error or "")


@pytest.mark.spec("LOOP-45", "API-19", "BUG-24")
async def test_only_settings_that_were_set_reach_the_model(runtime: Runtime) -> None:
    class Echo:
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            return text(repr(sorted(settings.items())))

    assert (await Agent(Echo()).arun("x")).message == "[]"
    agent = Agent(Echo(), temperature=0.5, max_tokens=9)
    assert (await agent.arun("x")).message == "[('max_tokens', 9), ('temperature', 0.5)]"
    assert (await agent.arun("x", model_kwargs={"temperature": 0.0, "seed": 1})).message == (
        "[('max_tokens', 9), ('seed', 1), ('temperature', 0.0)]"
    )


async def test_a_thread_without_a_checkpointer_is_refused(runtime: Runtime) -> None:
    with pytest.raises(ConfigurationError, match="checkpointer"):
        await Agent(ScriptedModel([text("hi")])).arun("x", thread_id="t-1")


@pytest.mark.spec("LOOP-5", "LOOP-6", "LOOP-7", "MEM-41", "BUG-25")
async def test_a_thread_continues_with_fresh_counters(runtime: Runtime, tmp_path: Path) -> None:
    def reply(messages: list[Message]) -> ModelResponse:
        return text(
            f"heard {sum(message.role == 'user' for message in messages)}", usage=Usage(prompt_tokens=5, completion_tokens=1)
        )

    agent = Agent(ScriptedModel([reply]), checkpointer=f"sqlite:///{tmp_path}/threads.db")
    first = await agent.arun("one", thread_id="t", metadata={"a": 1})
    second = await agent.arun("two", thread_id="t", metadata={"b": 2})
    assert (first.message, second.message) == ("heard 1", "heard 2")
    assert [message.role for message in second.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert second.metrics.total_tokens == 6 and second.metrics.iterations == 1
    assert second.state.metadata == {"a": 1, "b": 2} and second.run_id != first.run_id
    assert (await agent.arun("else", thread_id="other")).message == "heard 1"


@pytest.mark.spec("API-37")
async def test_turns_on_one_thread_queue_up(runtime: Runtime, tmp_path: Path) -> None:
    agent = Agent(ScriptedModel([text("ok")], delay=0.01), checkpointer=f"sqlite:///{tmp_path}/threads.db")
    await asyncio.gather(*(agent.arun(f"message {i}", thread_id="t") for i in range(8)))
    result = await agent.arun("last", thread_id="t")
    said = [message.content or "" for message in result.messages if message.role == "user"]
    assert sorted(said[:-1]) == sorted(f"message {i}" for i in range(8)) and said[-1] == "last"


@pytest.mark.case(6)
async def test_call_ids_are_unique_whatever_the_provider_says(runtime: Runtime) -> None:
    calls = tool_calls(
        ToolCall(id="", name="add", arguments={"a": 1, "b": 1}), ToolCall(id="", name="add", arguments={"a": 2, "b": 2})
    )
    again = tool_calls(
        ToolCall(id="c1", name="add", arguments={"a": 3, "b": 3}), ToolCall(id="c1", name="add", arguments={"a": 4, "b": 4})
    )
    result = await Agent(ScriptedModel([calls, again, text("ok")]), [add]).arun("add")
    ids = [execution.tool_call_id for execution in result.tool_executions]
    assert len(set(ids)) == 4 and all(ids)
    assert [execution.result for execution in result.tool_executions] == ["2", "4", "6", "8"]


@pytest.mark.spec("API-10")
async def test_the_callback_handler_gets_every_event_in_the_callers_process(runtime: Runtime) -> None:
    seen: list[Event] = []
    agent = Agent(ScriptedModel([tool_call("add", a=1, b=1), text("2")]), [add], callback_handler=seen.append)
    assert (await agent.arun("add")).message == "2"
    assert [event.event_type for event in seen] == ["think", "tool_start", "tool_complete", "think", "terminate"]


async def test_a_callback_that_raises_stops_the_run_and_reaches_the_caller(runtime: Runtime) -> None:
    seen: list[str] = []

    def handler(event: Event) -> None:
        seen.append(event.event_type)
        raise LookupError("no such screen")

    agent = Agent(ScriptedModel([tool_call("slow", seconds=30, label="x"), text("2")]), [slow], callback_handler=handler)
    with pytest.raises(LookupError, match="no such screen"):
        await agent.arun("add")
    assert seen == ["think"]


@pytest.mark.spec("EVT-10", "TOOL-27", "LOOP-82")
@pytest.mark.parametrize("kind", ["async", "process"])
async def test_progress_of_a_tool_comes_between_its_start_and_its_end(runtime: Runtime, kind: str) -> None:
    @tool(emits_progress=True)
    async def work(ctx: ToolContext) -> str:
        """Report twice."""
        return f"{ctx.report_progress(1, 2, 'half')} {ctx.report_progress(2, 2)}"

    @tool(emits_progress=True, isolation="process")
    def work_in_process(ctx: ToolContext) -> str:
        """Report twice, from another process."""
        return f"{ctx.report_progress(1, 2, 'half')} {ctx.report_progress(2, 2)}"

    chosen = work if kind == "async" else work_in_process
    events = await events_of(Agent(ScriptedModel([tool_call(chosen.name), text("ok")]), [chosen]), "go")
    assert [event.event_type for event in events][1:5] == ["tool_start", "tool_progress", "tool_progress", "tool_complete"]
    reports = [event for event in events if isinstance(event, ToolProgressEvent)]
    assert [(report.progress, report.total, report.message) for report in reports] == [(1, 2, "half"), (2, 2, None)]
