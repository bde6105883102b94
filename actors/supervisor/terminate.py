"""Terminate: the end of a turn, whatever it was. One last event, one outcome."""

from __future__ import annotations

import logging
import traceback
from datetime import UTC, datetime

from ...protocol.errors import RunFailed, UmbelError
from ...protocol.events import TerminateEvent
from ...protocol.messages import Message, Usage
from ...protocol.results import RunOutcome, normalise_stop_reason
from .run import Run, cost
from .think import call_model
from .thread import save

logger = logging.getLogger("umbel.supervisor")

SUMMARY_PROMPT = (
    "The limit of model calls is reached. Without calling tools, sum up what was done and found, and what is still open."
)
CANCELLED = "The run was cancelled by an external signal."
ERROR_CHARS = 2_000


async def terminate(run: Run, reason: str, error: Exception | None = None) -> RunOutcome:
    """Write the final text, save, tell the subscriber, and give the outcome."""
    message = ""
    if error is None:
        try:
            message = await final_text(run, reason)
        except Exception as caught:  # noqa: BLE001 - the summary call is a model call like any other
            reason, error = "error", caught
    if error is None:
        try:
            await save(run, final=True, reason=reason)
        except Exception as caught:  # noqa: BLE001 - a thread that could not be kept is not a success
            reason, error = "error", caught
    elif run.opened:
        run.state = run.state.with_error(describe(error))
        try:
            await save(run, final=True, reason=reason)
        except Exception:  # the first error is the one to report
            logger.warning("run %s: its last state could not be saved", run.id, exc_info=True)
    run.forget()
    return finish(run, reason, message, error)


async def final_text(run: Run, reason: str) -> str:
    """The answer, a summary, or what can be said instead."""
    if reason == "max_iterations" and run.state.iteration and run.termination_reason != reason:
        return await summarise(run)
    if reason == "cancelled" or run.stopping is not None:
        keep_partial(run)
        return CANCELLED if reason == "cancelled" else run.last_text
    return run.last_text


async def summarise(run: Run) -> str:
    """One call without tools; its text (or a digest, when it has none) becomes the conversation's last message."""
    last = run.last_text
    run.state = run.state.with_message(Message.system(SUMMARY_PROMPT, automated=True))
    response = await call_model(run, use_tools=False, auxiliary=True)
    text = (response.content or "").strip() or last or digest(run)
    run.state = run.state.with_message(Message.assistant(text))
    return text


def digest(run: Run) -> str:
    """What the run did, without a model: its last three successful results."""
    done = [execution for execution in run.state.tool_executions if execution.success]
    previews = "; ".join(f"{execution.tool_name}: {(execution.result or '')[:150]}" for execution in done[-3:])
    return f"Stopped after {run.state.iteration} iterations and {len(run.state.tool_executions)} tool calls. {previews}".strip()


def keep_partial(run: Run) -> None:
    """Text that was streamed before the run was stopped stays in the conversation, marked."""
    if run.partial_text:
        run.state = run.state.with_message(Message.assistant(run.partial_text, partial=True))
        run.partial_text = ""


def finish(run: Run, reason: str, message: str, error: Exception | None) -> RunOutcome:
    """The terminate event, and the outcome."""
    if run.watched:
        tell_end(run, reason, message, error)
    wire = None
    if error is not None:
        known = error if isinstance(error, UmbelError) else RunFailed(describe(error), type=type(error).__name__)
        wire = known.to_wire()
    return RunOutcome.trusted(
        run_id=run.id,
        thread_id=run.request.thread_id,
        stop_reason=normalise_stop_reason(reason),
        reason=reason,
        message=message,
        error=wire,
        error_type=None if error is None else type(error).__name__,
        error_traceback=None if error is None else "".join(traceback.format_exception(error))[-4_000:],
        metrics=run.metrics(),
        state=run.state.durable(final=True) if run.request.full else None,
        started_at=run.started_at,
        completed_at=datetime.now(UTC),
    )


def tell_end(run: Run, reason: str, message: str, error: Exception | None) -> None:
    """The last event of a run."""
    state = run.state
    run.emit(
        TerminateEvent,
        reason=reason,
        iterations_used=state.iteration,
        final_confidence=state.confidence,
        total_tool_calls=len(state.tool_executions),
        final_message=message,
        usage=usage(run),
        cost_usd=cost(state),
        reported_cost_usd=state.reported_cost_usd if state.reported_cost_calls else None,
        error=None if error is None else describe(error),
    )


def usage(run: Run) -> Usage | None:
    """Tokens of the whole run; None when nothing was metered."""
    state = run.state
    if not (state.prompt_tokens_used or state.completion_tokens_used):
        return None
    return Usage(
        prompt_tokens=state.prompt_tokens_used,
        completion_tokens=state.completion_tokens_used,
        cache_creation_tokens=state.cache_creation_tokens,
        cache_read_tokens=state.cache_read_tokens,
        cached_tokens=state.cached_tokens,
        cache_write_tokens=state.cache_write_tokens,
    )


def describe(error: Exception) -> str:
    """``Type: message`` on one line, at most 2,000 characters."""
    text = error.message if isinstance(error, UmbelError) else str(error)
    return " ".join(f"{type(error).__name__}: {text}".split())[:ERROR_CHARS]
