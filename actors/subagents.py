"""Child agents that a program starts itself; a tool that is an agent (``as_tool``) also spends from its parent's budgets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from ..protocol.errors import ConfigurationError
from ..protocol.events import Event, TerminateEvent
from ..protocol.messages import Usage
from ..protocol.results import SUCCESSFUL, normalise_stop_reason
from .agent_definition import Agent

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


async def run_subagent(
    prompt: str,
    *,
    model: Any,
    name: str = "subagent",
    on_event: OnEvent | None = None,
    cancel_signal: asyncio.Event | None = None,
    **settings: Any,
) -> SubagentResult:
    """Run a child with a conversation of its own: it gets nothing but the prompt.

    Args:
        prompt: the task.
        model: the child's model.
        name: the child's name, in its events and its result.
        on_event: gets every event of the child; may be async. What it raises ends the child and reaches the caller.
        cancel_signal: stops the child once it is set.
        **settings: of the child (see :class:`Agent`). By default it has no tools, and at most 10 iterations.

    Raises:
        UmbelError: what ended the child.

    Source: API-52 to API-54, API-59.
    """
    child = new_child(model, name, settings)
    return await conclude(child, prompt, on_event=on_event, cancel_signal=cancel_signal)


def new_child(model: Any, name: str, settings: dict[str, Any]) -> Agent:
    """An agent with a child's defaults."""
    return Agent(model, name=name, **{"max_iterations": MAX_ITERATIONS, **settings})


class Subagent:
    """A child whose conversation goes on from prompt to prompt, one turn at a time; it lives as long as the runtime.

    Args:
        model: the child's model.
        name: its name.
        **settings: of the child, without a checkpointer: it has its own, in memory.

    Raises:
        ConfigurationError: (a ValueError) a checkpointer was given.

    Source: API-60.
    """

    def __init__(self, *, model: Any, name: str = "subagent", **settings: Any) -> None:
        if settings.get("checkpointer") is not None:
            raise ConfigurationError("a subagent keeps its conversation itself: leave out checkpointer")
        self.task_id = f"task_{os.urandom(6).hex()}"
        self.agent = new_child(model, name, {**settings, "checkpointer": f"memory://{self.task_id}"})

    async def run(
        self, prompt: str, *, on_event: OnEvent | None = None, cancel_signal: asyncio.Event | None = None
    ) -> SubagentResult:
        """The next turn; it waits for the one before. The arguments are those of :func:`run_subagent`."""
        turn = self.agent.with_settings()  # an object of its own: cancelling one turn is not cancelling the next
        return await conclude(turn, prompt, on_event=on_event, cancel_signal=cancel_signal, task_id=self.task_id)


async def conclude(
    agent: Agent,
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


async def _cancel(agent: Agent, signal: asyncio.Event) -> None:
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
