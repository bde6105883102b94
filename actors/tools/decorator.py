"""``@tool``: a function as something that a model can call."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, overload

from ...protocol.errors import ConfigurationError, DefinitionError
from .schema import Signature, signature_of

Isolation = Literal["thread", "process"]
Scope = Literal["turn", "thread"]
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def _ask(prompt: str) -> None:
    """Parameters of a tool that is an agent."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Tool:
    """A tool's definition: frozen, picklable (by cloudpickle), equal only to itself. Calling it calls the function.

    Attributes:
        name: what the model calls it; letters, digits, ``_ . -``.
        description: what the model reads; the function's whole docstring by default.
        parameters: JSON schema of the arguments; made from the signature by default.
        function: the body, sync or async; None when ``agent`` is set.
        agent: an agent that answers the call with its final message.
        idempotent: a second call with the same arguments has no further effect, so its result may be reused.
        scope: where an ``idempotent`` tool's successful results are reused: within a ``"turn"`` or, with ``"thread"``, also in
            the later turns of a conversation (Source: OURS-18). These stay in the thread's state for as long as it lives.
        labels: free-form tags.
        deferred: its schema is hidden from the model until activated.
        emits_progress: ``ToolContext.report_progress`` reaches subscribers.
        output_schema: JSON schema of the result, for information.
        timeout: seconds per attempt. A sync body is killed with its process when they are over, an async body is cancelled.
        retries: further attempts after an exception; after a timeout or crash only if ``idempotent``.
        max_concurrency: calls at once in one executor process.
        isolation: ``"thread"`` shares the executor's process, ``"process"`` runs in a worker process that can be killed;
            None chooses: async bodies run on the executor's loop, sync bodies in a process on a cluster and in a thread
            of an inline runtime, unless they have a ``timeout`` or ``memory_mb``, which need a process.
        placement: None, ``"local"`` (beside the supervisor) or a ``Placement``.
        memory_mb: limit of the worker process's data, in MiB (default ``UMBEL_TOOL_MEMORY_MB`` or 4096).
        names: local names at the definition, only used to resolve annotations.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    agent: Any = None
    idempotent: bool = False
    scope: Scope = "turn"
    labels: tuple[str, ...] = ()
    deferred: bool = False
    emits_progress: bool = False
    output_schema: dict[str, Any] | None = None
    timeout: float | None = None
    retries: int = 0
    max_concurrency: int | None = None
    isolation: Isolation | None = None
    placement: Any = None
    memory_mb: int | None = None
    signature: Signature = field(default_factory=lambda: Signature(tool=""))

    def __init__(self, *, name: str, names: Mapping[str, Any] | None = None, **fields: Any) -> None:
        unknown = sorted(set(fields) - _FIELDS)
        if unknown:
            raise DefinitionError(f"tool {name!r}: unknown option {', '.join(unknown)}; known: {', '.join(sorted(_FIELDS))}")
        values: dict[str, Any] = {"name": name, **_DEFAULTS, **{k: v for k, v in fields.items() if v is not None}}
        self.__dict__.update(values)
        _check(self)
        body = self.function or _ask
        if "signature" not in fields:
            self.__dict__["signature"] = signature_of(body, name, names)
        self.__dict__["labels"] = tuple(self.labels)
        if not self.description:
            documented = inspect.getdoc(self.function) if self.function else None
            self.__dict__["description"] = documented or f"Calls {name}."
        if not self.parameters:
            self.__dict__["parameters"] = self.signature.json_schema()

    @property
    def text_argument(self) -> str | None:
        """The one argument that it needs, where a text is enough to call it: ``prompt`` if it has that; else None."""
        names = list(self.parameters.get("properties", ()))
        needed = list(self.parameters.get("required", ()))
        if "prompt" in names:
            return "prompt" if set(needed) <= {"prompt"} else None
        return needed[0] if len(needed) == 1 else names[0] if len(names) == 1 else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise DefinitionError(f"tool {self.name!r} is an agent; run the agent itself")
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        """A tool defined in a class body binds to the instance, if its function takes ``self``."""
        if instance is None or "self" not in self.signature.hidden or self.function is None:
            return self
        return replace(self, function=self.function.__get__(instance))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in _CACHED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The tool as models are offered it (OpenAI style). One object per tool: do not change it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @cached_property
    def is_async(self) -> bool:
        return is_async(self.function)

    @property
    def wants_context(self) -> bool:
        """Whether the function takes the call's context as a parameter."""
        return bool(self.signature.injected)

    @cached_property
    def needs_process(self) -> bool:
        """Whether the body must run in a process that can be killed, wherever the executor is."""
        limited = self.memory_mb is not None or (self.timeout is not None and not self.is_async)
        return self.isolation == "process" or limited

    @cached_property
    def direct(self) -> bool:
        """Whether a call is nothing but awaiting the body on the loop."""
        plain = self.timeout is None and not self.retries and not self.needs_process
        return self.is_async and plain and not self.signature.positional


