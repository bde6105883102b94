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
from ...protocol.heard import of_member
from ...protocol.patterns import MemberResult
from ...protocol.results import Metrics, RunOutcome
from ...protocol.state import AgentState
from ..checkpoints.delta import restore
from ..recovering import recovering
from ..thread_list import SEPARATOR
from ..threads import Threads
from .asking import ask_checkpointer
from .children import SPENT, unrun
from .purse import purse_of
from .run import Run
from .steps import StepLog
from .subagent import child_channel, since, state_of, subordinate
from .thread import read

Asked = tuple[dict[str, Any], dict[str, Any]]  # a member's question, and what is needed to go on with the member
AGAIN = "^"  # between a member's segment and the segment of the pattern that continues it


class Scene(Protocol):
    """What a step needs of the stage that it is on (``stage.py``)."""

    run: Run
    log: StepLog
    room: asyncio.Semaphore
    begun: dict[str, StartRun]
    stopped: set[str]

    def announce(self, key: str, member: str, child_run_id: str | None = None) -> None: ...
    def counted(self, key: str, metrics: Metrics) -> None: ...
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
            if run.suspending:
                return result_of(key, name, unrun(request, "suspended"), full=False)
            if run.request.recover:
                request = request.evolve(**of_member(run.request.heard, key))
            stage.begun[key] = request
            stage.announce(key, name, request.run_id)
            outcome = await outcome_of(stage, key, request)
            run.add_child(since(stage.log.spent.get(key), outcome.metrics))
        finally:
            stage.begun.pop(key, None)
            purse_of(run).give_back(lease)
    if outcome.stop_reason == "interrupted":
        stage.counted(key, outcome.metrics)
        child = await paused_child(run, member, request, outcome)
        asked = [(question, {"interrupt_id": question["interrupt_id"], **child}) for question in outcome.interrupts]
        stage.pause_for(key, name, fields["prompt"], asked)
    result = result_of(key, name, outcome, full=full)
    if "state" in fields:
        result = added(result, fields["prompt"])
    return result.evolve(calls=calls_in(outcome, calls)) if calls else result


async def request_of(stage: Scene, key: str, member: Any, fields: dict[str, Any], full: bool) -> StartRun:
    """The member's request: a new turn, a resume with the answers that came, or a turn that was cut off.

    The pattern's turn may be in a later segment than the one that began the step. Then the member's thread says how far the
    step is: nothing of it may be done a second time.
    """
    run, log = stage.run, stage.log
    tries = log.given_up.get(key, 0)
    ident = f"{key}~{tries}" if tries else key
    durable = run.is_durable and member.checkpointer is not None
    request = StartRun(
        run_id=f"{run.id}.{ident}",
        definition=run.peers.register(member),
        thread_id=f"{run.request.thread_id}{SEPARATOR}{log.turn}.{ident}" if durable else None,
        stream_tokens=run.request.stream_tokens,
        member=key,
        member_of=(run.request.member_of or run.request.thread_id) if durable else None,
        full=full,
        recover=durable and run.request.recover,
        **fields,
    )
    answers = log.answers.get(key, [])[log.taken.get(key, 0) :]
    begun = request.evolve(run_id=f"{request.run_id}+{len(answers)}") if answers else request
    if durable and run.request.mode != "turn":
        found = await going_on(run, member, begun)
        if found is not None:
            return found
    return await resumed(run, member, begun, answers[-1]) if answers else begun


async def going_on(run: Run, member: Any, begun: StartRun) -> StartRun | None:
    """The request that goes on with a step which an earlier segment of the pattern had begun; None if none had.

    One that has not ended is asked for again, as after a crash: its supervisor may still be at it. One that has ended, with
    an answer or a question, gives its end. Only one that was cut off by an error or a cancel is continued.
    """
    message = LoadCheckpoint(store=member.checkpointer, thread_id=begun.thread_id or "")
    loaded = await ask_checkpointer(run.peers, message)
    segment, stored = str(loaded.metadata.get("segment", "")), restore(loaded)
    if stored is None or not (segment == begun.run_id or segment.startswith(begun.run_id + AGAIN)):
        return None
    request = begun.evolve(run_id=segment, prompt="", mode="continue", recover=True)
    again = f"{begun.run_id}{AGAIN}{run.request.run_id[-12:]}"  # the same when this segment of the pattern is recovered
    unfinished = not stored.state.interrupts and stored.state.turn.stop_reason in {None, "error"}
    if "ending" in loaded.metadata and unfinished and segment != again:
        return request.evolve(run_id=again, recover=run.request.recover)
    return request


async def resumed(run: Run, member: Any, request: StartRun, answer: dict[str, Any]) -> StartRun:
    """The request goes on with the member where it paused; each time it pauses, the segment that follows has a new id."""
    child = answer["child"]
    request = request.evolve(mode="resume", prompt="", answers=answer["answers"])
    if "state" in child:
        return request.evolve(state=json.dumps(child["state"]).encode())
    if child["thread_id"] != request.thread_id:
        await adopt(run, member, child, request.thread_id or "")
    return request


async def adopt(run: Run, member: Any, child: dict[str, Any], thread_id: str) -> None:
    """The pattern's thread was forked: its member's is forked, too, where it had paused, when it is first needed."""
    if await read(run.peers, member.checkpointer, thread_id) is None:
        threads = Threads(member.checkpointer, run.peers.checkpointer().request)
        whose = run.request.member_of or run.request.thread_id
        await threads.fork(child["thread_id"], thread_id, checkpoint_id=child["checkpoint_id"], member_of=whose)


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


async def paused_child(run: Run, member: Any, request: StartRun, outcome: RunOutcome) -> dict[str, Any]:
    """What is needed to go on with a member that has paused: where its thread stands, or its state."""
    if request.thread_id is None:
        return {"state": state_of(outcome)}
    message = LoadCheckpoint(store=member.checkpointer, thread_id=request.thread_id)
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


def added(result: MemberResult, prompt: str) -> MemberResult:
    """The result with what came after the history that the member began with; its prompt is the first message."""
    whole = result.conversation
    if whole is None:
        return result
    messages = whole["messages"]
    starts = [n for n, message in enumerate(messages) if message["role"] == "user" and message["content"] == prompt]
    kept = {name: value for name, value in whole.items() if name != "reasoning_steps"}
    return result.evolve(conversation=kept | {"messages": messages[starts[-1] if starts else 0 :]})


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
