"""A batch of writes against the rows of a PostgreSQL store: decided in memory while the threads are locked, written at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from ...protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from ...protocol.errors import StoreUnavailable
from ...protocol.storage import CallsRecorded
from . import postgres_schema as sql
from .lease import Lease
from .postgres_client import Work
from .store import Write, WriteOutcome, conflict, misplaced

_TRIES = 5


def to_bytes(text: str) -> bytes:
    """``text`` for a column; a model may have written half a surrogate pair, which comes back as it was."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """The text that :func:`to_bytes` was given."""
    return data.decode("utf-8", "surrogatepass")


@dataclass(slots=True)
class ThreadRow:
    """A thread, as it is after the writes that were decided so far."""

    number: int
    thread_id: str
    newest: str | None
    position: int
    root: int
    lease: Lease

    @classmethod
    def read(cls, row: Sequence[Any]) -> ThreadRow:
        """A row of ``threads``."""
        number, thread_id, newest, position, root, token, owner, expires_at, deleted_at = row
        lease = Lease(token, None if owner is None else to_text(owner), expires_at, deleted_at)
        return cls(number, to_text(thread_id), None if newest is None else to_text(newest), position, root, lease)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A write that a store may take, its parts as bytes."""

    write: Write
    metadata: bytes
    entries: Sequence[bytes]


@dataclass(slots=True)
class Batch:
    """What a transaction is going to write.

    Attributes:
        threads: by id, locked.
        known: checkpoints that are stored already, by thread's number and id.
        below: position and root of checkpoints that others are going to stand on, by thread's number and id.
        first: positions of the oldest checkpoints, by thread's number.
        now: the server's time in seconds since the epoch.
    """

    threads: dict[str, ThreadRow]
    known: set[tuple[int, str]]
    now: float
    below: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    gone: list[tuple[int, int]] = field(default_factory=list)
    checkpoints: list[tuple[Any, ...]] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    entries: list[tuple[Any, ...]] = field(default_factory=list)
    texts: list[tuple[bytes, bytes]] = field(default_factory=list)
    refers: list[tuple[int, bytes]] = field(default_factory=list)
    advanced: dict[int, ThreadRow] = field(default_factory=dict)

    def decide(self, encoded: Encoded) -> WriteOutcome:
        """Accept a write or say why not."""
        write, thread = encoded.write, self.threads[encoded.write.thread_id]
        saved = CheckpointSaved(checkpoint_id=write.checkpoint_id) if isinstance(write, SaveCheckpoint) else None
        if saved is not None and (thread.number, saved.checkpoint_id) in self.known:
            return saved
        refusal = thread.lease.refusal(write.thread_id, write.token, self.now)
        if refusal is not None:
            return refusal
        if isinstance(write, SaveCheckpoint):
            if write.parent_id != thread.newest:
                return conflict(write, thread.newest)
            if write.supersedes and not self._make_way(write, thread):
                return misplaced(write)
            self._add(write, thread, encoded.metadata)
        for entry, data in zip(write.entries, encoded.entries, strict=True):
            self.entries.append((thread.number, to_bytes(entry.call_id), entry.phase, data))
        return saved or CallsRecorded()

    def _make_way(self, save: SaveCheckpoint, thread: ThreadRow) -> bool:
        """Drop what ``save`` supersedes; False when that does not stand where it says."""
        number, position = thread.number, max(0, thread.position - save.supersedes)
        if save.onto is None:
            stands, root = position < self.first.get(number, 1), position
        else:
            at, root = self.below.get((number, save.onto), (-1, 0))
            stands = at == position
        if stands:
            self.gone.append((number, position))
            self.checkpoints = [row for row in self.checkpoints if row[0] != number or row[1] <= position]
            thread.position, thread.root = position, root
        return stands

    def _add(self, save: SaveCheckpoint, thread: ThreadRow, metadata: bytes) -> None:
        number = thread.number
        parent = None if save.below is None else to_bytes(save.below)
        thread.position += 1
        thread.root = thread.root if save.kind == "delta" else thread.position
        thread.newest = save.checkpoint_id
        facts = (to_bytes(save.checkpoint_id), parent, thread.root, save.base, save.created_at, metadata, save.state)
        self.checkpoints.append((number, thread.position, *facts))
        self.known.add((number, save.checkpoint_id))
        self.below[number, save.checkpoint_id] = thread.position, thread.root
        self.advanced[number] = thread
        thread.lease = thread.lease.begun()
        if save.settles:
            self.settled.add(number)
            self.entries = [entry for entry in self.entries if entry[0] != number]
        for digest, text in save.statics.items():
            self.texts.append((to_bytes(digest), to_bytes(text)))
            self.refers.append((number, to_bytes(digest)))

    async def write(self, work: Work) -> None:
        """Write all that was accepted."""
        await work.many(sql.DROP_BEHIND, self.gone)
        await work.many(sql.INSERT, self.checkpoints)
        advanced = [(to_bytes(row.newest or ""), row.position, row.root, row.number) for row in self.advanced.values()]
        await work.many(sql.ADVANCE, advanced)
        if self.settled:
            await work.run(sql.SETTLE, list(self.settled))
        await work.many(sql.NOTE, self.entries)
        await work.many(sql.PUT_TEXT, sorted(dict(self.texts).items()))
        await work.many(sql.REFER, self.refers)


