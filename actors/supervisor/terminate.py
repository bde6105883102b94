"""Terminate: the end of a turn, whatever it was. One last event, one outcome."""

from __future__ import annotations

import logging
import traceback
from datetime import UTC, datetime
from typing import Any

from ...protocol.errors import RunFailed, StaleWriter, UmbelError
from ...protocol.events import CustomEvent, TerminateEvent
from ...protocol.markers import HANDOFF
from ...protocol.messages import Message, ModelResponse, Usage
from ...protocol.results import SUCCESSFUL, RunOutcome, normalise_stop_reason
from .hooks.dispatch import after_invocation_all, call
from .pause import listed, tell_pause
from .reasoning.gsar import assess
from .recover import found_in
from .run import Run, cost
from .steps import report
from .structured import Parsed, is_answer, parse_or_repair
from .think import call_model, judge
from .thread import close_open_calls, save

logger = logging.getLogger("umbel.supervisor")

SUMMARY_PROMPT = (
    "The limit of model calls is reached. Without calling tools, sum up what was done and found, and what is still open."
)
CANCELLED = "The run was cancelled by an external signal."
ERROR_CHARS = 2_000
OPEN = frozenset(
    {"interrupted", "error", "cancelled", "suspended"}
)  # the turn is not over: it waits for an answer, or was cut off
UNSUCCESSFUL = frozenset({"error", "cancelled", "interrupted", "suspended"})  # what hooks are told; a limit is no failure


async def terminate(run: Run, reason: str, error: Exception | None = None) -> RunOutcome:
    """Write the final text, save, tell the subscriber, ask the hooks, and give the outcome."""
    message, parsed = "", None
    run.closing = True
    if error is None:
        try:
            message = await final_text(run, reason)
            if run.config.output_schema is not None and not hands_over(run):
                parsed = await structured(run, reason, message)
            if run.agent.gsar is not None and message and normalise_stop_reason(reason) in SUCCESSFUL and not hands_over(run):
                await weigh(run, message)
        except Exception as caught:  # noqa: BLE001 - a summary, a repair and a judge are model calls like any other
            reason, error = "error", caught
    if parsed is not None and parsed.error is None:
        message = parsed.message
    if error is not None and run.opened:
        run.state = run.state.with_error(describe(error))
    close_turn(run, reason)
    try:
        if run.is_durable and not isinstance(error, StaleWriter):  # then the thread is somebody else's
            await save(
                run, final=True, reason=None if reason in OPEN else reason, ending=ending(run, reason, message, error, parsed)
            )
    except Exception as caught:  # a thread that could not be kept is not a success; of two errors the first is reported
        if error is not None:
            logger.warning("run %s: its last state could not be saved", run.id, exc_info=True)
        else:
            reason, error = "error", caught
    run.let_go()
    run.forget()
    hooks = run.agent.hooks
    if hooks.after_invocation or hooks.iteration_end:
        await after_invocation(run, reason, error)
    tell_end(run, reason, message, error)
    return finish(run, reason, message, error, parsed)


def hands_over(run: Run) -> bool:
    """Whether the run ends with a handoff to another agent: then its text is no answer that could be parsed or judged."""
    tools = run.agent.tools_by_name
    return any(
        done.success and done.tool_name in tools and HANDOFF in tools[done.tool_name].labels
        for done in run.state.tool_executions
    )


def ending(run: Run, reason: str, message: str, error: Exception | None, parsed: Parsed | None) -> dict[str, Any]:
    """How the segment ends, for an outcome that has to be rebuilt (``recovery.py``): what the state does not say anyway."""
    facts: dict[str, Any] = {"reason": reason}
    if message != (run.newest_text if is_answer(reason) else ""):
        facts["message"] = message
    if error is not None:
        facts |= {"error": wire(error), "error_type": type(error).__name__}
    if parsed is not None:
        facts |= {"parsed": True, "parse_error": parsed.error}
    if run._memo is not None:
        judged = judgements(run, None)
        facts |= {name: judged[name] for name in judged if name not in {"interrupts", "hook_errors"}}
    return facts


def wire(error: Exception) -> dict[str, Any]:
    """The error as plain values; one that is not ours becomes ``RunFailed``."""
    known = error if isinstance(error, UmbelError) else RunFailed(describe(error), type=type(error).__name__)
    return known.to_wire()


def close_turn(run: Run, reason: str) -> None:
    """What only a turn that goes on needs is over; the final text goes where the application wants it."""
    if reason == "interrupted":
        run.keep_time()
        return
    if run.state.interrupts:
        run.state = run.state.evolve(turn=run.state.turn.evolve(interrupts=()), messages=close_open_calls(run.state.messages))
    text = run.newest_text if run.config.output_key is not None else ""
    if text:
        run.state = run.state.with_metadata(run.config.output_key, text)


async def close_iteration(run: Run) -> None:
    """Tell the hooks that the open iteration is over (also when it ended badly)."""
    opened = run.memo.open_iteration
    if opened is not None:
        run.memo.open_iteration = None
        await call(run.agent.hooks.iteration_end, opened, run.state)


