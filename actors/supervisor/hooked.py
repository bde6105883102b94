"""Model and tool calls by way of the agent's hooks. Agents without hooks never come here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ...protocol.events import CustomEvent
from ...protocol.messages import Message, ModelResponse, ToolResult
from ..agent.conversation.manager import manage
from .hooks.dispatch import MAX_MODEL_ATTEMPTS, call, replacement, with_feedback
from .hooks.events import AfterModelCall, AfterToolCall, BeforeModelCall, BeforeToolCall
from .run import Run
from .slot import Slot

BLOCKED = "blocked"  # code of a call that a hook kept from running

Ask = Callable[..., Awaitable[ModelResponse]]


def about(run: Run) -> dict[str, Any]:
    """What every event tells of its run: whose it is, its ephemeral metadata, and how model calls of a hook count."""
    return {"run": run.info, "count": run.count, "ephemeral": run.request.ephemeral}


async def call_with_hooks(run: Run, ask: Ask, messages: list[Message] | None = None, **options: Any) -> ModelResponse:
    """A model call that hooks may change before, and repeat or replace after. The state is none of their business."""
    hooks, agent = run.agent.hooks, run.agent
    offered = agent.schemas(run.activated_tools()) if options.get("use_tools", True) else []
    request = await manage(agent.manager, run.state.messages) if messages is None else messages
    before = BeforeModelCall(**about(run), messages=request, tools=offered)
    await call(hooks.before_model, before)
    run.publish(before.drain())
    request = list(before.messages)
    for _ in range(MAX_MODEL_ATTEMPTS):
        response = await ask(run, request, **options)
        after = AfterModelCall(**about(run), response=response, messages=request)
        await call(hooks.after_model, after)
        run.publish(after.drain())
        if not after.retry:
            return after.response
        run.drop_held()
        request = with_feedback(before.messages, after.retry_feedback)
    return response


async def before_tool(run: Run, slot: Slot) -> list[CustomEvent]:
    """Hooks may change a call's arguments, add secret ones, or keep it from running. Gives what they emit."""
    call_ = slot.call
    event = BeforeToolCall(**about(run), tool_name=call_.name, tool_call_id=call_.id, arguments=call_.arguments)
    await call(run.agent.hooks.before_tool, event)
    slot.secrets = event.secret_arguments or None
    if event.arguments != call_.arguments:
        slot.call = call_.evolve(arguments=dict(event.arguments))
    if event.cancel_reason is not None:
        slot.result = ToolResult(tool_call_id=call_.id, name=call_.name, content=event.cancel_reason, code=BLOCKED)
    return event.drain()


async def after_tool(run: Run, slot: Slot, perform: Callable[[Run, Any], Awaitable[ToolResult]]) -> None:
    """Hooks may replace what a body returned, or have it run once more."""
    hooks, result = run.agent.hooks, slot.result
    if not hooks.after_tool or not slot.ran or slot.asks or result is None:
        return
    event = AfterToolCall(
        **about(run),
        duration_ms=result.duration_ms,
        tool_name=slot.call.name,
        tool_call_id=slot.call.id,
        arguments=slot.call.arguments,
        result=result.content if result.error is None else None,
        error=result.error,
    )
    await call(hooks.after_tool, event)
    if event.retry:
        slot.result = await perform(run, slot)
    elif (text := replacement(event, result.content if result.error is None else None)) is not None:
        slot.result = result.evolve(content=text)
    slot.emitted += event.drain()  # they follow the event of the result (EVT-29)