async def lock_threads(work: Work, names: Sequence[str]) -> dict[str, ThreadRow]:
    """The threads of these ids, locked until the transaction ends, always in the same order; new ones are created."""
    ids = sorted(map(to_bytes, set(names)))
    for _ in range(_TRIES):
        await work.run(sql.ADD_THREADS, ids)
        rows = await work.rows(sql.LOCK_THREADS, ids)
        if len(rows) == len(ids):
            return {row.thread_id: row for row in map(ThreadRow.read, rows)}
    raise StoreUnavailable("a collector forgets these threads all the time; try again")  # between the two statements


async def decide_batch(work: Work, batch: Sequence[Encoded]) -> list[WriteOutcome]:
    """What becomes of each write of ``batch``; all that were accepted are written."""
    if any(isinstance(one.write, SaveCheckpoint) and one.write.statics for one in batch):
        await work.run(sql.SHARE, sql.LOCK)
    threads = await lock_threads(work, [one.write.thread_id for one in batch])
    saves = [one.write for one in batch if isinstance(one.write, SaveCheckpoint)]
    numbers = [threads[save.thread_id].number for save in saves]
    known = await work.rows(sql.KNOWN, numbers, [to_bytes(save.checkpoint_id) for save in saves]) if saves else []
    now = (await work.one(sql.NOW))[0]
    changes = Batch(threads, {(number, to_text(name)) for number, name in known}, now)
    for save in saves:
        if save.supersedes:
            await _look_below(work, changes, save, threads[save.thread_id].number)
    outcomes = [changes.decide(one) for one in batch]
    await changes.write(work)
    return outcomes


async def _look_below(work: Work, changes: Batch, save: SaveCheckpoint, number: int) -> None:
    """Find what ``save`` is going to stand on."""
    if save.onto is None:
        [first] = await work.one(sql.FIRST, number)
        changes.first[number] = first
        return
    for position, _, _, root, *_ in await work.rows(sql.FACT_OF, number, to_bytes(save.onto)):
        changes.below[number, save.onto] = position, root


def read_fact(row: Sequence[Any], state: bytes | None = None) -> CheckpointLoaded:
    """A checkpoint without its state, or with it."""
    position, checkpoint_id, parent_id, root, created_at, metadata = row
    return CheckpointLoaded(
        checkpoint_id=to_text(checkpoint_id),
        parent_id=None if parent_id is None else to_text(parent_id),
        state=state,
        metadata=from_json(metadata),
        created_at=created_at,
        depth=position - root,
    )
