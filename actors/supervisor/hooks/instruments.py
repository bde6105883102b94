"""The metrics of :class:`TelemetryHook`. Durations are in seconds.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/ for the names that begin with ``gen_ai``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from ....protocol.messages import Usage

Labels = dict[str, Any]
CHAT = {"gen_ai.operation.name": "chat"}


class Instruments:
    """Counters and histograms of one process.

    Args:
        meter: where they are registered.
    """

    def __init__(self, meter: Meter) -> None:
        self.invocations = meter.create_counter("umbel.invocations", "{run}", "runs that ended")
        self.iterations = meter.create_counter("umbel.iterations", "{iteration}", "iterations started")
        self.tool_calls = meter.create_counter("umbel.tool.calls", "{call}", "tool calls that ended")
        self.tool_errors = meter.create_counter("umbel.tool.errors", "{call}", "tool calls that failed")
        self.run_seconds = meter.create_histogram("umbel.invocation.duration", "s", "duration of runs")
        self.tool_seconds = meter.create_histogram("umbel.tool.duration", "s", "duration of tool calls")
        self.chat_seconds = meter.create_histogram("gen_ai.client.operation.duration", "s", "duration of model calls")
        self.tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "tokens of model calls")

    def invocation(self, labels: Labels, seconds: float, success: bool) -> None:
        """A run ended."""
        self.invocations.add(1, labels | {"umbel.success": success})
        self.run_seconds.record(seconds, labels)

    def tool(self, labels: Labels, seconds: float, *, failed: bool) -> None:
        """A tool call ended."""
        self.tool_calls.add(1, labels)
        self.tool_seconds.record(seconds, labels)
        if failed:
            self.tool_errors.add(1, labels)

    def chat(self, labels: Labels, seconds: float, usage: Usage | None) -> None:
        """A model call ended."""
        self.chat_seconds.record(seconds, labels | CHAT)
        if usage is not None:
            extra = usage.cache_creation_tokens + usage.cache_read_tokens
            self.tokens.record(usage.prompt_tokens + extra, labels | CHAT | {"gen_ai.token.type": "input"})
            self.tokens.record(usage.completion_tokens, labels | CHAT | {"gen_ai.token.type": "output"})
