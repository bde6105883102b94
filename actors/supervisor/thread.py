"""A run's thread: what it opens with, and what is saved of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...protocol.commands import CheckpointLoaded, LoadCheckpoint, SaveCheckpoint
from ...protocol.errors import CheckpointConflict, ConfigurationError, NotPaused
from ...protocol.markers import VALUES
from ...protocol.messages import NOTHING, Message, ToolCall, ToolResult
from ...protocol.state import AgentState, ToolExecution
from ...protocol.storage import JournalEntry
from ...protocol.turn import open_calls
from ..checkpoints.delta import Baseline, build_save, restore
from ..checkpoints.facts import MEMBER_OF, searchable
from .asking import ask_checkpointer
from .backlog import Backlog
from .lease import take
from .opening import opening_of
from .run import Peers, Run, new_id

UNANSWERED = "outcome unknown: the process stopped before its result was kept. Verify what happened before you repeat it."


async def load_turn(run: Run) -> None:
    """The state that the segment begins with."""
    if run.request.cancelled:
        run.stop("cancelled")
        await asyncio.sleep(0)  # where the stop arrives: the thread is not even looked at
    begin_segment(run, await stored_state(run) if run.request.state is not None or durable(run) else None)


def begin_segment(run: Run, stored: AgentState | None) -> None:
    """The state of a segment of which nothing is stored yet.

    Raises:
        NotPaused: there is nothing to go on with.
    """
    if run.request.mode == "turn":
        new_turn(run, stored)
    elif stored is None:
        raise NotPaused(f"{where(run)} holds nothing to go on with: it is new, or it was deleted")
    else:
        check_goes_on(run, stored)
        take_up(run, stored)


async def stored_state(run: Run) -> AgentState | None:
    """The thread's newest state, or the one that came with the request."""
    if durable(run):
        await open_thread(run)
    return newest_state(run)


def newest_state(run: Run) -> AgentState | None:
    """What the thread, once it is open, or else the request holds. A step of a pattern is a conversation of its own."""
    begins_anew = run.request.member is not None and run.request.mode == "turn"
    if run.checkpoint is not None and not begins_anew:
        return run.checkpoint.state  # type: ignore[no-any-return]  # what is stored has no type of its own here
    return None if run.request.state is None else AgentState.model_validate_json(run.request.state)


async def open_thread(run: Run) -> CheckpointLoaded:
    """Load the thread, as its only writer: its newest checkpoint, and what is known of calls that have no result in it."""
    loaded = await take(run)
    run.checkpoint = restore(loaded)
    if run.request.member_of is not None and run.checkpoint is not None:
        check_is_own(run, loaded)
    if not run.config.keep_iteration_checkpoints:
        run.opening = opening_of(loaded, run.checkpoint, run.request.run_id)
    if run.request.mode != "turn":
        run.model_calls = int(loaded.metadata.get("model_calls", 0))
    run.journal = {}
    for entry in loaded.journal:
        if entry.phase == "done" or entry.call_id not in run.journal:
            run.journal[entry.call_id] = entry
    return loaded


def check_is_own(run: Run, loaded: CheckpointLoaded) -> None:
    """Refuse to write a member's conversation over one that is somebody else's.

    Raises:
        CheckpointConflict: the thread is no member's of this pattern.
    """
    if loaded.metadata.get(MEMBER_OF) != run.request.member_of:
        why = f"{where(run)} is not one of the pattern in thread {run.request.member_of!r}: rename or delete it"
        raise CheckpointConflict(why, thread_id=run.request.thread_id)


def new_turn(run: Run, stored: AgentState | None) -> None:
    """Begin a conversation, or a new turn of the thread's: its messages stay, every counter starts anew."""
    system = system_message(run)
    earlier: tuple[Message, ...] = ()
    metadata = {**run.config.metadata, **run.request.metadata}
    provider_state = None
    reusable: tuple[ToolExecution, ...] = ()
    if stored is not None:
        earlier = close_open_calls(stored.messages, run.journal)
        metadata = {**stored.metadata, **metadata}
        provider_state, reusable = stored.provider_state, stored.thread_executions
    if not earlier:
        earlier = (system,) if system is not None else ()
    elif system is not None and earlier[0].role == "system":
        earlier = (system, *earlier[1:])
    elif system is not None and run.request.state is not None:  # a history that came with the request
        earlier = (system, *earlier)
    values = NOTHING if run.request.values is None else {VALUES: run.request.values}
    prompt = Message.trusted(role="user", content=run.request.prompt, metadata=values)
    run.state = run.agent.blank_state.evolve(
        run_id=run.id,
        messages=(*earlier, prompt),
        thread_executions=reusable,
        metadata=metadata,
        provider_state=provider_state,
        started_at=run.started_at,
        updated_at=run.started_at,
        **leased(run),
    )


