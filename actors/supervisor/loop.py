"""The run loop, one turn of an agent, top to bottom.

    open      load the thread, or begin a conversation; take the answers of a resume     thread.py, pause.py
              what a crash broke off: an outcome, or a batch of calls                    recovery.py, journal.py
    boundary  stop?  told to stop, the user's condition, suspended, loops, built-in limits          here
              its process is about to end: wait for the one that follows                  moving.py
    notes     a plan to make, a budget that runs out                                      notes.py
    room      worst-case cost of the next call; a conversation that outgrows the window   room.py
    think     one model call, whole or streamed, by way of the hooks                      think.py, hooked.py
    recover   calls that stand in the text                                                recover.py
    execute   the reply's tool calls, in parallel; reminders; reflect                     execute.py, reflect.py
    answer    a reply without calls: empty, ungrounded, refused by a verifier, or final   answer.py
    save      an iteration checkpoint, where the run is durable                           thread.py
    terminate summary where one is due, structured output, final save, last event, outcome, hooks   terminate.py

A segment (a new turn, one that is resumed after a pause, one that is continued after a crash) always takes this way, and
always ends with one outcome, whatever happened: an answer, a limit, a pause, a cancel from outside, an exception.
A pattern's program takes the loop's place (``conduct.py``); everything around it is the same.
Checks happen at the boundary only; being told to stop (cancel, deadline) also interrupts whatever is awaited.
"""

from __future__ import annotations

import asyncio
import logging

from ...protocol.errors import NotPaused
from ...protocol.events import CustomEvent
from ...protocol.messages import ModelResponse
from ...protocol.results import RunOutcome
from .answer import answer, send_back
from .conduct import conduct
from .execute import execute, reopen, resume
from .hooks.dispatch import before_invocation_all, call
from .moving import park
from .notes import add_notes
from .recover import MAX_UNFINISHED, repaired
from .recovery import Ended, recover_turn
from .room import crowded, make_room
from .run import Run
from .terminate import after_invocation, close_iteration, hands_over, terminate
from .think import release, think
from .thread import load_turn, save

logger = logging.getLogger("umbel.supervisor")


async def run_turn(run: Run) -> RunOutcome:
    """Run one segment of a turn to its end; see the table above.

    Raises:
        asyncio.CancelledError: the caller went away. The thread is saved first.
    """
    error: Exception | None = None
    try:
        reason = await (conduct(run) if run.agent.is_pattern else take_turn(run))
    except asyncio.CancelledError:
        if run.stopping is None:
            run.forget()
            await save(run, final=True)
            await after_invocation(run, "cancelled", None)
            raise
        reason = run.stopping
    except Ended as ended:
        return ended.outcome
    except NotPaused as refused:
        run.state = run.agent.blank_state  # nothing has happened: what is stored stays as it is
        reason, error = "error", refused
    except Exception as caught:  # whatever a model, a hook, a condition or a store raised ends the turn as an error
        logger.debug("run %s failed", run.id, exc_info=True)
        reason, error = "error", caught
    await run.absorb_stop()
    return await terminate(run, reason, error or run.lost)


async def take_turn(run: Run) -> str:
    """An agent's segment: why it ends."""
    return await open_turn(run) or await iterate(run)


async def open_turn(run: Run) -> str | None:
    """Begin the segment. A resumed one first runs the calls that got their answers; more may wait: ``interrupted``."""
    await (recover_turn(run) if run.request.recover else load_turn(run))
    before = run.agent.hooks.before_invocation
    if before:
        try:
            run.state = await before_invocation_all(before, run.request.prompt, run.state)
        except Exception:  # refused: nothing has happened, what is stored stays as it is (LOOP-11)
            run.state = run.agent.blank_state
            raise
    if run.request.mode == "turn" and not run.request.recover:
        return None
    reason = await (resume(run) if run.state.interrupts else reopen(run))
    if reason is None and run.is_durable:
        await save(run)  # what was done for the answers, or for open calls, is not done again after a crash
    return reason


async def iterate(run: Run) -> str:
    """Think and execute until there is a reason to stop."""
    watched = run.agent.hooks.iteration_start or run.agent.hooks.iteration_end
    while True:
        if watched:
            await between_iterations(run)
        reason = boundary(run)
        if reason is not None:
            return reason
        if run.moving and run.is_durable:
            await park(run)
        run.state = run.state.next_iteration()
        add_notes(run)
        reason = await make_room(run) if crowded(run) else None
        reason = reason or await act(run, await think(run))
        if reason is not None:
            return reason
        if run.is_durable and has_executed(run):
            await save(run)


def has_executed(run: Run) -> bool:
    """The iteration came to a step. A reply that was sent back did not, and is not saved (LOOP-100)."""
    steps = run.state.reasoning_steps
    return bool(steps) and steps[-1].iteration == run.state.iteration


async def between_iterations(run: Run) -> None:
    """The iteration that is open ends, the next one starts; hooks count from 0 (LOOP-16)."""
    await close_iteration(run)
    run.memo.open_iteration = run.state.iteration
    await call(run.agent.hooks.iteration_start, run.state.iteration, run.state)


def boundary(run: Run) -> str | None:
    """The checks between iterations, in the order in which they win."""
    if run.stopping is not None:
        return run.stopping
    if run.termination is not None:
        context = {"last_message": run.last_text, "no_tool_calls": run.no_tool_calls}
        stop, reason = run.termination.check(run.state, **context)
        if stop:
            run.termination_reason = reason or "complete"
            return run.termination_reason
    if run.suspending:
        return "suspended"
    warn_of_loop(run)
    stop_reason = run.state.should_terminate()
    if stop_reason == "max_iterations" and hands_over(run):
        return "terminal_tool"  # another agent goes on: there is nothing to sum up
    return stop_reason


async def act(run: Run, response: ModelResponse) -> str | None:
    """Do what the reply asks for: run its calls, or take it as the answer."""
    if run.agent.recovers_calls:
        repair = repaired(run, response)
        if repair is None:
            send_back(run)
            return "empty_reply" if run.memo.unfinished > MAX_UNFINISHED else None
        response = repair
    run.last_text = response.content or ""
    run.no_tool_calls = not response.tool_calls
    if not response.tool_calls:
        return await answer(run, response)
    release(run, text=not run.config.hold_tool_step_text and response.stop_reason != "length")
    return await execute(run, response)


def warn_of_loop(run: Run) -> None:
    """The first sighting of a repeated step earns one note; ``tool_loop`` stops the run if it goes on."""
    state = run.state
    if len(state.reasoning_steps) < state.tool_loop_threshold:
        return
    loop = state.find_loop()
    if loop is None or any(signature == loop.signature for signature, _ in state.tool_loop_warnings):
        return
    names = ", ".join(loop.tools)
    note = f"You have repeated the same step ({names}) {loop.repeats} times with the same result. Do something else or answer."
    run.state = state.with_tool_loop_warning(loop.signature)
    run.note(note)
    run.emit(CustomEvent, name="tool_loop_warning", data={"tools": list(loop.tools), "repeats": loop.repeats})
