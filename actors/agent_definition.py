"""``Agent``: what users write. A frozen definition with the calls of :class:`Runnable`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Self

from ..protocol.config import AgentConfig, build_config
from ..protocol.errors import ConfigurationError
from ..protocol.messages import Message
from ..protocol.results import SubagentResult
from ..protocol.state import AgentState
from .agent.conversation.selection import choose, window_of
from .agent.conversation.tokens import schema_tokens
from .agent.conversation.window import SlidingWindow
from .agent.models.catalogue import adopt, facts_to_carry, price_of, require_prices
from .agent.models.leaked_calls import check_formats, family_of, formats_of
from .agent.models.registry import ModelFactory, registered_factories
from .agent.models.retry import RetryPolicy
from .builtin_tools import CATALOGUE_NOTE, with_builtin_tools
from .checkpoints.registry import resolve_url
from .runnable import Runnable
from .supervisor.hooks.dispatch import Hooks, require_hooks
from .supervisor.reasoning.reflexion import Reflector
from .supervisor.structured import response_format, schema_instruction
from .tools.decorator import Tool, require_tools

MAX_ITERATIONS = 10  # of a subagent


async def outcome_of(agent: Runnable, prompt: str) -> SubagentResult:
    """Run an agent of its own for one task, and say what it came to. Raises what ended it."""
    result = await agent.arun(prompt, full=False)
    return SubagentResult.of(result.outcome, agent.title)


class Agent(Runnable):
    """A model with tools and a system prompt.

    The definition may be used from any thread, for any number of runs at once; runs share nothing but it.

    Args:
        model: ``"provider:name"``, for example ``"openai:gpt-4o-mini"``, or an object with ``complete`` and ``stream``.
        tools: tool objects (see ``tool``) or agents' ``as_tool()``; one tool may stand alone.
        system_prompt: text, or a callable that gets ``{"prompt", "metadata"}`` at every turn.
        config: a ready configuration; every other argument wins over its field.
        **settings: fields of ``AgentConfig``.

    Raises:
        ConfigurationError: unknown settings, values out of range, duplicate tool names (also a ``ValueError``).
        DefinitionError: something in ``tools`` is not a tool (also a ``TypeError``).
    """

    def __init__(
        self,
        model: Any = None,
        tools: Any = None,
        system_prompt: str | Callable[[dict[str, Any]], str] | None = None,
        *,
        config: AgentConfig | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.providers: dict[str, ModelFactory] = {}
        given = {"model": model, "tools": tools, "system_prompt": system_prompt}
        settings |= {name: value for name, value in given.items() if value is not None}
        if "tools" in settings:
            settings["tools"] = require_tools(settings["tools"])
        if config is None and "model" not in settings:
            raise ConfigurationError("an agent needs a model, for example Agent(model='openai:gpt-4o-mini')")
        if isinstance(settings.get("checkpointer"), str):
            settings["checkpointer"] = resolve_url(settings["checkpointer"])  # actors have other working directories
        self._use(build_config(config, settings))
        self.hooks.attach(self)

    def _use(self, config: AgentConfig) -> None:
        self.hooks = Hooks(config.hooks, config.plugins)
        self._given = config
        self.config = config = with_builtin_tools(config, self.hooks.tools)
        self._packed = None
        self.callback_handler = config.callback_handler
        self.output_schema = config.output_schema
        self.checkpointer = config.checkpointer
        self.tools_by_name: dict[str, Tool] = {tool.name: tool for tool in config.tools}
        self.has_deferred_tools = any(tool.deferred for tool in config.tools)
        self._schemas = [tool.schema for tool in config.tools if not tool.deferred]
        self.system_message = self._system_message()
        self._judges()
        self._context()
        self._recovery()
        self.blank_state = self._blank_state()
        # Only without tools: with a format, some providers never call one (API-46).
        formatted = config.output_schema is not None and not config.tools
        strict = config.output_schema_strict
        self.step_settings = {"response_format": response_format(config.output_schema, strict)} if formatted else {}
        given = {"temperature": config.temperature, "max_tokens": config.max_tokens}
        self.model_settings = {name: value for name, value in given.items() if value is not None}

    def _system_message(self) -> Message | None:
        prompt = self.config.system_prompt
        return Message.system(self.complete_prompt(prompt)) if isinstance(prompt, str) and prompt else None

    def complete_prompt(self, prompt: str) -> str:
        """The system prompt with what the model must know of this agent's set-up. Source: LOOP-9."""
        parts = [prompt]
        if self.config.output_schema is not None:
            parts.append(schema_instruction(self.config.output_schema))
        if self.has_deferred_tools:
            parts.append(CATALOGUE_NOTE)
        return "\n\n".join(parts)

    def _judges(self) -> None:
        config = self.config
        reflexion, grounding = config.reflexion, config.grounding
        self.reflector = Reflector(reflexion) if reflexion is not None and reflexion.enabled else None
        self.grounding = grounding if grounding is not None and grounding.enabled and grounding.check_before_final else None
        self.gsar = config.gsar

    def _context(self) -> None:
        """The model's window, and who keeps requests and the conversation within it."""
        config = self.config
        self.manager, self.compaction, self.window = choose(config, config.model, window_of(config, config.model))
        self.sent_whole = self.manager.window_size if isinstance(self.manager, SlidingWindow) else 0  # messages; most requests
        self.tools_tokens = schema_tokens(self._schemas) if self.compaction is not None else 0

    def _recovery(self) -> None:
        config, model = self.config, self.config.model
        RetryPolicy.of(config.model_retry)  # refused here rather than at the first call
        name = model if isinstance(model, str) else ""
        family = getattr(model, "family", None) or family_of(name)
        formats = config.leaked_tool_call_formats
        self.leaked_formats = check_formats(formats) if formats is not None else formats_of(family)
        speaks = config.text_tool_calls == "on"
        self.generic_calls = speaks or (config.text_tool_calls == "auto" and not getattr(model, "native_tools", True))
        self.recovers_calls = config.text_tool_calls != "off" and bool(self.leaked_formats or self.generic_calls)

    def _blank_state(self) -> AgentState:
        config = self.config
        prices = price_of(config.model) if config.max_cost_usd is None else require_prices(config.model)
        return AgentState(
            agent_id=config.agent_id,
            max_iterations=config.max_iterations,
            tool_loop_threshold=config.tool_loop_threshold,
            tool_loop_read_only_threshold=config.tool_loop_read_only_threshold,
            tool_loop_read_only_tools=config.tool_loop_read_only_tools,
            confidence_threshold=self.reflector.config.confidence_threshold if self.reflector is not None else 0.85,
            terminal_tools=config.terminal_tools,
            completion_mode=config.completion_mode,
            token_budget=config.token_budget,
            cost_budget_usd=config.max_cost_usd,
            input_price_per_million=prices.input_per_million if prices is not None else None,
            output_price_per_million=prices.output_per_million if prices is not None else None,
        )

    def schemas(self, activated: Collection[str] = ()) -> list[dict[str, Any]]:
        """The tools that a request offers: all that are not deferred, and the ``activated`` ones. Do not change the list."""
        if not activated:
            return self._schemas
        return [*self._schemas, *(self.tools_by_name[name].schema for name in activated if name in self.tools_by_name)]

    def model_of(self, role: str) -> Any:
        """The model of a role (``ThinkRequest.role``): its own, else the auxiliary one, else the primary."""
        config = self.config
        if role == "primary":
            return config.model
        own = None
        if role == "grounding" and self.grounding is not None:
            own = self.grounding.model
        elif role == "gsar" and self.gsar is not None:
            own = self.gsar.judge or config.model
        elif role == "summary" and self.compaction is not None:
            own = self.compaction.summary_model
        return own or config.auxiliary_model or config.model

    def models(self) -> list[Any]:
        """Every model that a run may call."""
        return [self.model_of(role) for role in ("primary", "auxiliary", "grounding", "gsar", "summary")]

    def inner(self) -> list[Any]:
        return [tool.agent for tool in self.config.tools if tool.agent is not None]

    def stored_in(self, url: str) -> Agent:
        return self if self.checkpointer is not None else self.with_settings(checkpointer=url)

    def __getstate__(self) -> dict[str, Any]:
        own = self._given.model_copy(update={"callback_handler": None, "context_window": self.window})
        return {"config": own, "providers": self._factories(), "facts": facts_to_carry(self.models())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Runnable.__init__(self)
        self.providers = state["providers"]
        adopt(state["facts"])
        self._use(state["config"])

    def __repr__(self) -> str:
        return f"Agent({self.title!r}, tools={list(self.tools_by_name)})"

    @property
    def given(self) -> AgentConfig:
        """The configuration as it was given: without the tools that settings and plugins add."""
        return self._given

    @property
    def name(self) -> str | None:
        return self.config.name

    @property
    def title(self) -> str:
        return self.config.name or self.config.agent_id or "agent"

    @property
    def label(self) -> str | None:
        """What events carry as ``agent_name``."""
        return self.config.name or self.config.agent_id

    @property
    def model(self) -> Any:
        return self.config.model

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.config.tools

    @property
    def system_prompt(self) -> str | Callable[[dict[str, Any]], str] | None:
        return self.config.system_prompt

    def parts(self) -> list[Any]:
        config = self.config
        extra = [config.system_prompt, config.termination, getattr(config.termination, "function", None)]
        extra += [config.final_answer_verifier, config.final_answer_fallback, config.output_schema]
        manager = config.conversation_manager
        extra += [type(manager), getattr(manager, "summarise", None), type(config.tool_result_store), *self.hooks.parts()]
        found: list[Any] = [type(self), *map(type, self.models()), *extra, *self._factories().values()]
        for model in self.models():
            found += model.parts() if hasattr(model, "parts") else []
        for tool in config.tools:
            found += tool.agent.parts() if tool.agent is not None else [tool.function]
        return found

    def _factories(self) -> dict[str, ModelFactory]:
        """Factories that the actors of this agent need: of models given as text, with a prefix of the user's own."""
        return self.providers | registered_factories(self.models())

    def with_settings(self, **settings: Any) -> Self:
        """A copy with other settings."""
        return type(self)(config=self._given, **settings)

    def with_reflexion(self, enabled: bool = True, **settings: Any) -> Self:
        """A copy that reflects on its progress, with settings of :class:`ReflexionConfig`; or that does not."""
        return self.with_settings(reflexion={"enabled": enabled, **settings})

    def with_grounding(self, enabled: bool = True, **settings: Any) -> Self:
        """A copy that checks its answers, with settings of :class:`GroundingConfig`; or that does not."""
        return self.with_settings(grounding={"enabled": enabled, **settings})

    def with_hooks(self, *hooks: Any) -> Self:
        """A copy with further hooks, behind those that it has."""
        return self.with_settings(hooks=[*require_hooks(self._given.hooks), *hooks])

    def add_tool(self, tool: Tool) -> None:
        """Add a tool for later runs. Raises as the constructor does."""
        self.add_tools([tool])

    def add_tools(self, tools: Iterable[Tool]) -> None:
        """Add tools for later runs: all of them, or none when one is refused."""
        self._use(self._given.model_copy(update={"tools": require_tools([*self._given.tools, *tools])}))

    async def run_subagent(
        self, prompt: str, *, model: Any = None, name: str = "subagent", on_event: Any = None, **settings: Any
    ) -> SubagentResult:
        """:func:`run_subagent` with this agent's model, where none is given; cancelling this agent cancels the child, too."""
        if model is None:
            model, own = self.model, self.config.model_kwargs
            settings = {"model_kwargs": own, **settings} if own else settings
        child = Agent(model, name=name, callback_handler=on_event, **{"max_iterations": MAX_ITERATIONS, **settings})
        self._children.add(child)
        try:
            return await outcome_of(child, prompt)
        finally:
            self._children.discard(child)

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """This agent as a tool with one argument, ``prompt``. Each call is a child run, supervised like any other."""
        name = name or self.config.name
        if not name:
            raise ConfigurationError("as_tool needs a name: Agent(name=...) or as_tool(name=...)")
        return Tool(name=name, description=description or f"Ask the agent {name}.", agent=self)
