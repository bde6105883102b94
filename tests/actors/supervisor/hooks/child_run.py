"""A program that makes one traced run from a pickled hook and metadata on stdin, and prints its spans as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from umbel.actors.supervisor.hooks import Hooks, TelemetryHook, before_invocation_all, call
from umbel.actors.supervisor.hooks.dispatch import after_invocation_all
from umbel.actors.supervisor.hooks.events import AfterToolCall, BeforeToolCall
from umbel.events import RunInfo
from umbel.protocol.state import AgentState

EXPORTER = InMemorySpanExporter()


def provider() -> TracerProvider:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(EXPORTER))
    return made


async def run(run_id: str, metadata: dict[str, Any]) -> None:
    hooks = Hooks([TelemetryHook(tracer_provider=provider)])
    state = await before_invocation_all(hooks.before_invocation, "go", AgentState(run_id=run_id, metadata=metadata))
    about = RunInfo(run_id=run_id, metadata=state.metadata, agent_name="child")
    await call(hooks.before_tool, BeforeToolCall(tool_name="look", tool_call_id="c1", run=about))
    await call(hooks.after_tool, AfterToolCall(tool_name="look", tool_call_id="c1", result="seen", run=about))
    await after_invocation_all(hooks.after_invocation, state, True)


def main() -> None:
    given = json.loads(sys.stdin.read())
    asyncio.run(run(given["run_id"], given["metadata"]))
    print(json.dumps([json.loads(span.to_json()) for span in EXPORTER.get_finished_spans()]))  # noqa: T201 - its output


if __name__ == "__main__":
    main()
