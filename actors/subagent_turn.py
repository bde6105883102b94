"""One turn of a child agent that a program starts itself, and what it came to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from ..protocol.events import Event, TerminateEvent
from ..protocol.messages import Usage
from ..protocol.results import SUCCESSFUL, normalise_stop_reason
from .runnable import Runnable

MAX_ITERATIONS = 10
OnEvent = Callable[[Event], Any]


@dataclass(frozen=True, kw_only=True)
class SubagentResult:
    """What a child came to.

    Attributes:
        text: its final text.
        stop_reason: why it ended, normalised; ``interrupted`` when its stream ended without saying so.
        iterations: model turns used.
        tool_calls: calls made.
        usage: tokens, None when nothing was metered.
        agent_name: the child's name.
        task_id: names the conversation of a :class:`Subagent`, else None.
    """

    text: str = ""
    stop_reason: str = "interrupted"
    iterations: int = 0
    tool_calls: int = 0
    usage: Usage | None = None
    agent_name: str
    task_id: str | None = None

    @property
    def success(self) -> bool:
        """Whether it ended well."""
        return self.stop_reason in SUCCESSFUL


async def conclude(
    agent: Runnable,
    prompt: str,
    *,
    on_event: OnEvent | None = None,
    cancel_signal: asyncio.Event | None = None,
    task_id: str | None = None,
) -> SubagentResult:
    """Run one turn of a child, event by event, and say what it came to."""
    result = SubagentResult(agent_name=agent.title, task_id=task_id)
    watch = asyncio.ensure_future(_cancel(agent, cancel_signal)) if cancel_signal is not None else None
    try:
        async with aclosing(agent.run(prompt, thread_id=task_id)) as events:
            async for event in events:
                if on_event is not None and isawaitable(told := on_event(event)):
                    await told
                if isinstance(event, TerminateEvent):
                    result = _of(event, result)
    finally:
        if watch is not None:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
    return result


async def _cancel(agent: Runnable, signal: asyncio.Event) -> None:
    await signal.wait()
    agent.cancel()


def _of(event: TerminateEvent, so_far: SubagentResult) -> SubagentResult:
    return SubagentResult(
        text=event.final_message or "",
        stop_reason=normalise_stop_reason(event.reason),
        iterations=event.iterations_used,
        tool_calls=event.total_tool_calls,
        usage=event.usage,
        agent_name=so_far.agent_name,
        task_id=so_far.task_id,
    )
