"""Plugins: hook methods and tools that belong together, under one name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ....protocol.errors import ConfigurationError, DefinitionError
from ...tools.decorator import Tool, require_tools
from .base import CALLBACKS, Named

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__umbel_hook__"


def hook(*callbacks: str) -> Callable[[F], F]:
    """Mark a plugin's method as one (or several) of the callbacks: ``@hook("on_before_tool_call")``.

    Raises:
        DefinitionError: there is no such callback; the message lists those there are.
    """
    unknown = [name for name in callbacks if name not in CALLBACKS]
    if unknown or not callbacks:
        given = ", ".join(map(repr, unknown)) or "nothing"
        raise DefinitionError(f"@hook takes the names of callbacks, not {given}; there are {', '.join(CALLBACKS)}")

    def mark(method: F) -> F:
        setattr(method, _MARK, callbacks)
        return method

    return mark


class Plugin(Named):
    """Base of plugins. Methods marked with ``@hook(...)`` are callbacks, methods made with ``@tool`` are tools.

    Attributes:
        name: unique among an agent's plugins; the class's name by default.
        priority: of its callbacks, see :class:`Priority`.
    """

    name = "Plugin"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, tools={[tool.name for tool in self.tools]})"

    def init_agent(self, agent: Any) -> None:
        """The plugin was given to this agent. Called once, in the process that builds the agent."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Its tools, bound to it, in the order of the class body."""
        return tuple(getattr(self, name) for name, value in members(type(self)) if isinstance(value, Tool))


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Attributes of a class and its bases, bases first, each name once, as the most derived class has it."""
    names: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        names |= vars(base)
    return iter(names.items())


def marked(plugin: Any, callback: str) -> list[Callable[..., Any]]:
    """The plugin's methods that are marked as ``callback``, in the order of the class body."""
    return [getattr(plugin, name) for name, value in members(type(plugin)) if callback in getattr(value, _MARK, ())]


def require_plugins(plugins: Any) -> tuple[Plugin, ...]:
    """``plugins`` (one, several or None) as plugins with distinct names.

    Raises:
        DefinitionError: one is not a plugin.
        ConfigurationError: two have the same name.
    """
    several = () if plugins is None else plugins if isinstance(plugins, list | tuple) else (plugins,)
    names: set[str] = set()
    for plugin in several:
        if not isinstance(plugin, Plugin):
            raise DefinitionError(f"{plugin!r} is not a plugin: derive from umbel.Plugin, and give an instance")
        if plugin.name in names:
            raise ConfigurationError(f"two plugins are named {plugin.name!r}; set another name on one of them")
        names.add(plugin.name)
    return tuple(several)


def plugin_tools(plugins: tuple[Plugin, ...]) -> tuple[Tool, ...]:
    """The tools of all plugins.

    Raises:
        ConfigurationError: two have the same name.
    """
    return require_tools([tool for plugin in plugins for tool in plugin.tools])
