"""A tool that is an agent: a child run on a shard of its own choice. It spends from its parent's budgets, and may pause."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ...protocol.commands import RunFinished, StartRun
from ...protocol.events import Event, SubagentEvent
from ...protocol.messages import InterruptRequest, ToolResult
from ...protocol.results import RunOutcome
from .hooks import child_metadata
from .pause import asking
from .run import Run, refuse
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
    lease = leases(run, slot.share)
    spent = [name for name, left in lease.items() if left is not None and left <= 0]
    if spent:
        return refuse(call, f"{call.name} {SPENT.format(spent[0])}", f"{spent[0]}_budget")
    request = StartRun.trusted(
        run_id=f"{run.id}.{call.id}",
        definition=run.peers.register(agent),
        prompt=prompt,
        metadata={**run.request.metadata, **child_metadata(run.state.metadata)},
        ephemeral=run.request.ephemeral,
        events=run.watched,
        full=False,
        timeout=lease["time"],
        parent_run_id=run.id,
        depth=run.request.depth + 1,
        lease_tokens=lease["token"],
        lease_cost_usd=lease["cost"],
        **resumed(slot),
    )
    return concluded(run, slot, await child_outcome(run, slot, request))


def leases(run: Run, share: int) -> dict[str, Any]:
    """What is left of each budget, divided by the children of the batch; None where there is no limit. Source: OURS-13."""
    state = run.state
    return {
        "token": (state.token_budget - state.total_tokens_used) // share if state.token_budget else None,
        "cost": (state.cost_budget_usd - state.cost_usd_used) / share if state.cost_budget_usd is not None else None,
        "time": run.time_limit - run.elapsed() if run.time_limit is not None else None,
    }


def resumed(slot: Slot) -> dict[str, Any]:
    """The child goes on where it paused, with the answers to what it asked."""
    children = [(waits.child, waits.answers) for waits in slot.waits if waits.child is not None]
    if not children:
        return {}
    given = {child["interrupt_id"]: answers[-1] for child, answers in children if answers}
    return {"mode": "resume", "answers": given, "state": json.dumps(children[0][0]["state"]).encode()}


async def child_outcome(run: Run, slot: Slot, request: StartRun) -> RunOutcome:
    """Run the child to its end or its pause, passing its events on."""

    def heard(event: Any) -> None:
        if isinstance(event, Event):
            announce(run, slot)
            run.emit(SubagentEvent, tool_call_id=slot.call.id, tool_name=slot.call.name, event=event)

    channel = run.peers.supervisor(request.run_id)
    channel.define(request.definition, run.peers.blob)
    asked = channel.request(request, on_partial=heard if run.watched else None)
    task = asyncio.ensure_future(asked)  # its own task: a stop of the child is not a stop of this run
    try:
        finished: RunFinished = await task
    finally:
        task.cancel()
    return finished.outcome


def concluded(run: Run, slot: Slot, outcome: RunOutcome) -> ToolResult:
    """The call's result: the child's answer, or why there is none."""
    call = slot.call
    run.add_child(outcome.metrics)
    if outcome.error is not None:
        return refuse(call, f"{call.name} failed: {outcome.error['message']}", str(outcome.error["code"]))
    if outcome.stop_reason == "interrupted":
        state = json.loads(outcome.state_json or b"{}") if outcome.state is None else outcome.state.model_dump(mode="json")
        slot.asks = tuple(_asked(slot, question, state) for question in outcome.interrupts)
        return refuse(call, f"{call.name} waits for an answer", "interrupted")
    if not outcome.success:
        return refuse(call, f"{call.name} stopped: {outcome.stop_reason}. {outcome.message}".rstrip(), outcome.stop_reason)
    took = outcome.metrics.duration_ms
    return ToolResult.trusted(tool_call_id=call.id, name=call.name, content=outcome.message, duration_ms=took)


def _asked(slot: Slot, question: dict[str, Any], state: dict[str, Any]) -> Any:
    request = InterruptRequest.model_validate({name: question.get(name) for name in InterruptRequest.model_fields})
    return asking(slot, request, {"interrupt_id": question["interrupt_id"], "state": state})
