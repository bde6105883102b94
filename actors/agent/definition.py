"""``Agent``: what users write. A frozen definition with the calls of :class:`Runnable`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from ...protocol.config import AgentConfig, build_config
from ...protocol.errors import ConfigurationError
from ...protocol.messages import Message
from ...protocol.state import AgentState
from ..checkpoints.registry import resolve_url
from ..runnable import Runnable
from ..tools.decorator import Tool, require_tools

if TYPE_CHECKING:
    from .models.registry import ModelFactory


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

    def _use(self, config: AgentConfig) -> None:
        self.config = config
        self._packed = None
        self.callback_handler = config.callback_handler
        self.tools_by_name: dict[str, Tool] = {tool.name: tool for tool in config.tools}
        prompt = config.system_prompt
        self.system_message = Message.system(prompt) if isinstance(prompt, str) and prompt else None
        self.blank_state = AgentState(
            agent_id=config.agent_id,
            max_iterations=config.max_iterations,
            tool_loop_threshold=config.tool_loop_threshold,
            tool_loop_read_only_threshold=config.tool_loop_read_only_threshold,
            terminal_tools=config.terminal_tools,
            token_budget=config.token_budget,
        )
        given = {"temperature": config.temperature, "max_tokens": config.max_tokens}
        self.model_settings = {name: value for name, value in given.items() if value is not None}
        self.tool_schemas: list[dict[str, Any]] = [tool.schema for tool in config.tools if not tool.deferred]

    def __getstate__(self) -> tuple[AgentConfig, dict[str, ModelFactory]]:
        return self.config.model_copy(update={"callback_handler": None}), self._factories()

    def __setstate__(self, state: tuple[AgentConfig, dict[str, ModelFactory]]) -> None:
        Runnable.__init__(self)
        config, self.providers = state
        self._use(config)

    def __repr__(self) -> str:
        return f"Agent({self.title!r}, tools={list(self.tools_by_name)})"

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
        found: list[Any] = [type(self), type(config.model), type(config.auxiliary_model), *extra]
        found += self._factories().values()
        for model in (config.model, config.auxiliary_model):
            found += model.parts() if hasattr(model, "parts") else []
        for tool in config.tools:
            found += tool.agent.parts() if tool.agent is not None else [tool.function]
        return found

    def _factories(self) -> dict[str, ModelFactory]:
        """Factories that the actors of this agent need: of models given as text, with a prefix of the user's own."""
        from .models.registry import registered_factories

        return self.providers | registered_factories([self.config.model, self.config.auxiliary_model])

    def with_settings(self, **settings: Any) -> Self:
        """A copy with other settings."""
        return type(self)(config=self.config, **settings)

    def add_tool(self, tool: Tool) -> None:
        """Add a tool for later runs. Raises as the constructor does."""
        self.add_tools([tool])

    def add_tools(self, tools: Iterable[Tool]) -> None:
        """Add tools for later runs: all of them, or none when one is refused."""
        self._use(self.config.model_copy(update={"tools": require_tools([*self.config.tools, *tools])}))

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """This agent as a tool with one argument, ``prompt``. Each call is a child run, supervised like any other."""
        name = name or self.config.name
        if not name:
            raise ConfigurationError("as_tool needs a name: Agent(name=...) or as_tool(name=...)")
        return Tool(name=name, description=description or f"Ask the agent {name}.", agent=self)
