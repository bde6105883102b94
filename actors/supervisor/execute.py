"""Execute: the tool calls of one reply.

plan      in call order: announce, hooks, refuse or reuse what must not run
dispatch  side by side: the bodies
settle    each result: size limit, hooks (in call order; at once with ``tool_event_order="completion"``)
fold      in call order: execution records, events, and the messages that answer the calls
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ...protocol.commands import ExecuteCall, ToolReply
from ...protocol.errors import PeerLost, UmbelError
from ...protocol.messages import Message, ModelResponse, ToolResult
from ...protocol.state import ReasoningStep, ToolExecution
from ...protocol.turn import open_calls
from ..tools.executor import unknown_tool_text
from ..tools.limits import limited
from ..tools.verification import REMINDER, blocked, unverified_writes, wrote
from . import journal
from .children import Body
from .hooked import after_tool, before_tool
from .pause import asking, take_answers
from .reflect import reflect
from .run import Run, refuse
from .slot import Slot, announce, complete
from .subagent import call_agent

TASK_COMPLETE = "task_complete"
ATTEMPTS = 3  # executors tried for a call that is safe to repeat
CANCELLED = "cancelled before it finished; what it did until then is unknown"
NOT_STARTED = "cancelled before it was started: it did nothing"
CUT_OFF = "not run: your reply was cut off by the token limit, so its arguments may be incomplete. Send a shorter reply."


async def execute(run: Run, response: ModelResponse) -> str | None:
    """Run the calls of a reply. A stop reason when one asks a person, or when nothing but errors came back too often."""
    tools = run.agent.tools_by_name
    slots = [Slot(call, tools.get(call.name)) for call in response.tool_calls]
    return consequences(run, await batch(run, slots, response))


async def resume(run: Run) -> str | None:
    """Go on with the calls that have got their answers: ``interrupted`` while others still wait. Source: OURS-2."""
    tools = run.agent.tools_by_name
    answered = take_answers(run, run.request.answers or {}, perform=run.request.perform)
    slots = [Slot(waits[0].call, tools.get(waits[0].call.name), waits) for waits in answered]
    await batch(run, slots)
    return consequences(run, amend(run, slots))


async def batch(
    run: Run, slots: list[Slot], response: ModelResponse | None = None, *, stored: bool = False
) -> list[ToolExecution]:
    """Get the results of calls, and append them to the state: the records of those that are done.

    The ``response`` that made the calls, unless an earlier segment has it, becomes a reasoning step with them. The calls
    are ``stored`` if the thread knows them already.
    """
    try:
        if run.journal:
            await recalled(run, slots)
        await plan(run, slots, cut_off=response is not None and response.stop_reason == "length")
        await dispatch(run, [slot for slot in slots if slot.result is None and slot.twin is None], stored)
        if run.agent.hooks.after_tool and run.config.tool_event_order == "sequential":
            for slot in slots:
                await after_tool(run, slot, perform)
    finally:
        executions = fold(run, slots, response)  # also when the run is stopped: every call of the conversation has a result
    return executions


async def reopen(run: Run) -> str | None:
    """Finish the batch that a crash broke off, if there is one: what was done is not done again. Source: OURS-1, OURS-18."""
    calls = open_calls(run.state.messages)
    if not calls:
        return None
    tools = run.agent.tools_by_name
    slots = [Slot(call, tools.get(call.name)) for call in calls]
    steps = run.state.reasoning_steps
    if steps and steps[-1].iteration == run.state.iteration:  # some of its calls are recorded
        await batch(run, slots, stored=True)
        return consequences(run, amend(run, slots))
    asked = next(message for message in reversed(run.state.messages) if message.tool_calls)
    return consequences(run, await batch(run, slots, ModelResponse(message=asked), stored=True))


async def recalled(run: Run, slots: list[Slot]) -> None:
    """What the journal knows of the calls; hooks see those results, too."""
    journal.recall(run, slots)
    if run.config.tool_event_order == "completion":
        for slot in slots:
            await after_tool(run, slot, perform)


def consequences(run: Run, executions: list[ToolExecution]) -> str | None:
    """What follows from a batch: a pause, reminders, confidence, or the end of a spin."""
    if run.state.interrupts:
        return "interrupted"
    remind(run, executions)
    reflect(run, executions)
    failed = bool(executions) and all(done.error is not None for done in executions)
    run.bad_batches = run.bad_batches + 1 if failed else 0
    return "tool_errors" if run.bad_batches >= run.config.max_consecutive_tool_errors else None


# plan


async def plan(run: Run, slots: list[Slot], cut_off: bool) -> None:
    """Announce every call, and settle at once those whose body must not run."""
    equal: dict[str, Slot] = {}
    for slot in slots:
        call = slot.call
        if not slot.waits:
            announce(run, slot)  # a call that was answered may ask again: it is announced with what comes of it (EVT-30)
        if slot.result is not None:
            continue  # a crash broke the batch off, and it is known what came of this call
        if cut_off:
            slot.result = refuse(call, CUT_OFF, "cut_off")
        elif slot.waits and slot.waits[0].request.answers and slot.waits[0].answers:
            slot.result = answered(slot)
        elif slot.tool is None:
            slot.result = refuse(call, unknown_tool_text(call.name, tuple(run.agent.tools_by_name)), "unknown_tool")
        elif call.name == TASK_COMPLETE and may_not_end(run):
            slot.result = blocked(call, run.config.verification_tools)
        else:
            if run.agent.hooks.before_tool:
                emitted = await before_tool(run, slot)
                if emitted:
                    announce(run, slot)
                    run.publish(emitted)
            refused = slot.result is not None  # by a hook
            if not refused and slot.tool.idempotent and call.malformed_arguments is None:
                reuse(run, slot, equal)


def may_not_end(run: Run) -> bool:
    """In explicit mode what was written must be checked before the task counts as complete. Source: TOOL-32."""
    config = run.config
    if config.completion_mode != "explicit" or not config.require_verification:
        return False
    return unverified_writes(run.state.tool_executions, config.verify_tools, config.verification_tools)


def answered(slot: Slot) -> ToolResult:
    """The answer is the result: the call only asked."""
    answer = slot.waits[0].answers[-1]
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return ToolResult(tool_call_id=slot.call.id, name=slot.call.name, content=text)


def reuse(run: Run, slot: Slot, equal: dict[str, Slot]) -> None:
    """An idempotent call that already succeeded in its tool's scope, or stands in this batch, does not run again.

    Source: LOOP-76, OURS-18.
    """
    call, key = slot.call, key_of(slot.call.name, slot.call.arguments)
    known = run.state.tool_executions if slot.tool.scope == "turn" else run.state.thread_executions
    for done in reversed(known):
        same = done.tool_name == call.name and done.arguments == call.arguments
        if same and done.success and key_of(call.name, done.arguments) == key:
            slot.result = ToolResult(tool_call_id=call.id, name=call.name, content=done.result or "")
            slot.reused = True
            return
    slot.twin = equal.get(key)
    equal.setdefault(key, slot)


def key_of(name: str, arguments: Mapping[str, Any]) -> str:
    """What equal calls have in common; the order of arguments does not matter, 1 is not True."""
    return f"{name}:{json.dumps(arguments, sort_keys=True, default=str)}"


# run


async def dispatch(run: Run, slots: list[Slot], stored: bool) -> None:
    """Run the bodies: at most ``max_concurrency`` at once, or one by one when the agent says sequential."""
    if run.journal is not None and slots:
        await journal.intend(run, slots, stored=stored)
    if len(slots) > 1 and run.config.tool_execution == "concurrent":
        await side_by_side(run, slots)
        return
    for slot in slots:
        await settle(run, slot)
        if slot.asks and run.config.on_interrupt == "cancel":
            break


async def side_by_side(run: Run, slots: list[Slot]) -> None:
    """All at once. When one asks a person, the others finish, or with ``on_interrupt="cancel"`` are stopped."""
    limit = asyncio.Semaphore(run.config.max_concurrency)
    others: list[asyncio.Task[None]] = []

    async def limited_settle(slot: Slot) -> None:
        async with limit:
            await settle(run, slot)
        if slot.asks and run.config.on_interrupt == "cancel":
            for other in others:
                other.cancel()

    others += [asyncio.ensure_future(limited_settle(slot)) for slot in slots]
    try:
        for ended in await asyncio.gather(*others, return_exceptions=run.config.on_interrupt == "cancel"):
            if isinstance(ended, Exception):
                raise ended
    finally:
        for other in others:
            other.cancel()


async def settle(run: Run, slot: Slot) -> None:
    """Get one call's result. Whatever goes wrong is the result; only being stopped propagates."""
    if run.journal is not None:
        await journal.begin(run, slot)
    slot.began = True
    slot.result = await perform(run, slot)
    slot.ran = True
    if run.journal is not None:
        await journal.end(run, slot, slot.result)
    if run.config.tool_event_order == "completion":
        await after_tool(run, slot, perform)
        if not slot.asks:
            complete(run, slot)


