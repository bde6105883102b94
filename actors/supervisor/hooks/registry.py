"""Hooks by name, and a way to run them without an agent."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from ....protocol.errors import ConfigurationError, DefinitionError
from .base import BEFORE, CALLBACKS, Hook, Priority

logger = logging.getLogger("umbel.hooks")
CONCURRENT = ("on_iteration_start", "on_iteration_end")


def name_of(hook: Any) -> str:
    """A hook's name; an object that has none goes by its class."""
    return str(getattr(hook, "name", None) or type(hook).__name__)


def priority_of(hook: Any) -> int:
    """A hook's priority; an object that has none comes with the default."""
    return int(getattr(hook, "priority", Priority.DEFAULT))


def callback_of(hook: Any, callback: str) -> Any:
    """The hook's own version of a callback, or None: not there, or the base class's that does nothing."""
    method = getattr(hook, callback, None)
    own = callable(method) and getattr(method, "__func__", None) is not Hook.__dict__[callback]
    return method if own else None


def require_hook(hook: Any) -> Any:
    """``hook``, which must expose at least one callback.

    Raises:
        DefinitionError: it does not, or it is a class.
    """
    if isinstance(hook, type):
        raise DefinitionError(f"{hook.__name__} is a class; hooks are instances: {hook.__name__}(...)")
    if not isinstance(hook, Hook) and not any(callable(getattr(hook, name, None)) for name in CALLBACKS):
        raise DefinitionError(
            f"{hook!r} is not a hook: it has none of {', '.join(CALLBACKS)}. (A plugin goes into plugins=[...].)"
        )
    return hook


class HookRegistry:
    """Hooks with distinct names, by rising priority; equal ones in the order of their registration.

    An agent takes one in place of a list. Standing alone, :meth:`dispatch` and :meth:`emit` run its hooks.

    Args:
        hooks: the first ones.
    """

    def __init__(self, hooks: Iterable[Any] = ()) -> None:
        self._hooks: dict[str, Any] = {}
        for hook in hooks:
            self.register(hook)

    def register(self, hook: Any) -> None:
        """Add a hook.

        Raises:
            ConfigurationError: (a ValueError) there is one of this name.
            DefinitionError: it is not a hook.
        """
        name = name_of(require_hook(hook))
        if name in self._hooks:
            raise ConfigurationError(f"a hook named {name!r} is registered already; give this one another name")
        self._hooks[name] = hook

    def unregister(self, name: str) -> Any:
        """Remove a hook, and return it.

        Raises:
            KeyError: there is none of this name.
        """
        return self._hooks.pop(name)

    def get(self, name: str) -> Any:
        """The hook of this name, or None."""
        return self._hooks.get(name)

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(self._hooks.values(), key=priority_of))

    def __len__(self) -> int:
        return len(self._hooks)

    def __contains__(self, name: object) -> bool:
        return name in self._hooks

    async def dispatch(self, callback: str, *arguments: Any) -> Any:
        """Run one callback of every hook, in its order, by the rules of its kind.

        ``on_before_invocation`` takes ``(prompt, state)`` and returns the last state. Errors of ``before`` callbacks (and of
        ``on_after_model_call``) are logged and raised at once. For the other ``after`` callbacks all hooks run first. Iteration
        callbacks run side by side, and their errors are only logged.

        Raises:
            RuntimeError: an ``on_after_invocation`` or ``on_after_tool_call`` failed; the first error is its cause.
            DefinitionError: there is no such callback.
        """
        if callback not in CALLBACKS:
            raise DefinitionError(f"there is no callback {callback!r}; there are {', '.join(CALLBACKS)}")
        if callback in CONCURRENT:
            return await self._side_by_side(callback, arguments)
        if callback in ("on_after_invocation", "on_after_tool_call"):
            return await self._all_then_raise(callback, arguments)
        given = list(arguments)
        for hook in self._in_order(callback):
            try:
                returned = await _run(hook, callback, *given)
            except Exception:  # whatever a hook raised is logged with its name, and raised again (HOOK-30)
                logger.exception("hook %s failed in %s", name_of(hook), callback)
                raise
            if callback == "on_before_invocation" and returned is not None:
                given[1] = returned
        return given[1] if callback == "on_before_invocation" else None

    async def emit(self, callback: str, *arguments: Any) -> Any:
        """Run one callback of every hook (any name), in order of priority; the last value that is not None."""
        last = None
        for hook in self:
            returned = await _run(hook, callback, *arguments)
            last = returned if returned is not None else last
        return last

    def _in_order(self, callback: str) -> list[Any]:
        hooks = list(self)
        return hooks if callback in BEFORE else hooks[::-1]

    async def _side_by_side(self, callback: str, arguments: tuple[Any, ...]) -> None:
        hooks = self._in_order(callback)
        outcomes = await asyncio.gather(*(_run(hook, callback, *arguments) for hook in hooks), return_exceptions=True)
        for hook, outcome in zip(hooks, outcomes, strict=True):
            if isinstance(outcome, Exception):
                logger.warning("hook %s failed in %s: %s", name_of(hook), callback, outcome, exc_info=outcome)

    async def _all_then_raise(self, callback: str, arguments: tuple[Any, ...]) -> None:
        first: Exception | None = None
        failed = ""
        for hook in self._in_order(callback):
            try:
                await _run(hook, callback, *arguments)
            except Exception as error:  # the others must run too; the first one is raised below
                logger.warning("hook %s failed in %s", name_of(hook), callback, exc_info=error)
                first, failed = (error, name_of(hook)) if first is None else (first, failed)
        if first is not None:
            raise RuntimeError(f"hook {failed} failed in {callback}: {first}") from first


async def _run(hook: Any, callback: str, *arguments: Any) -> Any:
    method = getattr(hook, callback, None)
    if method is None:
        return None
    returned = method(*arguments)
    return await returned if inspect.isawaitable(returned) else returned