def check_goes_on(run: Run, stored: AgentState) -> None:
    """Refuse to go on with a turn that is over, to continue one that waits for answers, and to answer one that does not.

    Raises:
        NotPaused: see above.
    """
    goes_on = run.request.mode == "continue"
    if stored.turn.stop_reason is not None and not (goes_on and stored.turn.stop_reason == "error"):
        raise NotPaused(f"{where(run)}: its last turn is finished ({stored.turn.stop_reason}); begin a new one instead")
    if goes_on and stored.interrupts:
        raise NotPaused(f"{where(run)} waits for answers: resume it instead")
    if not goes_on and not stored.interrupts:
        raise NotPaused(f"{where(run)} is not paused: there is nothing to answer")


def take_up(run: Run, stored: AgentState) -> None:
    """Go on with a turn that is paused or was cut off; its counters and its run id go on, too."""
    run.id = stored.run_id or run.id
    run.model_calls = run.model_calls or stored.turn.model_calls
    metadata = {**stored.metadata, **run.request.metadata}
    limits = _leased_anew(run, stored) if run.request.mode == "continue" and not run.request.recover else {}
    run.state = stored.evolve(run_id=run.id, metadata=metadata, turn=stored.turn.evolve(stop_reason=None), **limits)
    run.set_deadline()
    if run.termination is not None:
        run.termination.carry_on(run.state.turn.elapsed_seconds)


def leased(run: Run) -> dict[str, Any]:
    """Budgets of a child: its own, or what its parent leaves to it, whichever is less. Source: OURS-13."""
    blank, request, limits = run.agent.blank_state, run.request, {}
    if request.lease_tokens is not None:
        limits["token_budget"] = min(blank.token_budget or request.lease_tokens, request.lease_tokens)
    if request.lease_cost_usd is not None and blank.priced:
        limits["cost_budget_usd"] = min(blank.cost_budget_usd or request.lease_cost_usd, request.lease_cost_usd)
    return limits


def _leased_anew(run: Run, stored: AgentState) -> dict[str, Any]:
    """Budgets of a turn that goes on: what it has used is counted already, the lease is on top of that. Source: OURS-13."""
    blank, request = run.agent.blank_state, run.request
    tokens, cost = blank.token_budget, blank.cost_budget_usd
    if request.lease_tokens is not None:
        left = stored.total_tokens_used + request.lease_tokens
        tokens = min(tokens or left, left)
    if request.lease_cost_usd is not None and blank.priced:
        money = stored.cost_usd_used + request.lease_cost_usd
        cost = money if cost is None else min(cost, money)
    return {"token_budget": tokens, "cost_budget_usd": cost}


def where(run: Run) -> str:
    """The thread or the run, for errors."""
    thread = run.request.thread_id
    return f"thread {thread!r}" if thread is not None else f"run {run.id}"


def system_message(run: Run) -> Message | None:
    """The system prompt of this turn; a callable is asked anew every time."""
    prompt = run.config.system_prompt
    if not callable(prompt):
        return run.agent.system_message  # type: ignore[no-any-return]  # made once
    text = prompt({"prompt": run.request.prompt, "metadata": dict(run.request.metadata)})
    return Message.system(run.agent.complete_prompt(str(text))) if text else None


def close_open_calls(messages: tuple[Message, ...], journal: Mapping[str, JournalEntry] | None = None) -> tuple[Message, ...]:
    """Answer the calls that an earlier turn left open, for a turn that does not go on: they are not run again.

    What the journal knows of them is the answer; of the others nobody knows.
    """
    left = {call.id for call in open_calls(messages)}
    if not left:
        return messages
    closed: list[Message] = []
    for index, message in enumerate(messages):
        closed.append(message)
        following = messages[index + 1].role if index + 1 < len(messages) else None
        if following != "tool" or message.role == "assistant":
            closed += [last_word(call, journal or {}) for call in message.tool_calls if call.id in left]
    return tuple(closed)


def last_word(call: ToolCall, journal: Mapping[str, JournalEntry]) -> Message:
    """The message that answers a call which is given up."""
    entry = journal.get(call.id)
    if entry is not None and entry.result is not None:
        return Message.tool(entry.result)
    return Message.tool(ToolResult(tool_call_id=call.id, name=call.name, error=UNANSWERED))


def durable(run: Run) -> bool:
    """Whether this run's state is stored.

    Raises:
        ConfigurationError: a thread was asked for, but the agent has no checkpointer.
    """
    if run.request.thread_id is None:
        return False
    if run.config.checkpointer is None:
        raise ConfigurationError(
            f"thread_id={run.request.thread_id!r} needs an agent with a checkpointer, e.g. 'sqlite:///umbel.db'"
        )
    return True


