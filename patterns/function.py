"""A function as a member of a pattern: it runs in a tool executor, so that what it does to its process stays there."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

from ..actors.tools.decorator import Tool, is_async
from ..actors.tools.output import json_output
from ..protocol.codec import plain
from ..protocol.errors import RunFailed

_ODD = re.compile(r"[^A-Za-z0-9_.-]")


def function_member(name: str, function: Callable[..., Any], **options: Any) -> Tool:
    """A tool with one argument, ``prompt``, that gives what ``function`` says to it.

    Args:
        name: the member's; letters that a tool's name cannot have become ``_``.
        function: sync or async; takes the prompt. What it returns is its answer: a text, a JSON value, or the result of a
            run (an object with ``success`` and a text), whose failure is the step's.
        **options: of the tool: ``timeout``, ``isolation``, ``placement``, ...
    """
    body = _AsyncAnswer(function) if is_async(function) else _Answer(function)
    return Tool(name=_ODD.sub("_", name)[:128], description=f"The member {name}.", function=body, **options)


class _Answer:
    """The body for a sync function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function, assigned=("__module__",), updated=())
        self.__dict__.pop("__wrapped__", None)
        self._function = function

    def __call__(self, prompt: str) -> Any:
        """Answer.

        Args:
            prompt: the task.
        """
        return answer_of(self._function(prompt))


class _AsyncAnswer(_Answer):
    """The body for an async function."""

    async def __call__(self, prompt: str) -> Any:
        """Answer.

        Args:
            prompt: the task.
        """
        given = self._function(prompt)
        return answer_of(await given if inspect.isawaitable(given) else given)


def answer_of(given: Any) -> Any:
    """The answer that a function's value is.

    Raises:
        RunFailed: it is the result of a run that was no success.
    """
    if isinstance(given, str):
        return given
    success = getattr(given, "success", None)
    if isinstance(success, bool):
        text = getattr(given, "message", None) or getattr(given, "text", None) or ""
        if not success:
            raise RunFailed(f"stopped: {getattr(given, 'stop_reason', 'error')}. {text}".rstrip())
        return str(text)
    return "" if given is None else json_output(plain(given, "the answer"))
