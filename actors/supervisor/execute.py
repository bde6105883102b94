"""Execute: the tool calls of one reply. Plan them in order, run them side by side, record them in order."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from ...protocol.commands import ExecuteCall, RunFinished, StartRun, ToolProgress, ToolReply
from ...protocol.errors import PeerLost, UmbelError
from ...protocol.events import ToolCompleteEvent, ToolProgressEvent, ToolStartEvent
from ...protocol.messages import Message, ModelResponse, ToolCall, ToolResult
from ...protocol.state import ReasoningStep, ToolExecution
from ..tools.executor import unknown_tool_text
from .run import Run

ATTEMPTS = 3  # executors tried for a call that is safe to repeat
MAX_DEPTH = 10  # agents calling agents
CUT_OFF = "not run: your reply was cut off by the token limit, so its arguments may be incomplete. Send a shorter reply."


class Slot:
    """One call of the batch on its way to a result.

    Attributes:
        result: None until it is known.
        reused: an earlier equal call's result was taken; the body did not run.
        twin: an equal idempotent call earlier in the batch, whose result this one shares.
    """

    __slots__ = ("call", "result", "reused", "tool", "twin")

    def __init__(self, call: ToolCall, tool: Any) -> None:
        self.call = call
        self.tool = tool
        self.result: ToolResult | None = None
        self.reused = False
        self.twin: Slot | None = None


async def execute(run: Run, response: ModelResponse) -> str | None:
    """Run the calls of a reply and append their results. Returns a stop reason when nothing but errors came back too often."""
    slots = plan(run, response)
    try:
        await dispatch(run, [slot for slot in slots if slot.result is None and slot.twin is None])
    finally:
        fold(run, slots)  # also when the run is stopped: every call of the conversation has a result
    record(run, response, slots)
    failed = all(slot.result is not None and slot.result.error is not None for slot in slots)
    run.bad_batches = run.bad_batches + 1 if failed else 0
    return "tool_errors" if run.bad_batches >= run.config.max_consecutive_tool_errors else None


# plan


def plan(run: Run, response: ModelResponse) -> list[Slot]:
    """Announce every call, and settle at once those whose body must not run."""
    slots: list[Slot] = []
    equal: dict[str, Slot] = {}
    cut_off = response.stop_reason == "length"
    for call in response.tool_calls:
        run.emit(ToolStartEvent, tool_name=call.name, tool_call_id=call.id, arguments=call.arguments)
        slot = Slot(call, run.agent.tools_by_name.get(call.name))
        slots.append(slot)
        if cut_off:
            slot.result = refuse(call, CUT_OFF, "cut_off")
        elif slot.tool is None:
            slot.result = refuse(call, unknown_tool_text(call.name, tuple(run.agent.tools_by_name)), "unknown_tool")
        elif slot.tool.idempotent and call.malformed_arguments is None:
            reuse(run, slot, equal)
    return slots


def reuse(run: Run, slot: Slot, equal: dict[str, Slot]) -> None:
    """An idempotent call that already succeeded in this turn, or stands in this batch, does not run again."""
    call = slot.call
    for done in reversed(run.state.tool_executions):
        if done.tool_name == call.name and done.success and done.arguments == call.arguments:
            slot.result = ToolResult(tool_call_id=call.id, name=call.name, content=done.result or "")
            slot.reused = True
            return
    key = f"{call.name}:{json.dumps(call.arguments, sort_keys=True, default=str)}"
    slot.twin = equal.get(key)
    equal.setdefault(key, slot)


def refuse(call: ToolCall, why: str, code: str) -> ToolResult:
    """The result of a call that is not run."""
    return ToolResult(tool_call_id=call.id, name=call.name, error=why, code=code)


# run


async def dispatch(run: Run, slots: list[Slot]) -> None:
    """Run the bodies: at most ``max_concurrency`` at once, or one by one when the agent says sequential."""
    if len(slots) > 1 and run.config.tool_execution == "concurrent":
        limit = asyncio.Semaphore(run.config.max_concurrency)

        async def limited(slot: Slot) -> None:
            async with limit:
                await settle(run, slot)

        await asyncio.gather(*(limited(slot) for slot in slots))
        return
    for slot in slots:
        await settle(run, slot)


async def settle(run: Run, slot: Slot) -> None:
    """Get one call's result. Whatever goes wrong is the result; only being stopped propagates."""
    try:
        slot.result = await (call_tool(run, slot) if slot.tool.agent is None else call_agent(run, slot))
    except UmbelError as error:
        slot.result = refuse(slot.call, error.message, error.code)
    if run.config.tool_event_order == "completion":
        complete(run, slot)


