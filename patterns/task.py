"""``@task``: a function whose calls are steps in the body of an entrypoint. Source: PAT-64, PAT-65."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from ..actors.definitions import Definition
from ..actors.tools.decorator import Isolation, Tool, is_async
from ..actors.tools.output import json_output
from ..actors.tools.schema import signature_of
from ..protocol.codec import plain
from ..protocol.config import AgentConfig, build_config
from ..protocol.errors import DefinitionError
from ..protocol.patterns import MemberResult
from .play import Pending, Play, failure, playing
from .shape import Shape

P = ParamSpec("P")
T = TypeVar("T")
Cache = bool | Literal["thread"]


class Task(Definition, Generic[P, T]):
    """A function that runs in a tool executor when the body of an entrypoint calls it; elsewhere it is just the function.

    Its call is a coroutine in an async body, and a future (``call.result()``) in a sync one. A task that fails raises
    ``MemberFailed`` there. Made by :func:`task`.

    Attributes:
        name: in keys, events and results.
        function: the function itself.
        tool: how it runs.
        cache: whether equal calls run once: in a run (True), or in a thread (``"thread"``).
    """

    config: AgentConfig = build_config(
        None, {"model": None, "system_prompt": None}
    )  # a definition has one; it asks for nothing

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        cache: Cache = False,
        idempotent: bool = True,
        names: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if isinstance(function, Task | Tool) or not callable(function):
            raise DefinitionError(f"@task needs a function, not {type(function).__name__}; options go by name: @task(name=...)")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise DefinitionError(f"@task {function.__name__!r} is a generator; return a list")
        if cache not in (False, True, "thread"):
            raise DefinitionError(f"@task: cache is True, False or 'thread', not {cache!r}")
        functools.update_wrapper(self, function)
        self.name = name or getattr(function, "__name__", None) or type(function).__name__
        self.function = function
        self._identity = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', self.name)}"
        self.cache = cache
        self._shape = Shape(function, f"task {self.name!r}", names)
        signature = signature_of(function, self.name, names)
        self._injected = signature.hidden
        body = (_AsyncBody if is_async(function) else _Body)(function, self._shape)
        options |= {"function": body, "signature": signature, "idempotent": idempotent}
        self.tool = Tool(name=self.name, description=inspect.getdoc(function) or f"The task {self.name}.", **options)
        self.tools_by_name = {self.name: self.tool}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        play = playing()
        if play is None:
            return self.function(*args, **kwargs)  # type: ignore[no-any-return]
        arguments = arguments_of(self.function, self._injected, f"task {self.name!r}", args, kwargs)
        step: Pending[T] = play.begin(self._step(play, play.key(self.name), arguments))
        return step

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    async def _step(self, play: Play, key: str, arguments: dict[str, Any]) -> Any:
        async def carry_out() -> MemberResult:
            idempotent = self.tool.idempotent
            return await play.stage.function(self.name, arguments, key=key, idempotent=idempotent, owner=self)

        if self.cache:
            result = await play.once(self.name, [self._identity, arguments], key, self.cache == "thread", carry_out)
        else:
            result = await play.step(self.name, key, carry_out)
        if not result.success:
            raise failure(result)
        return self._shape.load(result.value)

    # as a definition, which executors know it by

    def parts(self) -> list[Any]:
        """The objects whose code must travel with it."""
        return [self.function]

    def inner(self) -> list[Any]:
        """Nothing runs inside it."""
        return []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_packed": None}


def arguments_of(
    function: Callable[..., Any], without: frozenset[str], what: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name, as JSON values.

    Args:
        function: what is called.
        without: parameters that no call fills in.
        what: names the function in errors.
        args: of the call, by position.
        kwargs: of the call, by name.

    Raises:
        TypeError: they do not fit the function's parameters.
        NotStorable: one has no JSON form.
    """
    own = inspect.signature(function)
    taken = own.replace(parameters=[parameter for name, parameter in own.parameters.items() if name not in without])
    given = dict(taken.bind(*args, **kwargs).arguments)
    further = next((name for name, parameter in taken.parameters.items() if parameter.kind is parameter.VAR_KEYWORD), None)
    given |= given.pop(further, {}) if further is not None else {}
    return {name: plain(value, f"the argument {name!r} of {what}") for name, value in given.items()}


class _Body:
    """A task's function as a tool's: its result keeps its value."""

    def __init__(self, function: Callable[..., Any], shape: Shape) -> None:
        self.__module__ = getattr(function, "__module__", __name__)  # whose code must travel
        self._function = function
        self._shape = shape

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._function(*args, **kwargs)
        return self._awaited(given) if inspect.isawaitable(given) else self._told(given)

    async def _awaited(self, given: Any) -> str:
        return self._told(await given)

    def _told(self, given: Any) -> str:
        value = self._shape.dump(given)
        return value if isinstance(value, str) else json_output(value)


class _AsyncBody(_Body):
    """The same for an async function."""

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._told(await self._function(*args, **kwargs))


class Decorator(Protocol):
    """What makes a task of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, T]: ...


@overload
def task(function: Callable[P, T], /) -> Task[P, T]: ...


@overload
def task(
    *,
    name: str | None = None,
    cache: Cache = False,
    idempotent: bool = True,
    retries: int = 0,
    timeout: float | None = None,
    isolation: Isolation | None = None,
    placement: Any = None,
    max_concurrency: int | None = None,
    memory_mb: int | None = None,
) -> Decorator: ...


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a :class:`Task`, bare (``@task``) or with options (``@task(retries=2)``).

    Args:
        function: sync or async. Arguments and result travel as JSON; annotations say what they are on both sides (pydantic
            models, dataclasses...). A parameter ``ctx: ToolContext`` gets the call's context.
        **options: ``name``; ``cache``: equal calls (by their arguments as canonical JSON) run once in a run (True) or in a
            thread (``"thread"``); ``idempotent``: False runs it at most once, and a crash that hides what came of it makes
            it fail with ``outcome_unknown``; ``retries`` after exceptions, with back-off (0.1 s, doubled up to 5 s; one step
            whatever their number); ``timeout`` in seconds per attempt; ``isolation``, ``placement``, ``max_concurrency``,
            ``memory_mb`` as for :class:`Tool`.

    Raises:
        DefinitionError: something about the function or an option cannot work.
    """
    names = dict(sys._getframe(1).f_locals)
    if function is not None:
        return Task(function, names=names, **options)
    return lambda body: Task(body, names=names, **options)


__all__ = ["Task", "task"]
