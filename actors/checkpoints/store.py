"""What every store of checkpoints does.

A thread is a line of checkpoints: each names its parent, and only the newest may be a parent. The stores know nothing of
what a state means; they keep bytes, and fold deltas when they load (``delta.py``).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, cast

from pydantic_core import to_json

from ...protocol.codec import to_json as protocol_json
from ...protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from ...protocol.errors import CheckpointConflict, CheckpointError, ConfigurationError, NotStorable, ProtocolError, UmbelError
from ...protocol.storage import (
    CallsRecorded,
    CollectGarbage,
    GarbageCollected,
    JournalEntry,
    LeaseReleased,
    LeaseTaken,
    ListThreads,
    RecordCalls,
    ReleaseLease,
    TakeLease,
    ThreadDeleted,
    ThreadsListed,
)

MAX_STATE_BYTES = 256 * 1024 * 1024
SaveOutcome = CheckpointSaved | CheckpointError
RecordOutcome = CallsRecorded | CheckpointError
Write = SaveCheckpoint | RecordCalls
WriteOutcome = CheckpointSaved | CallsRecorded | CheckpointError
LeaseRequest = TakeLease | ReleaseLease
LeaseOutcome = LeaseTaken | LeaseReleased | UmbelError


class Store(ABC):
    """A place for checkpoints. Belongs to no event loop: it may be opened in one and used in another.

    Every method raises :class:`StoreUnavailable` when the store cannot be reached. An outage never looks like an empty
    thread.

    Args:
        max_bytes: the largest state, in bytes, that one checkpoint may hold.

    Attributes:
        releases_with_saves: a save that names the owner who gives its lease back (``SaveCheckpoint.release``) does so in its
            own transaction; otherwise the checkpointer asks for it afterwards.
        commits: transactions so far; saves that came together share one.
    """

    releases_with_saves: ClassVar[bool] = False

    def __init__(self, *, max_bytes: int = MAX_STATE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.commits = 0

    async def open(self) -> None:  # noqa: B027 - optional: a store in memory has nothing to open
        """Connect now rather than at the first use, so that a wrong path is found before any work starts."""

    @abstractmethod
    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        """Commit ``saves`` in order, in one transaction.

        Args:
            saves: checkpoints of any threads; one may be the parent of a later one.

        Returns:
            For each save, in order, :class:`CheckpointSaved`, :class:`CheckpointConflict` when its parent is not the
            thread's newest checkpoint, :class:`StaleWriter` when its token is not the thread's (see ``SaveCheckpoint.token``),
            or :class:`NotStorable` when trying again cannot help. One that is refused does not disturb the others. A
            checkpoint id that the thread already holds is saved, and changes nothing.
        """

    @abstractmethod
    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        """The thread's newest checkpoint, or the given one, as a whole state.

        Returns:
            The checkpoint; ``checkpoint_id`` is None when there is no such thread or no such checkpoint in it, and
            ``depth`` says how many deltas were folded.

        Raises:
            CheckpointError: what is stored is damaged.
        """

    @abstractmethod
    async def history(self, thread_id: str, limit: int = 10) -> list[CheckpointLoaded]:
        """The newest ``limit`` checkpoints of a thread, newest first, without their states."""

    @abstractmethod
    async def record(self, records: Sequence[RecordCalls]) -> list[RecordOutcome]:
        """Add to the journals of threads, in one transaction.

        Returns:
            For each, in order, :class:`CallsRecorded`, or :class:`StaleWriter` when its token is smaller than the thread's, or
            the thread was deleted. An entry that is there already (same call and phase) changes nothing.
        """

    async def commit(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        """Saves and records together; those of one thread in order. What :meth:`save` and :meth:`record` say holds.

        This way of doing it works for every store, in two transactions; a store that can do it in one overrides it.
        """
        outcomes: dict[int, WriteOutcome] = {}
        for numbers in _in_turns(writes):
            part = [writes[number] for number in numbers]
            if isinstance(part[0], SaveCheckpoint):
                done: Sequence[WriteOutcome] = await self.save(cast("list[SaveCheckpoint]", part))
            else:
                done = await self.record(cast("list[RecordCalls]", part))
            outcomes |= zip(numbers, done, strict=True)
        return [outcomes[number] for number in range(len(writes))]

    @abstractmethod
    async def lease(self, request: TakeLease) -> LeaseTaken:
        """Take or prolong the lease of a thread. Nothing need be stored in the thread yet.

        Raises:
            ThreadBusy: another owner has it, its lease has not ended, and the request does not steal;
                ``details`` hold ``owner`` and ``expires_at``.
        """

    @abstractmethod
    async def release(self, request: ReleaseLease) -> LeaseReleased:
        """Give a lease back. The thread's token stays, so that what its owner sent late is refused all the same."""

    @abstractmethod
    async def threads(self, request: ListThreads) -> ThreadsListed:
        """A page of threads. Deleted ones, and ones with a lease but no checkpoint, are not in it."""

    @abstractmethod
    async def delete(self, thread_id: str) -> ThreadDeleted:
        """Delete a thread, its journal and its lease, and leave a tombstone.

        Only a writer whose lease is newer than the deletion may begin the thread anew; every other is a ``StaleWriter``.
        """

    @abstractmethod
    async def collect(self, request: CollectGarbage) -> GarbageCollected:
        """Free space, a thread at a time, without keeping writers out for long.

        ``keep`` folds a thread's older checkpoints into the oldest that stays. A thread with a lease is left alone. Texts that
        no thread refers to any more go, too.
        """

    @abstractmethod
    async def close(self) -> None:
        """Give up connections and threads; what was acknowledged stays stored. May be called twice."""