async def read(peers: Peers, store: str, thread_id: str) -> Baseline | None:
    """A thread's newest checkpoint, None for a new thread."""
    loaded: CheckpointLoaded = await ask_checkpointer(peers, LoadCheckpoint(store=store, thread_id=thread_id))
    return restore(loaded)


def is_due(run: Run) -> bool:
    """Whether the end of this iteration is saved."""
    every = run.config.checkpoint_every_n_iterations
    wanted: bool = every is None or (every > 0 and run.state.iteration % every == 0)
    return wanted if run.config.durability != "exit" else False


async def save(
    run: Run,
    *,
    final: bool = False,
    reason: str | None = None,
    entries: tuple[JournalEntry, ...] = (),
    ending: dict[str, Any] | None = None,
) -> None:
    """Store the state as it is now. The save names the checkpoint it continues, so two writers cannot overwrite each other.

    Args:
        run: whose state.
        final: in any case, and wait for it; otherwise as often as the agent says, and with ``durability="async"`` behind
            the run's back.
        reason: why the turn is over; None when it is paused or goes on.
        entries: for the journal, which is emptied before: the state holds what it said.
        ending: of the segment, what its outcome can be rebuilt from.
    """
    if not run.is_durable or not run.opened or not (final or is_due(run)):
        return
    state = run.state.evolve(turn=run.state.turn.evolve(elapsed_seconds=run.elapsed(), stop_reason=reason))
    step = Step(state, facts(run, reason, ending), entries)
    if run.config.durability == "async":
        run.memo.backlog = run.memo.backlog or Backlog(lambda step: write(run, step), run.lose)
        if not final:
            run.memo.backlog.add(step)
            return
        await run.memo.backlog.settle()
    await write(run, step, release=run.lease.owner if run.lease is not None and ending is not None else None)


@dataclass(frozen=True, slots=True)
class Step:
    """What one checkpoint holds: the state, its metadata, and entries of the journal."""

    state: AgentState
    facts: dict[str, Any]
    entries: tuple[JournalEntry, ...] = ()


async def write(run: Run, step: Step, release: str | None = None) -> None:
    """Store a step behind the newest checkpoint. The last one takes the place of the others, and gives the lease back."""
    if run._memo is not None and run._memo.unsure is not None:
        await commit(run, *run._memo.unsure)
    opening = run.opening
    supersedes = opening is not None and opening.saves > 0 and "ending" in step.facts
    message, baseline = build_save(
        step.state,
        store=run.config.checkpointer,
        thread_id=run.request.thread_id or "",
        checkpoint_id=new_id(128),
        created_at=time.time(),
        baseline=opening.baseline if supersedes else run.checkpoint,
        metadata=step.facts if opening is None or "ending" in step.facts else {**step.facts, **opening.facts()},
        token=run.token,
        entries=step.entries,
        settles=True,
        release=release,
    )
    if release is not None and run.lease is not None:
        await run.lease.settle()
    try:
        await commit(run, opening.placed(message, run.checkpoint) if supersedes else message, baseline)
    except CheckpointConflict:
        if not supersedes:
            raise
        run.opening = None  # somebody has folded the thread meanwhile: then they stay
        await write(run, step, release)
    if release is not None and run.lease is not None:
        run.lease.over()


def facts(run: Run, reason: str | None, ending: dict[str, Any] | None) -> dict[str, Any]:
    """The metadata of a checkpoint: whose it is, how its segment ended, and what its thread can be found by."""
    known = {"run_id": run.id, "segment": run.request.run_id, "finished": reason is not None, "reason": reason}
    return {
        **searchable(run.state.metadata),
        **known,
        **({} if run.request.member_of is None else {MEMBER_OF: run.request.member_of}),
        "model_calls": run.model_calls,
        **(run.memo.marks if run.agent.is_pattern else {}),
        **({} if ending is None else {"ending": ending}),
        **({"ends": [*run.earlier_ends, *run.ends]} if run.earlier_ends or run.ends else {}),
    }


async def commit(run: Run, message: SaveCheckpoint, baseline: Baseline) -> None:
    """Have a save stored. One that a stop cuts off may be stored all the same: it is sent again before the next."""
    try:
        await ask_checkpointer(run.peers, message)
    except asyncio.CancelledError:
        run.memo.unsure = (message, baseline)
        raise
    run.checkpoint = baseline
    if run.opening is not None:
        run.opening.saves += 1
    if run._memo is not None:
        run._memo.unsure = None
    run.earlier_ends, run.ends = run.ends, []
    if run._held is not None:
        run.let_go()
