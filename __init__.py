"""Umbel: an actor-model runtime for fleets of agents, on Ray.

Everything public is here, and imported at first use: ``import umbel`` costs milliseconds and never imports Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .actors.agent.conversation.budgets import CompactionConfig as CompactionConfig
    from .actors.agent.conversation.compaction import Compaction as Compaction
    from .actors.agent.conversation.compactor import LLMCompactor as LLMCompactor
    from .actors.agent.conversation.manager import ConversationManager as ConversationManager, NullManager as NullManager
    from .actors.agent.conversation.summarizing import SummarizingManager as SummarizingManager
    from .actors.agent.conversation.window import SlidingWindow as SlidingWindow
    from .actors.agent.models.catalogue import (
        ModelFacts as ModelFacts,
        Prices as Prices,
        facts_of as facts_of,
        price_of as price_of,
        register_model as register_model,
    )
    from .actors.agent.models.failover import FailoverModel as FailoverModel
    from .actors.agent.models.registry import register_provider as register_provider
    from .actors.agent.models.retry import RetryPolicy as RetryPolicy
    from .actors.agent_definition import Agent as Agent
    from .actors.run_handle import RunHandle as RunHandle, attach as attach, attach_sync as attach_sync
    from .actors.runnable import Runnable as Runnable
    from .actors.sharing import Share as Share, sharing as sharing
    from .actors.subagents import run_subagent as run_subagent, run_subagent_sync as run_subagent_sync
    from .actors.supervisor.hooks.base import Hook as Hook
    from .actors.supervisor.hooks.content_filter import ContentFilterHook as ContentFilterHook
    from .actors.supervisor.hooks.guardrails import GuardrailsHook as GuardrailsHook
    from .actors.supervisor.hooks.logging import LoggingHook as LoggingHook, StructuredLoggingHook as StructuredLoggingHook
    from .actors.supervisor.hooks.model_retry import ModelRetryHook as ModelRetryHook
    from .actors.supervisor.hooks.output_filter import OutputFilterHook as OutputFilterHook
    from .actors.supervisor.hooks.plugin import Plugin as Plugin, hook as hook
    from .actors.supervisor.hooks.registry import HookRegistry as HookRegistry
    from .actors.supervisor.hooks.steering import SteeringHook as SteeringHook
    from .actors.supervisor.hooks.telemetry import TelemetryHook as TelemetryHook
    from .actors.supervisor.reasoning.causal import (
        CausalChain as CausalChain,
        CausalEdge as CausalEdge,
        CausalNode as CausalNode,
    )
    from .actors.task_tool import SubagentSpec as SubagentSpec, task_tool as task_tool
    from .actors.tools.builtin.completion import task_complete as task_complete
    from .actors.tools.builtin.dates import get_today_date as get_today_date
    from .actors.tools.builtin.fetch import web_fetch_tool as web_fetch_tool
    from .actors.tools.builtin.http import HttpFetcher as HttpFetcher
    from .actors.tools.builtin.question import ask_user as ask_user
    from .actors.tools.builtin.search import SearchHit as SearchHit, web_search_tool as web_search_tool
    from .actors.tools.builtin.stored import stored_result_tool as stored_result_tool
    from .actors.tools.context import ToolContext as ToolContext, current_tool_context as current_tool_context
    from .actors.tools.decorator import Tool as Tool, tool as tool
    from .actors.tools.interrupt import Interrupt as Interrupt
    from .actors.tools.output import ToolOutput as ToolOutput
    from .actors.tools.result_store import (
        DirectoryResultStore as DirectoryResultStore,
        MemoryResultStore as MemoryResultStore,
        ResultStore as ResultStore,
        StoredResults as StoredResults,
    )
    from .cluster.fleet import (
        Budget as Budget,
        Fleet as Fleet,
        FleetRecord as FleetRecord,
        FleetReport as FleetReport,
        FleetSpec as FleetSpec,
        Hedge as Hedge,
        Retries as Retries,
        TaskInput as TaskInput,
        delete_fleet as delete_fleet,
        list_fleets as list_fleets,
        load_fleet as load_fleet,
        open_results as open_results,
    )
    from .cluster.runtime import Runtime as Runtime
    from .patterns.board import SwarmTask as SwarmTask
    from .patterns.debate import Debate as Debate
    from .patterns.drawing import (
        draw as draw,
        draw_ascii as draw_ascii,
        draw_dot as draw_dot,
        draw_image as draw_image,
        draw_mermaid as draw_mermaid,
    )
    from .patterns.functional import Entrypoint as Entrypoint, ask as ask, entrypoint as entrypoint, step as step
    from .patterns.graph import (
        END as END,
        PARENT as PARENT,
        START as START,
        CachePolicy as CachePolicy,
        Command as Command,
        CompiledGraph as CompiledGraph,
        GraphResult as GraphResult,
        GraphState as GraphState,
        NodeFailure as NodeFailure,
        NodeResult as NodeResult,
        NodeRetry as NodeRetry,
        Send as Send,
        StateGraph as StateGraph,
        emit as emit,
        finish as finish,
        goto as goto,
        interrupt as interrupt,
        proceed as proceed,
        resume_with as resume_with,
    )
    from .patterns.graph.reducers import add_messages as add_messages
    from .patterns.group_chat import GroupChat as GroupChat
    from .patterns.handoff import Handoff as Handoff
    from .patterns.map_reduce import MapReduce as MapReduce, map_reduce as map_reduce
    from .patterns.orchestrator import Orchestrator as Orchestrator
    from .patterns.pattern import Pattern as Pattern
    from .patterns.pipeline import (
        Loop as Loop,
        Parallel as Parallel,
        Sequential as Sequential,
        loop as loop,
        parallel as parallel,
        sequential as sequential,
    )
    from .patterns.plan_execute import PlanExecute as PlanExecute
    from .patterns.remote import RemoteMember as RemoteMember
    from .patterns.specialist import (
        Playbook as Playbook,
        Specialist as Specialist,
        code_analyst as code_analyst,
        log_analyst as log_analyst,
        metrics_analyst as metrics_analyst,
        security_analyst as security_analyst,
    )
    from .patterns.swarm import Swarm as Swarm, SwarmAgent as SwarmAgent
    from .patterns.task import Task as Task, task as task
    from .patterns.transfer import Hop as Hop
    from .protocol.config import AgentConfig as AgentConfig, Limits as Limits, Placement as Placement, Topology as Topology
    from .protocol.errors import (
        ActorError as ActorError,
        AuthenticationFailed as AuthenticationFailed,
        BadRequest as BadRequest,
        CapReached as CapReached,
        CheckpointConflict as CheckpointConflict,
        CheckpointError as CheckpointError,
        CheckpointNotFound as CheckpointNotFound,
        ConfigurationError as ConfigurationError,
        ConflictingWrites as ConflictingWrites,
        ContextOverflow as ContextOverflow,
        DeadlineExceeded as DeadlineExceeded,
        DecodeError as DecodeError,
        DefinitionError as DefinitionError,
        EventsExpired as EventsExpired,
        FetchRefused as FetchRefused,
        GraphError as GraphError,
        GsarRejected as GsarRejected,
        GuardrailViolation as GuardrailViolation,
        HandoffCycle as HandoffCycle,
        InvalidArguments as InvalidArguments,
        InvalidUpdate as InvalidUpdate,
        JudgeFailed as JudgeFailed,
        MalformedResponse as MalformedResponse,
        MemberFailed as MemberFailed,
        MessageTooLarge as MessageTooLarge,
        MissingExtra as MissingExtra,
        ModelConnectionError as ModelConnectionError,
        ModelError as ModelError,
        ModelServerError as ModelServerError,
        ModelTimeout as ModelTimeout,
        NothingRan as NothingRan,
        NotStorable as NotStorable,
        OutcomeUnknown as OutcomeUnknown,
        Overloaded as Overloaded,
        PatternError as PatternError,
        PeerLost as PeerLost,
        ProtocolError as ProtocolError,
        RateLimited as RateLimited,
        RemoteError as RemoteError,
        RequestCancelled as RequestCancelled,
        RunError as RunError,
        RunFailed as RunFailed,
        RunLost as RunLost,
        RunNotFound as RunNotFound,
        RuntimeClosed as RuntimeClosed,
        SchemaVersionError as SchemaVersionError,
        StaleEpoch as StaleEpoch,
        StaleWriter as StaleWriter,
        StoreUnavailable as StoreUnavailable,
        ThreadBusy as ThreadBusy,
        ToolCrashed as ToolCrashed,
        ToolError as ToolError,
        ToolTimeout as ToolTimeout,
        UmbelError as UmbelError,
        Unclaimed as Unclaimed,
        UnknownKind as UnknownKind,
        UnknownTask as UnknownTask,
        UnknownTool as UnknownTool,
    )
    from .protocol.events import (
        CausalEdgeEvent as CausalEdgeEvent,
        CausalNodeEvent as CausalNodeEvent,
        CompactionEvent as CompactionEvent,
        CustomEvent as CustomEvent,
        Event as Event,
        FinalAnswerVerificationEvent as FinalAnswerVerificationEvent,
        GraphStreamEvent as GraphStreamEvent,
        GroundingEvent as GroundingEvent,
        HandoffEvent as HandoffEvent,
        InterruptEvent as InterruptEvent,
        MemberEvent as MemberEvent,
        ModelChunkEvent as ModelChunkEvent,
        ModelCompleteEvent as ModelCompleteEvent,
        ModelRetryEvent as ModelRetryEvent,
        OrchestratorDecisionEvent as OrchestratorDecisionEvent,
        PatternEvent as PatternEvent,
        ReflectEvent as ReflectEvent,
        RunLostEvent as RunLostEvent,
        SpecialistCompleteEvent as SpecialistCompleteEvent,
        SpecialistStartEvent as SpecialistStartEvent,
        StepCompleteEvent as StepCompleteEvent,
        StepStartEvent as StepStartEvent,
        SubagentEvent as SubagentEvent,
        TerminateEvent as TerminateEvent,
        ThinkEvent as ThinkEvent,
        ToolCompleteEvent as ToolCompleteEvent,
        ToolProgressEvent as ToolProgressEvent,
        ToolStartEvent as ToolStartEvent,
    )
    from .protocol.handles import RunEntry as RunEntry
    from .protocol.messages import (
        InterruptRequest as InterruptRequest,
        Message as Message,
        ModelChunk as ModelChunk,
        ModelResponse as ModelResponse,
        ToolCall as ToolCall,
        ToolResult as ToolResult,
        Usage as Usage,
    )
    from .protocol.patterns import Ending as Ending, MemberResult as MemberResult, PatternResult as PatternResult
    from .protocol.reasoning import (
        GroundingConfig as GroundingConfig,
        GsarConfig as GsarConfig,
        ReflexionConfig as ReflexionConfig,
    )
    from .protocol.results import AgentResult as AgentResult, Metrics as Metrics, SubagentResult as SubagentResult
    from .protocol.state import AgentState as AgentState, ReasoningStep as ReasoningStep, ToolExecution as ToolExecution
    from .protocol.termination import (
        And as And,
        ConfidenceMet as ConfidenceMet,
        CostLimit as CostLimit,
        CustomCondition as CustomCondition,
        MaxIterations as MaxIterations,
        Not as Not,
        NoToolCalls as NoToolCalls,
        Or as Or,
        TerminationCondition as TerminationCondition,
        TextMention as TextMention,
        TimeLimit as TimeLimit,
        TokenLimit as TokenLimit,
        ToolCallCount as ToolCallCount,
        ToolCalled as ToolCalled,
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
    "actors.run_handle": ("RunHandle", "attach", "attach_sync"),
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
    "actors.tools.builtin.stored": ("stored_result_tool",),
    "actors.tools.context": ("ToolContext", "current_tool_context"),
    "actors.tools.decorator": ("Tool", "tool"),
    "actors.tools.interrupt": ("Interrupt",),
    "actors.tools.output": ("ToolOutput",),
    "actors.tools.result_store": ("DirectoryResultStore", "MemoryResultStore", "ResultStore", "StoredResults"),
    "actors.sharing": ("Share", "sharing"),
    "cluster.fleet": (
        "Budget",
        "Fleet",
        "FleetRecord",
        "FleetReport",
        "FleetSpec",
        "Hedge",
        "Retries",
        "TaskInput",
        "delete_fleet",
        "list_fleets",
        "load_fleet",
        "open_results",
    ),
    "cluster.runtime": ("Runtime",),
    "patterns.board": ("SwarmTask",),
    "patterns.debate": ("Debate",),
    "patterns.drawing": (
        "draw",
        "draw_ascii",
        "draw_dot",
        "draw_image",
        "draw_mermaid",
    ),
    "patterns.functional": (
        "Entrypoint",
        "ask",
        "entrypoint",
        "step",
    ),
    "patterns.graph": (
        "END",
        "PARENT",
        "START",
        "CachePolicy",
        "Command",
        "CompiledGraph",
        "GraphResult",
        "GraphState",
        "NodeFailure",
        "NodeResult",
        "NodeRetry",
        "Send",
        "StateGraph",
        "emit",
        "finish",
        "goto",
        "interrupt",
        "resume_with",
        "proceed",
    ),
    "patterns.graph.reducers": ("add_messages",),
    "patterns.group_chat": ("GroupChat",),
    "patterns.handoff": ("Handoff",),
    "patterns.map_reduce": (
        "MapReduce",
        "map_reduce",
    ),
    "patterns.orchestrator": ("Orchestrator",),
    "patterns.pattern": ("Pattern",),
    "patterns.pipeline": (
        "Loop",
        "Parallel",
        "Sequential",
        "loop",
        "parallel",
        "sequential",
    ),
    "patterns.plan_execute": ("PlanExecute",),
    "patterns.remote": ("RemoteMember",),
    "patterns.specialist": (
        "Playbook",
        "Specialist",
        "code_analyst",
        "log_analyst",
        "metrics_analyst",
        "security_analyst",
    ),
    "patterns.swarm": (
        "Swarm",
        "SwarmAgent",
    ),
    "patterns.task": (
        "Task",
        "task",
    ),
    "patterns.transfer": ("Hop",),
    "protocol.config": ("AgentConfig", "Limits", "Placement", "Topology"),
    "protocol.errors": (
        "ActorError",
        "AuthenticationFailed",
        "BadRequest",
        "CapReached",
        "CheckpointConflict",
        "CheckpointError",
        "CheckpointNotFound",
        "ConfigurationError",
        "ConflictingWrites",
        "ContextOverflow",
        "DeadlineExceeded",
        "DecodeError",
        "DefinitionError",
        "EventsExpired",
        "FetchRefused",
        "GraphError",
        "GsarRejected",
        "GuardrailViolation",
        "HandoffCycle",
        "InvalidArguments",
        "InvalidUpdate",
        "JudgeFailed",
        "MalformedResponse",
        "MemberFailed",
        "MessageTooLarge",
        "MissingExtra",
        "ModelConnectionError",
        "ModelError",
        "ModelServerError",
        "ModelTimeout",
        "NotStorable",
        "NothingRan",
        "OutcomeUnknown",
        "Overloaded",
        "PatternError",
        "PeerLost",
        "ProtocolError",
        "RateLimited",
        "RemoteError",
        "RequestCancelled",
        "RunError",
        "RunFailed",
        "RunLost",
        "RunNotFound",
        "RuntimeClosed",
        "SchemaVersionError",
        "StaleEpoch",
        "StaleWriter",
        "StoreUnavailable",
        "ThreadBusy",
        "ToolCrashed",
        "ToolError",
        "ToolTimeout",
        "UmbelError",
        "Unclaimed",
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
        "MemberEvent",
        "ModelChunkEvent",
        "ModelCompleteEvent",
        "ModelRetryEvent",
        "OrchestratorDecisionEvent",
        "PatternEvent",
        "ReflectEvent",
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
    ),
    "protocol.handles": ("RunEntry",),
    "protocol.messages": ("InterruptRequest", "Message", "ModelChunk", "ModelResponse", "ToolCall", "ToolResult", "Usage"),
    "protocol.patterns": (
        "Ending",
        "MemberResult",
        "PatternResult",
    ),
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
_NEED_A_RUNTIME = frozenset({"Agent", "Fleet", "Runnable", "attach", "attach_sync"})
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'umbel' has no attribute {name!r}")
    if name in _NEED_A_RUNTIME or _HOME[name].startswith("patterns."):
        importlib.import_module(".cluster.runtime", __name__)  # tells runnables where to find one
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
