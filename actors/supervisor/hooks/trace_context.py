"""How a trace travels from run to run: as W3C trace context, in the run's metadata.

A run's metadata reaches its tools (``ToolContext.metadata``) and its children, whatever process they are in. A caller may
start a run inside a trace of its own: ``agent.run(prompt, metadata={"traceparent": ...})``. :class:`TelemetryHook` puts the
run's own span there in its place.

Metadata is also kept with the thread, so the next turn finds the last turn's entry. ``umbel_trace`` says whose entry it is:
one of another turn is no parent, only a link.

Source: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.context import Context

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
OWNER = "umbel_trace"
TRACE_KEYS = (TRACEPARENT, TRACESTATE, OWNER)


@dataclass(frozen=True)
class Origin:
    """Where a run comes from: a span that is its parent, or one of an earlier turn of its thread."""

    parent: Context | None = None
    earlier: Context | None = None


def child_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's metadata must hand on to a child run, so that both are in one trace."""
    return {key: metadata[key] for key in TRACE_KEYS if key in metadata}


def trace_context(metadata: Mapping[str, Any]) -> Context:
    """The run's span as an OpenTelemetry context, for spans that a tool starts itself.

    In a tool: ``tracer.start_as_current_span("query", context=trace_context(ctx.metadata))``.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {key: value for key in (TRACEPARENT, TRACESTATE) if isinstance(value := metadata.get(key), str)}
    return TraceContextTextMapPropagator().extract(carrier)


def origin_of(run_id: str, metadata: Mapping[str, Any]) -> Origin:
    """Read where a run comes from.

    An entry is a parent if the caller gave it, or if a hook put it there for this very run (which was resumed) or for the
    run that started this one (whose id is the beginning of this one's).
    """
    if not isinstance(metadata.get(TRACEPARENT), str):
        return Origin()
    context = trace_context(metadata)
    owner = metadata.get(OWNER)
    if not isinstance(owner, Mapping) or owner.get(TRACEPARENT) != metadata[TRACEPARENT]:
        return Origin(parent=context)
    theirs = str(owner.get("run_id"))
    return Origin(parent=context) if f"{run_id}.".startswith(f"{theirs}.") else Origin(earlier=context)


def entry_for(run_id: str, context: Context) -> dict[str, Any]:
    """Metadata entries that make the span in ``context`` the parent of whatever the run starts; none if it has no id."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, Any] = {}
    TraceContextTextMapPropagator().inject(carrier, context)
    return {**carrier, OWNER: {"run_id": run_id, TRACEPARENT: carrier[TRACEPARENT]}} if carrier else {}
