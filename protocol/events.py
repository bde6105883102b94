"""What a run tells those who watch it, as immutable values.

Every event carries when, which agent, which run and its number in that run (``seq``, without gaps), so a subscriber that
reconnects misses nothing and sees nothing twice (``event.py``). The emitter gives the time; nothing reads a clock.

    agent stream     ThinkEvent, ModelChunkEvent, ToolStartEvent, ToolProgressEvent, ToolCompleteEvent, SubagentEvent,
                     ReflectEvent, GroundingEvent, FinalAnswerVerificationEvent, ModelRetryEvent, CompactionEvent,
                     CustomEvent, and at the end TerminateEvent, InterruptEvent or RunLostEvent
    pattern stream   StepStartEvent, StepCompleteEvent, MemberEvent, PatternEvent and those of single patterns; CustomEvent,
                     and the same ends
    other producers  ModelCompleteEvent, Specialist*Event, OrchestratorDecisionEvent, HandoffEvent, Causal*Event,
                     GraphStreamEvent, and the *Record types of hooks
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from .event import UNSTAMPED, AnyEvent, Event, RunInfo, event_types, read_event
from .messages import FinishReason, JsonObject, Text, ToolCall, Usage

__all__ = [
    "AGENT_STREAM",
    "UNSTAMPED",
    "AfterInvocationRecord",
    "AfterToolCallRecord",
    "AnyEvent",
    "BeforeInvocationRecord",
    "BeforeToolCallRecord",
    "CausalEdgeEvent",
    "CausalNodeEvent",
    "CompactionEvent",
    "CustomEvent",
    "Event",
    "FinalAnswerVerificationEvent",
    "GraphStreamEvent",
    "GroundingEvent",
    "HandoffEvent",
    "InterruptEvent",
    "IterationEndRecord",
    "IterationStartRecord",
    "MemberEvent",
    "ModelChunkEvent",
    "ModelCompleteEvent",
    "ModelRetryEvent",
    "OrchestratorDecisionEvent",
    "PatternEvent",
    "ReflectEvent",
    "RunInfo",
    "RunLostEvent",
    "SpecialistCompleteEvent",
    "SpecialistStartEvent",
    "StepCompleteEvent",
    "StepStartEvent",
    "SubagentEvent",
    "TerminateEvent",
    "ThinkEvent",
    "ToolCompleteEvent",
    "ToolProgressEvent",
    "ToolStartEvent",
    "event_types",
    "read_event",
]

MAX_RETRY_ERROR_CHARS = 500

# The stream of an agent's run


class ThinkEvent(Event):
    """A model call returned; once per call, after its chunks."""

    event_type: Literal["think"] = "think"
    iteration: int
    reasoning: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def content(self) -> str | None:
        """The visible prose (or reasoning channel) of the reply."""
        return self.reasoning


class ModelChunkEvent(Event):
    """A piece of a reply that is being streamed; the fields of ``ModelChunk``."""

    event_type: Literal["model_chunk"] = "model_chunk"
    content: Text | None = None
    model: Text | None = None
    reasoning: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    done: bool = False
    usage: Usage | None = None
    stop_reason: FinishReason | None = None
    cost_usd: float | None = None


class ToolStartEvent(Event):
    """A call is about to be handled; once per call, with the model's own arguments."""

    event_type: Literal["tool_start"] = "tool_start"
    tool_name: str
    tool_call_id: str
    arguments: JsonObject = Field(default_factory=dict)


class ToolProgressEvent(Event):
    """A running tool says how far it is."""

    event_type: Literal["tool_progress"] = "tool_progress"
    tool_name: str
    tool_call_id: str
    progress: float
    total: float | None = None
    message: Text | None = None


class ToolCompleteEvent(Event):
    """A call is done: run, reused, cancelled or failed. ``result`` is None on failure."""

    event_type: Literal["tool_complete"] = "tool_complete"
    tool_name: str
    tool_call_id: str
    result: Text | None = None
    error: Text | None = None
    code: Text | None = None
    duration_ms: float = 0.0
    structured_content: JsonObject | None = None
    content_blocks: tuple[JsonObject, ...] = ()

    @property
    def success(self) -> bool:
        """There is no error."""
        return self.error is None


