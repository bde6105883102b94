"""What hooks get: mutable objects, on which exactly the documented fields can be set.

They are made for one moment of one run and seen by all of its hooks in turn. Unlike the events of a run's stream
(``protocol/events.py``) they never leave the supervisor. Containers in them are copies: changing one never touches the state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from ....protocol.events import CustomEvent, RunInfo
from ....protocol.messages import Message, ModelResponse, Usage

CANCELLED = "The call was cancelled before it ran."
Counter = Callable[[Usage | None, float | None], None]


class HookEvent:
    """Base of the five events.

    Args:
        run: whose run it is; None when the event is made by hand.
        queue: where :meth:`emit` puts custom events; the loop passes the run's own list and yields what is in it.
        count: how :meth:`count` reports; the loop passes the run's own.
        ephemeral: the run's ephemeral metadata.
        **fields: of the subclass.

    Attributes:
        writable: the fields that hooks may set.
    """

    writable: ClassVar[tuple[str, ...]] = ()
    run: RunInfo | None

    def __init__(
        self,
        run: RunInfo | None = None,
        queue: list[CustomEvent] | None = None,
        count: Counter | None = None,
        ephemeral: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        own = [] if queue is None else queue
        self.__dict__.update(fields, run=run, _queue=own, _count=count, _ephemeral=ephemeral or {})

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.writable:
            may = ", ".join(self.writable)
            raise AttributeError(f"{type(self).__name__}.{name} cannot be set; writable here: {may}")
        self.__dict__[name] = self._accept(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted")

    def __repr__(self) -> str:
        shown = {name: self._show(name, value) for name, value in self.__dict__.items() if not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    @property
    def run_id(self) -> str:
        """The run's id, to key what belongs to it; empty when the event is made by hand."""
        return self.run.run_id if self.run is not None else ""

    @property
    def ephemeral_metadata(self) -> Mapping[str, Any]:
        """The half of the run's metadata that is never stored, logged or returned (and never in this object's ``repr``)."""
        return MappingProxyType(self.__dict__["_ephemeral"])

    def emit(self, event: CustomEvent) -> None:
        """Show something to whoever watches the run, right after this hook stage; ids are filled in.

        Raises:
            TypeError: it is not a CustomEvent.
            RuntimeError: this event belongs to no run.
        """
        if not isinstance(event, CustomEvent):
            raise TypeError(f"hooks emit CustomEvent, not {type(event).__name__}")
        if self.run is None:
            raise RuntimeError("emit works only inside a run; this event was made by hand")
        ids = {"run_id": self.run.run_id, "thread_id": self.run.thread_id, "tool_call_id": getattr(self, "tool_call_id", None)}
        self._queue_of().append(event.evolve(**{name: value for name, value in ids.items() if not getattr(event, name)}))

    def drain(self) -> list[CustomEvent]:
        """What was emitted and not drained yet, oldest first."""
        queue = self._queue_of()
        drained = queue[:]
        queue.clear()
        return drained

    def count(self, usage: Usage | None, cost_usd: float | None = None) -> None:
        """Report a model call that the hook itself made (a judge): its tokens and cost are the run's."""
        counter: Counter | None = self.__dict__["_count"]
        if counter is not None:
            counter(usage, cost_usd)

    def _queue_of(self) -> list[CustomEvent]:
        queue: list[CustomEvent] = self.__dict__["_queue"]
        return queue

    def _accept(self, name: str, value: Any) -> Any:
        """``value`` as the field ``name`` holds it. Raises TypeError when it cannot."""
        return value

    def _show(self, name: str, value: Any) -> str:
        if name in ("messages", "tools"):
            return f"<{len(value)}>"
        return repr(value)


class BeforeModelCall(HookEvent):
    """A model call is about to be made.

    Attributes:
        messages: what will be sent (a list, to be changed or replaced); the state keeps its own.
        tools: schemas of the tools on offer, OpenAI style.
    """

    writable = ("messages",)
    messages: list[Message]
    tools: tuple[dict[str, Any], ...]

    def __init__(self, *, messages: Iterable[Message], tools: Iterable[dict[str, Any]] = (), **base: Any) -> None:
        super().__init__(messages=list(messages), tools=tuple(tools), **base)

    def _accept(self, name: str, value: Any) -> Any:
        return _messages(value)


class AfterModelCall(HookEvent):
    """A model call returned.

    Attributes:
        response: the reply; another one replaces it. What it consumed stays counted.
        retry: call the model once more (five calls in an iteration at most).
        retry_feedback: a note to the model for that call only.
        messages: what was sent.
    """

    writable = ("retry", "retry_feedback", "response")
    retry: bool
    retry_feedback: str | None
    response: ModelResponse
    messages: tuple[Message, ...]

    def __init__(self, *, response: ModelResponse, messages: Iterable[Message] = (), **base: Any) -> None:
        super().__init__(response=response, retry=False, retry_feedback=None, messages=tuple(messages), **base)

    def _accept(self, name: str, value: Any) -> Any:
        expected = {"response": ModelResponse, "retry": bool, "retry_feedback": str | None}[name]
        return _require(self, name, value, expected)


