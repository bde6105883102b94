"""``@entrypoint``: plain code as a pattern. Its tasks, questions and agents are durable steps. Source: PAT-64, PAT-65, OURS-24.

    @task(retries=2)
    async def fetch(url: str) -> str: ...

    @entrypoint(checkpointer="sqlite:///runs.db")
    async def report(topic: str) -> dict:
        pages = await asyncio.gather(*(fetch(url) for url in await search(topic)))
        draft = await step(writer, f"Write about {topic}: {pages}")
        return {"draft": draft.text, "published": await ask("Publish it?") == "yes"}

    result = await report.arun({"topic": "umbels"}, thread_id="t-1")

After a pause, a crash or a move the body is played again from its beginning, and gets from each step that had ended what
that had given. So it must do the same whenever it is given the same: a clock, a random number, a file belongs into a task.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from ..actors.runnable import Runnable
from ..actors.tools.schema import Signature, signature_of
from ..protocol.errors import ConfigurationError, DefinitionError, InvalidArguments, MemberFailed, RunFailed, UmbelError
from ..protocol.markers import STEP
from ..protocol.patterns import LIMITS, Ending, MemberResult
from .pattern import Pattern
from .play import Pending, Play, canonical, current_play, failure, playing
from .reach import reached
from .shape import Shape
from .structure import END, START, Edge, Structure, structured
from .task import Task, arguments_of, task

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage

P = ParamSpec("P")
T = TypeVar("T")
PREVIOUS = "previous"
_stored: weakref.WeakKeyDictionary[Runnable, dict[str, Runnable]] = weakref.WeakKeyDictionary()


class Entrypoint(Pattern, Generic[P, T]):
    """A function as a pattern; made by :func:`entrypoint`.

    ``result.value`` is what it returned, as JSON; ``result.details["tasks"]`` lists its steps in the order in which it began
    them; ``result.members`` has their results. Called inside another entrypoint's body it is a step of that one; called
    elsewhere it is just the function.

    Attributes:
        function: the body.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        names: Mapping[str, Any] | None = None,
        checkpointer: str | None = None,
        max_concurrency: int | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(function, Task | Runnable) or not callable(function):
            raise DefinitionError(f"@entrypoint needs a function, not {type(function).__name__}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise DefinitionError(f"@entrypoint {function.__name__!r} is a generator; return a value")
        if "on_error" in settings:
            raise ConfigurationError("an entrypoint has no on_error: its code says what a failed step means (try, except)")
        functools.update_wrapper(self, function)
        self.function = function
        name = name or getattr(function, "__name__", None) or type(function).__name__
        self._shape = Shape(function, f"entrypoint {name!r}", names)
        self._signature = _parameters(function, name, names)
        self._takes_previous = PREVIOUS in inspect.signature(function).parameters
        super().__init__(name=name, checkpointer=checkpointer, max_concurrency=max_concurrency, **settings)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        play = playing()
        if play is None:
            return self.function(*args, **kwargs)  # type: ignore[no-any-return]
        arguments = arguments_of(self.function, frozenset({PREVIOUS}), f"entrypoint {self.title!r}", args, kwargs)
        called: Pending[T] = play.begin(self._returned(play, play.key(self.title), arguments))
        return called

    async def _returned(self, play: Play, key: str, arguments: dict[str, Any]) -> Any:
        result = await _run(play, key, self, canonical(arguments), arguments, {})
        if not result.success:
            raise failure(result)
        return self._shape.load(result.value)

    def inner(self) -> list[Any]:
        return [*super().inner(), *reached(self.function)]

    def user_code(self) -> list[Any]:
        return [self.function]

    def structure(self) -> Structure:
        """What it looks like, as far as its code tells: the tasks, agents and patterns that it names."""
        parts: dict[str, Any] = {}
        for part in reached(self.function):
            name = part.name if isinstance(part, Task) else _title(part)
            parts[name if name not in parts else f"{name}-{len(parts)}"] = part
        edges = [edge for name in parts for edge in (Edge(START, name, "conditional"), Edge(name, END, "conditional"))]
        return structured(self.title, "Entrypoint", parts, (), edges or [Edge(START, END)])

    def input_of(self, prompt: Any) -> tuple[str, dict[str, Any] | None]:
        """A mapping is the arguments by name, or the only one; a text the only one, or JSON for any.

        Raises:
            ConfigurationError: it is something else, or not JSON.
            InvalidArguments: it does not fit the parameters.
        """
        text, values = super().input_of(prompt)
        if prompt != "":  # as of a run that goes on
            self._arguments(text, values)
        return text, values

    async def conduct(self, stage: Stage) -> Ending:
        play = Play(stage)
        try:
            args, kwargs = self._signature.bind(self._arguments(stage.prompt, stage.values))
            if self._takes_previous:
                kwargs[PREVIOUS] = self._previous(stage)
            value = self._shape.dump(await play.perform(self.function, args, kwargs))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the body raises is the run's result
            if play.broken is not None:
                raise play.broken from None
            told, reason = _told(error, self.title)
            return Ending.failed(told, reason, details={"tasks": play.facts})
        if play.broken is not None:
            raise play.broken
        text = value if isinstance(value, str) else "" if value is None else canonical(value)
        return Ending(final_output=text, value=value, details={"tasks": play.facts})

    def _arguments(self, text: str, values: dict[str, Any] | None) -> dict[str, Any]:
        """The body's arguments, by name, as their annotations say.

        Raises:
            InvalidArguments: they do not fit.
        """
        why = ""
        for reading in _readings(self._signature, text, values):
            try:
                return self._signature.validate(reading)
            except InvalidArguments as error:
                lines = [line[2:] for line in error.message.splitlines() if line.startswith("- ")]
                why = "; ".join(lines) or error.message
        raise InvalidArguments(f"the input of {self.title} does not fit: {why}. It takes: {self._signature.summary()}")

    def _previous(self, stage: Stage) -> Any:
        """What the thread's newest turn that was a success returned; None if there is none."""
        ends = [message.metadata[STEP] for message in stage.log.records if message.metadata[STEP]["kind"] == "end"]
        good = [end for end in ends if end.get("error") is None and end.get("stop_reason", "complete") == "complete"]
        return self._shape.load(good[-1].get("value")) if good and good[-1].get("value") is not None else None


class Decorator(Protocol):
    """What makes an entrypoint of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Entrypoint[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Entrypoint[P, T]: ...


@overload
def entrypoint(function: Callable[P, Coroutine[Any, Any, T]], /) -> Entrypoint[P, T]: ...


@overload
def entrypoint(function: Callable[P, T], /) -> Entrypoint[P, T]: ...


@overload
def entrypoint(
    *, name: str | None = None, checkpointer: str | None = None, max_concurrency: int | None = None, **settings: Any
) -> Decorator: ...


def entrypoint(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a function an :class:`Entrypoint`, bare (``@entrypoint``) or with settings (``@entrypoint(checkpointer=...)``).

    Args:
        function: the body, async, or sync (then it runs in a thread of its own, and its calls give futures). What it takes
            and returns are JSON values, or what its annotations make of them. A parameter ``previous`` gets what the
            thread's turn before returned, or None.
        **settings: of :class:`Pattern` (``name``, ``checkpointer``, ``max_concurrency``, budgets...), but for ``on_error``.

    Raises:
        DefinitionError: something about the function cannot work.
        ConfigurationError: a setting out of range.
    """
    names = dict(sys._getframe(1).f_locals)
    if function is not None:
        return Entrypoint(function, names=names, **settings)
    return lambda body: Entrypoint(body, names=names, **settings)


def step(
    runnable: Runnable, prompt: Any, *, check: bool = True, timeout: float | None = None, metadata: dict[str, Any] | None = None
) -> Pending[MemberResult]:
    """An agent or a pattern as a step of an entrypoint's body, to be awaited there.

    Args:
        runnable: who; it need not be known before.
        prompt: its task, a text, or for a pattern a mapping.
        check: False returns a result that is no success instead of raising.
        timeout: seconds until it is stopped with ``time_budget``.
        metadata: JSON values for its tools.

    Returns:
        A coroutine (in a sync body a future) of its :class:`MemberResult`: ``text``, ``value``, ``metrics``...

    Raises:
        MemberFailed: (when awaited) it came to no answer: an error, a limit, a cancel.
        RunError: this is no entrypoint's body.
        DefinitionError: ``runnable`` is none.
    """
    play = current_play("step")
    if not isinstance(runnable, Runnable):
        raise DefinitionError(f"step() runs an Agent or a pattern, not a {type(runnable).__name__}; a function is a @task")
    text, values = runnable.input_of(prompt)
    fields = {"timeout": timeout, "metadata": metadata}
    title = _title(runnable)

    async def run(key: str) -> MemberResult:
        result = await _run(play, key, runnable, text, values, fields)
        if check and not result.success:
            raise failure(result)
        return result

    begun: Pending[MemberResult] = play.begin(run(play.key(title)))
    return begun


def ask(
    question: str, *, options: Iterable[str] | None = None, fields: dict[str, Any] | None = None, metadata: Any = None
) -> Pending[Any]:
    """A question to a person, in an entrypoint's body: the run pauses there, and goes on when it is resumed with the answer.

    Args:
        question: for the person.
        options: the answers to choose from.
        fields: description of a structured answer (a JSON object).
        metadata: JSON values for whoever shows the question.

    Returns:
        A coroutine (in a sync body a future) of the answer, a JSON value.

    Raises:
        RunError: this is no entrypoint's body. A task asks with ``interrupt``.
    """
    play = current_play("ask")
    key = play.key("ask")
    asked: Pending[Any] = play.begin(play.ask(question, key=key, options=options, fields=fields, metadata=metadata))
    return asked


async def _run(
    play: Play, key: str, runnable: Runnable, text: str, values: dict[str, Any] | None, fields: dict[str, Any]
) -> MemberResult:
    title, url = _title(runnable), play.stage.pattern.checkpointer
    member = runnable
    if url is not None and runnable.checkpointer is None:  # one object for each store, so that it is packed once
        known = _stored.setdefault(runnable, {})
        member = known[url] = known.get(url) or runnable.stored_in(url)
    return await play.step(title, key, lambda: play.stage.call(title, text, key=key, values=values, runnable=member, **fields))


def _title(runnable: Runnable) -> str:
    return str(getattr(runnable, "title", None) or type(runnable).__name__)


def _parameters(function: Callable[..., Any], name: str, names: Mapping[str, Any] | None) -> Signature:
    signature = signature_of(function, name, names)
    if signature.injected:
        raise DefinitionError(
            f"@entrypoint {name!r}: its body runs in a supervisor and has no {signature.injected[0]}; tasks do"
        )
    kept = tuple(parameter for parameter in signature.parameters if parameter.name != PREVIOUS)
    return replace(signature, parameters=kept, positional=tuple(one for one in signature.positional if one != PREVIOUS))


def _readings(signature: Signature, text: str, values: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What an input may mean as arguments; of those that fit the first counts, of those that do not the last is explained."""
    names = [parameter.name for parameter in signature.parameters]
    only = names[0] if len(names) == 1 and signature.extras is None else None
    if values is not None:
        return [values] if only is None or set(values) == {only} else [values, {only: values}]
    plain_text: list[dict[str, Any]] = [{names[0]: text}] if names else [{}]
    try:
        parsed = json.loads(text)
    except ValueError:
        return plain_text
    if not isinstance(parsed, dict):
        return [*plain_text, {names[0]: parsed}] if names else plain_text
    return [*(plain_text if only is not None else ()), *_readings(signature, text, parsed)]


def _told(error: BaseException, title: str) -> tuple[UmbelError, Any]:
    """The error of a body, and the run's stop reason."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, UmbelError):
        reason = error.details.get("stop_reason") if isinstance(error, MemberFailed) else None
        return error, reason if reason in LIMITS else "error"
    if isinstance(error, BaseExceptionGroup):
        text = "; ".join(f"{type(one).__name__}: {one}" for one in error.exceptions)
        return RunFailed(f"{title}: {text}"), "error"
    return RunFailed(f"{title}: {type(error).__name__}: {error}"), "error"


__all__ = ["Entrypoint", "Task", "ask", "entrypoint", "step", "task"]
