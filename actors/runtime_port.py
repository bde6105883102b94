"""What a runtime is to those who run agents on it, and how they find the current one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from ..protocol.commands import StartRun
from ..protocol.errors import RuntimeClosed
from ..protocol.messages import Frozen
from ..protocol.results import RunOutcome
from .ambient import check_may_run
from .event_stream import Observer
from .tools.children import ChildRuntime
from .tools.context import current_tool_context

T = TypeVar("T")


class RuntimePort(Protocol):
    """What a runtime must offer (``cluster/runtime.py``)."""

    def register(self, definition: Any) -> str: ...
    def execute(self, definition: Any, request: StartRun, on_event: Observer | None = None) -> Awaitable[RunOutcome]: ...
    def begin(self, definition: Any, request: StartRun, *, recall: bool = False) -> Awaitable[str]: ...
    def ask_run(self, message: Frozen, run_id: str) -> Awaitable[Any]: ...
    def ask(self, message: Frozen, thread_id: str) -> Awaitable[Any]: ...
    def ask_checkpointer(self, message: Frozen) -> Awaitable[Any]: ...
    def cancel(self, run_id: str, request: StartRun, *, suspend: bool = False) -> None: ...
    def run_sync(self, job: Coroutine[Any, Any, T]) -> T: ...


_finders: list[Callable[[], RuntimePort]] = []


def provide_runtime(find: Callable[[], RuntimePort]) -> None:
    """Tell runnables how to find the current runtime (starting the default one if need be)."""
    _finders[:] = [find]


def current_runtime() -> RuntimePort:
    """The runtime that a call without one uses; in a tool's body, that of the run that the call belongs to.

    Raises:
        RunError: runs cannot be begun here (see :func:`check_may_run`).
    """
    context = current_tool_context()
    if context is not None and context.port is not None:
        return ChildRuntime(context.port)
    check_may_run()
    if not _finders:
        raise RuntimeClosed("no runtime is available: import Runtime from umbel first")
    return _finders[0]()