class BeforeToolCall(HookEvent):
    """A tool call is about to be carried out.

    Attributes:
        tool_name: the tool.
        tool_call_id: the call.
        arguments: what is run and recorded (a copy, to be changed or replaced).
        secret_arguments: added to the arguments for the body only; never recorded, emitted or shown.
        cancel: True or a reason: the body does not run, and the reason is the result.
    """

    writable = ("arguments", "secret_arguments", "cancel")
    tool_name: str
    tool_call_id: str
    arguments: dict[str, Any]
    secret_arguments: dict[str, Any]
    cancel: bool | str

    def __init__(
        self, *, tool_name: str, tool_call_id: str = "", arguments: Mapping[str, Any] | None = None, **base: Any
    ) -> None:
        own = copy.deepcopy(dict(arguments or {}))
        super().__init__(
            tool_name=tool_name, tool_call_id=tool_call_id, arguments=own, secret_arguments={}, cancel=False, **base
        )

    @property
    def cancel_reason(self) -> str | None:
        """Why the call must not run, with a default wording; None when it may."""
        return _cancel_reason(self.cancel, CANCELLED)

    @property
    def full_arguments(self) -> dict[str, Any]:
        """What the body gets: the arguments, and the secret ones over them."""
        return {**self.arguments, **self.secret_arguments}

    def _accept(self, name: str, value: Any) -> Any:
        return _cancel(self, value) if name == "cancel" else dict(_require(self, name, value, Mapping))

    def _show(self, name: str, value: Any) -> str:
        return repr(dict.fromkeys(value, "***")) if name == "secret_arguments" else super()._show(name, value)


class AfterToolCall(HookEvent):
    """A tool call was carried out.

    Attributes:
        tool_name: the tool.
        tool_call_id: the call.
        arguments: as recorded, read-only, without secret ones.
        result: the text for the model, None for a failed call; any other value (JSON-encoded) replaces it.
        error: why it failed, or None.
        duration_ms: milliseconds spent in the body. (Hooks are called when all calls of the batch are over.)
        retry: carry the call out once more; hooks do not see that result.
    """

    writable = ("retry", "result")
    tool_name: str
    tool_call_id: str
    arguments: Mapping[str, Any]
    result: Any
    error: str | None
    duration_ms: float
    retry: bool

    def __init__(
        self,
        *,
        tool_name: str,
        tool_call_id: str = "",
        arguments: Mapping[str, Any] | None = None,
        result: str | None = None,
        error: str | None = None,
        duration_ms: float = 0.0,
        **base: Any,
    ) -> None:
        own = MappingProxyType(copy.deepcopy(dict(arguments or {})))
        outcome: dict[str, Any] = {"result": result, "error": error, "duration_ms": duration_ms}
        super().__init__(tool_name=tool_name, tool_call_id=tool_call_id, arguments=own, retry=False, **outcome, **base)

    def _accept(self, name: str, value: Any) -> Any:
        return _require(self, name, value, bool) if name == "retry" else value


class BeforeCompaction(HookEvent):
    """The conversation is about to be shortened. Sizes are in tokens.

    Attributes:
        instructions: what the summary must keep, added to the usual instructions.
        cancel: True or a reason: the conversation stays as it is, and the request goes out as large as it is.
        messages: the conversation.
        tokens: its size.
        threshold: the size from which it is shortened.
        context_window: what the model can read.
        iteration: of the run.
    """

    writable = ("instructions", "cancel")
    instructions: str | None
    cancel: bool | str
    messages: tuple[Message, ...]
    tokens: int
    threshold: int
    context_window: int
    iteration: int

    def __init__(
        self, *, messages: Iterable[Message], tokens: int, threshold: int, context_window: int, iteration: int = 0, **base: Any
    ) -> None:
        sizes: dict[str, Any] = {
            "tokens": tokens,
            "threshold": threshold,
            "context_window": context_window,
            "iteration": iteration,
        }
        super().__init__(messages=tuple(messages), instructions=None, cancel=False, **sizes, **base)

    @property
    def cancel_reason(self) -> str | None:
        """Why the conversation must stay as it is; None when it may be shortened."""
        return _cancel_reason(self.cancel, "Compaction was cancelled.")

    def _accept(self, name: str, value: Any) -> Any:
        return _cancel(self, value) if name == "cancel" else _require(self, name, value, str | None)


def _require(event: HookEvent, name: str, value: Any, expected: Any) -> Any:
    if not isinstance(value, expected):
        wanted = getattr(expected, "__name__", str(expected))
        raise TypeError(f"{type(event).__name__}.{name} must be {wanted}, not {type(value).__name__}")
    return value


def _messages(value: Any) -> list[Message]:
    messages = list(value)
    wrong = next((message for message in messages if not isinstance(message, Message)), None)
    if wrong is not None:
        raise TypeError(f"BeforeModelCall.messages must hold Message objects, not {type(wrong).__name__}")
    return messages


def _cancel(event: HookEvent, value: Any) -> bool | str:
    if isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    raise TypeError(f"{type(event).__name__}.cancel must be True, False or a reason (text that is not empty), not {value!r}")


def _cancel_reason(cancel: bool | str, default: str) -> str | None:
    if cancel is False:
        return None
    return default if cancel is True else str(cancel)