class OneTransactionStore(Store):
    """A store whose transactions hold whatever comes together, leases too: every run takes one and gives it back."""

    @abstractmethod
    async def transact(self, requests: Sequence[Write | LeaseRequest]) -> list[WriteOutcome | LeaseOutcome]:
        """Do ``requests`` in order, in one transaction. What :meth:`lease` and :meth:`release` raise is an outcome here."""

    async def commit(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        """See :meth:`Store.commit`."""
        return cast("list[WriteOutcome]", await self.transact(writes))

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        """See :meth:`Store.save`."""
        return cast("list[SaveOutcome]", await self.transact(saves))

    async def record(self, records: Sequence[RecordCalls]) -> list[RecordOutcome]:
        """See :meth:`Store.record`."""
        return cast("list[RecordOutcome]", await self.transact(records))

    async def lease(self, request: TakeLease) -> LeaseTaken:
        """See :meth:`Store.lease`."""
        return cast("LeaseTaken", await self._alone(request))

    async def release(self, request: ReleaseLease) -> LeaseReleased:
        """See :meth:`Store.release`."""
        return cast("LeaseReleased", await self._alone(request))

    async def _alone(self, request: LeaseRequest) -> WriteOutcome | LeaseOutcome:
        [outcome] = await self.transact([request])
        if isinstance(outcome, UmbelError):
            raise outcome
        return outcome


def _in_turns(writes: Sequence[Write]) -> list[list[int]]:
    """The numbers of ``writes`` in as few groups of one kind as keep each thread's order: saves, records, saves and so on."""
    groups: list[list[int]] = []
    turns: dict[str, int] = {}
    for number, write in enumerate(writes):
        turn = turns.get(write.thread_id, 0)
        turn += turn % 2 != isinstance(write, RecordCalls)
        turns[write.thread_id] = turn
        groups += [[] for _ in range(turn + 1 - len(groups))]
        groups[turn].append(number)
    return [group for group in groups if group]


def check_id(thread_id: str) -> None:
    """Refuse ids that no file or wire can hold.

    Raises:
        NotStorable: the id is not valid Unicode.
    """
    try:
        thread_id.encode()
    except UnicodeEncodeError:
        raise NotStorable(f"the id {thread_id!r} is not valid Unicode", thread_id=ascii(thread_id)) from None


def encode_metadata(save: SaveCheckpoint, max_bytes: int) -> bytes:
    """The save's metadata as JSON, once it is sure that a store may take the save.

    Raises:
        NotStorable: no store may, whatever the thread holds.
    """
    check_id(save.thread_id)
    check_id(save.checkpoint_id)
    what = f"checkpoint {save.checkpoint_id!r} of thread {save.thread_id!r}"
    check_size(what, len(save.state), max_bytes, save.thread_id)
    for digest, text in save.statics.items():
        check_size(f"the text {digest} of {what}", len(text), max_bytes, save.thread_id)
    if save.kind == "delta" and save.parent_id is None:
        raise NotStorable(f"{what} is a delta without a parent; save a snapshot first", thread_id=save.thread_id)
    try:
        return to_json(save.metadata)
    except ValueError as error:
        raise NotStorable(f"the metadata of {what} cannot be written as JSON: {error}", thread_id=save.thread_id) from None


def check_size(what: str, size: int, max_bytes: int, thread_id: str) -> None:
    """Refuse what is larger than a store may take.

    Raises:
        NotStorable: ``what`` has more than ``max_bytes`` bytes.
    """
    if size > max_bytes:
        raise NotStorable(
            f"{what} has {size} bytes, the store takes at most {max_bytes}; keep large values out of the state",
            thread_id=thread_id,
            size=size,
            limit=max_bytes,
        )


def encode_entries(thread_id: str, entries: Sequence[JournalEntry], max_bytes: int) -> list[bytes]:
    """The entries of a journal as JSON, once it is sure that a store may take them.

    Raises:
        NotStorable: no store may, whatever the thread holds.
    """
    check_id(thread_id)
    encoded: list[bytes] = []
    for entry in entries:
        what = f"the call {entry.call_id!r} of thread {thread_id!r}"
        try:
            encoded.append(protocol_json(entry))
        except ProtocolError as error:
            raise NotStorable(f"{what} cannot be written as JSON: {error}", thread_id=thread_id) from None
        check_size(what, len(encoded[-1]), max_bytes, thread_id)
    return encoded


def has_values(metadata: dict[str, object], where: dict[str, object]) -> bool:
    """Whether ``metadata`` has all the values of ``where``. JSON tells true from 1, so they are compared as JSON."""
    return all(name in metadata and _canonical(metadata[name]) == _canonical(value) for name, value in where.items())


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def check_keep(request: CollectGarbage) -> None:
    """Refuse to collect every checkpoint of a thread.

    Raises:
        ConfigurationError: ``keep`` is below 1.
    """
    if request.keep is not None and request.keep < 1:
        raise ConfigurationError(f"keep={request.keep} would leave nothing of a thread; keep at least 1, or delete the thread")


def conflict(save: SaveCheckpoint, found: str | None) -> CheckpointConflict:
    """``save`` saw another newest checkpoint than ``found``, the one that the thread has."""
    seen = "a new thread" if save.parent_id is None else f"checkpoint {save.parent_id!r} as the newest"
    has = "no checkpoint" if found is None else f"checkpoint {found!r} as its newest"
    return CheckpointConflict(
        f"thread {save.thread_id!r} has moved on: the writer saw {seen}, the thread has {has}; load it again",
        thread_id=save.thread_id,
        expected=save.parent_id,
        found=found,
    )
