"""Child agents that a program starts itself; a tool that is an agent (``as_tool``) also spends from its parent's budgets."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from ..protocol.errors import ConfigurationError
from .agent_definition import Agent
from .subagent_turn import MAX_ITERATIONS, OnEvent, SubagentResult, conclude


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
    child = Agent(model, name=name, **{"max_iterations": MAX_ITERATIONS, **settings})
    return await conclude(child, prompt, on_event=on_event, cancel_signal=cancel_signal)


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
        own = {"max_iterations": MAX_ITERATIONS, **settings, "checkpointer": f"memory://{self.task_id}"}
        self.agent = Agent(model, name=name, **own)

    async def run(
        self, prompt: str, *, on_event: OnEvent | None = None, cancel_signal: asyncio.Event | None = None
    ) -> SubagentResult:
        """The next turn; it waits for the one before. The arguments are those of :func:`run_subagent`."""
        turn = self.agent.with_settings()  # an object of its own: cancelling one turn is not cancelling the next
        return await conclude(turn, prompt, on_event=on_event, cancel_signal=cancel_signal, task_id=self.task_id)
