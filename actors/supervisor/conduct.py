"""A segment of a pattern's run: open the thread, play the program, come to an end or a pause. Source: OURS-24, OURS-25.

It takes the place of the loop of an agent's run (``loop.py``); what comes before and after is the same for both: leases,
stopping, the final save, the last event, the outcome.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ...protocol.errors import NotPaused, RunError, StaleWriter
from ...protocol.markers import STEP
from ...protocol.patterns import Ending
from ...protocol.turn import PendingInterrupt
from ..threads import Threads
from .pause import take_answers
from .progress import StepPaused
from .recovery import recover_turn
from .run import Run
from .stage import Stage
from .steps import record
from .thread import load_turn


async def conduct(run: Run) -> str:
    """Play the pattern; why its segment ends.

    Raises:
        Exception: what the program raised, or the store.
    """
    await (recover_turn(run) if run.request.recover else load_turn(run))
    if run.request.mode == "resume" and run.request.run_id not in answered_by(run):
        take_up_answers(run)
    stage = Stage(run)
    if run.request.recover:
        stage.tell_again(run.request.after_seq)
    try:
        ending = await played(run, stage)
    except BaseException as error:  # a stop, too: in any case nothing is left running, and what is known is kept
        stopped = isinstance(error, asyncio.CancelledError)
        if stopped:
            await run.absorb_stop()
        await stage.close(at_once=stopped and run.stopping is None)
        await clean_up(run, run.lost if stopped else error)
        stage.flush()
        raise
    if ending is None:
        stage.flush()
        run.state = run.state.evolve(turn=run.state.turn.evolve(interrupts=tuple(stage.paused)))
        return "interrupted" if stage.paused else "suspended"
    run.state = run.state.evolve(turn=run.state.turn.evolve(interrupts=()))
    stage.end(ending)
    run.last_text = ending.final_output
    if ending.error is not None:
        run.memo.problem = str(ending.error.get("message", ""))
    return ending.stop_reason


async def played(run: Run, stage: Stage) -> Ending | None:
    """How the program ends; None when it waits for a person, or is suspended.

    It is a task of its own: so what it cancels itself, or a timeout of its own, is never taken for a stop from outside.
    """
    program: asyncio.Task[Ending] = asyncio.ensure_future(run.agent.conduct(stage))
    try:
        await asyncio.wait({program})
    except asyncio.CancelledError:
        stage.leaving = True
        program.cancel()
        await asyncio.wait({program}, timeout=run.config.cancel_grace_seconds)
        if program.done() and not program.cancelled():
            program.exception()  # nobody asks for it
        raise
    if program.cancelled():
        raise RunError(f"{run.agent.title} awaited something that was cancelled from within")
    error = program.exception()
    if error is None:
        await stage.close()  # what it began and does not want any more
        return program.result()
    if not pauses(error):
        raise error
    await stage.settle()
    return None


async def clean_up(run: Run, error: BaseException | None) -> None:
    """If it ends because its thread was deleted, what its members have stored since goes, too. Source: OURS-23."""
    thread_id = run.request.thread_id
    if isinstance(error, StaleWriter) and thread_id is not None and run.config.checkpointer is not None:
        threads = Threads(run.config.checkpointer, run.peers.checkpointer().request)
        if not await threads.exists(thread_id):
            await threads.delete_members(thread_id)


def pauses(raised: BaseException) -> bool:
    """Whether it is a pause, or a group (of a ``TaskGroup``) with one inside."""
    if isinstance(raised, BaseExceptionGroup):
        return any(map(pauses, raised.exceptions))
    return isinstance(raised, StepPaused)


def answered_by(run: Run) -> set[str]:
    """The segments whose answers are recorded: one that is recovered does not take its answers again."""
    return {message.metadata[STEP].get("segment", "") for message in run.state.messages if STEP in message.metadata}


def take_up_answers(run: Run) -> None:
    """Record the answers, so that they are there each time the program is played; the other questions stay open.

    Raises:
        NotPaused: an answer fits no question.
    """
    records = []
    for waits in take_answers(run, run.request.answers or {}, perform=run.request.perform):
        if not all(one.answers for one in waits):
            raise NotPaused(f"run {run.id}: a pattern's question can only be answered, not performed")
        records.append(record("answer", waits[0].call.id, segment=run.request.run_id, **facts_of(waits)))
    run.state = run.state.with_messages(records)


def facts_of(answered: tuple[PendingInterrupt, ...]) -> dict[str, Any]:
    """Answers as they are recorded: of a member by the member's own questions."""
    first = answered[0]
    if first.child is None:
        return {"answers": {first.call.id: first.answers[-1]}, "asked": first.call.id}
    child = {name: value for name, value in first.child.items() if name != "interrupt_id"}
    return {"answers": {one.child["interrupt_id"]: one.answers[-1] for one in answered if one.child}, "child": child}
