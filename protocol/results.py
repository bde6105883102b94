"""How a run ended: stop reasons, metrics, the outcome that crosses actors and the result a caller holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, TypeVar, cast, get_args

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from .errors import RunError, UmbelError, from_wire
from .messages import Frozen, Json, JsonObject, Message, Text, Usage
from .state import AgentState, ReasoningStep, ToolExecution

StopReason = Literal[
    "complete",
    "terminal_tool",
    "confidence_met",
    "max_iterations",
    "tool_loop",
    "no_tools",
    "grounding_failed",
    "token_budget",
    "cost_budget",
    "time_budget",
    "context_exhausted",
    "tool_errors",
    "empty_reply",
    "interrupted",
    "error",
    "cancelled",
    "suspended",
]
STOP_REASONS: tuple[StopReason, ...] = get_args(StopReason)
SUCCESSFUL = frozenset({"complete", "terminal_tool", "confidence_met"})
# A cap of the user's own making is a cap: the run stopped early, which is no success.
_PREFIXES: tuple[tuple[str, StopReason], ...] = (
    ("tool_called:", "terminal_tool"),
    ("text_mention:", "complete"),
    ("tool_call_limit", "max_iterations"),
)
_Parsed = TypeVar("_Parsed")


def normalise_stop_reason(reason: str | None) -> StopReason:
    """The stop reason of the fixed set that a raw reason (a user condition's text, ``"A AND B"``) stands for.

    An exact member is itself. Of the parts of an ``A AND B`` text, ``tool_called:`` wins, then ``text_mention:``, then the
    first member in declared order. Parts are compared whole, so ``error_seen`` is not an ``error``; a text that names no
    member is the user's own stop and counts as ``complete``.
    """
    if not reason:
        return "complete"
    if reason in STOP_REASONS:
        return reason
    parts = [part.strip() for part in reason.split(" AND ")]
    for prefix, meaning in _PREFIXES[:2]:
        if any(part.startswith(prefix) for part in parts):
            return meaning
    for member in STOP_REASONS:
        if member in parts:
            return member
    prefix, meaning = _PREFIXES[2]
    return meaning if any(part.startswith(prefix) for part in parts) else "complete"


class Metrics(Frozen):
    """Counts of one run. Durations in milliseconds, cost in US dollars (None when a model used has no price)."""

    iterations: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None
    duration_ms: float = 0.0
    reflexion_evaluations: int = 0
    grounding_evaluations: int = 0

    @property
    def tool_success_rate(self) -> float:
        """Share of tool calls without an error; 1.0 when there were none."""
        return 1.0 - self.tool_errors / self.tool_calls if self.tool_calls else 1.0

    @property
    def tokens_per_iteration(self) -> float:
        """Tokens divided by iterations; 0.0 before the first."""
        return self.total_tokens / self.iterations if self.iterations else 0.0


class SubagentResult(Frozen):
    """How a child run ended that a tool's body started. Source: API-54.

    Attributes:
        text: its final message; empty where there is none.
        stop_reason: normalised; ``interrupted`` when the child asks a person, which only the body can pass on.
        iterations, tool_calls: how many.
        usage: tokens.
        agent_name: the child's name, if it has one.
        task_id: to continue its conversation with, where that was asked for.
        success: it came to an answer.
        interrupts: what the child asks.
    """

    text: Text = ""
    stop_reason: StopReason = "complete"
    iterations: int = 0
    tool_calls: int = 0
    usage: Usage = Field(default_factory=Usage)
    agent_name: Text | None = None
    task_id: str | None = None
    success: bool = True
    interrupts: tuple[JsonObject, ...] = ()

    @classmethod
    def of(cls, outcome: RunOutcome, agent_name: str | None, task_id: str | None = None) -> SubagentResult:
        """What an outcome says.

        Raises:
            UmbelError: the error that ended the run.
        """
        if outcome.error is not None:
            raise from_wire(outcome.error)
        metrics = outcome.metrics
        usage = Usage(prompt_tokens=metrics.prompt_tokens, completion_tokens=metrics.completion_tokens)
        return cls(
            text=outcome.message,
            stop_reason=outcome.stop_reason,
            iterations=metrics.iterations,
            tool_calls=metrics.tool_calls,
            usage=usage,
            agent_name=agent_name,
            task_id=task_id,
            success=outcome.success,
            interrupts=outcome.interrupts,
        )


class RunOutcome(Frozen):
    """A run's end as it crosses actors.

    Attributes:
        run_id: the run.
        thread_id: its conversation, if it has one.
        stop_reason: normalised.
        reason: the raw text (a user condition's, for example).
        message: the final text.
        error: the error's wire form (``UmbelError.to_wire``), when the run failed.
        error_type, error_traceback: the original exception's class name and traceback text, for people.
        metrics: counts.
        state: the final state in its durable form; None in the summary form.
        state_json: the same as it arrived over the wire, not yet read.
        interrupts: what the run waits for, when it is paused.
        hook_errors: texts of hooks that failed after the run was safe.
        parsed: structured output as JSON, or None.
        parse_error: why there is none, when it was asked for.
        grounding_score, ungrounded_claims: the grounding judge's verdict, if there was one.
        gsar_score, gsar_decision, gsar_judgement: what typed grounding said of the answer, if it was asked for.
        pattern: of a pattern's run: ``outputs``, ``members``, ``value``, ``error`` and ``details`` (``protocol/patterns.py``).
        started_at, completed_at: UTC.
    """

    run_id: Text
    thread_id: Text | None = None
    stop_reason: StopReason = "complete"
    reason: Text = ""
    message: Text = ""
    error: JsonObject | None = None
    error_type: Text | None = None
    error_traceback: Text | None = None
    metrics: Metrics = Metrics()
    state: AgentState | None = Field(default=None, exclude=True)
    state_json: bytes | None = Field(default=None, exclude=True, repr=False)
    interrupts: tuple[JsonObject, ...] = ()
    hook_errors: tuple[Text, ...] = ()
    parsed: Json = None
    parse_error: Text | None = None
    grounding_score: float | None = None
    ungrounded_claims: tuple[Text, ...] = ()
    gsar_score: float | None = None
    gsar_decision: Text | None = None
    gsar_judgement: JsonObject | None = None
    pattern: JsonObject | None = None
    started_at: AwareDatetime | None = None
    completed_at: AwareDatetime | None = None

    @property
    def success(self) -> bool:
        """Whether the run ended well; a pause, a cap, a cancellation and an error did not."""
        return self.stop_reason in SUCCESSFUL


@dataclass(frozen=True)
class AgentResult:
    """What a run gave its caller.

    Attributes:
        outcome: the outcome as it arrived; everything else is read from it.
        parsed: the structured output as an instance of the agent's ``output_schema``, or None.
        parse_error: why there is none.
    """

    outcome: RunOutcome
    parsed: Any = None
    parse_error: str | None = None

    @classmethod
    def from_outcome(cls, outcome: RunOutcome, schema: type[BaseModel] | None = None) -> AgentResult:
        """The caller's view of ``outcome``; ``schema`` turns the parsed JSON back into its class."""
        parsed, problem = outcome.parsed, outcome.parse_error
        if schema is not None and parsed is not None:
            try:
                parsed = cast(Any, schema.model_validate(parsed))
            except ValidationError as error:
                parsed, problem = None, str(error)
        return cls(outcome, parsed, problem)

    @property
    def run_id(self) -> str:
        """The run."""
        return self.outcome.run_id

    @property
    def thread_id(self) -> str | None:
        """The conversation, if it has one."""
        return self.outcome.thread_id

    @property
    def message(self) -> str:
        """The final text; empty when the run stopped before one was written."""
        return self.outcome.message

    text = message

    @property
    def stop_reason(self) -> StopReason:
        """Why the run ended, normalised."""
        return self.outcome.stop_reason

    @property
    def reason(self) -> str:
        """The stop reason as it was raised, before it was mapped to the fixed set."""
        return self.outcome.reason or self.outcome.stop_reason

    @property
    def success(self) -> bool:
        """Whether the run ended well; a pause, a cap, a cancellation and an error did not."""
        return self.outcome.success

    @property
    def metrics(self) -> Metrics:
        """Counts of the run."""
        return self.outcome.metrics

    @property
    def iterations(self) -> int:
        """Model turns used."""
        return self.outcome.metrics.iterations

    @property
    def interrupts(self) -> tuple[dict[str, Any], ...]:
        """What a paused run waits for."""
        return self.outcome.interrupts

    @property
    def hook_errors(self) -> tuple[str, ...]:
        """Hooks that failed after the run was safe."""
        return self.outcome.hook_errors

    @property
    def grounding_score(self) -> float | None:
        """The grounding judge's score, if there was one."""
        return self.outcome.grounding_score

    @property
    def ungrounded_claims(self) -> tuple[str, ...]:
        """Claims that the grounding judge found no evidence for."""
        return self.outcome.ungrounded_claims

    @property
    def gsar_score(self) -> float | None:
        """The score of typed grounding, 0 to 1, if it was asked for."""
        return self.outcome.gsar_score

    @property
    def gsar_decision(self) -> str | None:
        """``proceed``, ``regenerate``, ``replan`` or ``abstain``, if typed grounding was asked for."""
        return self.outcome.gsar_decision

    @property
    def gsar_judgement(self) -> dict[str, Any] | None:
        """The judge's output as plain JSON values: status, claims by cell, reason, and ``error`` when the judge failed."""
        return self.outcome.gsar_judgement

    @property
    def started_at(self) -> datetime | None:
        """When the run started, UTC."""
        return self.outcome.started_at

    @property
    def completed_at(self) -> datetime | None:
        """When it ended, UTC."""
        return self.outcome.completed_at

    @cached_property
    def error(self) -> UmbelError | None:
        """The error that ended the run, or None."""
        return None if self.outcome.error is None else from_wire(self.outcome.error)

    @cached_property
    def state(self) -> AgentState:
        """The final state.

        Raises:
            RunError: the run was asked for its summary only.
        """
        if self.outcome.state is not None:
            return self.outcome.state
        if self.outcome.state_json is not None:
            return AgentState.model_validate_json(self.outcome.state_json)
        raise RunError(
            f"run {self.run_id} returned a summary without its state; ask for the full outcome to read "
            "state, messages, tool_executions, reasoning_steps or confidence",
            run_id=self.run_id,
        )

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation."""
        return self.state.messages

    @property
    def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Calls carried out, in call order."""
        return self.state.tool_executions

    @property
    def reasoning_steps(self) -> tuple[ReasoningStep, ...]:
        """One per iteration that executed calls."""
        return self.state.reasoning_steps

    @property
    def confidence(self) -> float:
        """The final confidence, 0 to 1."""
        return self.state.confidence

    @property
    def last_assistant_message(self) -> Message | None:
        """The newest message of the model, with its calls."""
        return next((message for message in reversed(self.messages) if message.role == "assistant"), None)

    def parsed_as(self, cls: type[_Parsed]) -> _Parsed:
        """The structured output, known to be a ``cls``.

        Raises:
            ValueError: nothing was parsed.
            TypeError: it is something else.
        """
        if self.parsed is None:
            raise ValueError(f"run {self.run_id} has no structured output: {self.parse_error or 'none was asked for'}")
        if not isinstance(self.parsed, cls):
            raise TypeError(f"the structured output is a {type(self.parsed).__name__}, not a {cls.__name__}")
        return self.parsed

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        whole = {"success": self.success, **self.outcome.model_dump(mode="json"), "parse_error": self.parse_error}
        if self.outcome.state is not None or self.outcome.state_json is not None:
            whole["state"] = self.state.model_dump(mode="json")
        return whole
