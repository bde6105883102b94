"""A graph's stream in the modes that a caller asks for, made of the run's events. Source: PAT-61, PAT-62."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

from ...protocol.errors import ConfigurationError
from ...protocol.events import Event, GraphStreamEvent, MemberEvent, ModelChunkEvent, StepStartEvent, ToolProgressEvent
from .bodies import emitted

Mode = Literal["values", "updates", "nodes", "messages", "custom", "events", "debug"]
MODES: tuple[Mode, ...] = get_args(Mode)


def check_modes(given: Mode | Iterable[Mode]) -> tuple[Mode, ...]:
    """The modes that were asked for.

    Raises:
        ConfigurationError: none, or one that is not known.
    """
    modes = (given,) if isinstance(given, str) else tuple(given)
    unknown = [str(mode) for mode in modes if mode not in MODES]
    if unknown or not modes:
        raise ConfigurationError(f"stream mode {', '.join(unknown) or '(none)'} is not known: use {', '.join(MODES)}")
    return modes


async def stream(events: AsyncGenerator[Event, None], modes: tuple[Mode, ...]) -> AsyncGenerator[tuple[Mode, Any], None]:
    """The pieces that the events of a run are in each mode, in the order of the events."""
    members: dict[str, str] = {}  # by step: whose it is
    try:
        async for event in events:
            if isinstance(event, StepStartEvent):
                members[event.step] = event.step_member
            for mode, data in pieces(event, members):
                if mode in modes:
                    yield mode, data
    finally:
        await events.aclose()


def pieces(event: Event, members: Mapping[str, str]) -> Iterator[tuple[Mode, Any]]:
    """What one event is in each mode; ``members`` are the nodes by step."""
    yield "events", event
    yield "debug", {"type": event.event_type, **event.model_dump(mode="json", exclude={"event_type"}, exclude_defaults=True)}
    node = members.get(event.step) if isinstance(event, MemberEvent) else None
    inner = event.innermost if isinstance(event, MemberEvent) else event
    if isinstance(inner, ModelChunkEvent) and inner.content:
        yield "messages", {"node": node, "text": inner.content}
    elif isinstance(inner, ToolProgressEvent):
        found, data = emitted(inner.message)
        if found:
            yield "custom", data
    elif isinstance(event, GraphStreamEvent):
        if event.mode == "values":
            yield "values", event.data
        elif event.mode == "updates":
            yield "updates", {event.node_id: event.data}
        elif event.mode == "nodes":
            yield "nodes", {"node": event.node_id, **event.data}