async def call_tool(run: Run, slot: Slot) -> ToolResult:
    """Have an executor run the body. If the executor dies, a call is repeated only when that cannot repeat a side effect."""
    message = ExecuteCall.trusted(
        run_id=run.id,
        definition=run.request.definition,
        call=slot.call,
        iteration=run.state.iteration,
        thread_id=run.request.thread_id,
        agent_name=run.agent.label,
        metadata=run.tool_metadata,
        ephemeral=run.request.ephemeral,
        grace=run.config.cancel_grace_seconds,
        state=run.state_for(slot.tool),
    )
    heard = (lambda part: progress(run, slot, part)) if run.watched and slot.tool.emits_progress else None
    for attempt in range(ATTEMPTS):
        channel = run.peers.tools(slot.tool, run.id)
        channel.define(run.request.definition, run.peers.blob)
        try:
            reply: ToolReply = await channel.request(message, on_partial=heard)
        except PeerLost as lost:
            if attempt + 1 < ATTEMPTS and (slot.tool.idempotent or lost.delivered == "no"):
                message = message.evolve(apart=lost.delivered != "no")  # if it was this call, it shall not do so again
                continue
            why = f"outcome unknown: the process that ran {slot.call.name} died. Verify what happened before you repeat it."
            return refuse(slot.call, why, "outcome_unknown")
        return reply.result
    raise AssertionError("unreachable")


async def call_agent(run: Run, slot: Slot) -> ToolResult:
    """A tool that is an agent: a child run on a shard of its own choice."""
    call, agent = slot.call, slot.tool.agent
    prompt = call.arguments.get("prompt")
    if call.malformed_arguments is not None or not isinstance(prompt, str):
        return refuse(call, f"{call.name} needs one argument: prompt (text)", "invalid_arguments")
    if run.request.depth >= MAX_DEPTH:
        return refuse(call, f"{call.name} was not called: agents are already {MAX_DEPTH} deep", "depth")
    request = StartRun.trusted(
        run_id=f"{run.id}.{call.id}",
        definition=run.peers.register(agent),
        prompt=prompt,
        metadata=run.request.metadata,
        ephemeral=run.request.ephemeral,
        full=False,
        parent_run_id=run.id,
        depth=run.request.depth + 1,
    )
    channel = run.peers.supervisor(request.run_id)
    channel.define(request.definition, run.peers.blob)
    task = asyncio.ensure_future(channel.request(request))  # its own task: a stop of the child is not a stop of this run
    try:
        finished: RunFinished = await task
    finally:
        task.cancel()
    outcome = finished.outcome
    run.add_child(outcome.metrics)
    if outcome.error is not None:
        return refuse(call, f"{call.name} failed: {outcome.error['message']}", str(outcome.error["code"]))
    if not outcome.success:
        return refuse(call, f"{call.name} stopped: {outcome.stop_reason}. {outcome.message}".rstrip(), outcome.stop_reason)
    took = outcome.metrics.duration_ms
    return ToolResult.trusted(tool_call_id=call.id, name=call.name, content=outcome.message, duration_ms=took)


def progress(run: Run, slot: Slot, part: Any) -> None:
    """A tool says how far it is."""
    if isinstance(part, ToolProgress):
        run.emit(
            ToolProgressEvent,
            tool_name=slot.call.name,
            tool_call_id=slot.call.id,
            progress=part.progress,
            total=part.total,
            message=part.message,
        )


# record


def fold(run: Run, slots: list[Slot]) -> None:
    """In call order: execution record, event, and the message that answers the call."""
    early = run.config.tool_event_order == "completion"
    executions: list[ToolExecution] = []
    for slot in slots:
        told = early and slot.result is not None and slot.twin is None and slot.tool is not None and not slot.reused
        call, twin = slot.call, slot.twin
        if twin is not None and twin.result is not None:
            slot.result = twin.result.evolve(tool_call_id=call.id, duration_ms=0.0)
            slot.reused = twin.result.error is None
        if slot.result is None:
            slot.result = refuse(call, "cancelled before it finished; what it did until then is unknown", "cancelled")
        result = slot.result
        execution = ToolExecution.trusted(
            tool_name=call.name,
            tool_call_id=call.id,
            arguments=call.arguments,
            result=result.content if result.error is None else None,
            error=result.error,
            code=result.code,
            duration_ms=result.duration_ms,
            timestamp=datetime.now(UTC),
            idempotent_cache_hit=slot.reused,
        )
        executions.append(execution)
        if not told:
            complete(run, slot)
    answers = [Message.tool(slot.result) for slot in slots if slot.result is not None]
    run.state = run.state.with_tool_results(executions, answers)


def record(run: Run, response: ModelResponse, slots: list[Slot]) -> None:
    """Keep what this iteration thought and did, for loop detection and for the result."""
    step = ReasoningStep.trusted(
        iteration=run.state.iteration,
        thought=response.content,
        tool_calls=response.tool_calls,
        tool_results=tuple(slot.result for slot in slots if slot.result is not None),
        timestamp=datetime.now(UTC),
    )
    run.state = run.state.with_reasoning_step(step)


def complete(run: Run, slot: Slot) -> None:
    """Tell the subscriber a call's result."""
    result = slot.result
    if result is not None:
        run.emit(
            ToolCompleteEvent,
            tool_name=slot.call.name,
            tool_call_id=slot.call.id,
            result=result.content if result.error is None else None,
            error=result.error,
            duration_ms=result.duration_ms,
            structured_content=result.structured_content,
            content_blocks=result.content_blocks,
        )
