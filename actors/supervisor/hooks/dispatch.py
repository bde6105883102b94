"""Hooks as the loop calls them: sorted once per agent, and per callback only those that do something.

An agent without hooks costs one truth test a moment: ``if hooks.before_model: ...``.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

from ....protocol.errors import DefinitionError
from ....protocol.markers import AUTOMATED, TURN_ONLY
from ....protocol.messages import Message, clean_text
from ....protocol.state import AgentState
from .base import AFTER
from .events import AfterToolCall
from .plugin import Plugin, marked, plugin_tools, require_plugins
from .registry import HookRegistry, callback_of, name_of, priority_of, require_hook

logger = logging.getLogger("umbel.hooks")

MAX_MODEL_ATTEMPTS = 5  # model calls in one iteration, the first included, when hooks ask for another (HOOK-23)
MAX_ERROR_CHARS = 2_000

Callback = Callable[..., Any]
Callbacks = tuple[Callback, ...]


class Hooks:
    """An agent's hooks and plugins, ready to be called.

    Args:
        hooks: None, one hook, several, or a :class:`HookRegistry`.
        plugins: None, one plugin, or several; their callbacks come after hooks of equal priority.

    Attributes:
        plugins: the plugins.
        tools: the plugins' tools.
        before_invocation, iteration_start, before_model, before_tool, before_compaction: callbacks, first to last.
        after_invocation, iteration_end, after_model, after_tool: callbacks, last to first.

    Raises:
        DefinitionError: something is not a hook, or not a plugin.
        ConfigurationError: two plugins, or two of their tools, have the same name.
    """

    def __init__(self, hooks: Any = None, plugins: Any = None) -> None:
        self.plugins = require_plugins(plugins)
        self.tools = plugin_tools(self.plugins)
        self._sources = sorted([*require_hooks(hooks), *self.plugins], key=priority_of)
        self.before_invocation = self._callbacks("on_before_invocation")
        self.iteration_start = self._callbacks("on_iteration_start")
        self.before_model = self._callbacks("on_before_model_call")
        self.before_tool = self._callbacks("on_before_tool_call")
        self.before_compaction = self._callbacks("on_before_compaction")
        self.after_invocation = self._callbacks("on_after_invocation")
        self.iteration_end = self._callbacks("on_iteration_end")
        self.after_model = self._callbacks("on_after_model_call")
        self.after_tool = self._callbacks("on_after_tool_call")

    def __len__(self) -> int:
        return len(self._sources)

    def __repr__(self) -> str:
        return f"Hooks({[name_of(source) for source in self._sources]})"

    def attach(self, agent: Any) -> None:
        """Show the agent to its plugins; once, where it is built (not where it is unpickled)."""
        for plugin in self.plugins:
            plugin.init_agent(agent)

    def parts(self) -> list[Any]:
        """Classes and values of the hooks, whose modules must travel with an agent's definition."""
        return [part for source in self._sources for part in (type(source), *getattr(source, "__dict__", {}).values())]

    def _callbacks(self, callback: str) -> Callbacks:
        found = tuple(method for source in self._sources for method in _own(source, callback))
        return found[::-1] if callback in AFTER else found


def require_hooks(hooks: Any) -> list[Any]:
    """``hooks`` (None, one, several, or a :class:`HookRegistry`) as a list.

    Raises:
        DefinitionError: something is not a hook.
    """
    if hooks is None:
        return []
    several = list(hooks) if isinstance(hooks, HookRegistry | list | tuple) else [hooks]
    return [require_hook(hook) for hook in several]


def _own(source: Any, callback: str) -> list[Callback]:
    if isinstance(source, Plugin):
        return marked(source, callback)
    method = callback_of(source, callback)
    return [] if method is None else [method]


async def call(callbacks: Callbacks, *arguments: Any) -> None:
    """Call one after another; what they return is of no interest, what they raise ends the run."""
    for callback in callbacks:
        returned = callback(*arguments)
        if inspect.isawaitable(returned):
            await returned


async def before_invocation_all(callbacks: Callbacks, prompt: str, state: AgentState) -> AgentState:
    """The state after every hook saw the previous one's; None from a hook means no change.

    Raises:
        DefinitionError: (a TypeError) a hook returned something else.
    """
    for callback in callbacks:
        returned = callback(prompt, state)
        if inspect.isawaitable(returned):
            returned = await returned
        if returned is None:
            continue
        if not isinstance(returned, AgentState):
            raise DefinitionError(f"{describe(callback)} must return the state, not {type(returned).__name__}")
        state = returned
    return state


async def after_invocation_all(callbacks: Callbacks, state: AgentState, success: bool) -> tuple[str, ...]:
    """Call every hook, whatever the others do. Returns what went wrong, one text each."""
    errors: list[str] = []
    for callback in callbacks:
        try:
            await call((callback,), state, success)
        except Exception as error:  # a hook's failure must not take the others', nor the result (OURS-7)
            text = f"{describe(callback)}: {type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
            logger.warning("run %s: %s", state.run_id, text, exc_info=error)
            errors.append(text)
    return tuple(errors)


def describe(callback: Callback) -> str:
    """A callback for error texts: ``name of the hook.name of the method``."""
    owner = getattr(callback, "__self__", None)
    name = getattr(callback, "__name__", repr(callback))
    return name if owner is None else f"{name_of(owner)}.{name}"


def as_result_text(value: Any) -> str:
    """A hook's replacement of a tool result as text: text stays, everything else becomes JSON (HOOK-24)."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    return clean_text(json.dumps(value, ensure_ascii=False, default=str))


def replacement(event: AfterToolCall, original: str | None) -> str | None:
    """The text that hooks put in place of ``original``; None when they changed nothing or asked for a retry (LOOP-92, 93)."""
    if event.retry or event.result is None or event.result == original:
        return None
    return as_result_text(event.result)


def with_feedback(messages: Iterable[Message], feedback: str | None) -> list[Message]:
    """The conversation of a re-call: with the hooks' feedback as an automated note that is never saved (LOOP-47)."""
    note = [] if not feedback else [Message.user(feedback, **{AUTOMATED: True, TURN_ONLY: True})]
    return [*messages, *note]
