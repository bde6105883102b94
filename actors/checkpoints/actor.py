"""The checkpointer: the actor that owns the stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from ...protocol.bundle import Bundle
from ...protocol.commands import CheckpointLoaded, CheckpointSaved, LoadCheckpoint, SaveCheckpoint
from ...protocol.errors import ConfigurationError, RuntimeClosed, StoreUnavailable, UmbelError, UnknownKind
from ...protocol.messages import Frozen
from ...protocol.storage import (
    CallsRecorded,
    CheckpointInfo,
    CollectGarbage,
    DeleteThread,
    GarbageCollected,
    HistoryLoaded,
    LeaseReleased,
    LeaseTaken,
    ListThreads,
    LoadHistory,
    RecordCalls,
    ReleaseLease,
    TakeLease,
    ThreadDeleted,
    ThreadsListed,
)
from ..frames import failure
from .group_commit import GroupCommit
from .registry import open_store
from .store import Store

Handler = Callable[..., Awaitable[Any]]
logger = logging.getLogger("umbel.checkpointer")


class CheckpointerActor:
    """Saves and loads checkpoints, one open store per URL. Belongs to the event loop that first uses it.

    What about a store can lose checkpoints (``Store.warnings``) is logged once, when it is first used.

    Args:
        open_store: from a URL to a store.
    """

    def __init__(self, open_store: Callable[[str], Store] = open_store) -> None:
        self._open_store = open_store
        self._commits: dict[str, GroupCommit] = {}
        self._looks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def save(self, message: SaveCheckpoint, _caller: object = None) -> CheckpointSaved:
        """Store a step of a thread; concurrent saves share transactions.

        Raises:
            CheckpointConflict: the thread's newest checkpoint is not the save's parent.
            StaleWriter: somebody else has the thread, or it was deleted.
            NotStorable: trying again cannot help.
            StoreUnavailable: it may or may not be stored; saving the same id again is safe.
            ConfigurationError: the URL names no usable store.
        """
        commit = self._of(message.store)
        saved = await commit.save(message)
        if message.release is not None and not commit.store.releases_with_saves:
            await self._give_back(message, message.release)
        return saved

    async def _give_back(self, message: SaveCheckpoint, owner: str) -> None:
        request = ReleaseLease(store=message.store, thread_id=message.thread_id, owner=owner, token=message.token)
        try:
            await self.release(request)
        except StoreUnavailable:  # the checkpoint is stored, and the lease ends by itself
            logger.warning("the lease of thread %r could not be given back", message.thread_id, exc_info=True)

    async def record(self, message: RecordCalls, _caller: object = None) -> CallsRecorded:
        """Add to a thread's journal; shares transactions with saves, and keeps its place among those of its thread.

        Raises:
            StaleWriter: somebody else has the thread, or it was deleted.
            NotStorable: trying again cannot help.
            StoreUnavailable: it may or may not be stored; recording it again is safe.
            ConfigurationError: the URL names no usable store.
        """
        return await self._of(message.store).record(message)

    async def lease(self, message: TakeLease, _caller: object = None) -> LeaseTaken:
        """Take or prolong a thread's lease.

        Raises:
            ThreadBusy: another owner has it.
            StoreUnavailable: it may or may not be taken; asking again is safe.
            ConfigurationError: the URL names no usable store, or the request makes no sense.
        """
        return await self._of(message.store).lease(message)

    async def release(self, message: ReleaseLease, _caller: object = None) -> LeaseReleased:
        """Give a thread's lease back.

        Raises:
            StoreUnavailable: it may or may not be given back; it ends by itself.
            ConfigurationError: the URL names no usable store.
        """
        return await self._of(message.store).release(message)

    async def load(self, message: LoadCheckpoint, _caller: object = None) -> CheckpointLoaded:
        """A thread's newest checkpoint, or the given one. ``checkpoint_id`` is None only if the store has no such thing.

        With an ``owner`` the thread's lease is taken first, so that what is read is what the owner goes on with.

        Raises:
            ThreadBusy: another owner has the lease.
            StoreUnavailable: the store cannot be reached.
            CheckpointError: what is stored is damaged.
            ConfigurationError: the URL names no usable store.
        """
        commit, thread_id = self._of(message.store), message.thread_id
        if message.owner is None:
            return await commit.store.load(thread_id, message.checkpoint_id)
        request = TakeLease.trusted(
            store=message.store, thread_id=thread_id, owner=message.owner, seconds=message.seconds, steal=message.steal
        )
        taken = await commit.lease(request)
        if taken.unused:
            return CheckpointLoaded.trusted(token=taken.token)
        return (await commit.store.load(thread_id, message.checkpoint_id)).evolve(token=taken.token)

    async def bundle(self, message: Bundle, _caller: object = None) -> Bundle:
        """Many requests at once, each with a reply of its own in the same place."""
        begun = [self._begin(part) for part in message.messages()]
        return Bundle.of([await _outcome(each) for each in begun])

    def _begin(self, message: Frozen) -> Awaitable[Any]:
        """Have a request decided with the others of its bundle; not in a task, which would cost more than the rest."""
        if isinstance(message, SaveCheckpoint | RecordCalls):
            commit = self._commits.get(message.store)
            release = isinstance(message, SaveCheckpoint) and message.release is not None
            if commit is not None and not self._closed and (not release or commit.store.releases_with_saves):
                return commit.put(message)
        return asyncio.ensure_future(self.answer(message))

    async def threads(self, message: ListThreads, _caller: object = None) -> ThreadsListed:
        """A page of threads.

        Raises:
            ConfigurationError: a limit below 1.
        """
        _at_least_one("limit", message.limit)
        return await self.store(message.store).threads(message)

    async def history(self, message: LoadHistory, _caller: object = None) -> HistoryLoaded:
        """A thread's newest checkpoints, newest first, without their states.

        Raises:
            ConfigurationError: a limit below 1.
        """
        _at_least_one("limit", message.limit)
        found = await self.store(message.store).history(message.thread_id, message.limit)
        return HistoryLoaded(checkpoints=tuple(_without_state(checkpoint) for checkpoint in found))

    async def delete(self, message: DeleteThread, _caller: object = None) -> ThreadDeleted:
        """Delete a thread; a tombstone stays. Source: OURS-23."""
        return await self.store(message.store).delete(message.thread_id)

    async def collect(self, message: CollectGarbage, _caller: object = None) -> GarbageCollected:
        """Free space.

        Raises:
            ConfigurationError: a ``keep`` below 1: a thread without a checkpoint would be a deleted one.
        """
        if message.keep is not None:
            _at_least_one("keep", message.keep)
        return await self.store(message.store).collect(message)

    def handlers(self) -> dict[type[Frozen], Handler]:
        """Who answers which request."""
        return {
            SaveCheckpoint: self.save,
            LoadCheckpoint: self.load,
            RecordCalls: self.record,
            TakeLease: self.lease,
            ReleaseLease: self.release,
            ListThreads: self.threads,
            LoadHistory: self.history,
            DeleteThread: self.delete,
            CollectGarbage: self.collect,
            Bundle: self.bundle,
        }

    async def answer(self, message: Frozen) -> Any:
        """The reply to any of the requests, for whoever has this actor in its own process.

        Raises:
            UnknownKind: no checkpointer answers that.
            UmbelError: what the request's handler raises.
        """
        handler = self.handlers().get(type(message))
        if handler is None:
            raise UnknownKind(f"a checkpointer does not answer {type(message).__name__}")
        return await handler(message)

    def store(self, url: str) -> Store:
        """The open store of ``url``."""
        return self._of(url).store

    def stats(self) -> dict[str, int]:
        """Transactions so far, by URL."""
        return {url: commit.store.commits for url, commit in self._commits.items()}

    async def close(self) -> None:
        """Commit what was handed in, then close every store. May be called twice."""
        self._closed = True
        for look in self._looks:
            look.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)
        for commit in self._commits.values():
            await commit.flush()
            await commit.store.close()

    def _of(self, url: str) -> GroupCommit:
        if self._closed:
            raise RuntimeClosed("the checkpointer was closed")
        self._bind()
        commit = self._commits.get(url)
        if commit is None:
            commit = self._commits[url] = GroupCommit(self._open_store(url))
            look = asyncio.create_task(self._look_at(commit.store), name="umbel-store-warnings")
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)
        return commit

    async def _look_at(self, store: Store) -> None:
        """Beside the first request, which is told itself when the store cannot be used."""
        try:
            await store.open()
            for warning in await store.warnings():
                logger.warning("%s", warning)
        except UmbelError as error:
            logger.debug("%s", error.message)

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise ConfigurationError("a CheckpointerActor belongs to one event loop; another running loop needs its own")
        self._loop, self._looks = loop, set()
        # Whoever waited on a closed loop is gone; the stores belong to no loop and stay open.
        self._commits = {url: GroupCommit(commit.store) for url, commit in self._commits.items()}


async def _outcome(begun: Awaitable[Any]) -> Frozen:
    """What a request came to, as a reply."""
    try:
        return cast("Frozen", await begun)
    except Exception as error:  # noqa: BLE001 - the border of the actor, as in a mailbox
        return failure(error)


def _without_state(checkpoint: CheckpointLoaded) -> CheckpointInfo:
    return CheckpointInfo(
        checkpoint_id=checkpoint.checkpoint_id or "",
        parent_id=checkpoint.parent_id,
        created_at=checkpoint.created_at,
        metadata=checkpoint.metadata,
        depth=checkpoint.depth,
    )


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigurationError(f"{name} must be 1 or more, not {value}")
