"""What coordination patterns say: how a step went, how a pattern ended, and the result that its caller holds."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from .errors import MemberFailed, ToolError, UmbelError, from_wire
from .messages import NOTHING, Frozen, Json, JsonObject, Message, Text
from .results import AgentResult, Metrics, RunOutcome, StopReason
from .state import AgentState

Status = Literal["completed", "failed", "cancelled", "skipped"]


class MemberResult(Frozen):
    """How one step of a pattern went. Source: OURS-25.

    Attributes:
        step: the step's key, unique within the pattern's run.
        member: who carried it out.
        status: ``completed`` only if it came to an answer; a limit, an error, a lost run are ``failed``.
        stop_reason: of the member's run, normalised.
        text: its final text; a failed step may have one, too.
        value: the structured answer, or what a function returned; JSON.
        error: what ended it, in wire form.
        metrics: what it used.
        run_id, thread_id: of the member's run; empty for functions.
        duration_ms: milliseconds.
        cached: it was not carried out: an equal step's result was taken.
        pattern: of a member that is a pattern: its report (``outputs``, ``members``, ``details``...).
        calls: ``name`` and ``arguments`` of the successful calls of those tools that were asked for.
        conversation: the member's final state as JSON values, where it was asked for; not part of a pattern's report.
    """

    step: Text
    member: Text
    status: Status = "completed"
    stop_reason: StopReason = "complete"
    text: Text = ""
    value: Json = None
    error: JsonObject | None = None
    metrics: Metrics = Metrics()
    run_id: Text = ""
    thread_id: Text | None = None
    duration_ms: float = 0.0
    cached: bool = False
    pattern: JsonObject | None = None
    calls: tuple[JsonObject, ...] = ()
    conversation: JsonObject | None = Field(default=None, repr=False)

    @property
    def success(self) -> bool:
        """Whether the step came to an answer."""
        return self.status == "completed"

    @property
    def problem(self) -> str:
        """Why it did not: ``Type: message``, or the limit that stopped it; empty for a success."""
        if self.success:
            return ""
        if self.error is None:
            return f"stopped: {self.stop_reason}" if self.status == "failed" else self.status
        details = self.error.get("details") or {}
        if self.error.get("code") == ToolError.code and "type" not in details:
            return str(self.error.get("message", ""))  # of a function's exception, which names its type
        return f"{details.get('type') or type(from_wire(self.error)).__name__}: {self.error.get('message', '')}"

    @property
    def members(self) -> tuple[MemberResult, ...]:
        """The steps of a member that is a pattern itself."""
        return tuple(map(MemberResult.model_validate, (self.pattern or {}).get("members", ())))

    @cached_property
    def state(self) -> AgentState | None:
        """The member's final state, where it was asked for."""
        return None if self.conversation is None else AgentState.model_validate(self.conversation)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The member's whole conversation, where it was asked for."""
        return self.state.messages if self.state is not None else ()


class Ending(Frozen):
    """How a pattern ends.

    Attributes:
        stop_reason: why; only ``complete`` is a success.
        outputs: the members' outputs, in the pattern's order.
        final_output: the answer as text.
        value: the answer as JSON, where there is more than text.
        error: what went wrong, in wire form.
        details: what is special to the pattern, JSON values.
    """

    stop_reason: StopReason = "complete"
    outputs: tuple[Json, ...] = ()
    final_output: Text = ""
    value: Json = None
    error: JsonObject | None = None
    details: JsonObject = NOTHING

    @classmethod
    def failed(cls, error: UmbelError, stop_reason: StopReason = "error", **fields: Any) -> Ending:
        """An end that is no success."""
        return cls(stop_reason=stop_reason, error=error.to_wire(), **fields)


LIMITS: frozenset[StopReason] = frozenset({"token_budget", "cost_budget", "time_budget", "cancelled"})


def failure_of(results: Iterable[MemberResult], *, named: bool = True) -> tuple[StopReason, MemberFailed] | None:
    """What the failed steps among ``results`` mean for the pattern; None when there are none.

    A step that was stopped by a budget stops the pattern for the same reason; everything else is an ``error``.
    """
    failed = [result for result in results if result.status in {"failed", "cancelled"}]
    if not failed:
        return None
    text = "; ".join(f"{result.member}: {result.problem}" if named else result.problem for result in failed)
    limits = {result.stop_reason for result in failed} & LIMITS
    steps = [result.step for result in failed]
    codes = sorted({code for result in failed for code in _codes(result)})
    return (limits.pop() if len(limits) == 1 else "error"), MemberFailed(text, steps=steps, codes=codes)


def _codes(result: MemberResult) -> list[str]:
    """The codes of the errors behind a failed step, however deep; of a limit its name."""
    error = result.error or {}
    return list((error.get("details") or {}).get("codes") or [error.get("code") or result.stop_reason])


class PatternResult(AgentResult):
    """What a pattern's run gave its caller: all that an agent's run gives, and what its members did.

    A member's failure is not raised: see ``success`` and ``error``. Source: PAT-1, PAT-2, OURS-25.
    """

    @cached_property
    def report(self) -> dict[str, Any]:
        """What the pattern says of its run, as JSON values."""
        return dict(self.outcome.pattern or {})

    @property
    def outputs(self) -> list[Any]:
        """The members' outputs in the pattern's order; ``""`` for one that failed."""
        return list(self.report.get("outputs", ()))

    @property
    def final_output(self) -> str:
        """The answer."""
        return self.outcome.message

    @property
    def value(self) -> Any:
        """The answer as a JSON value, where there is more than text."""
        return self.report.get("value")

    @property
    def details(self) -> dict[str, Any]:
        """What is special to the pattern: decisions, hops, tasks..."""
        return dict(self.report.get("details") or {})

    @cached_property
    def members(self) -> tuple[MemberResult, ...]:
        """How every step went, in the order in which they ended."""
        return tuple(map(MemberResult.model_validate, self.report.get("members", ())))

    @property
    def duration_ms(self) -> float:
        """Milliseconds, without the time in which the run was paused."""
        return self.outcome.metrics.duration_ms

    @cached_property
    def error(self) -> UmbelError | None:
        """What went wrong, or None."""
        wire = self.outcome.error or self.report.get("error")
        return None if wire is None else from_wire(wire)

    @classmethod
    def of(cls, outcome: RunOutcome) -> PatternResult:
        """The caller's view of an outcome."""
        return cls(outcome)