class SubagentEvent(Event):
    """An event of a child run, wrapped by the tool call that started the child; ``event`` keeps its own class."""

    event_type: Literal["subagent"] = "subagent"
    tool_call_id: str
    tool_name: str
    task_id: Text | None = None
    event: AnyEvent


class ReflectEvent(Event):
    """The run judged its progress; ``confidence_delta`` is the gain before it is damped."""

    event_type: Literal["reflect"] = "reflect"
    iteration: int
    assessment: Literal["on_track", "stuck", "new_findings", "loop_detected"]
    confidence_delta: float
    new_confidence: float
    guidance: Text | None = None


class GroundingEvent(Event):
    """The final answer was compared with the evidence; when the judge failed, ``error`` says so and there is no ``score``."""

    event_type: Literal["grounding"] = "grounding"
    score: float | None = 1.0
    claims_evaluated: int = 0
    ungrounded_claims: tuple[Text, ...] = ()
    requires_replan: bool = False
    error: Text | None = None


class FinalAnswerVerificationEvent(Event):
    """A draft of the final answer was judged; ``attempt`` counts from 0."""

    event_type: Literal["final_answer_verification"] = "final_answer_verification"
    passed: bool
    attempt: int = 0
    replanning: bool = False
    feedback: Text | None = None
    error: Text | None = None
    replaced: bool = False
    continuation: bool = False
    reason: Text | None = None


class ModelRetryEvent(Event):
    """A model call failed and is tried again after ``delay_seconds``; ``attempt`` counts from 1.

    With ``attempt`` 0 nothing failed: the call waits for its turn at a rate limit, for about so long.
    """

    event_type: Literal["model_retry"] = "model_retry"
    attempt: int
    delay_seconds: float
    reason: Text
    status_code: int | None = None
    error: Annotated[Text, AfterValidator(lambda text: text[:MAX_RETRY_ERROR_CHARS])] = ""
    from_retry_after: bool = False


class CompactionEvent(Event):
    """The conversation was shortened; what came before is no longer verbatim in the model's context. Sizes in tokens."""

    event_type: Literal["compaction"] = "compaction"
    iteration: int
    stage: Literal["prune", "summarize", "truncate"]
    tokens_before: int
    tokens_after: int
    threshold: int
    context_window: int
    messages_before: int
    messages_after: int
    summary: Text | None = None
    exhausted: bool = False
    detail: Text | None = None


class CustomEvent(Event):
    """Something that a hook or the runtime wants to show; never stored, never shown to the model."""

    event_type: Literal["custom"] = "custom"
    name: Text
    data: JsonObject = Field(default_factory=dict)
    tool_call_id: Text | None = None


class TerminateEvent(Event):
    """The run ended. ``reason`` is the raw one; usage and cost are None when nothing was metered or priced."""

    event_type: Literal["terminate"] = "terminate"
    reason: Text
    iterations_used: int = 0
    final_confidence: float = 0.0
    total_tool_calls: int = 0
    final_message: Text | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    reported_cost_usd: float | None = None
    error: Text | None = None

    @property
    def content(self) -> str | None:
        """The final text."""
        return self.final_message


class InterruptEvent(Event):
    """The run paused and asks something; ``interrupt_id`` is what an answer must name."""

    event_type: Literal["interrupt"] = "interrupt"
    question: Text
    options: tuple[Text, ...] | None = None
    fields: JsonObject | None = Field(default=None)
    interrupt_id: Text
    metadata: JsonObject = Field(default_factory=dict)


class RunLostEvent(Event):
    """The run's supervisor died and nothing durable was kept; no further event will come."""

    event_type: Literal["run_lost"] = "run_lost"
    reason: Text


AGENT_STREAM: frozenset[type[Event]] = frozenset(event_types().values())


# Types of other producers; an agent's run never yields them


class StepStartEvent(Event):
    """A step of a pattern starts; ``child_run_id`` is the run that it is, None for a function."""

    event_type: Literal["step_start"] = "step_start"
    step: Text
    step_member: Text
    child_run_id: str | None = None


