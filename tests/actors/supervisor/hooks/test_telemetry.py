from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, get_current_span

from umbel.actors.supervisor.hooks import (
    AfterModelCall,
    AfterToolCall,
    BeforeModelCall,
    BeforeToolCall,
    Hook,
    TelemetryHook,
    child_metadata,
    trace_context,
)
from umbel.events import RunInfo
from umbel.protocol.messages import ModelResponse, ToolCall, Usage
from umbel.protocol.state import AgentState, ToolExecution
from umbel.testing import text, tool_call, tool_calls

from .tiny_loop import TinyLoop

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Telemetry:
    """A hook, and what it recorded."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.hook = TelemetryHook(tracer_provider=lambda: tracers, meter_provider=lambda: meters, **options)

    def spans(self, operation: str | None = None) -> list[ReadableSpan]:
        spans = self.exporter.get_finished_spans()
        return [span for span in spans if operation is None or attributes(span).get("gen_ai.operation.name") == operation]

    def span(self, operation: str) -> ReadableSpan:
        (span,) = self.spans(operation)
        return span

    def metric(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.name == name]
        return [point for metric in metrics for point in metric.data.data_points]

    def total(self, name: str) -> float:
        points = self.metric(name)
        return sum(point.value if isinstance(point, NumberDataPoint) else point.count for point in points)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def context_of(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


@pytest.fixture
def told() -> Telemetry:
    return Telemetry()


def fail() -> str:
    raise ValueError("e" * 2_000)


@pytest.mark.spec("HOOK-34")
async def test_a_run_is_one_trace_of_its_model_and_tool_calls(told: Telemetry) -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=4, cache_read_tokens=5)
    first = tool_call("add", a=1).evolve(usage=usage, model="gpt-x")
    await TinyLoop([told.hook], [first, text("done")], add=lambda a: "1").run("go", thread_id="t1")
    root = told.span("invoke_agent")
    trace_id, root_id = context_of(root)
    assert {span.get_span_context().trace_id for span in told.spans()} == {trace_id}  # type: ignore[union-attr]
    assert root.parent is None
    assert {parent_of(span) for span in told.spans() if span is not root} == {root_id}
    assert sorted(span.name for span in told.spans()) == [
        "chat",
        "chat gpt-x",
        "execute_tool add",
        "invoke_agent tiny",
        "iteration 0",
        "iteration 1",
    ]
    shown = attributes(root)
    assert shown["gen_ai.agent.name"] == "tiny"
    assert shown["gen_ai.conversation.id"] == "t1"
    assert shown["umbel.success"] is True
    assert shown["umbel.run.id"] == "r1" and shown["umbel.iterations"] == 2
    assert (shown["gen_ai.usage.input_tokens"], shown["gen_ai.usage.output_tokens"]) == (15, 4)
    chat = attributes(next(span for span in told.spans("chat") if span.name == "chat gpt-x"))
    assert chat["gen_ai.response.model"] == "gpt-x"
    assert chat["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (15, 4)
    assert chat["gen_ai.usage.cache_read.input_tokens"] == 5
    tool = attributes(told.span("execute_tool"))
    assert (tool["gen_ai.tool.name"], tool["gen_ai.tool.type"]) == ("add", "function")
    assert "gen_ai.tool.call.arguments" not in tool and "gen_ai.tool.call.result" not in tool
    assert all(span.status.status_code is StatusCode.UNSET for span in told.spans())


@pytest.mark.spec("HOOK-34")
async def test_content_is_captured_on_request_and_cut_and_never_secret() -> None:
    class Secrets(Hook):
        priority = 1

        async def on_before_tool_call(self, event: BeforeToolCall) -> None:
            event.secret_arguments = {"token": "s3cret"}

    told = Telemetry(capture_content=True)
    loop = TinyLoop([told.hook, Secrets()], [tool_call("add", a=1), text("x")], add=lambda a, token: "r" * 900)
    await loop.run("go")
    tool = attributes(told.span("execute_tool"))
    assert tool["gen_ai.tool.call.arguments"] == '{"a": 1}'
    assert tool["gen_ai.tool.call.result"] == "r" * 500
    assert "s3cret" not in "".join(span.to_json() for span in told.spans())


@pytest.mark.spec("HOOK-34")
async def test_errors_are_on_the_span_that_failed_and_cut(told: Telemetry) -> None:
    with pytest.raises(RuntimeError, match="down"):
        await TinyLoop([told.hook], [tool_call("fail"), RuntimeError("down")], fail=fail).run("go")
    tool, root = told.span("execute_tool"), told.span("invoke_agent")
    assert tool.status.status_code is StatusCode.ERROR
    assert tool.status.description == "e" * 1_000
    assert attributes(tool)["error.type"] == "tool_error"
    assert root.status.status_code is StatusCode.ERROR and root.status.description == "RuntimeError: down"
    assert attributes(root)["error.type"] == "RuntimeError"
    last = told.spans("chat")[-1]
    assert last.status.status_code is StatusCode.ERROR and attributes(last)["error.type"] == "unfinished"
    assert len(told.hook._traces) == 0


@pytest.mark.spec("HOOK-34")
async def test_metrics_count_runs_iterations_and_calls(told: Telemetry) -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=4)
    replies = [tool_calls(("add", {}), ("fail", {})), text("done", usage=usage)]
    await TinyLoop([told.hook], replies, add=lambda: "1", fail=fail).run("go")
    wanted = {
        "umbel.invocations": 1,
        "umbel.iterations": 2,
        "umbel.tool.calls": 2,
        "umbel.tool.errors": 1,
        "umbel.invocation.duration": 1,
        "umbel.tool.duration": 2,
        "gen_ai.client.operation.duration": 2,
    }
    assert {name: told.total(name) for name in wanted} == wanted
    tokens = {dict(point.attributes)["gen_ai.token.type"]: point.sum for point in told.metric("gen_ai.client.token.usage")}
    assert tokens == {"input": 10, "output": 4}
    (failed,) = told.metric("umbel.tool.errors")
    assert failed.attributes["gen_ai.tool.name"] == "fail"
    assert all(isinstance(point, HistogramDataPoint) for point in told.metric("umbel.tool.duration"))


@pytest.mark.spec("HOOK-34")
async def test_concurrent_runs_and_calls_of_one_name_do_not_mix(told: Telemetry) -> None:
    """Two runs with equal call ids, two parallel calls of one tool in each; every one ends in another order."""
    runs = [RunInfo(run_id=name, agent_name=name) for name in ("a", "b")]
    states = {}
    for run in runs:
        states[run.run_id] = await told.hook.on_before_invocation("go", AgentState(run_id=run.run_id))
    calls = [(run, call_id) for run in runs for call_id in ("c1", "c2")]
    for run, call_id in calls:
        await told.hook.on_before_tool_call(BeforeToolCall(tool_name="add", tool_call_id=call_id, run=run))
    for run, call_id in reversed(calls):
        error = f"{run.run_id}{call_id}"
        after = AfterToolCall(tool_name="add", tool_call_id=call_id, error=error, run=run)
        await told.hook.on_after_tool_call(after)
    for run in runs:
        await told.hook.on_after_invocation(states[run.run_id], True)
    roots = {attributes(span)["umbel.run.id"]: context_of(span) for span in told.spans("invoke_agent")}
    assert len(set(roots.values())) == 2
    for span in told.spans("execute_tool"):
        run_id, call_id = str(span.status.description)[0], str(span.status.description)[1:]
        assert attributes(span)["gen_ai.tool.call.id"] == call_id
        assert (context_of(span)[0], parent_of(span)) == roots[run_id]
    assert len(told.spans("execute_tool")) == 4


async def test_a_retried_model_call_has_a_span_of_its_own_from_where_the_last_one_ended() -> None:
    ticks = iter(range(100, 1_000))
    told = Telemetry(iteration_spans=False, clock=lambda: next(ticks))

    class Again(Hook):
        async def on_after_model_call(self, event: AfterModelCall) -> None:
            event.retry = not event.response.content

    await TinyLoop([told.hook, Again()], [text(""), text("done")]).run("go")
    first, second = told.spans("chat")
    assert first.end_time == second.start_time
    assert second.end_time is not None and second.start_time is not None and second.end_time > second.start_time
    assert not any(span.name.startswith("iteration") for span in told.spans())


@pytest.mark.spec("HOOK-34")
async def test_calls_that_no_after_hook_is_called_for_end_as_they_were_recorded(told: Telemetry) -> None:
    class Veto(Hook):
        async def on_before_tool_call(self, event: BeforeToolCall) -> None:
            event.cancel = "no"

    await TinyLoop([told.hook, Veto()], [tool_call("add"), text("done")], add=lambda: "1").run("go")
    span = told.span("execute_tool")
    assert span.end_time is not None and span.start_time is not None and span.end_time >= span.start_time
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span)["umbel.tool.cache_hit"] is False


async def test_what_is_current_in_the_supervisors_task_is_no_parent(told: Telemetry) -> None:
    stranger = TracerProvider(shutdown_on_exit=False).get_tracer("stranger")
    with stranger.start_as_current_span("of another run"):
        await TinyLoop([told.hook], [tool_call("add"), text("done")], add=lambda: "1").run("go")
    root = told.span("invoke_agent")
    assert root.parent is None
    assert {parent_of(span) for span in told.spans() if span is not root} == {context_of(root)[1]}


async def test_a_model_call_without_a_reply_ends_when_the_next_one_begins(told: Telemetry) -> None:
    run = RunInfo(run_id="r1")
    state = await told.hook.on_before_invocation("go", AgentState(run_id="r1"))
    for _ in range(2):
        await told.hook.on_before_model_call(BeforeModelCall(messages=(), run=run))
    await told.hook.on_after_model_call(AfterModelCall(response=text("hi"), run=run))
    await told.hook.on_after_invocation(state, True)
    failed, good = told.spans("chat")
    assert attributes(failed)["error.type"] == "unfinished" and failed.status.status_code is StatusCode.ERROR
    assert good.status.status_code is StatusCode.UNSET


async def test_a_call_takes_as_long_as_its_body_whatever_it_waits_for_afterwards() -> None:
    times = iter([0, 1_000_000_000, 9_000_000_000, 10_000_000_000])
    told = Telemetry(clock=lambda: next(times))
    run = RunInfo(run_id="r1")
    state = await told.hook.on_before_invocation("go", AgentState(run_id="r1"))
    await told.hook.on_before_tool_call(BeforeToolCall(tool_name="add", run=run))
    await told.hook.on_after_tool_call(AfterToolCall(tool_name="add", result="1", duration_ms=2_500, run=run))
    await told.hook.on_after_invocation(state, True)
    span = told.span("execute_tool")
    assert (span.start_time, span.end_time) == (1_000_000_000, 3_500_000_000)
    assert told.metric("umbel.tool.duration")[0].sum == 2.5
    assert told.metric("umbel.invocation.duration")[0].sum == 10.0


async def test_open_spans_end_with_the_run(told: Telemetry) -> None:
    run = RunInfo(run_id="r1")
    state = await told.hook.on_before_invocation("go", AgentState(run_id="r1"))
    await told.hook.on_iteration_start(0, state)
    await told.hook.on_before_model_call(BeforeModelCall(messages=(), run=run))
    for call_id in ("lost", "reused"):
        await told.hook.on_before_tool_call(BeforeToolCall(tool_name="add", tool_call_id=call_id, run=run))
    reused = ToolExecution(tool_name="add", tool_call_id="reused", result="1", idempotent_cache_hit=True)
    await told.hook.on_after_invocation(state.with_tool_execution(reused), False)
    tools = {attributes(span)["gen_ai.tool.call.id"]: span for span in told.spans("execute_tool")}
    assert attributes(tools["lost"])["error.type"] == "unfinished"
    assert attributes(tools["reused"])["umbel.tool.cache_hit"] is True
    assert tools["reused"].status.status_code is StatusCode.UNSET
    assert attributes(told.span("chat"))["error.type"] == "unfinished"
    root = told.span("invoke_agent")
    assert attributes(root)["umbel.success"] is False and root.status.status_code is StatusCode.UNSET
    assert {span.name for span in told.spans()} >= {"iteration 0", "invoke_agent"}
    assert len(told.spans()) == 5


@pytest.mark.spec("HOOK-34")
async def test_events_of_unknown_runs_are_ignored(told: Telemetry) -> None:
    await told.hook.on_before_tool_call(BeforeToolCall(tool_name="add", run=RunInfo(run_id="x")))
    await told.hook.on_after_model_call(AfterModelCall(response=ModelResponse(message=text("x").message)))
    await told.hook.on_iteration_start(0, AgentState(run_id="x"))
    await told.hook.on_iteration_end(0, AgentState(run_id="x"))
    await told.hook.on_after_invocation(AgentState(run_id="x"), True)
    assert told.spans() == []


async def root_of(told: Telemetry, run_id: str, metadata: dict[str, Any]) -> tuple[ReadableSpan, AgentState]:
    state = await TinyLoop([told.hook], [text("done")]).run("go", run_id=run_id, metadata=metadata)
    return next(span for span in told.spans("invoke_agent") if attributes(span)["umbel.run.id"] == run_id), state


@pytest.mark.case(31)
async def test_a_run_joins_its_callers_trace(told: Telemetry) -> None:
    span, _ = await root_of(told, "r1", {"traceparent": CALLER})
    assert context_of(span)[0] == 0x0AF7651916CD43DD8448EB211C80319C
    assert parent_of(span) == 0xB7AD6B7169203331


@pytest.mark.case(31)
@pytest.mark.spec("BUG-65")
async def test_a_child_run_joins_its_parents_trace_and_a_later_turn_only_links_to_it(told: Telemetry) -> None:
    parent, state = await root_of(told, "r1", {"traceparent": CALLER})
    child, _ = await root_of(told, "r1.call_7", child_metadata(state.metadata))
    resumed, _ = await root_of(Telemetry(), "r1", state.metadata)
    turn, _ = await root_of(told, "r2", state.metadata)
    assert (context_of(child)[0], parent_of(child)) == context_of(parent)
    assert (context_of(resumed)[0], parent_of(resumed)) == context_of(parent)
    assert turn.parent is None and context_of(turn)[0] != context_of(parent)[0]
    assert [(link.context.trace_id, link.context.span_id) for link in turn.links] == [context_of(parent)]
    again, _ = await root_of(told, "r3", {**state.metadata, "traceparent": CALLER})
    assert parent_of(again) == 0xB7AD6B7169203331
    other, _ = await root_of(told, "r11", state.metadata)
    assert other.parent is None


@pytest.mark.case(31)
@pytest.mark.parametrize("junk", [{"traceparent": "junk"}, {"traceparent": 7}, {"umbel_trace": "x"}, {}])
async def test_junk_in_the_metadata_starts_a_trace(told: Telemetry, junk: dict[str, Any]) -> None:
    span, _ = await root_of(told, "r1", junk)
    assert span.parent is None


async def test_a_tool_can_hang_its_own_spans_below_the_run(told: Telemetry) -> None:
    span, state = await root_of(told, "r1", {})
    context = get_current_span(trace_context(state.metadata)).get_span_context()
    assert (context.trace_id, context.span_id) == context_of(span)


@pytest.mark.case(31)
@pytest.mark.spec("BUG-65")
def test_spans_of_one_trace_link_across_processes(told: Telemetry) -> None:
    parent, state = asyncio.run(root_of(told, "r1", {}))
    given = json.dumps({"run_id": "r1.c1", "metadata": child_metadata(state.metadata)})
    program = Path(__file__).with_name("child_run.py")
    done = subprocess.run([sys.executable, str(program)], input=given, capture_output=True, text=True, check=True)
    spans = {span["name"]: span for span in json.loads(done.stdout)}
    trace_id, parent_id = context_of(parent)
    child, tool = spans["invoke_agent child"], spans["execute_tool look"]
    assert int(child["context"]["trace_id"], 16) == int(tool["context"]["trace_id"], 16) == trace_id
    assert int(child["parent_id"], 16) == parent_id
    assert tool["parent_id"] == child["context"]["span_id"]
    assert done.stderr == ""


@pytest.mark.case(31)
async def test_tasks_and_early_ends_make_no_noise_and_lose_no_parent(told: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Every callback in a task of its own, calls in parallel, and one run that is cancelled in the middle."""
    caplog.set_level(logging.DEBUG)

    async def apart(work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.create_task(work(*arguments))

    async def turn(run_id: str, stop: bool) -> None:
        run = RunInfo(run_id=run_id)
        state = await apart(told.hook.on_before_invocation, "go", AgentState(run_id=run_id))
        await apart(told.hook.on_iteration_start, 0, state)
        calls = [ToolCall(id=f"c{n}", name="add") for n in range(5)]

        async def one(each: ToolCall) -> None:
            about: dict[str, Any] = {"tool_name": each.name, "tool_call_id": each.id, "run": run}
            await apart(told.hook.on_before_tool_call, BeforeToolCall(**about))
            if stop and each.id == "c3":
                raise asyncio.CancelledError
            await apart(told.hook.on_after_tool_call, AfterToolCall(**about, result="1"))

        await asyncio.gather(*map(one, calls), return_exceptions=True)
        await apart(told.hook.on_after_invocation, state, not stop)

    await asyncio.gather(turn("a", False), turn("b", True))
    roots = {attributes(span)["umbel.run.id"]: context_of(span)[1] for span in told.spans("invoke_agent")}
    assert sorted(parent_of(span) or 0 for span in told.spans("execute_tool")) == sorted([*roots.values()] * 5)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry")] == []
    assert not get_current_span().get_span_context().is_valid


@pytest.mark.spec("HOOK-34")
async def test_without_the_library_it_warns_once_and_does_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    hook = TelemetryHook()
    for _ in range(3):
        state = await TinyLoop([hook], [tool_call("add"), text("done")], add=lambda: "1").run("go")
        assert state.metadata == {}
    (record,) = caplog.records
    assert record.levelname == "WARNING" and 'pip install "umbel[otel]"' in record.getMessage()


async def test_it_travels_in_use_and_works_on_in_another_process(told: Telemetry) -> None:
    await told.hook.on_before_invocation("go", AgentState(run_id="r1"))
    hook = TelemetryHook(capture_content=True)
    await hook.on_before_invocation("go", AgentState(run_id="r1"))
    copy = cloudpickle.loads(cloudpickle.dumps(hook))
    assert (copy.capture_content, vars(copy)["_tracer"], len(copy._traces)) == (True, None, 0)
    await TinyLoop([copy], [text("done")]).run("go")
    assert vars(copy)["_tracer"] is not None
    assert len(copy._traces) == 0
