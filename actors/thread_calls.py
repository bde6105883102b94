"""The calls about threads that everything runnable has: thin forms of :class:`Threads`, async and sync."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..protocol.errors import NoCheckpointer
from ..protocol.messages import Frozen
from ..protocol.state import AgentState
from ..protocol.storage import CheckpointInfo, ThreadInfo
from .runtime_port import RuntimePort, current_runtime
from .threads import Said, Threads


class ThreadCalls:
    """What can be done with the threads of something that has a checkpointer.

    Each call takes ``runtime=``, default the current one, and raises :class:`NoCheckpointer` (also a ``RuntimeError``) when
    there is no checkpointer. What else it does and raises is said at the method of :class:`Threads` that it names. In
    ``memory://`` on the inline runtime every event loop has conversations of its own.
    """

    checkpointer: str | None = None

    @property
    def title(self) -> str:
        """Name for people: in events, errors and progress."""
        return type(self).__name__

    @property
    def threads(self) -> Threads:
        """Its conversations, in the runtime that is current at each call."""
        return self.threads_in(None)

    def threads_in(self, runtime: RuntimePort | None) -> Threads:
        """Its conversations, as a runtime's checkpointer has them; None is the runtime that is current at each call."""
        if self.checkpointer is None:
            raise NoCheckpointer(f"{self.title} has no checkpointer: give it one, e.g. checkpointer='sqlite:///umbel.db'")
        store = self.checkpointer

        async def ask(message: Frozen) -> Any:
            return await (runtime or current_runtime()).ask_checkpointer(message)

        return Threads(store, ask)

    async def get_state(
        self, thread_id: str, checkpoint_id: str | None = None, *, runtime: RuntimePort | None = None
    ) -> AgentState:
        """A thread's newest state, or that of a checkpoint: :meth:`Threads.get_state`. Source: MEM-43."""
        return await self.threads_in(runtime).get_state(thread_id, checkpoint_id)

    def get_state_sync(
        self, thread_id: str, checkpoint_id: str | None = None, *, runtime: RuntimePort | None = None
    ) -> AgentState:
        """:meth:`get_state` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.get_state(thread_id, checkpoint_id, runtime=runtime))

    async def get_state_history(
        self, thread_id: str, limit: int = 10, *, runtime: RuntimePort | None = None
    ) -> list[CheckpointInfo]:
        """A thread's checkpoints, newest first: :meth:`Threads.history`. Source: MEM-43."""
        return await self.threads_in(runtime).history(thread_id, limit)

    def get_state_history_sync(
        self, thread_id: str, limit: int = 10, *, runtime: RuntimePort | None = None
    ) -> list[CheckpointInfo]:
        """:meth:`get_state_history` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.get_state_history(thread_id, limit, runtime=runtime))

    async def update_state(
        self,
        thread_id: str,
        *,
        messages: Said | Iterable[Said] = (),
        metadata: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        runtime: RuntimePort | None = None,
    ) -> str:
        """Append messages or metadata, as a new checkpoint, whose id it returns: :meth:`Threads.update`. Source: MEM-44."""
        threads = self.threads_in(runtime)
        return await threads.update(thread_id, messages=messages, metadata=metadata, checkpoint_id=checkpoint_id)

    def update_state_sync(self, thread_id: str, *, runtime: RuntimePort | None = None, **changes: Any) -> str:
        """:meth:`update_state` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.update_state(thread_id, runtime=runtime, **changes))

    async def fork(
        self,
        thread_id: str,
        new_thread_id: str | None = None,
        *,
        checkpoint_id: str | None = None,
        runtime: RuntimePort | None = None,
    ) -> str:
        """Copy a checkpoint into a new thread, whose id it returns: :meth:`Threads.fork`. Source: MEM-45."""
        return await self.threads_in(runtime).fork(thread_id, new_thread_id, checkpoint_id=checkpoint_id)

    def fork_sync(
        self,
        thread_id: str,
        new_thread_id: str | None = None,
        *,
        checkpoint_id: str | None = None,
        runtime: RuntimePort | None = None,
    ) -> str:
        """:meth:`fork` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.fork(thread_id, new_thread_id, checkpoint_id=checkpoint_id, runtime=runtime))

    async def delete_thread(self, thread_id: str, *, runtime: RuntimePort | None = None) -> bool:
        """Delete a thread; whether there was one: :meth:`Threads.delete`. A later run begins it anew. Source: OURS-23."""
        return await self.threads_in(runtime).delete(thread_id)

    def delete_thread_sync(self, thread_id: str, *, runtime: RuntimePort | None = None) -> bool:
        """:meth:`delete_thread` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.delete_thread(thread_id, runtime=runtime))

    async def list_threads(
        self,
        prefix: str = "",
        *,
        after: str = "",
        limit: int = 100,
        members: bool = False,
        runtime: RuntimePort | None = None,
    ) -> list[ThreadInfo]:
        """A page of the threads of its store, those of other agents too: :meth:`Threads.page`."""
        return await self.threads_in(runtime).page(prefix, after=after, limit=limit, members=members)

    def list_threads_sync(self, prefix: str = "", *, runtime: RuntimePort | None = None, **options: Any) -> list[ThreadInfo]:
        """:meth:`list_threads` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.list_threads(prefix, runtime=runtime, **options))

    async def search_threads(
        self,
        where: Mapping[str, Any],
        *,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
        members: bool = False,
        runtime: RuntimePort | None = None,
    ) -> list[ThreadInfo]:
        """A page of the threads whose metadata has all of these values: :meth:`Threads.page`.

        Texts of up to 256 characters, numbers, True, False and None of a run's ``metadata`` can be searched for; also
        ``run_id``, ``finished`` and ``reason`` of the newest turn.
        """
        return await self.threads_in(runtime).page(prefix, where=where, after=after, limit=limit, members=members)

    def search_threads_sync(
        self, where: Mapping[str, Any], *, runtime: RuntimePort | None = None, **options: Any
    ) -> list[ThreadInfo]:
        """:meth:`search_threads` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.search_threads(where, runtime=runtime, **options))
