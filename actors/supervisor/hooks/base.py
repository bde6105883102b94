"""What a hook is, and what it may rely on.

A hook is any object with some of the nine callbacks; :class:`Hook` gives no-op versions of all of them. An agent takes a
list: ``Agent(hooks=[LoggingHook(), MyHook()])``. Callbacks are async or plain, and awaited one after another, so a slow
hook delays its run.

Where a hook runs: in the supervisor actor that owns the run, on that process's event loop, among many other runs. So

- it travels there by cloudpickle, as part of the agent's definition: keep configuration in ``__init__``, and make locks,
  clients, spans and files at first use (:class:`PerRun` drops what it holds when it is pickled);
- it shares no memory with the program that called ``run``: tell that program something with ``event.emit(CustomEvent(...))``;
- one instance in each process serves all runs there at once: key whatever belongs to a run by ``event.run.run_id`` (in
  callbacks that get the state: ``state.run_id``);
- it must not block: await, or use ``asyncio.to_thread``.

Order: ``before`` callbacks (before_invocation, iteration_start, before_model_call, before_tool_call, before_compaction) run by
rising priority, the others by falling priority, so that hooks nest like brackets. Equal priorities keep the order of the list.

Errors: an exception in a callback ends the run with ``error``. Only those of ``on_after_invocation`` do not: everything is
saved by then, so they are collected in ``result.hook_errors`` and the remaining hooks still run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from ....protocol.state import AgentState
    from .events import AfterModelCall, AfterToolCall, BeforeCompaction, BeforeModelCall, BeforeToolCall

T = TypeVar("T")

BEFORE = (
    "on_before_invocation",
    "on_iteration_start",
    "on_before_model_call",
    "on_before_tool_call",
    "on_before_compaction",
)
AFTER = ("on_after_invocation", "on_iteration_end", "on_after_model_call", "on_after_tool_call")
CALLBACKS = BEFORE + AFTER


class Priority(IntEnum):
    """Where a hook stands in the order: lower comes first on the way in and last on the way out.

    Bands of a hundred: security 0 to 99, observability 100 to 199, business 200 to 299.
    """

    SECURITY = 50
    OBSERVABILITY = 150
    BUSINESS = 250
    DEFAULT = 300


class Named:
    """Base of what an agent is given by name and called in order of priority; the class's name is the default."""

    name: str
    priority: int = Priority.DEFAULT

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__


class Hook(Named):
    """Base of hooks: nothing happens in any callback. Override those that you need.

    Attributes:
        name: unique in a registry; the class's name by default.
        priority: see :class:`Priority`.
    """

    name = "Hook"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, priority={int(self.priority)})"

    async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
        """A turn begins. Returns the state to go on with; each hook sees the previous one's."""
        return state

    async def on_after_invocation(self, state: AgentState, success: bool) -> None:
        """The turn is over, and saved."""

    async def on_iteration_start(self, iteration: int, state: AgentState) -> None:
        """An iteration begins; the first one is 0."""

    async def on_iteration_end(self, iteration: int, state: AgentState) -> None:
        """The iteration with this number is over."""

    async def on_before_model_call(self, event: BeforeModelCall) -> None:
        """The model is about to be called."""

    async def on_after_model_call(self, event: AfterModelCall) -> None:
        """The model replied."""

    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        """A tool call is about to be carried out."""

    async def on_after_tool_call(self, event: AfterToolCall) -> None:
        """A tool call was carried out."""

    async def on_before_compaction(self, event: BeforeCompaction) -> None:
        """The conversation is about to be shortened."""


class PerRun(Generic[T]):
    """A hook's values, one for each run, made at first use; dropped when pickled.

    The oldest is dropped beyond ``limit``, so that runs whose end is never reported cannot fill the memory.

    Args:
        make: gives a new value; a class or a module's function, so that it can be pickled.
        limit: values kept.
    """

    def __init__(self, make: Callable[[], T], limit: int = 20_000) -> None:
        self._make = make
        self._limit = limit
        self._values: OrderedDict[str, T] = OrderedDict()

    def __getitem__(self, run_id: str) -> T:
        value = self._values.get(run_id)
        return value if value is not None else self.put(run_id, self._make())

    def put(self, run_id: str, value: T) -> T:
        """Keep another value for the run."""
        self._values[run_id] = value
        if len(self._values) > self._limit:
            self._values.popitem(last=False)
        return value

    def __len__(self) -> int:
        return len(self._values)

    def get(self, run_id: str) -> T | None:
        """The run's value, if it has one."""
        return self._values.get(run_id)

    def pop(self, run_id: str) -> T | None:
        """The run's value, forgotten from here on."""
        return self._values.pop(run_id, None)

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_limit": self._limit, "_values": OrderedDict()}