_CACHED = frozenset({"schema", "is_async", "needs_process", "direct"})
_FIELDS = frozenset(Tool.__dataclass_fields__) - {"name"}
_DEFAULTS: dict[str, Any] = {
    "description": "",
    "parameters": None,
    "function": None,
    "agent": None,
    "idempotent": False,
    "scope": "turn",
    "labels": (),
    "deferred": False,
    "emits_progress": False,
    "output_schema": None,
    "timeout": None,
    "retries": 0,
    "max_concurrency": None,
    "isolation": None,
    "placement": None,
    "memory_mb": None,
}


def is_async(function: Callable[..., Any] | None) -> bool:
    """Whether calling ``function`` gives a coroutine (also for partials and objects with an async ``__call__``)."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: dict[str, Any] | None = None,
    idempotent: bool = False,
    scope: Scope = "turn",
    labels: Iterable[str] = (),
    deferred: bool = False,
    emits_progress: bool = False,
    output_schema: dict[str, Any] | None = None,
    timeout: float | None = None,
    retries: int = 0,
    max_concurrency: int | None = None,
    isolation: Isolation | None = None,
    placement: Any = None,
    memory_mb: int | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Turn a function into a :class:`Tool`, bare (``@tool``) or with options (``@tool(timeout=5)``).

    Args:
        function: the body.
        **options: fields of :class:`Tool`.

    Raises:
        DefinitionError: something about the function or an option cannot work; the message says what.
    """
    names = dict(sys._getframe(1).f_locals)
    if function is not None:
        return _define(function, names, options)
    return lambda body: _define(body, names, options)


def _define(function: Callable[..., Any], names: Mapping[str, Any], options: dict[str, Any]) -> Tool:
    if isinstance(function, Tool):
        raise DefinitionError(f"{function!r} is a tool already")
    if not callable(function):
        raise DefinitionError(f"@tool needs a function, not {type(function).__name__}; options go by name: @tool(name=...)")
    given = dict(options)
    name = given.pop("name", None) or getattr(function, "__name__", None) or type(function).__name__
    return Tool(name=name, function=function, names=names, **given)


def require_tool(value: Any) -> Tool:
    """``value``, which must be a tool.

    Raises:
        DefinitionError: (a TypeError) it is something else, for example a plain function.
    """
    if isinstance(value, Tool):
        return value
    what = getattr(value, "__name__", None) or repr(value)[:80]
    hint = "decorate it with @tool" if callable(value) else "tools are made with @tool"
    raise DefinitionError(f"{what} ({type(value).__name__}) is not a tool; {hint}")


def require_tools(values: Any) -> tuple[Tool, ...]:
    """``values`` (one tool or several) as tools with distinct names.

    Raises:
        DefinitionError: one is not a tool.
        ConfigurationError: (a ValueError) two have the same name.
    """
    several = values if isinstance(values, list | tuple | set | frozenset) else [values]
    tools = tuple(require_tool(value) for value in several)
    seen: set[str] = set()
    for each in tools:
        if each.name in seen:
            raise ConfigurationError(f"two tools are named {each.name!r}; give one of them another name")
        seen.add(each.name)
    return tools


def _check(tool: Tool) -> None:
    who = f"tool {tool.name!r}"
    name: Any = tool.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(f"{who}: a name is 1 to 128 letters, digits, '_', '-' or '.'; give one with @tool(name=...)")
    if (tool.function is None) == (tool.agent is None):
        raise DefinitionError(f"{who} needs a function or an agent (one of them)")
    if inspect.isgeneratorfunction(tool.function) or inspect.isasyncgenfunction(tool.function):
        raise DefinitionError(f"{who} is a generator; return a value, and report progress with ToolContext.report_progress")
    if tool.isolation not in (None, "thread", "process"):
        raise DefinitionError(f"{who}: isolation is 'thread', 'process' or None, not {tool.isolation!r}")
    if tool.scope not in ("turn", "thread"):
        raise DefinitionError(f"{who}: scope is 'turn' or 'thread', not {tool.scope!r}")
    if tool.scope == "thread" and not tool.idempotent:
        raise DefinitionError(f"{who}: scope='thread' says where results are reused, which needs idempotent=True")
    if tool.timeout is not None and not (_number(tool.timeout) and 0 < tool.timeout < math.inf):
        raise DefinitionError(f"{who}: timeout is a positive number of seconds, not {tool.timeout!r}")
    for option, least in (("retries", 0), ("max_concurrency", 1), ("memory_mb", 16)):
        value = getattr(tool, option)
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            raise DefinitionError(f"{who}: {option} is a whole number from {least}, not {value!r}")
    limited = tool.memory_mb is not None or (tool.timeout is not None and not is_async(tool.function))
    if tool.isolation == "thread" and limited:
        raise DefinitionError(
            f"{who}: a thread cannot be stopped or limited, so a sync tool with a timeout, or any tool with memory_mb, "
            "needs isolation='process' (or leave isolation out)"
        )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
