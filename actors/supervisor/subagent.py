"""Child runs: a tool that is an agent, and how any child is run, on a shard of its own choice, from its parent's budgets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from ...protocol.commands import RunFinished, StartRun
from ...protocol.events import Event, SubagentEvent
from ...protocol.messages import InterruptRequest, ToolResult
from ...protocol.results import Metrics, RunOutcome
from ...protocol.state import AgentState
from .hooks import child_metadata
from .pause import asking
from .purse import Lease, purse_of
from .run import Run, cost, refuse
from .slot import Slot, announce

MAX_DEPTH = 10  # agents calling agents
SPENT = "was not called: nothing is left of the {} budget"


async def call_agent(run: Run, slot: Slot) -> ToolResult:
    """Have the agent answer the call. A child that asks a person leaves the call open (``slot.asks``)."""
    call, agent = slot.call, slot.tool.agent
    prompt = call.arguments.get("prompt")
    if call.malformed_arguments is not None or not isinstance(prompt, str):
        return refuse(call, f"{call.name} needs one argument: prompt (text)", "invalid_arguments")
    if run.request.depth >= MAX_DEPTH:
        return refuse(call, f"{call.name} was not called: agents are already {MAX_DEPTH} deep", "depth")
    lease = await purse_of(run).lease()
    try:
        if lease.spent:
            return refuse(call, f"{call.name} {SPENT.format(lease.spent)}", f"{lease.spent}_budget")
        request = StartRun.trusted(
            run_id=f"{run.id}.{call.id}",
            definition=run.peers.register(agent),
            prompt=prompt,
            full=False,
            **resumed(slot),
        )
        announce(run, slot)
        return concluded(run, slot, await child_outcome(run, slot, subordinate(run, request, lease)))
    finally:
        purse_of(run).give_back(lease)


def subordinate(run: Run, request: StartRun, lease: Lease) -> StartRun:
    """The request as that of a child: its parent's metadata, limits and depth, and events where anyone wants them.

    Members of a pattern are not deeper than the pattern: definitions nest as they are written, only calls can recurse.
    """
    limits = [seconds for seconds in (lease.seconds, request.timeout) if seconds is not None]
    return request.evolve(
        metadata={**run.request.metadata, **child_metadata(run.state.metadata), **request.metadata},
        ephemeral={**run.request.ephemeral, **request.ephemeral},
        events=run.watched or request.events,
        timeout=min(limits, default=None),
        parent_run_id=run.id,
        depth=run.request.depth + (request.member is None),
        lease_tokens=lease.tokens,
        lease_cost_usd=lease.cost_usd,
        share=run.request.share,
    )


def resumed(slot: Slot) -> dict[str, Any]:
    """The child goes on where it paused, with the answers to what it asked."""
    children = [(waits.child, waits.answers) for waits in slot.waits if waits.child is not None]
    if not children:
        return {}
    given = {child["interrupt_id"]: answers[-1] for child, answers in children if answers}
    return {"mode": "resume", "answers": given, "state": json.dumps(children[0][0]["state"]).encode()}


def child_channel(run: Run, request: StartRun) -> Any:
    """To the shard that the child runs on; a thread always goes to the same one."""
    return run.peers.supervisor(request.thread_id or request.run_id)


async def child_outcome(
    run: Run,
    slot: Slot,
    request: StartRun,
    *,
    task_id: str | None = None,
    told: Callable[[Event], None] | None = None,
) -> RunOutcome:
    """Run the child to its end or its pause, passing its events on."""

    def heard(event: Any) -> None:
        if isinstance(event, Event):
            announce(run, slot)
            call = slot.call
            run.emit(SubagentEvent, tool_call_id=call.id, tool_name=call.name, task_id=task_id, event=event)
            if told is not None:
                told(event)

    channel = child_channel(run, request)
    channel.define(request.definition, run.peers.blob)
    asked = channel.request(request, on_partial=heard if request.events else None)
    task = asyncio.ensure_future(asked)  # its own task: a stop of the child is not a stop of this run
    try:
        finished: RunFinished = await task
    finally:
        task.cancel()
    return finished.outcome


def concluded(run: Run, slot: Slot, outcome: RunOutcome) -> ToolResult:
    """The call's result: the child's answer, or why there is none."""
    call = slot.call
    run.add_child(since(spent_by(slot), outcome.metrics))
    if outcome.error is not None:
        return refuse(call, f"{call.name} failed: {outcome.error['message']}", str(outcome.error["code"]))
    if outcome.stop_reason == "interrupted":
        slot.asks = tuple(_asked(slot, question, state_of(outcome)) for question in outcome.interrupts)
        return refuse(call, f"{call.name} waits for an answer", "interrupted")
    if not outcome.success:
        return refuse(call, f"{call.name} stopped: {outcome.stop_reason}. {outcome.message}".rstrip(), outcome.stop_reason)
    took = outcome.metrics.duration_ms
    return ToolResult.trusted(tool_call_id=call.id, name=call.name, content=outcome.message, duration_ms=took)


def since(counted: Metrics | None, metrics: Metrics) -> Metrics:
    """What a child has used that is not counted yet: its counters go on from one segment to the next."""
    if counted is None:
        return metrics
    names = ("prompt_tokens", "completion_tokens", "model_calls")
    more = {name: max(getattr(metrics, name) - getattr(counted, name), 0) for name in names}
    cost = None if metrics.cost_usd is None else max(metrics.cost_usd - (counted.cost_usd or 0.0), 0.0)
    return metrics.evolve(**more, cost_usd=cost)


def spent_by(slot: Slot) -> Metrics | None:
    """What the parent has counted of a child that paused and goes on; None for a new one."""
    child = next((waits.child for waits in slot.waits if waits.child is not None), None)
    if child is None:
        return None
    state = AgentState.model_validate(child["state"])
    return Metrics(
        prompt_tokens=state.prompt_tokens_used,
        completion_tokens=state.completion_tokens_used,
        model_calls=state.turn.model_calls,
        cost_usd=cost(state),
    )


def state_of(outcome: RunOutcome) -> dict[str, Any]:
    """The child's final state as plain values."""
    if outcome.state is not None:
        return outcome.state.model_dump(mode="json")
    state: dict[str, Any] = json.loads(outcome.state_json or b"{}")
    return state


def _asked(slot: Slot, question: dict[str, Any], state: dict[str, Any]) -> Any:
    request = InterruptRequest.model_validate({name: question.get(name) for name in InterruptRequest.model_fields})
    return asking(slot, request, {"interrupt_id": question["interrupt_id"], "state": state})
