"""A reply without calls: the answer, or what sends the model back to work."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from ...protocol.errors import JudgeFailed
from ...protocol.events import FinalAnswerVerificationEvent, GroundingEvent, RunInfo
from ...protocol.markers import AUTOMATED, CONTINUATION_REASON, TURN_ONLY
from ...protocol.messages import Message, ModelResponse
from ...protocol.state import AgentState, ReasoningStep
from .execute import execute
from .reasoning.grounding import judge as judge_grounding
from .recover import repaired
from .run import Run
from .think import call_model, discard, judge, release

logger = logging.getLogger("umbel.supervisor")

EMPTY_REPLY = "Your last reply was empty. Go on with the task: call a tool, or give your answer as text."
ANSWER_NOW = "Your last reply was empty. Give your final answer as text now, without calling tools."


@dataclass(frozen=True)
class FinalAnswer:
    """What a ``final_answer_verifier`` and a ``final_answer_fallback`` judge.

    Attributes:
        text: the draft.
        state: the run's state, the draft included.
        run: whose run it is.
        attempt: drafts of this turn that were sent back before.
        feedback: why the verifier refused it (fallback only).
    """

    text: str
    state: AgentState
    run: RunInfo
    attempt: int
    feedback: str | None = None


@dataclass(frozen=True)
class Continuation:
    """A verifier's word for: this is no final answer yet, go on. The reply stays in the conversation, ``note`` follows it."""

    note: str
    reason: str = "custom"


Verdict = str | Continuation | None
Verifier = Callable[[FinalAnswer], Awaitable[Verdict]]


async def answer(run: Run, response: ModelResponse) -> str | None:
    """The stop reason that a reply without calls means, or None when it is sent back."""
    if run.config.completion_mode == "explicit":
        record_thought(run, response)
        return None
    text = (response.content or "").strip()
    if not text:
        return await empty_reply(run)
    run.empty_replies = 0
    if run.agent.grounding is not None and run.state.tool_executions:
        reason = await grounded(run, text)
        if reason != "complete":
            return reason
    if run.config.final_answer_verifier is not None:
        return await verified(run, response.content or "")
    release(run)
    return "complete"


def record_thought(run: Run, response: ModelResponse) -> None:
    """In explicit mode a reply without calls is a step like any other, and breaks a loop's streak."""
    step = ReasoningStep.trusted(iteration=run.state.iteration, thought=response.content)
    run.state = run.state.with_reasoning_step(step)
    release(run)


def send_back(run: Run) -> None:
    """The reply is not final: conditions on it must not hold, and what was held of it is dropped."""
    run.no_tool_calls = False
    discard(run)


# empty replies


async def empty_reply(run: Run) -> str | None:
    """Nudge a bounded number of times, then ask without tools; if that gives nothing, too, give up. Source: OURS-9, LOOP-59."""
    run.empty_replies += 1
    if run.empty_replies <= run.config.max_empty_replies:
        run.note(EMPTY_REPLY)
        send_back(run)
        return None
    run.note(ANSWER_NOW)
    try:
        response = await call_model(run, use_tools=False, role="auxiliary")
    except Exception:  # the run ends `empty_reply` as it would have without this last try (LOOP-61)
        logger.info("run %s: asking for a final answer failed", run.id, exc_info=True)
        return "empty_reply"
    text = (response.content or "").strip()
    return await last_answer(run, response, text) if text else "empty_reply"


async def last_answer(run: Run, response: ModelResponse, text: str) -> str | None:
    """What came of asking without tools: the answer, or after all a call that stands in the text. Source: LOOP-60."""
    *earlier, _note = run.state.messages
    response = response.evolve(message=Message.assistant(text))
    run.state = run.state.with_message(response.message)
    recovered = repaired(run, response)
    if recovered is None:
        send_back(run)
        return None
    if recovered.tool_calls:
        run.state = run.state.evolve(messages=(*earlier, recovered.message))
        run.sent = min(run.sent, len(earlier))
        return await execute(run, recovered)
    run.last_text = text
    return await verified(run, text) if run.config.final_answer_verifier is not None else "complete"


