"""OpenTelemetry traces and metrics of runs, by the GenAI semantic conventions.

    invoke_agent NAME                a run; parent: the run that started it, or the caller's span
    ├── iteration N
    ├── chat MODEL                   one model call
    └── execute_tool TOOL            one tool call

Spans are kept by run and call id, so concurrent runs and calls of one name never mix. Their parents are given explicitly:
nothing is attached to the task's context, so nothing can be detached in the wrong task.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .base import Hook, PerRun, Priority
from .instruments import Instruments
from .trace_context import entry_for, origin_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, SpanKind, TracerProvider

    from ....protocol.events import RunInfo
    from ....protocol.messages import Usage
    from ....protocol.state import AgentState, ToolExecution
    from .events import AfterModelCall, AfterToolCall, BeforeModelCall, BeforeToolCall

logger = logging.getLogger("umbel.telemetry")

MAX_ERROR_CHARS = 1_000
MAX_CONTENT_CHARS = 500
Attributes = dict[str, Any]
Clock = Callable[[], int]


@dataclass
class _Trace:
    """The open spans of one run. Times are nanoseconds since 1970."""

    span: Span | None = None
    started: int = 0
    labels: Attributes = field(default_factory=dict)
    named: bool = False
    iteration: Span | None = None
    chat: Span | None = None
    chat_started: int = 0
    tools: dict[str, tuple[Span, int, str]] = field(default_factory=dict)


class TelemetryHook(Hook):
    """Traces and metrics. Without OpenTelemetry (extra ``otel``) it does nothing and says so once.

    Hooks run in actor processes, which must know where to export to. Either configure OpenTelemetry there by its own means
    (``OTEL_*`` variables and auto-instrumentation), or give functions that make the providers; each process calls them once::

        def traces():
            provider = TracerProvider()
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            return provider

        Agent(hooks=[TelemetryHook(tracer_provider=traces)])

    Args:
        tracer_provider: makes the tracer provider; None uses the process's global one.
        meter_provider: the same for metrics.
        capture_content: put arguments and results of tools (500 characters each) on their spans. Secret arguments never are.
        iteration_spans: a span for each iteration.
        clock: nanoseconds since 1970.

    Source: HOOK-34.
    """

    priority = Priority.OBSERVABILITY

    def __init__(
        self,
        *,
        tracer_provider: Callable[[], TracerProvider] | None = None,
        meter_provider: Callable[[], MeterProvider] | None = None,
        capture_content: bool = False,
        iteration_spans: bool = True,
        clock: Clock = time.time_ns,
    ) -> None:
        self.tracer_provider = tracer_provider
        self.meter_provider = meter_provider
        self.capture_content = capture_content
        self.iteration_spans = iteration_spans
        self.clock = clock
        self._reset()

    def __getstate__(self) -> Attributes:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: Attributes) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._tracer: Any = None
        self._instruments: Instruments | None = None
        self._missing = False
        self._traces = PerRun(_Trace)

    # the run

    async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
        if not self._ready():
            return state
        from opentelemetry.trace import Link, get_current_span, set_span_in_context

        trace = self._traces.put(state.run_id, _Trace())
        origin = origin_of(state.run_id, state.metadata)
        name = state.agent_id
        attributes = {"gen_ai.operation.name": "invoke_agent", "umbel.run.id": state.run_id}
        if name:
            attributes |= {"gen_ai.agent.id": name, "gen_ai.agent.name": name}
        links = [] if origin.earlier is None else [Link(get_current_span(origin.earlier).get_span_context())]
        trace.started = self.clock()
        trace.span = self._tracer.start_span(
            f"invoke_agent {name}" if name else "invoke_agent",
            context=origin.parent or _nothing(),
            attributes=attributes,
            links=links,
            start_time=trace.started,
        )
        for key, value in entry_for(state.run_id, set_span_in_context(trace.span, _nothing())).items():
            state = state.with_metadata(key, value)
        return state

    async def on_after_invocation(self, state: AgentState, success: bool) -> None:
        trace = self._traces.pop(state.run_id)
        if trace is None or trace.span is None:
            return
        self._settle(trace, state)
        now = self.clock()
        for span in (trace.chat, trace.iteration):
            if span is not None:
                _fail(span, "unfinished", "the run ended before this did")
                span.end(now)
        trace.span.set_attributes(_usage_of_state(state))
        trace.span.set_attribute("umbel.iterations", state.iteration)
        trace.span.set_attribute("umbel.success", success)
        if state.errors:  # a limit or a pause is no success, but no error either
            _fail(trace.span, state.errors[-1].partition(":")[0], state.errors[-1])
        trace.span.end(now)
        if self._instruments is not None:
            self._instruments.invocation(trace.labels, (now - trace.started) / 1e9, success)

    async def on_iteration_start(self, iteration: int, state: AgentState) -> None:
        trace = self._traces.get(state.run_id)
        if trace is None:
            return
        if self._instruments is not None:
            self._instruments.iterations.add(1, trace.labels)
        if self.iteration_spans:
            trace.iteration = self._start(trace, f"iteration {iteration}", {"umbel.iteration": iteration})

    async def on_iteration_end(self, iteration: int, state: AgentState) -> None:
        trace = self._traces.get(state.run_id)
        if trace is None:
            return
        self._settle(trace, state)
        if trace.iteration is not None:
            trace.iteration.end(self.clock())
            trace.iteration = None

    # model calls

    async def on_before_model_call(self, event: BeforeModelCall) -> None:
        trace = self._known(event.run)
        if trace is not None:
            self._start_chat(trace)

    async def on_after_model_call(self, event: AfterModelCall) -> None:
        trace = self._known(event.run)
        if trace is None:
            return
        if trace.chat is None:
            self._start_chat(trace, trace.chat_started)  # a further attempt: it began when the last one ended
        span, response, now = trace.chat, event.response, self.clock()
        assert span is not None
        span.set_attribute("gen_ai.response.finish_reasons", [response.stop_reason])
        if response.model:
            span.set_attribute("gen_ai.response.model", response.model)
            span.update_name(f"chat {response.model}")
        if response.usage is not None:
            span.set_attributes(_usage(response.usage))
        span.end(now)
        if self._instruments is not None:
            labels = trace.labels | ({"gen_ai.response.model": response.model} if response.model else {})
            self._instruments.chat(labels, (now - trace.chat_started) / 1e9, response.usage)
        trace.chat, trace.chat_started = None, now

    def _start_chat(self, trace: _Trace, started: int | None = None) -> None:
        from opentelemetry.trace import SpanKind

        if trace.chat is not None:  # its call failed, else it would have ended
            _fail(trace.chat, "unfinished", "no reply")
            trace.chat.end(self.clock())
        trace.chat_started = self.clock() if started is None else started
        attributes = {"gen_ai.operation.name": "chat"}
        trace.chat = self._start(trace, "chat", attributes, kind=SpanKind.CLIENT, start_time=trace.chat_started)

    # tool calls

    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        trace = self._known(event.run)
        if trace is None:
            return
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event.tool_name,
            "gen_ai.tool.call.id": event.tool_call_id,
            "gen_ai.tool.type": "function",
        }
        if self.capture_content:
            attributes["gen_ai.tool.call.arguments"] = _content(event.arguments)
        started = self.clock()
        span = self._start(trace, f"execute_tool {event.tool_name}", attributes, start_time=started)
        trace.tools[event.tool_call_id] = (span, started, event.tool_name)

    async def on_after_tool_call(self, event: AfterToolCall) -> None:
        trace = self._known(event.run)
        open_span = None if trace is None else trace.tools.pop(event.tool_call_id, None)
        if trace is None or open_span is None:
            return
        result = event.result if event.error is None else None
        now = self.clock()
        ended = min(now, open_span[1] + int(event.duration_ms * 1e6)) if event.duration_ms else now
        self._end_tool(trace, open_span, ended, event.error, "tool_error", result)

    def _settle(self, trace: _Trace, state: AgentState) -> None:
        """End the spans of calls that no after-hook was called for (cancelled, reused, interrupted): as recorded."""
        if not trace.tools:
            return
        recorded = {execution.tool_call_id: execution for execution in state.tool_executions}
        for call_id, open_span in list(trace.tools.items()):
            execution = recorded.get(call_id)
            del trace.tools[call_id]
            if execution is None:
                self._end_tool(trace, open_span, self.clock(), "the call has no result", "unfinished", None)
                continue
            open_span[0].set_attribute("umbel.tool.cache_hit", execution.idempotent_cache_hit)
            ended = self._ended(execution, open_span[1])
            self._end_tool(trace, open_span, ended, execution.error, execution.code or "tool_error", execution.result)

    def _ended(self, execution: ToolExecution, started: int) -> int:
        recorded = started if execution.timestamp is None else int(execution.timestamp.timestamp() * 1e9)
        return min(max(recorded, started), self.clock())

    def _end_tool(
        self, trace: _Trace, open_span: tuple[Span, int, str], now: int, error: str | None, kind: str, result: Any
    ) -> None:
        span, started, name = open_span
        if error is not None:
            _fail(span, kind, error)
        elif self.capture_content and result is not None:
            span.set_attribute("gen_ai.tool.call.result", _content(result))
        span.end(now)
        if self._instruments is not None:
            labels = trace.labels | {"gen_ai.tool.name": name}
            self._instruments.tool(labels, (now - started) / 1e9, failed=error is not None)

    # shared

    def _ready(self) -> bool:
        """Whether there is a tracer; made at the first call in each process."""
        if self._tracer is not None or self._missing:
            return not self._missing
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            self._missing = True
            logger.warning('TelemetryHook does nothing: OpenTelemetry is not installed (pip install "umbel[otel]")')
            return False
        tracers = self.tracer_provider() if self.tracer_provider is not None else trace.get_tracer_provider()
        meters = self.meter_provider() if self.meter_provider is not None else metrics.get_meter_provider()
        self._tracer = tracers.get_tracer("umbel")
        self._instruments = Instruments(meters.get_meter("umbel"))
        return True

    def _known(self, run: RunInfo | None) -> _Trace | None:
        """The run's trace; its span gets the agent's name and the thread, which only events of calls know."""
        trace = None if run is None else self._traces.get(run.run_id)
        if trace is None or run is None or trace.span is None or trace.named:
            return trace
        trace.named = True
        if run.agent_name:
            trace.labels = {"gen_ai.agent.name": run.agent_name}
            trace.span.set_attribute("gen_ai.agent.name", run.agent_name)
            trace.span.update_name(f"invoke_agent {run.agent_name}")
        if run.thread_id:
            trace.span.set_attribute("gen_ai.conversation.id", run.thread_id)
        return trace

    def _start(
        self,
        trace: _Trace,
        name: str,
        attributes: Attributes,
        *,
        kind: SpanKind | None = None,
        start_time: int | None = None,
    ) -> Span:
        from opentelemetry.trace import SpanKind, set_span_in_context

        assert trace.span is not None
        span: Span = self._tracer.start_span(
            name,
            context=set_span_in_context(trace.span, _nothing()),
            kind=kind or SpanKind.INTERNAL,
            attributes=attributes,
            start_time=self.clock() if start_time is None else start_time,
        )
        return span


def _nothing() -> Context:
    """An empty context: a span's parent is what we say, never what happens to be current in the supervisor's task."""
    from opentelemetry.context import Context

    return Context()


def _fail(span: Span, kind: str, text: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, text[:MAX_ERROR_CHARS])
    span.set_attribute("error.type", kind)


def _content(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text[:MAX_CONTENT_CHARS]


def _usage(usage: Usage) -> Attributes:
    """Token counts; by the conventions, input tokens include cached ones."""
    extra = usage.cache_creation_tokens + usage.cache_read_tokens
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens + extra,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_creation_tokens + usage.cache_write_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens + usage.cached_tokens,
    }


def _usage_of_state(state: AgentState) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": state.prompt_tokens_used + state.cache_creation_tokens + state.cache_read_tokens,
        "gen_ai.usage.output_tokens": state.completion_tokens_used,
    }
