"""A step of a pattern that is a run of its own: an agent or another pattern, on whichever shard serves it. Source: OURS-24.

In a durable run a member has a thread beside the pattern's (``THREAD#TURN.STEP``), so that it goes on where it was when its
supervisor, or the pattern's, dies. Its run id follows from the step, too: whoever plays the pattern again asks for the same
run, and gets its end if it has ended meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable
from typing import Any, NoReturn, Protocol

from ...protocol.codec import to_json
from ...protocol.commands import LoadCheckpoint, RunFinished, StartRun
from ...protocol.errors import PeerLost, RunLost
from ...protocol.events import Event, MemberEvent
from ...protocol.patterns import MemberResult
from ...protocol.results import RunOutcome
from ...protocol.state import AgentState
from ..recovering import recovering
from ..threads import Threads
from .asking import ask_checkpointer
from .children import SPENT, unrun
from .purse import purse_of
from .run import Run
from .steps import StepLog
from .subagent import child_channel, state_of, subordinate
from .thread import read

Asked = tuple[dict[str, Any], dict[str, Any]]  # a member's question, and what is needed to go on with the member
SEPARATOR = "#"  # between a thread and the threads of its members


class Scene(Protocol):
    """What a step needs of the stage that it is on (``stage.py``)."""

    run: Run
    log: StepLog
    room: asyncio.Semaphore
    begun: dict[str, StartRun]
    stopped: set[str]

    def announce(self, key: str, member: str, child_run_id: str | None = None) -> None: ...
    def pause_for(self, key: str, member: str, prompt: str, questions: Iterable[Asked]) -> NoReturn: ...


async def run_member(
    stage: Scene,
    key: str,
    name: str,
    member: Any,
    fields: dict[str, Any],
    *,
    full: bool = False,
    calls: Collection[str] = (),
) -> MemberResult:
    """Carry a step out: begin the member's run, or go on with the one that there is.

    Raises:
        StepPaused: it asks a person.
    """
    run = stage.run
    async with stage.room:
        lease = await purse_of(run).lease()
        try:
            request = subordinate(run, await request_of(stage, key, member, fields, full or bool(calls)), lease)
            if lease.spent:
                return result_of(key, name, unrun(request, SPENT[lease.spent]), full=False)
            stage.begun[key] = request
            stage.announce(key, name, request.run_id)
            outcome = await outcome_of(stage, key, request)
        finally:
            stage.begun.pop(key, None)
            purse_of(run).give_back(lease)
    run.add_child(outcome.metrics)
    if outcome.stop_reason == "interrupted":
        child = await paused_child(run, request, outcome)
        asked = [(question, {"interrupt_id": question["interrupt_id"], **child}) for question in outcome.interrupts]
        stage.pause_for(key, name, fields["prompt"], asked)
    result = result_of(key, name, outcome, full=full)
    return result.evolve(calls=calls_in(outcome, calls)) if calls else result


async def request_of(stage: Scene, key: str, member: Any, fields: dict[str, Any], full: bool) -> StartRun:
    """The member's request: a new turn, a resume with the answers that came, or the turn that was cut off."""
    run, tries = stage.run, stage.log.given_up.get(key, 0)
    ident = f"{key}~{tries}" if tries else key
    durable = run.is_durable and member.checkpointer is not None
    request = StartRun(
        run_id=f"{run.id}.{ident}",
        definition=run.peers.register(member),
        thread_id=f"{run.request.thread_id}{SEPARATOR}{stage.log.turn}.{ident}" if durable else None,
        stream_tokens=run.request.stream_tokens,
        member=key,
        full=full,
        recover=durable and (run.request.recover or run.request.mode == "continue"),
        **fields,
    )
    answers = stage.log.answers.get(key)
    if answers:
        return await resumed(run, request, answers)
    return await continued(run, request) if durable and run.request.mode == "continue" else request


async def resumed(run: Run, request: StartRun, answers: list[dict[str, Any]]) -> StartRun:
    """The request goes on with the member where it paused; each time it pauses, the segment that follows has a new id."""
    child = answers[-1]["child"]
    request = request.evolve(
        run_id=f"{request.run_id}+{len(answers)}", mode="resume", prompt="", answers=answers[-1]["answers"]
    )
    if "state" in child:
        return request.evolve(state=json.dumps(child["state"]).encode())
    if child["thread_id"] != request.thread_id:
        await adopt(run, child, request.thread_id or "")
    return request


