"""``run_subagent``: an agent for one task, from inside a tool's body or from anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..protocol.config import DEFAULT_SYSTEM_PROMPT
from ..protocol.errors import ConfigurationError
from ..protocol.results import SubagentResult
from .agent_definition import Agent, outcome_of
from .runtime_port import current_runtime
from .tools.context import current_tool_context


async def run_subagent(
    prompt: str,
    *,
    model: Any,
    tools: Any = None,
    system_prompt: str | Callable[[dict[str, Any]], str] | None = DEFAULT_SYSTEM_PROMPT,
    name: str = "subagent",
    max_iterations: int = 10,
    hooks: Any = None,
    on_event: Callable[[Any], Any] | None = None,
    resumable: bool = False,
    task_id: str | None = None,
    **agent_options: Any,
) -> SubagentResult:
    """Give a task to a new agent, which sees nothing but ``prompt``. Source: API-52 to API-60.

    In a tool's body it is a child of the run that the call belongs to (see :meth:`ToolContext.run_subagent`); elsewhere it
    is a run of its own on the current runtime.

    Args:
        prompt: the task.
        model: the child's model; this and all that follows is as for ``Agent``, and nothing is inherited from the parent.
        tools: its tools.
        system_prompt: its system prompt.
        name: its name in events.
        max_iterations: its model calls.
        hooks: its hooks.
        on_event: sync or async, called with every event; what it raises stops the child and is raised. Outside of a
            tool it must be sync.
        resumable: keep the conversation until the parent's run ends; the result has the ``task_id`` to go on with.
        task_id: of an earlier result in this run: go on with that conversation, one turn at a time.

        **agent_options: any other settings of ``Agent``.

    Raises:
        UmbelError: what ended the child.
        ConfigurationError: (a ValueError) wrong settings, or a resumable agent with a checkpointer, or outside of a tool.
    """
    settings = {**agent_options, "name": name, "max_iterations": max_iterations}
    if hooks is not None:
        settings["hooks"] = hooks
    agent = Agent(model, tools, system_prompt, **settings)
    context = current_tool_context()
    if context is not None and context.port is not None:
        return await context.run_subagent(agent, prompt, on_event=on_event, resumable=resumable, task_id=task_id)
    if resumable or task_id is not None:
        raise ConfigurationError("a subagent that can be resumed lives in its parent's run: start it in a tool's body")
    return await outcome_of(agent.with_settings(callback_handler=on_event) if on_event is not None else agent, prompt)


def run_subagent_sync(prompt: str, **options: Any) -> SubagentResult:
    """:func:`run_subagent` for sync code, in a tool's body or elsewhere."""
    runtime = current_runtime()
    return runtime.run_sync(run_subagent(prompt, **options))


__all__ = ["run_subagent", "run_subagent_sync"]
