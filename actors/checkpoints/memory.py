"""Checkpoints in this process's memory: for tests, and for conversations that need not outlive it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pydantic_core import from_json

from ...protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from ...protocol.errors import NotStorable, StoreUnavailable
from ...protocol.messages import NOTHING
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
    ThreadInfo,
    ThreadsListed,
)
from .delta import fold
from .lease import Lease
from .static_parts import references
from .store import (
    MAX_STATE_BYTES,
    RecordOutcome,
    SaveOutcome,
    Store,
    check_id,
    check_keep,
    conflict,
    encode_entries,
    encode_metadata,
    has_values,
    misplaced,
)
from .url import StoreUrl


@dataclass(frozen=True, slots=True)
class _Row:
    checkpoint_id: str
    parent_id: str | None
    base: int
    state: bytes
    created_at: float
    metadata: bytes
    depth: int

    def loaded(self, state: bytes | None) -> CheckpointLoaded:
        return CheckpointLoaded(
            checkpoint_id=self.checkpoint_id,
            parent_id=self.parent_id,
            state=state,
            metadata=from_json(self.metadata),
            created_at=self.created_at,
            depth=self.depth,
        )


@dataclass(slots=True)
class _Thread:
    rows: list[_Row] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    journal: dict[tuple[str, str], JournalEntry] = field(default_factory=dict)
    statics: set[str] = field(default_factory=set)
    lease: Lease = field(default_factory=Lease)

    @property
    def head(self) -> _Row | None:
        return self.rows[-1] if self.rows else None

    def state(self, position: int, thread_id: str) -> bytes:
        """The whole state of the checkpoint at ``position``."""
        row = self.rows[position]
        snapshot, *deltas = self.rows[position - row.depth : position + 1]
        where = f"checkpoint {row.checkpoint_id!r} of thread {thread_id!r}"
        return fold(snapshot.state, [(delta.base, delta.state) for delta in deltas], where=where)

    def write_down(self, entries: Sequence[JournalEntry]) -> None:
        for entry in entries:
            self.journal.setdefault((entry.call_id, entry.phase), entry)

    def info(self, thread_id: str, now: float) -> ThreadInfo:
        newest = self.rows[-1]
        return ThreadInfo(
            thread_id=thread_id,
            checkpoint_id=newest.checkpoint_id,
            checkpoints=len(self.rows),
            bytes=self.size(),
            created_at=self.rows[0].created_at,
            updated_at=newest.created_at,
            metadata=from_json(newest.metadata),
            owner=self.lease.holder(now),
        )

    def size(self) -> int:
        return sum(len(row.state) for row in self.rows)

    def make_way(self, save: SaveCheckpoint) -> bool:
        """Drop what ``save`` supersedes; False when that does not stand where it says."""
        kept = max(0, len(self.rows) - save.supersedes)
        if (self.rows[kept - 1].checkpoint_id if kept else None) != save.onto:
            return False
        for row in self.rows[kept:]:
            del self.positions[row.checkpoint_id]
        del self.rows[kept:]
        return True

    def keep(self, count: int, thread_id: str) -> int:
        """Fold all but the newest ``count`` checkpoints away, and say how many those were."""
        cut = len(self.rows) - count
        if cut <= 0:
            return 0
        first = self.rows[cut]
        rows = [replace(first, state=self.state(cut, thread_id), parent_id=None, base=0, depth=0), *self.rows[cut + 1 :]]
        for position in range(1, len(rows)):
            if rows[position].depth == 0:
                break
            rows[position] = replace(rows[position], depth=position)
        self.rows = rows
        self.positions = {row.checkpoint_id: position for position, row in enumerate(rows)}
        self.statics &= set().union(*(references(row.state) for row in rows))
        return cut


class MemoryStore(Store):
    """A store in memory. Its URL is ``memory://`` or ``memory://name``; each store that is opened is empty.

    Args:
        max_bytes: the largest state that one checkpoint may hold.
        clock: seconds since the epoch; leases and tombstones go by it.
    """

    releases_with_saves = True

    def __init__(self, *, max_bytes: int = MAX_STATE_BYTES, clock: Callable[[], float] = time.time) -> None:
        super().__init__(max_bytes=max_bytes)
        self._threads: dict[str, _Thread] = {}
        self._statics: dict[str, str] = {}
        self._closed = False
        self._clock = clock
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str) -> MemoryStore:
        """An empty store; ``?max_bytes=`` limits one state."""
        parsed = StoreUrl.parse(url)
        parsed.expect("max_bytes")
        return cls(max_bytes=int(parsed.number("max_bytes", MAX_STATE_BYTES)))

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        """See :meth:`Store.save`."""
        self._check_open()
        with self._lock:
            self.commits += 1
            return [self._save(save) for save in saves]

    async def record(self, records: Sequence[RecordCalls]) -> list[RecordOutcome]:
        """See :meth:`Store.record`."""
        self._check_open()
        with self._lock:
            self.commits += 1
            return [self._record(record) for record in records]

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        """See :meth:`Store.load`."""
        self._check_open()
        check_id(thread_id)
        with self._lock:
            thread = self._threads.get(thread_id, _Thread())
            position = len(thread.rows) - 1 if checkpoint_id is None else thread.positions.get(checkpoint_id, -1)
            loaded, statics = CheckpointLoaded(), {}
            if position >= 0:
                state = thread.state(position, thread_id)
                loaded = thread.rows[position].loaded(state)
                statics = {digest: self._statics[digest] for digest in thread.statics & references(state)}
            journal = () if checkpoint_id is not None else tuple(thread.journal.values())
            return loaded.evolve(journal=journal, statics=statics or NOTHING, token=thread.lease.token)

    async def history(self, thread_id: str, limit: int = 10) -> list[CheckpointLoaded]:
        """See :meth:`Store.history`."""
        self._check_open()
        check_id(thread_id)
        with self._lock:
            rows = self._threads.get(thread_id, _Thread()).rows
            return [row.loaded(None) for row in reversed(rows[max(0, len(rows) - limit) :])]

    async def lease(self, request: TakeLease) -> LeaseTaken:
        """See :meth:`Store.lease`."""
        self._check_open()
        check_id(request.thread_id)
        check_id(request.owner)
        with self._lock:
            thread = self._threads.get(request.thread_id) or _Thread()
            thread.lease = thread.lease.taken(request, self._clock())
            self._threads[request.thread_id] = thread
            return thread.lease.answer()

    async def release(self, request: ReleaseLease) -> LeaseReleased:
        """See :meth:`Store.release`."""
        self._check_open()
        check_id(request.thread_id)
        with self._lock:
            thread = self._threads.get(request.thread_id)
            if thread is not None:
                thread.lease = thread.lease.released(request)
            return LeaseReleased()

    async def threads(self, request: ListThreads) -> ThreadsListed:
        """See :meth:`Store.threads`."""
        self._check_open()
        page: list[ThreadInfo] = []
        with self._lock:
            for thread_id in sorted(self._threads):
                thread = self._threads[thread_id]
                if len(page) >= request.limit:
                    break
                if not thread.rows or thread_id <= request.after or not thread_id.startswith(request.prefix):
                    continue
                if has_values(from_json(thread.rows[-1].metadata), request.where):
                    page.append(thread.info(thread_id, self._clock()))
        return ThreadsListed(threads=tuple(page))

    async def delete(self, thread_id: str) -> ThreadDeleted:
        """See :meth:`Store.delete`."""
        self._check_open()
        check_id(thread_id)
        with self._lock:
            thread = self._threads.get(thread_id, _Thread())
            self._threads[thread_id] = _Thread(lease=thread.lease.deleted(self._clock()))
            return ThreadDeleted(existed=bool(thread.rows))

    async def collect(self, request: CollectGarbage) -> GarbageCollected:
        """See :meth:`Store.collect`."""
        self._check_open()
        check_keep(request)
        freed = GarbageCollected()
        for thread_id in list(self._threads):
            with self._lock:
                freed = self._collect(thread_id, request, freed)
            await asyncio.sleep(0)  # whoever writes comes first
        with self._lock:
            used = set().union(*(thread.statics for thread in self._threads.values()))
            unused = [self._statics.pop(digest) for digest in self._statics.keys() - used]
        size = sum(len(text.encode()) for text in unused)
        return freed.evolve(static_parts=len(unused), bytes=freed.bytes + size)

    async def close(self) -> None:
        """See :meth:`Store.close`."""
        self._closed = True
        self._threads.clear()
        self._statics.clear()

    def _save(self, save: SaveCheckpoint) -> SaveOutcome:
        try:
            metadata = encode_metadata(save, self.max_bytes)
            encode_entries(save.thread_id, save.entries, self.max_bytes)
        except NotStorable as error:
            return error
        thread = self._threads.get(save.thread_id) or _Thread()
        if save.checkpoint_id in thread.positions:
            return CheckpointSaved(checkpoint_id=save.checkpoint_id)
        refusal = thread.lease.refusal(save.thread_id, save.token, self._clock())
        if refusal is not None:
            return refusal
        head = thread.head
        found = head.checkpoint_id if head else None
        if save.parent_id != found:
            return conflict(save, found)
        if save.supersedes and not thread.make_way(save):
            return misplaced(save)
        head = thread.head
        depth = head.depth + 1 if head and save.kind == "delta" else 0
        row = _Row(save.checkpoint_id, save.below, save.base, save.state, save.created_at, metadata, depth)
        thread.positions[row.checkpoint_id] = len(thread.rows)
        thread.rows.append(row)
        if save.settles:
            thread.journal.clear()
        thread.write_down(save.entries)
        thread.statics |= save.statics.keys()
        for digest, text in save.statics.items():
            self._statics.setdefault(digest, text)
        thread.lease = thread.lease.after(save)
        self._threads[save.thread_id] = thread
        return CheckpointSaved(checkpoint_id=save.checkpoint_id)

    def _record(self, record: RecordCalls) -> RecordOutcome:
        try:
            encode_entries(record.thread_id, record.entries, self.max_bytes)
        except NotStorable as error:
            return error
        thread = self._threads.get(record.thread_id) or _Thread()
        refusal = thread.lease.refusal(record.thread_id, record.token, self._clock())
        if refusal is not None:
            return refusal
        thread.write_down(record.entries)
        self._threads[record.thread_id] = thread
        return CallsRecorded()

    def _collect(self, thread_id: str, request: CollectGarbage, freed: GarbageCollected) -> GarbageCollected:
        thread, now = self._threads.get(thread_id), self._clock()
        if thread is None or thread.lease.holder(now) is not None:
            return freed
        before, size = len(thread.rows), thread.size()
        limit, keep = request.limit(thread_id), request.kept(thread_id)
        expired = limit is not None and thread.rows and thread.rows[-1].created_at < now - limit
        if expired:
            thread = self._threads[thread_id] = _Thread(lease=thread.lease.deleted(now))
        elif keep is not None:
            thread.keep(keep, thread_id)
        forgotten = thread.lease.is_forgotten(request.tombstones, now) and not thread.journal
        if forgotten:
            del self._threads[thread_id]
        return freed.evolve(
            threads=freed.threads + bool(expired),
            checkpoints=freed.checkpoints + before - len(thread.rows),
            tombstones=freed.tombstones + forgotten,
            bytes=freed.bytes + max(0, size - thread.size()),
        )

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the memory:// store was closed")
