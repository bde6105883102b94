"""What a judge reads: the results of tool calls as lines of text, and the verdict's raw reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ....protocol.errors import JudgeFailed
from ....protocol.messages import Message, ModelResponse
from ....protocol.state import ToolExecution

EVIDENCE_CHARS = 500
Ask = Callable[[list[Message]], Awaitable[ModelResponse]]
"""One counted call of the judge's model, given by whoever runs the loop."""


def evidence_of(executions: Sequence[ToolExecution], *, cached: bool = True) -> tuple[str, ...]:
    """One line per distinct result: the tool's name and at most 500 characters of what it returned.

    Args:
        executions: the run's calls, in call order; failed ones and empty results are no evidence.
        cached: also take results that were reused from an earlier equal call.
    """
    useful = [done for done in executions if done.success and (cached or not done.idempotent_cache_hit)]
    lines = [f"{done.tool_name}: {_line(done.result or '')}" for done in useful if (done.result or "").strip()]
    return tuple(dict.fromkeys(lines))


def failures_of(executions: Sequence[ToolExecution]) -> tuple[str, ...]:
    """One line per distinct failure, in the same form."""
    failed = [done for done in executions if done.error is not None]
    return tuple(dict.fromkeys(f"{done.tool_name} failed: {_line(done.error or '')}" for done in failed))


def facts_of(executions: Sequence[ToolExecution]) -> tuple[str, ...]:
    """What the tools returned, or, where every call failed, how they failed: an answer may report just that."""
    return evidence_of(executions) or failures_of(executions)


def listed(lines: Sequence[str], none: str) -> str:
    """The lines as a list for a prompt, or the text that says there are none."""
    return "\n".join(f"- {line}" for line in lines) or none


async def put_to_judge(prompt: str, ask: Ask) -> str:
    """The judge's reply to one message in the user's role.

    Raises:
        JudgeFailed: the call failed, or the reply has no text or was cut off: half a verdict is none.
    """
    try:
        response = await ask([Message.user(prompt)])
    except Exception as error:  # whatever the model call raised means the same to the loop: no verdict
        cause = f"{type(error).__name__}: {error}"[:EVIDENCE_CHARS]
        raise JudgeFailed(f"the judge's model call failed: {cause}", cause=cause) from error
    text = (response.content or "").strip()
    if not text:
        raise JudgeFailed(f"the judge replied without text (stop reason {response.stop_reason})")
    if response.stop_reason == "length":
        raise JudgeFailed("the judge's reply was cut off at its token limit; raise max_tokens of the judge's model")
    return text


def _line(text: str) -> str:
    return " ".join(text.strip()[: 4 * EVIDENCE_CHARS].split())[:EVIDENCE_CHARS]