async def adopt(run: Run, child: dict[str, Any], thread_id: str) -> None:
    """The pattern's thread was forked: its member's is forked, too, where it had paused, when it is first needed."""
    if await read(run.peers, run.config.checkpointer or "", thread_id) is None:
        threads = Threads(run.config.checkpointer or "", run.peers.checkpointer().request)
        await threads.fork(child["thread_id"], thread_id, checkpoint_id=child["checkpoint_id"])


async def continued(run: Run, request: StartRun) -> StartRun:
    """The pattern's turn was cut off, and is continued: so is the member's, if it was cut off, too."""
    stored = await read(run.peers, run.config.checkpointer or "", request.thread_id or "")
    cut_off = stored is not None and not stored.state.interrupts and stored.state.turn.stop_reason in {None, "error"}
    if not cut_off:
        return request
    segment = run.request.run_id[:12]  # the same when this segment is recovered
    return request.evolve(run_id=f"{request.run_id}^{segment}", mode="continue", prompt="", recover=run.request.recover)


async def outcome_of(stage: Scene, key: str, request: StartRun) -> RunOutcome:
    """Have the member's run carried out, pass its events on, and go on when its supervisor dies."""
    run = stage.run

    def heard(event: Any) -> None:
        if isinstance(event, Event):
            run.emit(MemberEvent, step=key, event=event)

    channel = child_channel(run, request)
    channel.define(request.definition, run.peers.blob)
    told = heard if request.events else None
    if request.thread_id is None:
        work = asyncio.ensure_future(finished(channel.request(request, on_partial=told)))
    else:
        work = asyncio.ensure_future(recovering(channel, request, told, run.peers.topology, stage.stopped))
    try:
        return await work  # its own task: a stop of the member is not a stop of this run
    except PeerLost as error:
        lost = RunLost(f"the run of {key} was lost: {error.message}", run_id=request.run_id)
        return unrun(request, "error", lost)
    finally:
        work.cancel()


async def finished(asked: Any) -> RunOutcome:
    """The outcome that a supervisor answers with."""
    reply: RunFinished = await asked
    return reply.outcome


async def paused_child(run: Run, request: StartRun, outcome: RunOutcome) -> dict[str, Any]:
    """What is needed to go on with a member that has paused: where its thread stands, or its state."""
    if request.thread_id is None:
        return {"state": state_of(outcome)}
    message = LoadCheckpoint(store=run.config.checkpointer or "", thread_id=request.thread_id)
    loaded = await ask_checkpointer(run.peers, message)
    return {"thread_id": request.thread_id, "checkpoint_id": loaded.checkpoint_id}


def result_of(key: str, name: str, outcome: RunOutcome, *, full: bool) -> MemberResult:
    """What a member's outcome means for its step."""
    report = outcome.pattern or {}
    error = outcome.error or report.get("error")
    if error is not None and outcome.error_type is not None:
        error = {**error, "details": {"type": outcome.error_type, **(error.get("details") or {})}}
    status = "completed" if outcome.success else "cancelled" if outcome.stop_reason == "cancelled" else "failed"
    return MemberResult(
        step=key,
        member=name,
        status=status,
        stop_reason=outcome.stop_reason,
        text=outcome.message,
        value=outcome.parsed if outcome.parsed is not None else report.get("value"),
        error=error,
        metrics=outcome.metrics,
        run_id=outcome.run_id,
        thread_id=outcome.thread_id,
        duration_ms=outcome.metrics.duration_ms,
        pattern=outcome.pattern,
        conversation=conversation_of(outcome) if full else None,
    )


def conversation_of(outcome: RunOutcome) -> dict[str, Any] | None:
    """The member's final state as JSON values."""
    if outcome.state is None:
        return None if outcome.state_json is None else dict(json.loads(outcome.state_json))
    return dict(json.loads(to_json(outcome.state)))


def calls_in(outcome: RunOutcome, names: Collection[str]) -> tuple[dict[str, Any], ...]:
    """What the member called these tools with, in call order; without those that failed or were given an earlier result."""
    state = outcome.state
    if state is None and outcome.state_json is not None:
        state = AgentState.model_validate_json(outcome.state_json)
    done = () if state is None else state.tool_executions
    asked = [call for call in done if call.tool_name in names and call.success and not call.idempotent_cache_hit]
    return tuple({"name": call.tool_name, "arguments": dict(call.arguments)} for call in asked)