# grounding


async def grounded(run: Run, text: str) -> str | None:
    """Compare the answer with the tools' results: ``complete``, None when it is sent back, or ``grounding_failed``."""
    config, memo = run.agent.grounding, run.memo
    memo.groundings += 1
    try:
        verdict = await judge_grounding(text, run.state.tool_executions, lambda asked: judge(run, asked, "grounding"), config)
    except JudgeFailed as error:
        run.emit(GroundingEvent, score=None, error=error.message)
        return "complete"  # a judge that fails says nothing about the answer
    memo.grounding = verdict
    run.emit(
        GroundingEvent,
        score=verdict.score,
        claims_evaluated=len(verdict.claims),
        ungrounded_claims=tuple(verdict.ungrounded),
        requires_replan=verdict.requires_replan,
    )
    if not verdict.requires_replan:
        return "complete"
    if memo.groundings > config.max_replans:
        release(run)
        return "grounding_failed"
    if verdict.guidance is not None:
        run.note(verdict.guidance)
    send_back(run)
    return None


# the application's own verifier


async def verified(run: Run, text: str) -> str | None:
    """Ask the verifier; a rejected draft goes back; the last one a fallback may replace. Source: LOOP-67 to LOOP-72."""
    memo, config = run.memo, run.config
    draft = FinalAnswer(text, run.state, run.info, memo.rejected)
    try:
        verdict = await _resolved(config.final_answer_verifier, draft)
    except Exception as error:  # noqa: BLE001 - a broken verifier accepts: it says nothing about the answer, and is reported
        _tell(run, draft, passed=False, error=f"{type(error).__name__}: {error}")
        release(run)
        return "complete"
    if isinstance(verdict, Continuation):
        _go_on(run, draft, verdict)
        return None
    if not verdict:
        _tell(run, draft, passed=True)
        release(run)
        return "complete"
    if memo.rejected < config.final_answer_verifier_max_replans:
        memo.rejected += 1
        _tell(run, draft, passed=False, replanning=True, feedback=verdict)
        *earlier, reply = run.state.messages
        rejected = reply.evolve(metadata={**reply.metadata, TURN_ONLY: True})
        feedback = Message.user(verdict, **{AUTOMATED: True, TURN_ONLY: True})
        run.state = run.state.evolve(messages=(*earlier, rejected, feedback))
        send_back(run)
        return None
    return await _last_draft(run, draft, verdict)


def _go_on(run: Run, draft: FinalAnswer, verdict: Continuation) -> None:
    _tell(run, draft, passed=False, replanning=True, feedback=verdict.note, continuation=True, reason=verdict.reason)
    note = Message.user(verdict.note, **{AUTOMATED: True, CONTINUATION_REASON: verdict.reason})
    run.state = run.state.with_message(note)
    release(run)
    run.no_tool_calls = False


async def _last_draft(run: Run, draft: FinalAnswer, feedback: str) -> str:
    """No draft is left: the fallback's text, or the draft as it is."""
    replacement = error = None
    if run.config.final_answer_fallback is not None:
        try:
            refused = FinalAnswer(draft.text, draft.state, draft.run, draft.attempt, feedback)
            replacement = await _resolved(run.config.final_answer_fallback, refused)
        except Exception as caught:  # noqa: BLE001 - a broken fallback leaves the draft, and is reported
            error = f"{type(caught).__name__}: {caught}"
    _tell(run, draft, passed=False, feedback=feedback, replaced=bool(replacement), error=error)
    if not replacement:
        release(run)
        return "complete"
    *earlier, reply = run.state.messages
    run.state = run.state.evolve(messages=(*earlier, reply.evolve(content=str(replacement))))
    run.sent = min(run.sent, len(earlier))
    run.last_text = str(replacement)
    discard(run, str(replacement))
    return "complete"


async def _resolved(function: Any, argument: FinalAnswer) -> Any:
    value = function(argument)
    return await value if isawaitable(value) else value


def _tell(run: Run, draft: FinalAnswer, **fields: Any) -> None:
    run.emit(FinalAnswerVerificationEvent, attempt=draft.attempt, **fields)
