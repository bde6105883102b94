"""``Runtime``: where runs happen. Inline, on a local Ray that is started at first use, or on an existing cluster."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, Self, TypeVar

from ..actors.ambient import check_may_run
from ..actors.run_handle import RunHandle, attach
from ..actors.runnable import in_own_thread
from ..actors.runtime_port import provide_runtime
from ..actors.secrets import use_references
from ..protocol.commands import StartRun
from ..protocol.config import Topology
from ..protocol.errors import ConfigurationError, RuntimeClosed
from ..protocol.handles import RunEntry
from ..protocol.messages import Frozen
from ..protocol.results import RunOutcome
from .collector import relax
from .inline import InlineBackend

T = TypeVar("T")


class Backend(Protocol):
    """What ``InlineBackend`` and ``RayBackend`` have in common."""

    def register(self, definition: Any) -> str: ...
    async def execute(
        self, definition: Any, request: StartRun, on_event: Callable[[Any], None] | None = None
    ) -> RunOutcome: ...
    async def begin(self, definition: Any, request: StartRun, *, recall: bool = False) -> str: ...
    async def ask_run(self, message: Frozen, run_id: str) -> Any: ...
    async def ask(self, message: Frozen, thread_id: str) -> Any: ...
    async def ask_checkpointer(self, message: Frozen) -> Any: ...
    async def runs(self) -> list[RunEntry]: ...
    def cancel(self, run_id: str, request: StartRun, *, suspend: bool = False) -> None: ...
    async def ready(self, seconds: float) -> None: ...
    async def close_here(self) -> None: ...
    async def close(self) -> None: ...
    def end(self) -> None: ...


class Runtime:
    """The place where agents run; a sync and async context manager, current inside its ``with`` block.

    Without any, the first run starts one: inline if ``UMBEL_RUNTIME=inline``, else on the cluster that ``RAY_ADDRESS``
    (or a Ray job) names, else on a local Ray. It is shut down at exit.

    Args:
        inline: everything in this process, without Ray.
        address: of an existing Ray cluster; ``"local"`` always starts a new one; None finds or starts one.
        topology: which actors exist.
        namespace: first part of the actors' names; None makes one up, so that runtimes do not meet.
        detached: on an existing cluster, start actors that outlive this process, or join those of this ``namespace`` that
            run already; closing leaves them running. ``umbel ps`` lists them, ``umbel down NAMESPACE`` ends them.
        **ray_options: passed to ``ray.init``.
    """

    _current: Runtime | None = None
    _lock = threading.RLock()

    def __init__(
        self,
        *,
        inline: bool = False,
        address: str | None = None,
        topology: Topology | None = None,
        namespace: str | None = None,
        detached: bool = False,
        **ray_options: Any,
    ) -> None:
        if detached and (inline or namespace is None):
            raise ConfigurationError(
                "a detached runtime is on a Ray cluster and has a name: Runtime(namespace=..., detached=True)"
            )
        self._inline = inline
        self._address = address
        self._topology = topology
        self._namespace = namespace
        self._detached = detached
        self._ray_options = ray_options
        self._backend: Backend | None = None
        self._closed = False
        self._before: list[Runtime | None] = []
        self._runner: asyncio.Runner | None = None

    @classmethod
    def current(cls) -> Runtime:
        """The runtime of the innermost ``with`` block, or the default one, which is started if need be.

        Raises:
            RunError: this code runs inside an actor.
        """
        check_may_run()
        with cls._lock:
            if cls._current is None or cls._current._closed:
                cls._current = cls(inline=os.environ.get("UMBEL_RUNTIME") == "inline")
            return cls._current

    @property
    def inline(self) -> bool:
        return self._inline

    @property
    def backend(self) -> Backend:
        """The machinery, started at first use."""
        if self._backend is None:
            with self._lock:
                if self._closed:
                    raise RuntimeClosed("this runtime was closed; make another one")
                if self._backend is None:
                    self._backend = self._start()
                    atexit.register(self._end)  # now that Ray has registered its own, so that ours runs before it
        return self._backend

    def start(self) -> Self:
        """Start now instead of at the first run."""
        _ = self.backend
        return self

    def register(self, definition: Any) -> str:
        return self.backend.register(definition)

    def execute(
        self, definition: Any, request: StartRun, on_event: Callable[[Any], None] | None = None
    ) -> Awaitable[RunOutcome]:
        return self.backend.execute(definition, request, on_event)

    def begin(self, definition: Any, request: StartRun, *, recall: bool = False) -> Awaitable[str]:
        """Begin a run that goes on without its caller, or ``recall`` one from its thread; the run's id."""
        return self.backend.begin(definition, request, recall=recall)

    def ask_run(self, message: Frozen, run_id: str) -> Awaitable[Any]:
        """The reply of a run's supervisor to a message of its handle (``protocol/handles.py``)."""
        return self.backend.ask_run(message, run_id)

    async def attach(self, run_id: str, *, after_seq: int | None = -1) -> RunHandle:
        """A handle on a run that was begun with ``agent.start``, by this program or another; see :func:`umbel.attach`."""
        return await attach(run_id, after_seq=after_seq, runtime=self)

    def attach_sync(self, run_id: str, *, after_seq: int | None = -1) -> RunHandle:
        """:meth:`attach` for synchronous code."""
        return self.run_sync(self.attach(run_id, after_seq=after_seq))

    async def runs(self) -> list[RunEntry]:
        """The runs that were begun with a handle: those in progress, and those that ended lately; the oldest first.

        On the inline runtime those of the running event loop.
        """
        return await self.backend.runs()

    def runs_sync(self) -> list[RunEntry]:
        """:meth:`runs` for synchronous code."""
        return self.run_sync(self.runs())

    def ask(self, message: Frozen, thread_id: str) -> Awaitable[Any]:
        """The reply of the supervisor that serves a thread to a message about it."""
        return self.backend.ask(message, thread_id)

    def ask_checkpointer(self, message: Frozen) -> Awaitable[Any]:
        """The reply of the runtime's checkpointer to a message about threads (``protocol/storage.py``)."""
        return self.backend.ask_checkpointer(message)

    def cancel(self, run_id: str, request: StartRun, *, suspend: bool = False) -> None:
        self.backend.cancel(run_id, request, suspend=suspend)

    async def ready(self, seconds: float = 60.0) -> None:
        """Wait until every actor answers, for example after one has died.

        Raises:
            DeadlineExceeded: some did not within ``seconds``; the message names them.
            RestartsExceeded: one died too often and was given up (see ``Topology.max_restarts``).
        """
        await self.backend.ready(seconds)

    def run_sync(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end from synchronous code. The main thread keeps one event loop for this."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if threading.current_thread() is threading.main_thread():
                return self._main_runner().run(job)
            return asyncio.run(job)
        return in_own_thread(lambda: asyncio.run(job))

    def close(self) -> None:
        """Stop the actors (detached ones go on), and the local Ray if this runtime started it. May be called twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._end)
        backend, self._backend = self._backend, None
        try:
            if backend is not None:
                self.run_sync(backend.close())
        finally:
            self._close_runner()

    async def aclose(self) -> None:
        """:meth:`close` for asynchronous code: also releases what belongs to the running event loop."""
        self._closed = True
        atexit.unregister(self._end)
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()

    def __enter__(self) -> Self:
        self._before.append(Runtime._current)
        Runtime._current = self
        return self

    def __exit__(self, *_: object) -> None:
        Runtime._current = self._before.pop()
        self.close()

    async def __aenter__(self) -> Self:
        self._before.append(Runtime._current)
        Runtime._current = self
        return self

    async def __aexit__(self, *_: object) -> None:
        Runtime._current = self._before.pop()
        await self.aclose()

    def _start(self) -> Backend:
        relax()
        use_references({})  # those that the environment names, of a job for example
        if self._inline:
            return InlineBackend(self._topology or Topology())
        from .ray_backend import RayBackend

        return RayBackend(self._topology, self._address, self._namespace, self._ray_options, detached=self._detached)

    def _end(self) -> None:
        """Close when the interpreter ends: executors take no more work then, so not by way of an event loop."""
        self._closed = True
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.end()
        self._close_runner()

    def _close_runner(self) -> None:
        if self._runner is not None and threading.current_thread() is threading.main_thread():
            self._runner.close()

    def _main_runner(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner


provide_runtime(Runtime.current)