async def perform(run: Run, slot: Slot) -> ToolResult:
    """The body's result, cut to the size that the model may see."""
    try:
        result = await (call_tool(run, slot) if slot.tool.agent is None else call_agent(run, slot))
    except UmbelError as error:
        result = refuse(slot.call, error.message, error.code)
    limit = run.config.max_tool_result_length
    if limit and max(len(result.content), len(result.error or "")) > limit:
        share, store = run.config.tool_result_head_fraction, run.config.tool_result_store
        result = await limited(result, limit=limit, head_fraction=share, store=store)
    return result


async def call_tool(run: Run, slot: Slot, definition: str | None = None) -> ToolResult:
    """Have an executor run the body. If the executor dies, a call is repeated only when that cannot repeat a side effect.

    Args:
        run: whose call it is.
        slot: the call.
        definition: key of the definition that has the tool; default is the run's.
    """
    definition = definition or run.request.definition
    message = ExecuteCall.trusted(
        run_id=run.id,
        definition=definition,
        call=slot.call if slot.secrets is None else slot.call.evolve(arguments={**slot.call.arguments, **slot.secrets}),
        iteration=run.state.iteration,
        thread_id=run.request.thread_id,
        agent_name=run.agent.label,
        metadata=run.tool_metadata,
        ephemeral=run.request.ephemeral,
        grace=run.config.cancel_grace_seconds,
        answers=slot.waits[0].answers if slot.waits else (),
        state=run.state_for(slot.tool),
    )
    for attempt in range(ATTEMPTS):
        channel = run.peers.tools(slot.tool, run.id)
        channel.define(definition, run.peers.blob)
        body = Body(run, slot, channel)
        try:
            reply: ToolReply = await channel.request(message, on_partial=body.heard)
        except PeerLost as lost:
            if attempt + 1 < ATTEMPTS and (slot.tool.idempotent or lost.delivered == "no"):
                message = message.evolve(apart=lost.delivered != "no")  # if it was this call, it shall not do so again
                continue
            why = f"outcome unknown: the process that ran {slot.call.name} died. Verify what happened before you repeat it."
            return refuse(slot.call, why, "outcome_unknown")
        finally:
            if body.children:
                await body.end()
        if reply.interrupt is not None:
            slot.asks = (asking(slot, reply.interrupt),)
        return reply.result
    raise AssertionError("unreachable")


