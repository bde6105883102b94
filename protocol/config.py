"""What callers may configure: agents, placement, topology. Validated when built, refused by name when not supported."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from .errors import ConfigurationError
from .loop_detection import READ_ONLY_TOOLS
from .reasoning import GroundingSetting, GsarConfig, ReflexionSetting
from .settings import Settings

DEFAULT_SYSTEM_PROMPT = "You are a helpful assistant."
TERMINAL_TOOLS = frozenset({"submit", "done", "finish", "complete", "task_complete"})
WRITE_TOOLS = frozenset({"write_file", "write", "save", "create_file", "update_file"})
VERIFICATION_TOOLS = frozenset({"run_command", "run_tests", "run", "execute", "pytest", "test"})


class Placement(Settings):
    """Where an agent's or a tool's actor runs, in Ray's terms.

    Attributes:
        cpus: CPUs that the actor reserves.
        gpus: GPUs, fractions allowed.
        resources: custom resources, for example ``{"browser": 1}``.
        accelerator: a type of accelerator that its node must have, in Ray's names (``"A100"``, ``"H100"``).
        labels: what the labels of its node must be, as Ray's label selectors read them: ``{"zone": "a"}``, ``"!a"``,
            ``"in(a,b)"``, ``"!in(a,b)"``.
        fallback: other such labels, in turn, where no node has the ones before; ``{}`` is any node.
        dedicated: an actor of its own rather than a shared pool; implied by any wish above.
        replicas: how many actors of that kind. Those that find no room wait for a node that joins, and the others do the
            work meanwhile: give a growing cluster as many as it may have at most.
        spread: put them on as many nodes as can host them, evenly; False leaves that to Ray, which packs them.
    """

    cpus: float = Field(default=0, ge=0)
    gpus: float = Field(default=0, ge=0)
    resources: Mapping[str, float] = Field(default_factory=dict)
    accelerator: str | None = None
    labels: Mapping[str, str] = Field(default_factory=dict)
    fallback: tuple[Mapping[str, str], ...] = ()
    dedicated: bool = False
    replicas: int = Field(default=1, ge=1)
    spread: bool = True

    @property
    def pool(self) -> str:
        """Name of the pool that serves this placement; ``default`` when nothing special is asked for."""
        if self == Placement():
            return "default"
        custom = ".".join(f"{name}{amount:g}" for name, amount in sorted(self.resources.items()))
        wishes = [self.labels, *self.fallback] if self.labels or self.fallback else []
        labels = f"l{zlib.crc32(repr([sorted(wish.items()) for wish in wishes]).encode()):08x}" if wishes else ""
        kind = (self.accelerator or "").replace("/", ".")
        packed = "" if self.spread else "packed"
        parts = [f"c{self.cpus:g}", f"g{self.gpus:g}", custom, kind, labels, packed, f"x{self.replicas}"]
        return "-".join(part for part in parts if part)


class Limits(Settings):
    """What an endpoint allows one account. None is unknown, and then found out from its answers.

    Attributes:
        requests_per_minute: requests, sent evenly spread.
        tokens_per_minute: tokens of prompts and replies together.
        concurrency: requests in flight.
    """

    requests_per_minute: float | None = Field(default=None, gt=0)
    tokens_per_minute: float | None = Field(default=None, gt=0)
    concurrency: int | None = Field(default=None, ge=1)


class Topology(Settings):
    """Which actors exist, and which share a process.

    Attributes:
        supervisors: supervisor shards; None chooses one, or one per core when agents are colocated.
        agents: shared agent actors (unused when colocated).
        tool_executors: actors of the default tool pool.
        checkpointers: actors that store runs' steps, a thread always by the same one. More than one are of use where many
            durable runs are in progress, on a store that all nodes reach (Redis, PostgreSQL, S3); what is on one node's disk
            or in memory is the first one's alone.
        colocate_agents: put a run's agent beside its supervisor: one hop (~1 ms) less per model call.
        resources: custom resources that every actor without a placement of its own reserves: it then sits on a node that
            has them, for example not on the head.
        max_runs: runs in flight on one shard before its mailbox makes senders wait.
        recovery_seconds: how long a durable run whose supervisor died waits for it to come back; 0 does not recover runs.
        max_recoveries: deaths of its supervisor that one run survives; it may be what kills it.
        max_restarts: an actor that dies more often than that within ``restart_window_seconds`` is given up: runs that need
            it end with ``RestartsExceeded`` instead of waiting for it again.
        restart_window_seconds: the window in which restarts are counted.
        patience_seconds: how long an actor that is away (its node is lost, the cluster has no room for it) is waited for;
            then what needs it fails. Give a cluster that grows by itself the time that a new node takes.
        kept_events, kept_event_bytes: the newest events of each run that was begun with a handle (``agent.start``) which
            its supervisor keeps for those who read them later.
        kept_runs, kept_seconds: finished runs that a supervisor keeps with events and outcome, and for how long after
            their end.
        kept_bytes: events and outcomes of a supervisor altogether; beyond it finished runs are dropped, the oldest first,
            then the oldest events of the run that tells the next one.
        limits: of model endpoints, by provider prefix (``openai``) or base URL; each account has them, in the whole cluster.
    """

    supervisors: int | None = Field(default=None, ge=1)
    agents: int = Field(default=1, ge=1)
    tool_executors: int = Field(default=1, ge=1)
    checkpointers: int = Field(default=1, ge=1)
    colocate_agents: bool = False
    resources: Mapping[str, float] = Field(default_factory=dict)
    labels: Mapping[str, str] = Field(default_factory=dict)
    per_node: bool = False
    autoscale: bool = False
    max_runs: int = Field(default=20_000, ge=1)
    recovery_seconds: float = Field(default=60.0, ge=0)
    max_recoveries: int = Field(default=5, ge=0)
    max_restarts: int = Field(default=20, ge=0)
    restart_window_seconds: float = Field(default=60.0, gt=0)
    patience_seconds: float = Field(default=120.0, gt=0)
    kept_events: int = Field(default=10_000, ge=1)
    kept_event_bytes: int = Field(default=4 * 1024 * 1024, ge=1)
    kept_runs: int = Field(default=1_000, ge=0)
    kept_seconds: float = Field(default=3_600.0, gt=0)
    kept_bytes: int = Field(default=256 * 1024 * 1024, ge=1)
    limits: Mapping[str, Limits] = Field(default_factory=dict)


class AgentConfig(Settings):
    """Everything an agent is (spec/agent_api.md, API-10). Fields of later versions are refused by :func:`build_config`.

    Attributes:
        model: ``"provider:name"`` or an object with ``complete`` and ``stream``.
        model_kwargs: provider settings for a string model.
        auxiliary_model: used for the summary after ``max_iterations``; None uses ``model``.
        tools: tool objects, unique by name.
        system_prompt: text, or a callable that gets ``{"prompt", "metadata"}``.
        max_iterations: model calls per turn, 1 to 500.
        token_budget: stop when prompt and completion tokens reach it.
        time_budget_seconds: deadline of a turn; what is in flight then is cancelled.
        model_retry: retry policy of model calls, or False.
        terminal_tools: names whose successful call ends the run.
        tool_loop_threshold: identical steps that count as a loop (2 or more).
        tool_loop_read_only_threshold: the same for read-only steps; None is one more.
        tool_execution: ``concurrent`` or ``sequential``.
        max_concurrency: tools of one batch that run at once.
        tool_event_order: emit tool_complete in call order, or as each finishes.
        max_cost_usd: stop before a call that could, at worst, spend more; needs a model whose prices are known.
        budget_nudge_at: share of any budget at which the model is told, once, to come to an end; None never.
        reflexion, grounding, gsar: their configurations, True for the defaults (see ``umbel.reasoning``).
        planning: ask for a plan before the first call.
        completion_mode: ``explicit`` goes on until a terminal tool, a limit or a condition ends the run.
        verify_tools, verification_tools: names of tools that write, and of those that check what was written.
        require_verification: in explicit mode, ``task_complete`` is refused while something written is unchecked.
        tool_loop_read_only_tools: names of tools that only read.
        text_tool_calls: read calls that a model wrote as text: ``auto`` only for models without native calls.
        leaked_tool_call_formats: families of markup to read when it leaks into the text; None asks the model, () never.
        max_tool_result_length: characters of a result that the model sees; 0 is unlimited.
        tool_result_head_fraction: share of a cut result that is its beginning.
        tool_result_store: where results that are too long are kept whole.
        conversation_manager: shortens requests; None chooses one by the model's window.
        context_window: tokens; overrides what is known of the model.
        compaction: rewriting a conversation that outgrows the window: a configuration, or False.
        checkpoint_every_n_iterations: saves within a turn; None is every one, 0 only its end.
        keep_iteration_checkpoints: keep those when the run has ended or is paused; otherwise its last checkpoint takes their
            place, and the thread's history has one for each run.
        hooks, plugins: lifecycle hooks; they run in the supervisor's process (see ``umbel.hooks``).
        output_key: metadata key that gets the final text.
        output_schema: pydantic class of the final answer, with ``output_schema_retries`` repairs; ``output_schema_strict``
            asks providers for strict adherence.
        final_answer_verifier: ``async (FinalAnswer) -> None or feedback``; a rejected draft is sent back at most
            ``final_answer_verifier_max_replans`` times, then ``final_answer_fallback`` may replace it.
        hold_final_answer_tokens: hold streamed text until its reply was accepted.
        hold_tool_step_text: of a reply that turns out to call tools, drop the held text.
        web_search, web_fetch: providers behind the tools of that name.
        on_interrupt: when a tool asks a person, let the batch's other calls ``finish``, or ``cancel`` them.
        max_consecutive_tool_errors: batches in a row with nothing but errors before the run ends ``tool_errors``.
        max_empty_replies: nudges after an empty or cut reply before the run ends ``empty_reply``.
        termination: extra stop condition.
        checkpointer: store URL (``sqlite:///file.db``, ``memory://``); used when a run has a thread.
        durability: when a run's steps are stored: each before the next one (``sync``), in the background, where a crash may
            cost the last of them (``async``), or only where the run ends or pauses (``exit``). What is about to be done
            by a tool with side effects is always stored first.
        lease_seconds: for how long a run's hold on its thread outlives the run's process; it is prolonged as long as it lives.
        callback_handler: called with every event in the caller's process, by ``arun`` and ``run_sync``.
        temperature, max_tokens: sent only when set.
        placement: an actor of its own for this agent's model calls.
        cancel_grace_seconds: how long a cancelled sync tool may go on before its process is killed.
    """

    model: Any
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    auxiliary_model: Any = None
    tools: tuple[Any, ...] = ()
    system_prompt: str | Callable[[dict[str, Any]], str] | None = DEFAULT_SYSTEM_PROMPT
    max_iterations: int = Field(default=20, ge=1, le=500)
    token_budget: int | None = Field(default=None, ge=1)
    time_budget_seconds: float | None = Field(default=None, gt=0)
    model_retry: Any = None
    terminal_tools: frozenset[str] = TERMINAL_TOOLS
    tool_loop_threshold: int = Field(default=3, ge=2)
    tool_loop_read_only_threshold: int | None = Field(default=None, ge=2)
    tool_execution: Literal["sequential", "concurrent"] = "concurrent"
    max_concurrency: int = Field(default=10, ge=1)
    tool_event_order: Literal["sequential", "completion"] = "sequential"
    max_cost_usd: float | None = Field(default=None, gt=0)
    budget_nudge_at: float | None = Field(default=0.8, gt=0, lt=1)
    reflexion: ReflexionSetting = None
    grounding: GroundingSetting = None
    gsar: GsarConfig | None = None
    planning: bool = False
    completion_mode: Literal["auto", "explicit"] = "auto"
    verify_tools: frozenset[str] = WRITE_TOOLS
    require_verification: bool = True
    verification_tools: frozenset[str] = VERIFICATION_TOOLS
    tool_loop_read_only_tools: frozenset[str] = READ_ONLY_TOOLS
    text_tool_calls: Literal["auto", "on", "off"] = "auto"
    leaked_tool_call_formats: tuple[str, ...] | None = None
    max_tool_result_length: int = Field(default=32_000, ge=0)
    tool_result_head_fraction: float = Field(default=0.4, ge=0, le=1)
    tool_result_store: Any = None
    conversation_manager: Any = None
    context_window: int | None = Field(default=None, ge=1)
    compaction: Any = None
    checkpoint_every_n_iterations: int | None = Field(default=None, ge=0)
    keep_iteration_checkpoints: bool = False
    hooks: Any = ()
    plugins: tuple[Any, ...] = ()
    output_key: str | None = None
    output_schema: type[BaseModel] | None = None
    output_schema_retries: int = Field(default=2, ge=0, le=10)
    output_schema_strict: bool = True
    final_answer_verifier: Callable[..., Any] | None = None
    final_answer_verifier_max_replans: int = Field(default=1, ge=0, le=10)
    final_answer_fallback: Callable[..., Any] | None = None
    hold_final_answer_tokens: bool = False
    hold_tool_step_text: bool = False
    web_search: Any = None
    web_fetch: Any = None
    on_interrupt: Literal["finish", "cancel"] = "finish"
    max_consecutive_tool_errors: int = Field(default=5, ge=1)
    max_empty_replies: int = Field(default=2, ge=0)
    termination: Any = None
    checkpointer: str | None = None
    durability: Literal["sync", "async", "exit"] = "sync"
    lease_seconds: float = Field(default=30.0, gt=0)
    callback_handler: Callable[[Any], Any] | None = None
    agent_id: str | None = None
    name: str | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int | None = Field(default=None, ge=1)
    metadata: dict[str, Any] = Field(default_factory=dict)
    placement: Placement | None = None
    cancel_grace_seconds: float = Field(default=5.0, ge=0)

    @model_validator(mode="after")
    def _model_settings(self) -> AgentConfig:
        if isinstance(self.model, str):
            if ":" not in self.model:
                raise ValueError(f"model {self.model!r} must read 'provider:name', for example 'openai:gpt-4o-mini'")
        elif self.model_kwargs:
            raise ValueError("model_kwargs apply to a model given as text; configure the model object itself")
        return self

    @model_validator(mode="after")
    def _held_tokens(self) -> AgentConfig:
        if self.hold_tool_step_text and not self.hold_final_answer_tokens:
            raise ValueError("hold_tool_step_text needs hold_final_answer_tokens=True: text is dropped from what is held")
        if self.hold_final_answer_tokens and self.final_answer_verifier is None:
            raise ValueError("hold_final_answer_tokens needs a final_answer_verifier: nothing else releases held text")
        return self


PLANNED = frozenset(
    [
        "mcp_servers",
        "code_mode",
        "observation_pack",
        "memory_manager",
        "skills",
        "image_generator",
        "speech_provider",
        "playbook",
    ]
)


def build_config(base: AgentConfig | None, settings: dict[str, Any]) -> AgentConfig:
    """An :class:`AgentConfig` from keywords, which win over ``base``.

    Raises:
        ConfigurationError: an unknown or not yet supported keyword, or a value out of range; the message names each.
    """
    planned = sorted(settings.keys() & PLANNED)
    if planned:
        raise ConfigurationError(f"not supported yet: {', '.join(planned)}")
    unknown = sorted(settings.keys() - AgentConfig.model_fields.keys())
    if unknown:
        raise ConfigurationError(
            f"unknown agent settings: {', '.join(unknown)}; settings of the provider go into model_kwargs={{...}}"
        )
    merged = {**(dict(base) if base else {}), **settings}
    try:
        return AgentConfig(**merged)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'agent'}: {e['msg']}" for e in error.errors(include_url=False))
        raise ConfigurationError(problems) from None
