"""Many concurrent writes, few transactions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from ...protocol.commands import CheckpointSaved, SaveCheckpoint
from ...protocol.errors import StoreUnavailable, UmbelError, from_wire
from ...protocol.storage import CallsRecorded, LeaseReleased, LeaseTaken, RecordCalls, ReleaseLease, TakeLease
from .store import LeaseRequest, OneTransactionStore, Store, Write

MAX_BATCH = 1_000
MAX_BATCH_BYTES = 16 * 1024 * 1024
_Written = CheckpointSaved | CallsRecorded | LeaseTaken | LeaseReleased
_Waiting = tuple[Write | LeaseRequest, asyncio.Future[Any]]


class GroupCommit:
    """Saves and records of one store. Whatever arrives while a transaction runs shares the next one; there is no timer.

    A batch is cut at 1,000 writes or 16 MiB, which bounds how long a lock is held.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def save(self, save: SaveCheckpoint) -> CheckpointSaved:
        """Return once ``save`` is committed.

        A caller that is cancelled leaves the save in its batch: it may be committed all the same.

        Raises:
            CheckpointConflict: the thread's newest checkpoint is not the save's parent.
            NotStorable: trying again cannot help.
            StaleWriter: somebody else has the thread, or it was deleted.
            StoreUnavailable: it may or may not be stored; saving the same id again is safe.
        """
        return cast("CheckpointSaved", await self.put(save))

    async def record(self, record: RecordCalls) -> CallsRecorded:
        """Return once ``record`` is committed, after every save of its thread that was handed in before it.

        Raises:
            StaleWriter: somebody else has the thread, or it was deleted.
            NotStorable: trying again cannot help.
            StoreUnavailable: it may or may not be stored; recording it again is safe.
        """
        return cast("CallsRecorded", await self.put(record))

    async def lease(self, request: TakeLease) -> LeaseTaken:
        """Return once the lease is taken, with what else comes where the store can do that. See :meth:`Store.lease`."""
        if isinstance(self.store, OneTransactionStore):
            return cast("LeaseTaken", await self.put(request))
        return await self.store.lease(request)

    async def release(self, request: ReleaseLease) -> LeaseReleased:
        """As :meth:`lease`. See :meth:`Store.release`."""
        if isinstance(self.store, OneTransactionStore):
            return cast("LeaseReleased", await self.put(request))
        return await self.store.release(request)

    def put(self, write: Write | LeaseRequest) -> asyncio.Future[Any]:
        """Hand in a request (about a lease only where :class:`OneTransactionStore` says so); what becomes of it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((write, future))
        if self._task is None:
            self._task = loop.create_task(self._drain(), name="umbel-group-commit")
        return future

    async def flush(self) -> None:
        """Return once everything handed in so far is decided."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._commit(self._next_batch())
        finally:
            self._task = None
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += _size(batch[-1][0])
        return batch

    async def _do(self, requests: list[Write | LeaseRequest]) -> Sequence[_Written | UmbelError]:
        if isinstance(self.store, OneTransactionStore):
            return await self.store.transact(requests)
        return await self.store.commit(cast("list[Write]", requests))

    async def _commit(self, batch: list[_Waiting]) -> None:
        outcomes: list[_Written | UmbelError]
        try:
            outcomes = list(await self._do([request for request, _ in batch]))
        except UmbelError as error:
            # One error object raised in many tasks would collect all their tracebacks.
            outcomes = [from_wire(error.to_wire()) for _ in batch]
        except Exception as error:  # noqa: BLE001 - a defect in a store must reach its callers, not leave them waiting
            outcomes = [StoreUnavailable(f"the store failed: {type(error).__name__}: {error}") for _ in batch]
        except BaseException:  # also a cancellation: nobody may be left waiting; it is raised again
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, UmbelError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


def _size(write: Write | LeaseRequest) -> int:
    """About how many bytes a write has; the little around them does not count."""
    if isinstance(write, (TakeLease, ReleaseLease)):
        return 0
    size = len(write.state) if isinstance(write, SaveCheckpoint) else 0
    return size + sum(len(entry.result.content) for entry in write.entries if entry.result is not None)