class StepCompleteEvent(Event):
    """A step of a pattern ended (or paused). ``status`` as in ``MemberResult``, or ``interrupted``."""

    event_type: Literal["step_complete"] = "step_complete"
    step: Text
    step_member: Text
    status: Literal["completed", "failed", "cancelled", "skipped", "interrupted"]
    stop_reason: Text = "complete"
    result: Text = ""
    error: Text | None = None
    duration_ms: float = 0.0


class MemberEvent(Event):
    """An event of a member's run, wrapped by the pattern that started it; ``event`` keeps its class, run and number.

    The events of the whole tree are these, one inside the other; :attr:`innermost` is the one that was made first.
    """

    event_type: Literal["member"] = "member"
    step: Text
    event: AnyEvent

    @property
    def innermost(self) -> Event:
        """The event as the run that made it numbered it, however deep that is."""
        event = self.event
        return event.innermost if isinstance(event, MemberEvent) else event


class PatternEvent(Event):
    """Something that a pattern did beside running steps. ``kind`` says what (see the pattern), ``data`` has the facts."""

    event_type: Literal["pattern"] = "pattern"
    kind: Text
    step: Text | None = None
    data: JsonObject = Field(default_factory=dict)


class ModelCompleteEvent(Event):
    """A model's whole reply."""

    event_type: Literal["model_complete"] = "model_complete"
    content: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    stop_reason: FinishReason | None = None


class SpecialistStartEvent(Event):
    """An orchestrator gave a task to a specialist."""

    event_type: Literal["specialist_start"] = "specialist_start"
    specialist_id: Text
    specialist_type: Text
    task: Text


class SpecialistCompleteEvent(Event):
    """A specialist is done."""

    event_type: Literal["specialist_complete"] = "specialist_complete"
    specialist_id: Text
    specialist_type: Text
    result: Text | None = None
    confidence: float = 0.0
    duration_ms: float = 0.0


class OrchestratorDecisionEvent(Event):
    """An orchestrator decided what comes next."""

    event_type: Literal["orchestrator_decision"] = "orchestrator_decision"
    decision: Text
    specialists_selected: tuple[Text, ...] = ()
    reasoning: Text | None = None


class HandoffEvent(Event):
    """One agent passed the conversation to another."""

    event_type: Literal["handoff"] = "handoff"
    source: Text
    target: Text
    reason: Text | None = None
    context_summary: Text | None = None


class CausalNodeEvent(Event):
    """A node of a causal graph."""

    event_type: Literal["causal_node"] = "causal_node"
    node_id: Text
    label: Text
    node_type: Text
    evidence: tuple[Text, ...] = ()


class CausalEdgeEvent(Event):
    """An edge of a causal graph."""

    event_type: Literal["causal_edge"] = "causal_edge"
    source: Text
    target: Text
    relationship: Text
    confidence: float = 0.0


class GraphStreamEvent(Event):
    """A piece of a graph's stream, in the mode it was asked for."""

    event_type: Literal["graph_stream"] = "graph_stream"
    mode: Literal["values", "updates", "nodes", "custom", "debug"]
    node_id: Text | None = None
    data: JsonObject = Field(default_factory=dict)


# Records of hook calls, for whoever watches; hooks themselves get other, mutable objects


class BeforeInvocationRecord(Event):
    """Hooks are about to see the prompt."""

    event_type: Literal["before_invocation"] = "before_invocation"
    prompt: Text = ""


class AfterInvocationRecord(Event):
    """Hooks are about to see the end of the run."""

    event_type: Literal["after_invocation"] = "after_invocation"
    success: bool


class BeforeToolCallRecord(Event):
    """Hooks are about to see a call."""

    event_type: Literal["before_tool_call"] = "before_tool_call"
    tool_name: str
    tool_call_id: str
    arguments: JsonObject = Field(default_factory=dict)


class AfterToolCallRecord(Event):
    """Hooks are about to see a call's result."""

    event_type: Literal["after_tool_call"] = "after_tool_call"
    tool_name: str
    tool_call_id: str
    result: Text | None = None
    error: Text | None = None


class IterationStartRecord(Event):
    """An iteration begins."""

    event_type: Literal["iteration_start"] = "iteration_start"
    iteration: int


class IterationEndRecord(Event):
    """An iteration is over."""

    event_type: Literal["iteration_end"] = "iteration_end"
    iteration: int