# record


def fold(run: Run, slots: list[Slot], response: ModelResponse | None) -> list[ToolExecution]:
    """In call order: execution record, event, and the message that answers the call. Calls that ask are left open."""
    executions: list[ToolExecution] = []
    lasting: list[ToolExecution] = []
    answers: list[Message] = []
    now = datetime.now(UTC)
    for slot in slots:
        call, twin = slot.call, slot.twin
        if slot.asks:
            continue
        if twin is not None and twin.result is not None:
            slot.result = twin.result.evolve(tool_call_id=call.id, duration_ms=0.0)
            slot.reused = twin.result.error is None
        if slot.result is None:
            slot.result = refuse(call, CANCELLED if slot.began else NOT_STARTED, "cancelled")
        executions.append(execution_of(slot, slot.result, now))
        if slot.tool is not None and slot.tool.scope == "thread" and executions[-1].success and not slot.reused:
            lasting.append(executions[-1])
        answers.append(Message.tool(slot.result))
        complete(run, slot)
    step = None if response is None else step_of(run, response, slots, now)
    run.state = run.state.with_tool_results(executions, answers, step)
    if lasting:
        run.state = run.state.evolve(thread_executions=(*run.state.thread_executions, *lasting))
    waiting = [waits for slot in slots for waits in slot.asks]
    if waiting:
        run.state = run.state.evolve(turn=run.state.turn.evolve(interrupts=(*run.state.interrupts, *waiting)))
    return executions


def execution_of(slot: Slot, result: ToolResult, now: datetime) -> ToolExecution:
    """The record of a call that is done."""
    return ToolExecution.trusted(
        tool_name=slot.call.name,
        tool_call_id=slot.call.id,
        arguments=slot.call.arguments,
        result=result.content if result.error is None else None,
        error=result.error,
        code=result.code,
        duration_ms=result.duration_ms,
        timestamp=now,
        idempotent_cache_hit=slot.reused,
    )


def step_of(run: Run, response: ModelResponse, slots: list[Slot], now: datetime) -> ReasoningStep:
    """What this iteration thought and did, for loop detection and for the result."""
    return ReasoningStep.trusted(
        iteration=run.state.iteration,
        thought=response.content,
        tool_calls=response.tool_calls,
        tool_results=tuple([slot.result for slot in slots if slot.result is not None and not slot.asks]),
        timestamp=now,
    )


def amend(run: Run, slots: list[Slot]) -> list[ToolExecution]:
    """Add what came after a pause to the step that the pause broke off. Gives the records of the whole step."""
    if not run.state.reasoning_steps:
        return []
    *earlier, step = run.state.reasoning_steps
    late = [slot.result for slot in slots if slot.result is not None and not slot.asks]
    step = step.evolve(tool_results=(*step.tool_results, *late))
    run.state = run.state.evolve(reasoning_steps=(*earlier, step))
    ids = {call.id for call in step.tool_calls}
    return [done for done in run.state.tool_executions if done.tool_call_id in ids]


def remind(run: Run, executions: list[ToolExecution]) -> None:
    """Something was written: the model is asked to check it. Source: LOOP-94."""
    if wrote(executions, run.config.verify_tools):
        run.note(REMINDER)
