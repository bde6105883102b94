"""Umbel: an actor-model runtime for fleets of agents, on Ray.

Everything public is here, and imported at first use: ``import umbel`` costs milliseconds and never imports Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .actors.agent.conversation.budgets import (
        CompactionConfig as CompactionConfig,
    )
    from .actors.agent.conversation.compaction import (
        Compaction as Compaction,
    )
    from .actors.agent.conversation.compactor import (
        LLMCompactor as LLMCompactor,
    )
    from .actors.agent.conversation.manager import (
        ConversationManager as ConversationManager,
    )
    from .actors.agent.conversation.manager import (
        NullManager as NullManager,
    )
    from .actors.agent.conversation.summarizing import (
        SummarizingManager as SummarizingManager,
    )
    from .actors.agent.conversation.window import (
        SlidingWindow as SlidingWindow,
    )
    from .actors.agent.models.catalogue import (
        ModelFacts as ModelFacts,
    )
    from .actors.agent.models.catalogue import (
        Prices as Prices,
    )
    from .actors.agent.models.catalogue import (
        facts_of as facts_of,
    )
    from .actors.agent.models.catalogue import (
        price_of as price_of,
    )
    from .actors.agent.models.catalogue import (
        register_model as register_model,
    )
    from .actors.agent.models.failover import (
        FailoverModel as FailoverModel,
    )
    from .actors.agent.models.registry import (
        register_provider as register_provider,
    )
    from .actors.agent.models.retry import (
        RetryPolicy as RetryPolicy,
    )
    from .actors.agent_definition import (
        Agent as Agent,
    )
    from .actors.runnable import (
        Runnable as Runnable,
    )
    from .actors.subagents import (
        run_subagent as run_subagent,
    )
    from .actors.subagents import (
        run_subagent_sync as run_subagent_sync,
    )
    from .actors.supervisor.hooks.base import (
        Hook as Hook,
    )
    from .actors.supervisor.hooks.content_filter import (
        ContentFilterHook as ContentFilterHook,
    )
    from .actors.supervisor.hooks.guardrails import (
        GuardrailsHook as GuardrailsHook,
    )
    from .actors.supervisor.hooks.logging import (
        LoggingHook as LoggingHook,
    )
    from .actors.supervisor.hooks.logging import (
        StructuredLoggingHook as StructuredLoggingHook,
    )
    from .actors.supervisor.hooks.model_retry import (
        ModelRetryHook as ModelRetryHook,
    )
    from .actors.supervisor.hooks.output_filter import (
        OutputFilterHook as OutputFilterHook,
    )
    from .actors.supervisor.hooks.plugin import (
        Plugin as Plugin,
    )
    from .actors.supervisor.hooks.plugin import (
        hook as hook,
    )
    from .actors.supervisor.hooks.registry import (
        HookRegistry as HookRegistry,
    )
    from .actors.supervisor.hooks.steering import (
        SteeringHook as SteeringHook,
    )
    from .actors.supervisor.hooks.telemetry import (
        TelemetryHook as TelemetryHook,
    )
    from .actors.supervisor.reasoning.causal import (
        CausalChain as CausalChain,
    )
    from .actors.supervisor.reasoning.causal import (
        CausalEdge as CausalEdge,
    )
    from .actors.supervisor.reasoning.causal import (
        CausalNode as CausalNode,
    )
    from .actors.task_tool import (
        SubagentSpec as SubagentSpec,
    )
    from .actors.task_tool import (
        task_tool as task_tool,
    )
    from .actors.tools.builtin.completion import (
        task_complete as task_complete,
    )
    from .actors.tools.builtin.dates import (
        get_today_date as get_today_date,
    )
    from .actors.tools.builtin.fetch import (
        web_fetch_tool as web_fetch_tool,
    )
    from .actors.tools.builtin.http import (
        HttpFetcher as HttpFetcher,
    )
    from .actors.tools.builtin.question import (
        ask_user as ask_user,
    )
    from .actors.tools.builtin.search import (
        SearchHit as SearchHit,
    )
    from .actors.tools.builtin.search import (
        web_search_tool as web_search_tool,
    )
    from .actors.tools.context import (
        ToolContext as ToolContext,
    )
    from .actors.tools.context import (
        current_tool_context as current_tool_context,
    )
    from .actors.tools.decorator import (
        Tool as Tool,
    )
    from .actors.tools.decorator import (
        tool as tool,
    )
    from .actors.tools.interrupt import (
        Interrupt as Interrupt,
    )
    from .actors.tools.output import (
        ToolOutput as ToolOutput,
    )
    from .actors.tools.result_store import (
        DirectoryResultStore as DirectoryResultStore,
    )
    from .actors.tools.result_store import (
        MemoryResultStore as MemoryResultStore,
    )
    from .actors.tools.result_store import (
        ResultStore as ResultStore,
    )
    from .actors.tools.result_store import (
        StoredResults as StoredResults,
    )
    from .cluster.fleet import (
        Fleet as Fleet,
    )
    from .cluster.fleet import (
        FleetReport as FleetReport,
    )
    from .cluster.runtime import (
        Runtime as Runtime,
    )
    from .protocol.config import (
        AgentConfig as AgentConfig,
    )
    from .protocol.config import (
        Placement as Placement,
    )
    from .protocol.config import (
        Topology as Topology,
    )
    from .protocol.errors import (
        ActorError as ActorError,
    )
    from .protocol.errors import (
        AuthenticationFailed as AuthenticationFailed,
    )
    from .protocol.errors import (
        BadRequest as BadRequest,
    )
    from .protocol.errors import (
        CheckpointConflict as CheckpointConflict,
    )
    from .protocol.errors import (
        CheckpointError as CheckpointError,
    )
    from .protocol.errors import (
        ConfigurationError as ConfigurationError,
    )
    from .protocol.errors import (
        ContextOverflow as ContextOverflow,
    )
    from .protocol.errors import (
        DeadlineExceeded as DeadlineExceeded,
    )
    from .protocol.errors import (
        DecodeError as DecodeError,
    )
    from .protocol.errors import (
        DefinitionError as DefinitionError,
    )
    from .protocol.errors import (
        FetchRefused as FetchRefused,
    )
    from .protocol.errors import (
        GsarRejected as GsarRejected,
    )
    from .protocol.errors import (
        GuardrailViolation as GuardrailViolation,
    )
    from .protocol.errors import (
        InvalidArguments as InvalidArguments,
    )
    from .protocol.errors import (
        JudgeFailed as JudgeFailed,
    )
    from .protocol.errors import (
        MalformedResponse as MalformedResponse,
    )
    from .protocol.errors import (
        MessageTooLarge as MessageTooLarge,
    )
    from .protocol.errors import (
        MissingExtra as MissingExtra,
    )
    from .protocol.errors import (
        ModelConnectionError as ModelConnectionError,
    )
    from .protocol.errors import (
        ModelError as ModelError,
    )
    from .protocol.errors import (
        ModelServerError as ModelServerError,
    )
    from .protocol.errors import (
        ModelTimeout as ModelTimeout,
    )
    from .protocol.errors import (
        NotStorable as NotStorable,
    )
    from .protocol.errors import (
        OutcomeUnknown as OutcomeUnknown,
    )
    from .protocol.errors import (
        Overloaded as Overloaded,
    )
    from .protocol.errors import (
        PeerLost as PeerLost,
    )
    from .protocol.errors import (
        ProtocolError as ProtocolError,
    )
    from .protocol.errors import (
        RateLimited as RateLimited,
    )
    from .protocol.errors import (
        RemoteError as RemoteError,
    )
    from .protocol.errors import (
        RequestCancelled as RequestCancelled,
    )
    from .protocol.errors import (
        RunError as RunError,
    )
    from .protocol.errors import (
        RunFailed as RunFailed,
    )
    from .protocol.errors import (
        RunLost as RunLost,
    )
    from .protocol.errors import (
        RuntimeClosed as RuntimeClosed,
    )
    from .protocol.errors import (
        SchemaVersionError as SchemaVersionError,
    )
    from .protocol.errors import (
        StaleEpoch as StaleEpoch,
    )
    from .protocol.errors import (
        StoreUnavailable as StoreUnavailable,
    )
    from .protocol.errors import (
        ThreadBusy as ThreadBusy,
    )
    from .protocol.errors import (
        ToolCrashed as ToolCrashed,
    )
    from .protocol.errors import (
        ToolError as ToolError,
    )
    from .protocol.errors import (
        ToolTimeout as ToolTimeout,
    )
    from .protocol.errors import (
        UmbelError as UmbelError,
    )
    from .protocol.errors import (
        UnknownKind as UnknownKind,
    )
    from .protocol.errors import (
        UnknownTask as UnknownTask,
    )
    from .protocol.errors import (
        UnknownTool as UnknownTool,
    )
    from .protocol.events import (
        CausalEdgeEvent as CausalEdgeEvent,
    )
    from .protocol.events import (
        CausalNodeEvent as CausalNodeEvent,
    )
    from .protocol.events import (
        CompactionEvent as CompactionEvent,
    )
    from .protocol.events import (
        CustomEvent as CustomEvent,
    )
    from .protocol.events import (
        Event as Event,
    )
    from .protocol.events import (
        FinalAnswerVerificationEvent as FinalAnswerVerificationEvent,
    )
    from .protocol.events import (
        GraphStreamEvent as GraphStreamEvent,
    )
    from .protocol.events import (
        GroundingEvent as GroundingEvent,
    )
    from .protocol.events import (
        HandoffEvent as HandoffEvent,
    )
    from .protocol.events import (
        InterruptEvent as InterruptEvent,
    )
    from .protocol.events import (
        ModelChunkEvent as ModelChunkEvent,
    )
    from .protocol.events import (
        ModelCompleteEvent as ModelCompleteEvent,
    )
    from .protocol.events import (
        ModelRetryEvent as ModelRetryEvent,
    )
    from .protocol.events import (
        OrchestratorDecisionEvent as OrchestratorDecisionEvent,
    )
    from .protocol.events import (
        ReflectEvent as ReflectEvent,
    )
    from .protocol.events import (
        RunLostEvent as RunLostEvent,
    )
    from .protocol.events import (
        SpecialistCompleteEvent as SpecialistCompleteEvent,
    )
    from .protocol.events import (
        SpecialistStartEvent as SpecialistStartEvent,
    )
    from .protocol.events import (
        SubagentEvent as SubagentEvent,
    )
    from .protocol.events import (
        TerminateEvent as TerminateEvent,
    )
    from .protocol.events import (
        ThinkEvent as ThinkEvent,
    )
    from .protocol.events import (
        ToolCompleteEvent as ToolCompleteEvent,
    )
    from .protocol.events import (
        ToolProgressEvent as ToolProgressEvent,
    )
    from .protocol.events import (
        ToolStartEvent as ToolStartEvent,
    )
    from .protocol.messages import (
        InterruptRequest as InterruptRequest,
    )
    from .protocol.messages import (
        Message as Message,
    )
    from .protocol.messages import (
        ModelChunk as ModelChunk,
    )
    from .protocol.messages import (
        ModelResponse as ModelResponse,
    )
    from .protocol.messages import (
        ToolCall as ToolCall,
    )
    from .protocol.messages import (
        ToolResult as ToolResult,
    )
    from .protocol.messages import (
        Usage as Usage,
    )
    from .protocol.reasoning import (
        GroundingConfig as GroundingConfig,
    )
    from .protocol.reasoning import (
        GsarConfig as GsarConfig,
    )
    from .protocol.reasoning import (
        ReflexionConfig as ReflexionConfig,
    )
    from .protocol.results import (
        AgentResult as AgentResult,
    )
    from .protocol.results import (
        Metrics as Metrics,
    )
    from .protocol.results import (
        SubagentResult as SubagentResult,
    )
    from .protocol.state import (
        AgentState as AgentState,
    )
    from .protocol.state import (
        ReasoningStep as ReasoningStep,
    )
    from .protocol.state import (
        ToolExecution as ToolExecution,
    )
    from .protocol.termination import (
        And as And,
    )
    from .protocol.termination import (
        ConfidenceMet as ConfidenceMet,
    )
    from .protocol.termination import (
        CostLimit as CostLimit,
    )
    from .protocol.termination import (
        CustomCondition as CustomCondition,
    )
    from .protocol.termination import (
        MaxIterations as MaxIterations,
    )
    from .protocol.termination import (
        NoToolCalls as NoToolCalls,
    )
    from .protocol.termination import (
        Not as Not,
    )
    from .protocol.termination import (
        Or as Or,
    )
    from .protocol.termination import (
        TerminationCondition as TerminationCondition,
    )
    from .protocol.termination import (
        TextMention as TextMention,
    )
    from .protocol.termination import (
        TimeLimit as TimeLimit,
    )
    from .protocol.termination import (
        TokenLimit as TokenLimit,
    )
    from .protocol.termination import (
        ToolCallCount as ToolCallCount,
    )
    from .protocol.termination import (
        ToolCalled as ToolCalled,
    )
    from .protocol.termination import (
        Verdict as Verdict,
    )

_HOMES = {
    "actors.agent.conversation.budgets": ("CompactionConfig",),
    "actors.agent.conversation.compaction": ("Compaction",),
    "actors.agent.conversation.compactor": ("LLMCompactor",),
    "actors.agent.conversation.manager": ("ConversationManager", "NullManager"),
    "actors.agent.conversation.summarizing": ("SummarizingManager",),
    "actors.agent.conversation.window": ("SlidingWindow",),
    "actors.agent.models.catalogue": ("ModelFacts", "Prices", "facts_of", "price_of", "register_model"),
    "actors.agent.models.failover": ("FailoverModel",),
    "actors.agent.models.registry": ("register_provider",),
    "actors.agent.models.retry": ("RetryPolicy",),
    "actors.agent_definition": ("Agent",),
    "actors.runnable": ("Runnable",),
    "actors.subagents": ("run_subagent", "run_subagent_sync"),
    "actors.supervisor.hooks.base": ("Hook",),
    "actors.supervisor.hooks.content_filter": ("ContentFilterHook",),
    "actors.supervisor.hooks.guardrails": ("GuardrailsHook",),
    "actors.supervisor.hooks.logging": ("LoggingHook", "StructuredLoggingHook"),
    "actors.supervisor.hooks.model_retry": ("ModelRetryHook",),
    "actors.supervisor.hooks.output_filter": ("OutputFilterHook",),
    "actors.supervisor.hooks.plugin": ("Plugin", "hook"),
    "actors.supervisor.hooks.registry": ("HookRegistry",),
    "actors.supervisor.hooks.steering": ("SteeringHook",),
    "actors.supervisor.hooks.telemetry": ("TelemetryHook",),
    "actors.supervisor.reasoning.causal": ("CausalChain", "CausalEdge", "CausalNode"),
    "actors.task_tool": ("SubagentSpec", "task_tool"),
    "actors.tools.builtin.completion": ("task_complete",),
    "actors.tools.builtin.dates": ("get_today_date",),
    "actors.tools.builtin.fetch": ("web_fetch_tool",),
    "actors.tools.builtin.http": ("HttpFetcher",),
    "actors.tools.builtin.question": ("ask_user",),
    "actors.tools.builtin.search": ("SearchHit", "web_search_tool"),
    "actors.tools.context": ("ToolContext", "current_tool_context"),
    "actors.tools.decorator": ("Tool", "tool"),
    "actors.tools.interrupt": ("Interrupt",),
    "actors.tools.output": ("ToolOutput",),
    "actors.tools.result_store": ("DirectoryResultStore", "MemoryResultStore", "ResultStore", "StoredResults"),
    "cluster.fleet": ("Fleet", "FleetReport"),
    "cluster.runtime": ("Runtime",),
    "protocol.config": ("AgentConfig", "Placement", "Topology"),
    "protocol.errors": (
        "ActorError",
        "AuthenticationFailed",
        "BadRequest",
        "CheckpointConflict",
        "CheckpointError",
        "ConfigurationError",
        "ContextOverflow",
        "DeadlineExceeded",
        "DecodeError",
        "DefinitionError",
        "FetchRefused",
        "GsarRejected",
        "GuardrailViolation",
        "InvalidArguments",
        "JudgeFailed",
        "MalformedResponse",
        "MessageTooLarge",
        "MissingExtra",
        "ModelConnectionError",
        "ModelError",
        "ModelServerError",
        "ModelTimeout",
        "NotStorable",
        "OutcomeUnknown",
        "Overloaded",
        "PeerLost",
        "ProtocolError",
        "RateLimited",
        "RemoteError",
        "RequestCancelled",
        "RunError",
        "RunFailed",
        "RunLost",
        "RuntimeClosed",
        "SchemaVersionError",
        "StaleEpoch",
        "StoreUnavailable",
        "ThreadBusy",
        "ToolCrashed",
        "ToolError",
        "ToolTimeout",
        "UmbelError",
        "UnknownKind",
        "UnknownTask",
        "UnknownTool",
    ),
    "protocol.events": (
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
        "ModelChunkEvent",
        "ModelCompleteEvent",
        "ModelRetryEvent",
        "OrchestratorDecisionEvent",
        "ReflectEvent",
        "RunLostEvent",
        "SpecialistCompleteEvent",
        "SpecialistStartEvent",
        "SubagentEvent",
        "TerminateEvent",
        "ThinkEvent",
        "ToolCompleteEvent",
        "ToolProgressEvent",
        "ToolStartEvent",
    ),
    "protocol.messages": ("InterruptRequest", "Message", "ModelChunk", "ModelResponse", "ToolCall", "ToolResult", "Usage"),
    "protocol.reasoning": ("GroundingConfig", "GsarConfig", "ReflexionConfig"),
    "protocol.results": ("AgentResult", "Metrics", "SubagentResult"),
    "protocol.state": ("AgentState", "ReasoningStep", "ToolExecution"),
    "protocol.termination": (
        "And",
        "ConfidenceMet",
        "CostLimit",
        "CustomCondition",
        "MaxIterations",
        "NoToolCalls",
        "Not",
        "Or",
        "TerminationCondition",
        "TextMention",
        "TimeLimit",
        "TokenLimit",
        "ToolCallCount",
        "ToolCalled",
        "Verdict",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_NEED_A_RUNTIME = frozenset({"Agent", "Fleet", "Runnable"})
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'umbel' has no attribute {name!r}")
    if name in _NEED_A_RUNTIME:
        importlib.import_module(".cluster.runtime", __name__)  # tells runnables where to find one
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
