"""The run loop, one turn of an agent, top to bottom.

    open      load the thread, or begin a conversation                          thread.py
    boundary  stop?  told to stop, the user's condition, loops, built-in limits  here
    think     one model call, whole or streamed                                 think.py
    execute   the reply's tool calls, in parallel                               execute.py
    save      an iteration checkpoint, where the run is durable                 thread.py
    terminate summary where one is due, final save, last event, outcome         terminate.py

A turn always ends here, with one outcome, whatever happened: an answer, a limit, a cancel from outside, an exception.
Checks happen at the boundary only; being told to stop (cancel, deadline) also interrupts whatever is awaited.
"""

from __future__ import annotations

import asyncio
import logging

from ...protocol.events import CustomEvent
from ...protocol.messages import Message, ModelResponse
from ...protocol.results import RunOutcome
from .execute import execute
from .run import Run
from .terminate import terminate
from .think import think
from .thread import open_turn, save

logger = logging.getLogger("umbel.supervisor")

EMPTY_REPLY = "Your last reply was empty. Go on with the task: call a tool, or give your answer as text."


async def run_turn(run: Run) -> RunOutcome:
    """Run one turn to its end; see the table above.

    Raises:
        asyncio.CancelledError: the caller went away. The thread is saved first.
    """
    error: Exception | None = None
    try:
        await open_turn(run)
        reason = await iterate(run)
    except asyncio.CancelledError:
        if run.stopping is None:
            run.forget()
            await save(run, final=True)
            raise
        reason = run.stopping
    except Exception as caught:  # whatever a model, a condition or a store raised ends the turn as an error
        logger.debug("run %s failed", run.id, exc_info=True)
        reason, error = "error", caught
    await run.absorb_stop()
    return await terminate(run, reason, error)


async def iterate(run: Run) -> str:
    """Think and execute until there is a reason to stop."""
    while True:
        reason = boundary(run)
        if reason is not None:
            return reason
        run.state = run.state.next_iteration()
        reason = await act(run, await think(run))
        if reason is not None:
            return reason
        if run.is_durable:
            await save(run)


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
    warn_of_loop(run)
    return run.state.should_terminate()


async def act(run: Run, response: ModelResponse) -> str | None:
    """Do what the reply asks for: run its calls, or take it as the answer."""
    run.last_text = response.content or ""
    run.no_tool_calls = not response.tool_calls
    return await execute(run, response) if response.tool_calls else answer(run, response)


def answer(run: Run, response: ModelResponse) -> str | None:
    """A reply without calls: the answer, or, when it is empty, a nudge, a bounded number of times."""
    if response.content and response.content.strip():
        run.empty_replies = 0
        return "complete"
    run.empty_replies += 1
    if run.empty_replies > run.config.max_empty_replies:
        return "empty_reply"
    run.no_tool_calls = False
    run.state = run.state.with_message(Message.user(EMPTY_REPLY, automated=True))
    return None


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
    run.state = state.with_tool_loop_warning(loop.signature).with_message(Message.system(note, automated=True))
    run.emit(CustomEvent, name="tool_loop_warning", data={"tools": list(loop.tools), "repeats": loop.repeats})