async def after_invocation(run: Run, reason: str, error: Exception | None) -> None:
    """Hooks that look at a run that is over: it is safe already, so their failures are reported and lose nothing (OURS-7)."""
    hooks = run.agent.hooks
    errors: list[str] = []
    if hooks.iteration_end:
        try:
            await close_iteration(run)
        except Exception as caught:  # as below
            logger.warning("run %s: a hook failed at the end of its iteration", run.id, exc_info=True)
            errors.append(describe(caught))
    if hooks.after_invocation:
        success = error is None and reason not in UNSUCCESSFUL
        errors += await after_invocation_all(hooks.after_invocation, run.state, success)
    if errors:
        run.memo.hook_errors = tuple(errors)
        run.emit(CustomEvent, name="hook_errors", data={"errors": errors})


async def structured(run: Run, reason: str, message: str) -> Parsed | None:
    """The final text as an instance of the agent's schema, repaired by the model where need be. Source: API-42 to API-45.

    A run that a limit ended is read, too, where it has a text, but no further call is spent on it.
    """
    config = run.config
    finished = normalise_stop_reason(reason) in SUCCESSFUL
    if not is_answer(reason) or not (finished or message):
        return None
    retries = config.output_schema_retries if finished else 0

    async def ask(messages: list[Message], response_format: dict[str, Any] | None) -> ModelResponse:
        settings = {"response_format": response_format} if response_format is not None else {}
        return await judge(run, [*run.state.messages, *messages], "primary", **settings)

    return await parse_or_repair(message, config.output_schema, ask, retries, config.output_schema_strict)


async def weigh(run: Run, message: str) -> None:
    """One pass of typed grounding over the answer. Source: REAS-37.

    Raises:
        GsarRejected: the gate was asked for and the answer did not pass it.
    """
    config = run.agent.gsar
    run.memo.gsar = await assess(message, run.state.tool_executions, lambda asked: judge(run, asked, "gsar"), config)
    run.emit(CustomEvent, name="gsar", data=run.memo.gsar.model_dump(mode="json"))


async def final_text(run: Run, reason: str) -> str:
    """The answer, a summary, or what can be said instead."""
    if run.agent.is_pattern:
        return CANCELLED if reason == "cancelled" else run.last_text
    if reason == "max_iterations" and run.state.iteration and run.termination_reason != reason:
        return await summarise(run)
    if reason == "cancelled" or run.stopping is not None:
        keep_partial(run)
        return CANCELLED if reason == "cancelled" else run.last_text
    if reason in {"interrupted", "suspended"}:
        return ""
    return without_answer(run) if reason == "empty_reply" else run.last_text


def without_answer(run: Run) -> str:
    """Nothing but empty replies came: the last text there was, or what was done. Source: LOOP-61, OURS-8."""
    text = run.newest_text
    if not text:
        text = digest(run)
        run.state = run.state.with_message(Message.assistant(text))
    return text


async def summarise(run: Run) -> str:
    """One call without tools; its text (or a digest, when it has none) becomes the conversation's last message."""
    last = run.newest_text
    run.note(SUMMARY_PROMPT)
    response = await call_model(run, use_tools=False, role="auxiliary")
    text = (response.content or "").strip()
    if not text or found_in(run, response) is not None:  # a call that stands in the text is no summary
        text = last or digest(run)
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


def finish(run: Run, reason: str, message: str, error: Exception | None, parsed: Parsed | None) -> RunOutcome:
    """The outcome."""
    return RunOutcome.trusted(
        run_id=run.id,
        thread_id=run.request.thread_id,
        stop_reason=normalise_stop_reason(reason),
        reason=reason,
        message=message,
        error=None if error is None else wire(error),
        error_type=None if error is None else type(error).__name__,
        error_traceback=None if error is None else "".join(traceback.format_exception(error))[-4_000:],
        metrics=run.metrics(),
        state=run.state.durable(final=True) if run.request.full or reason == "interrupted" else None,
        **judgements(run, parsed),
        pattern=report(run) if run.agent.is_pattern else None,
        started_at=run.started_at,
        completed_at=datetime.now(UTC),
    )


def judgements(run: Run, parsed: Parsed | None) -> dict[str, Any]:
    """What hooks, judges and the schema had to say; nothing for most runs."""
    fields: dict[str, Any] = {}
    if run.state.interrupts:
        fields["interrupts"] = listed(run.state.interrupts)
    if parsed is not None:
        fields |= {"parsed": parsed.value, "parse_error": parsed.error}
    if run._memo is not None:
        memo = run._memo
        fields["hook_errors"] = memo.hook_errors
        if memo.grounding is not None:
            fields |= {"grounding_score": memo.grounding.score, "ungrounded_claims": tuple(memo.grounding.ungrounded)}
        if memo.gsar is not None:
            judgement = memo.gsar.model_dump(mode="json")
            fields |= {"gsar_score": memo.gsar.score, "gsar_decision": memo.gsar.decision, "gsar_judgement": judgement}
    return fields


def tell_end(run: Run, reason: str, message: str, error: Exception | None) -> None:
    """The last event of a segment."""
    if not run.watched or (error is not None and not run.opened):  # what never began has no end (LOOP-11)
        return
    if reason == "interrupted":
        tell_pause(run)
        return
    state = run.state
    run.emit(
        TerminateEvent,
        reason=reason,
        iterations_used=state.iteration,
        final_confidence=state.confidence,
        total_tool_calls=run.tool_calls,
        final_message=message,
        usage=usage(run),
        cost_usd=cost(state),
        reported_cost_usd=state.reported_cost_usd if state.reported_cost_calls else None,
        error=describe(error) if error is not None else run.memo.problem if run.agent.is_pattern else None,
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
