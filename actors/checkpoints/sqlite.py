"""Checkpoints in an SQLite file. Any number of processes of one machine may use the same file.

What was acknowledged survives any killed process. With ``synchronous=normal``, the default, a power cut may lose the last
tenth of a second of it (never more, and never the order: what is left is what the store held at some moment before). With
``full`` a commit waits for the disk, and a power cut loses nothing; that takes several times as long, which saves that come
together share.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ...protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from ...protocol.errors import CheckpointError, NotStorable, UmbelError
from ...protocol.messages import NOTHING
from ...protocol.storage import (
    CallsRecorded,
    CollectGarbage,
    GarbageCollected,
    JournalEntry,
    LeaseReleased,
    ListThreads,
    RecordCalls,
    ReleaseLease,
    TakeLease,
    ThreadDeleted,
    ThreadsListed,
)
from . import sqlite_upkeep as upkeep
from .database import Database, TooLong
from .delta import fold
from .log_keeper import LogKeeper
from .sqlite_schema import prepare_schema
from .static_parts import references
from .store import (
    MAX_STATE_BYTES,
    LeaseOutcome,
    LeaseRequest,
    OneTransactionStore,
    RecordOutcome,
    SaveOutcome,
    Write,
    WriteOutcome,
    check_id,
    check_keep,
    conflict,
    encode_entries,
    encode_metadata,
)
from .url import StoreUrl, Synchronous

SHORT_WRITES = 256
SHORT_BYTES = 1024 * 1024
PAGE_BYTES = 4096
WRITE_PAGES = 5  # that a save touches, besides its state

_NEWEST = "SELECT position, checkpoint_id, depth FROM umbel_checkpoints WHERE thread_id = ? ORDER BY position DESC LIMIT 1"
_EXISTS = "SELECT 1 FROM umbel_checkpoints WHERE thread_id = ? AND checkpoint_id = ?"
_USED = (
    "SELECT EXISTS (SELECT 1 FROM umbel_checkpoints WHERE thread_id = :id)"
    " OR EXISTS (SELECT 1 FROM umbel_journal WHERE thread_id = :id)"
)
_INSERT = (
    "INSERT INTO umbel_checkpoints (thread_id, position, checkpoint_id, parent_id, depth, base, created_at, metadata, state)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (thread_id, checkpoint_id) DO NOTHING"
)
_FACTS = "SELECT checkpoint_id, parent_id, metadata, created_at, depth, position FROM umbel_checkpoints WHERE thread_id = ?"
_ENTRY = (
    "INSERT INTO umbel_journal (thread_id, call_id, phase, entry) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (thread_id, call_id, phase) DO NOTHING"
)
_ENTRIES = "SELECT entry FROM umbel_journal WHERE thread_id = ? ORDER BY number"
_TEXT = "INSERT INTO umbel_statics (digest, body) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING"
_USE = "INSERT INTO umbel_static_uses (thread_id, digest) VALUES (?, ?) ON CONFLICT DO NOTHING"
_TEXTS = "SELECT digest, body FROM umbel_statics JOIN umbel_static_uses USING (digest) WHERE thread_id = ?"
_CHAIN_BYTES = "SELECT total(length(state)) FROM umbel_checkpoints WHERE thread_id = ? AND position BETWEEN ? AND ?"
_CHAIN = "SELECT base, state FROM umbel_checkpoints WHERE thread_id = ? AND position BETWEEN ? AND ? ORDER BY position"


class SqliteStore(OneTransactionStore):
    """A store in an SQLite file. Its URL is ``sqlite:///relative``, ``sqlite:////absolute`` or ``sqlite:///~/path``.

    One connection writes, another reads, so that a long load never keeps a commit waiting.

    Args:
        path: the file; it and its parent directories are created when missing.
        timeout: seconds to wait for another process's lock before :class:`StoreUnavailable`.
        synchronous: ``full`` survives a power cut, ``normal`` a killed process, and a power cut but for the last moment.
        max_bytes: the largest state that one checkpoint may hold.
        clock: seconds since the epoch; leases and tombstones go by it.
    """

    releases_with_saves = True

    def __init__(
        self,
        path: str | Path,
        *,
        timeout: float = 10.0,
        synchronous: Synchronous = "normal",
        max_bytes: int = MAX_STATE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(max_bytes=max_bytes)
        self._clock = clock
        self.path = Path(path).expanduser().absolute()
        self._synchronous = synchronous
        self._log = LogKeeper(self.path) if synchronous == "normal" else None
        self._writer = Database(self.path, timeout=timeout, prepare=self._prepare)
        self._reader = Database(self.path, timeout=timeout, prepare=self._prepare)

    @classmethod
    def from_url(cls, url: str) -> SqliteStore:
        """The store of a URL; options are ``timeout``, ``synchronous`` and ``max_bytes``."""
        parsed = StoreUrl.parse(url)
        parsed.expect("timeout", "synchronous", "max_bytes")
        return cls(
            parsed.file(),
            timeout=parsed.number("timeout", 10.0),
            synchronous=parsed.synchronous("normal"),
            max_bytes=int(parsed.number("max_bytes", MAX_STATE_BYTES)),
        )

    async def open(self) -> None:
        """See :meth:`Store.open`."""
        await self._writer.run(lambda _: None)

    async def transact(self, requests: Sequence[Write | LeaseRequest]) -> list[WriteOutcome | LeaseOutcome]:
        """See :meth:`OneTransactionStore.transact`."""
        size = sum(len(request.state) for request in requests if isinstance(request, SaveCheckpoint))
        short = self._log is not None and len(requests) <= SHORT_WRITES and size <= SHORT_BYTES
        outcomes = await self._writer.run(lambda connection: self._transact(connection, requests), short=short)
        if self._log is not None:
            self._log.wrote(WRITE_PAGES * len(requests) + size // PAGE_BYTES)
        return outcomes

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        """See :meth:`Store.load`."""
        check_id(thread_id)
        read = partial(_load, path=self.path, thread_id=thread_id, checkpoint_id=checkpoint_id)
        if self._log is not None:
            with contextlib.suppress(TooLong):
                return await self._writer.run(partial(read, limit=SHORT_BYTES), short=True)
        return await self._reader.run(read)

    async def history(self, thread_id: str, limit: int = 10) -> list[CheckpointLoaded]:
        """See :meth:`Store.history`."""
        check_id(thread_id)
        query = f"{_FACTS} ORDER BY position DESC LIMIT ?"

        def read(connection: sqlite3.Connection) -> list[CheckpointLoaded]:
            return [_loaded(row, None) for row in connection.execute(query, (thread_id, max(0, limit)))]

        return await self._reader.run(read)

    async def threads(self, request: ListThreads) -> ThreadsListed:
        """See :meth:`Store.threads`."""
        check_id(request.prefix)
        check_id(request.after)
        return await self._reader.run(lambda connection: upkeep.list_threads(connection, request, self._clock()))

    async def delete(self, thread_id: str) -> ThreadDeleted:
        """See :meth:`Store.delete`."""
        check_id(thread_id)
        return await self._writer.run(lambda connection: upkeep.delete_thread(connection, thread_id, self._clock()))

    async def collect(self, request: CollectGarbage) -> GarbageCollected:
        """See :meth:`Store.collect`. The file becomes smaller, a little in each transaction."""
        check_keep(request)
        total = Counter[str]()
        found = await self._reader.run(lambda connection: upkeep.find_garbage(connection, request, self._clock()))
        for thread_id in found:  # a transaction each: writers come in between
            work = partial(upkeep.collect_thread, thread_id=thread_id, request=request, now=self._clock())
            total.update((await self._writer.run(work)).model_dump())
        texts, size = await self._writer.run(upkeep.collect_texts)
        total.update(static_parts=texts, bytes=size)
        while await self._writer.run(upkeep.give_back_pages):
            pass
        return GarbageCollected(**total)

    async def close(self) -> None:
        """See :meth:`Store.close`."""
        if self._log is not None:
            await asyncio.to_thread(self._log.close)
        await self._reader.close()
        await self._writer.close()

    def _transact(
        self, connection: sqlite3.Connection, requests: Sequence[Write | LeaseRequest]
    ) -> list[WriteOutcome | LeaseOutcome]:
        connection.execute("BEGIN IMMEDIATE")
        outcomes = [self._do(connection, request) for request in requests]
        connection.execute("COMMIT")
        self.commits += 1
        return outcomes

    def _do(self, connection: sqlite3.Connection, request: Write | LeaseRequest) -> WriteOutcome | LeaseOutcome:
        if isinstance(request, SaveCheckpoint):
            return self._save(connection, request)
        if isinstance(request, RecordCalls):
            return self._record(connection, request)
        return self._lease(connection, request)

    def _lease(self, connection: sqlite3.Connection, request: LeaseRequest) -> LeaseOutcome:
        try:
            check_id(request.thread_id)
            before = upkeep.read_lease(connection, request.thread_id)
            now = before.taken(request, self._clock()) if isinstance(request, TakeLease) else before.released(request)
        except UmbelError as error:
            return error
        if now != before:
            upkeep.write_lease(connection, request.thread_id, now)
        if isinstance(request, ReleaseLease):
            return LeaseReleased()
        unused = not before.token and not connection.execute(_USED, {"id": request.thread_id}).fetchone()[0]
        return now.answer(unused=unused)

    def _save(self, connection: sqlite3.Connection, save: SaveCheckpoint) -> SaveOutcome:
        thread_id, checkpoint_id = save.thread_id, save.checkpoint_id
        try:
            metadata = encode_metadata(save, self.max_bytes)
            entries = encode_entries(thread_id, save.entries, self.max_bytes)
        except NotStorable as error:
            return error
        saved = CheckpointSaved.trusted(checkpoint_id=checkpoint_id)
        lease = upkeep.read_lease(connection, thread_id)
        refusal = lease.refusal(thread_id, save.token, self._clock())
        position, found, depth = connection.execute(_NEWEST, (thread_id,)).fetchone() or (0, None, 0)
        if refusal is not None or save.parent_id != found:
            known = connection.execute(_EXISTS, (thread_id, checkpoint_id)).fetchone()
            return saved if known else refusal or conflict(save, found)
        depth = depth + 1 if save.kind == "delta" else 0
        facts = (checkpoint_id, save.parent_id, depth, save.base, save.created_at, metadata, save.state)
        if connection.execute(_INSERT, (thread_id, position + 1, *facts)).rowcount:
            self._save_beside(connection, save, entries)
            after = lease.after(save)
            if after is not lease:
                upkeep.write_lease(connection, thread_id, after)
        return saved

    def _save_beside(self, connection: sqlite3.Connection, save: SaveCheckpoint, entries: list[bytes]) -> None:
        if save.settles:
            connection.execute("DELETE FROM umbel_journal WHERE thread_id = ?", (save.thread_id,))
        _write_down(connection, save, entries)
        for digest, text in save.statics.items():
            connection.execute(_TEXT, (digest, text.encode()))
            connection.execute(_USE, (save.thread_id, digest))

    def _record(self, connection: sqlite3.Connection, record: RecordCalls) -> RecordOutcome:
        try:
            entries = encode_entries(record.thread_id, record.entries, self.max_bytes)
        except NotStorable as error:
            return error
        lease = upkeep.read_lease(connection, record.thread_id)
        refusal = lease.refusal(record.thread_id, record.token, self._clock())
        if refusal is not None:
            return refusal
        _write_down(connection, record, entries)
        return CallsRecorded()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA synchronous = {self._synchronous.upper()}")
        if self._log is not None:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
        prepare_schema(connection, self.path)


def _write_down(connection: sqlite3.Connection, write: Write, entries: list[bytes]) -> None:
    for entry, encoded in zip(write.entries, entries, strict=True):
        connection.execute(_ENTRY, (write.thread_id, entry.call_id, entry.phase, encoded))


def _load(
    connection: sqlite3.Connection, path: Path, thread_id: str, checkpoint_id: str | None, limit: int | None = None
) -> CheckpointLoaded:
    # One read transaction: another process may add checkpoints between the queries.
    connection.execute("BEGIN")
    if checkpoint_id is None:
        row = connection.execute(f"{_FACTS} ORDER BY position DESC LIMIT 1", (thread_id,)).fetchone()
    else:
        row = connection.execute(f"{_FACTS} AND checkpoint_id = ?", (thread_id, checkpoint_id)).fetchone()
    token = upkeep.read_lease(connection, thread_id).token
    journal = connection.execute(_ENTRIES, (thread_id,)).fetchall() if checkpoint_id is None else []
    entries = tuple(JournalEntry.model_validate_json(entry) for (entry,) in journal)
    if row is None:
        return CheckpointLoaded.trusted(journal=entries, token=token)
    depth, position = row[4], row[5]
    if limit is not None and connection.execute(_CHAIN_BYTES, (thread_id, position - depth, position)).fetchone()[0] > limit:
        raise TooLong
    chain = connection.execute(_CHAIN, (thread_id, position - depth, position)).fetchall()
    where = f"checkpoint {row[0]!r} of thread {thread_id!r} in {path}"
    if len(chain) != depth + 1:
        raise CheckpointError(f"{where} is damaged: {depth + 1 - len(chain)} of the checkpoints it builds on are missing")
    state = fold(chain[0][1], chain[1:], where=where)
    return _loaded(row, state).evolve(journal=entries, statics=_texts(connection, thread_id, state), token=token)


def _texts(connection: sqlite3.Connection, thread_id: str, state: bytes) -> dict[str, str]:
    """Those of the thread's texts that the state refers to."""
    digests = references(state)
    if not digests:
        return NOTHING
    return {digest: body.decode() for digest, body in connection.execute(_TEXTS, (thread_id,)) if digest in digests}


def _loaded(row: tuple[Any, ...], state: bytes | None) -> CheckpointLoaded:
    return CheckpointLoaded(
        checkpoint_id=row[0],
        parent_id=row[1],
        metadata=from_json(row[2]),
        created_at=row[3],
        depth=row[4],
        state=state,
    )
