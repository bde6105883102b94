"""Recovery: a supervisor died over a run, and its caller has sent the same request again. Source: OURS-1, OURS-15.

Every checkpoint says which segment wrote it (``segment``: the id of the request), and the last one how the segment ended
(``ending``). So there are three cases:

    ended        only its outcome was lost: it is rebuilt from what is stored, and nothing runs
    in between   the turn goes on with its id, its counters and its clock; of open calls the journal decides (``journal.py``)
    nothing      the segment begins as if it had not been tried

The caller's events go on behind the last one that it has seen: first the ends of calls that are stored and had not left the
supervisor that died, then a ``CustomEvent`` named ``recovered`` that says which case it was. Hooks that look at the end of a
run are not called again for an outcome that is rebuilt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ...protocol.commands import CheckpointLoaded, LoadCheckpoint
from ...protocol.errors import RunLost, RunNotFound, StaleWriter, from_wire
from ...protocol.events import CustomEvent
from ...protocol.messages import ToolCall
from ...protocol.results import RunOutcome
from ...protocol.storage import HistoryLoaded, LoadHistory
from ..checkpoints.delta import restore
from .asking import ask_checkpointer
from .run import Run
from .slot import Slot, complete
from .structured import adapter, is_answer, parse
from .terminate import finish, tell_end
from .thread import begin_segment, newest_state, open_thread, take_up, where

EVENT = "recovered"
LOOK_BACK = 200  # checkpoints of others since
KEPT = (
    "error_type",
    "parse_error",
    "grounding_score",
    "ungrounded_claims",
    "gsar_score",
    "gsar_decision",
    "gsar_judgement",
)  # of an outcome, as it was


class Ended(Exception):
    """The segment had ended already.

    Args:
        outcome: as its caller would have got it.
    """

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__()
        self.outcome = outcome


async def recover_turn(run: Run) -> None:
    """The state that a recovered segment goes on with.

    Raises:
        Ended: there is nothing left to do.
    """
    loaded = await open_thread(run)
    facts = loaded.metadata
    if run.checkpoint is None or facts.get("segment") != run.request.run_id:
        await check_unbegun(run)
        await stop_if_cancelled(run)
        begin_segment(run, newest_state(run))
        run.emit(CustomEvent, name=EVENT, data={"from": "start"})  # not before: a turn that is continued has an id already
        return
    run.model_calls = int(facts.get("model_calls", 0))
    ending = facts.get("ending")
    if ending is None and run.checkpoint.state.interrupts and not run.agent.is_pattern:  # its steps are saved one by one
        ending = {"reason": "interrupted"}
    take_up(run, run.checkpoint.state)
    retell(run, facts.get("ends", ()))
    if ending is not None:
        raise Ended(rebuilt(run, ending))
    run.emit(CustomEvent, name=EVENT, data={"from": "checkpoint", "iteration": run.state.iteration})
    await stop_if_cancelled(run)


def retell(run: Run, ends: Iterable[tuple[int, str]]) -> None:
    """Tell the ends of calls that are stored and that nobody heard of: the supervisor died before they had left it.

    Args:
        run: the run, as it is stored.
        ends: numbers of the last such events, and their calls.
    """
    unheard = {call_id for seq, call_id in ends if seq > run.request.after_seq}
    for step in run.state.reasoning_steps if unheard else ():
        for result in step.tool_results:
            if result.tool_call_id in unheard:
                slot = Slot(ToolCall(id=result.tool_call_id, name=result.name), None)
                slot.announced, slot.result = True, result
                complete(run, slot)


async def stop_if_cancelled(run: Run) -> None:
    """A cancel that the supervisor which died may not have heard of; it arrives here."""
    if run.request.cancelled:
        run.stop("cancelled")
        await asyncio.sleep(0)


async def check_unbegun(run: Run) -> None:
    """Nothing of the segment may lie behind what others have stored since: it would be done twice.

    Raises:
        StaleWriter: while its supervisor was away, another run has gone on from where it was.
    """
    message = LoadHistory(store=run.config.checkpointer or "", thread_id=run.request.thread_id or "", limit=LOOK_BACK)
    history: HistoryLoaded = await ask_checkpointer(run.peers, message)
    if any(stored.metadata.get("segment") == run.request.run_id for stored in history.checkpoints):
        why = f"{where(run)} was taken over by another run while the supervisor of this one was away"
        raise StaleWriter(why, thread_id=run.request.thread_id)


async def stored_end(run: Run) -> RunOutcome | None:
    """How a segment ended, as its thread says; None when it was cut off and can go on. Nothing is taken or changed.

    Raises:
        RunNotFound: the thread has nothing of it.
        RunLost: it was cut off, and the thread has gone on without it.
    """
    thread = {"store": run.config.checkpointer or "", "thread_id": run.request.thread_id or ""}
    history: HistoryLoaded = await ask_checkpointer(run.peers, LoadHistory(**thread, limit=LOOK_BACK))
    own = (stored for stored in history.checkpoints if stored.metadata.get("segment") == run.request.run_id)
    newest = next(own, None)
    if newest is None:
        raise RunNotFound(f"{where(run)} has nothing of run {run.id}: it is not stored any more", run_id=run.id)
    if newest.metadata.get("ending") is None:
        if newest is not history.checkpoints[0]:
            raise RunLost(f"run {run.id} was cut off, and {where(run)} has gone on without it since", run_id=run.id)
        return None
    message = LoadCheckpoint(**thread, checkpoint_id=newest.checkpoint_id)
    loaded: CheckpointLoaded = await ask_checkpointer(run.peers, message)
    baseline = restore(loaded)
    if baseline is None:
        raise RunNotFound(f"{where(run)} was deleted, and run {run.id} with it", run_id=run.id)
    run.model_calls = int(loaded.metadata.get("model_calls", 0))
    take_up(run, baseline.state)
    run.clear_deadline()
    return rebuilt(run, loaded.metadata["ending"])


def rebuilt(run: Run, ending: dict[str, Any]) -> RunOutcome:
    """The outcome of a segment that has ended, from what its last checkpoint says."""
    run.emit(CustomEvent, name=EVENT, data={"from": "end"})
    reason = str(ending["reason"])
    message = ending.get("message", run.newest_text if is_answer(reason) else "")
    error = from_wire(ending["error"]) if "error" in ending else None
    parsed = parse(message, adapter(run.config.output_schema)) if ending.get("parsed") else None
    tell_end(run, reason, message, error)
    outcome = finish(run, reason, message, error, parsed)
    kept = {name: ending[name] for name in KEPT if name in ending}
    return outcome.evolve(**{name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()})
