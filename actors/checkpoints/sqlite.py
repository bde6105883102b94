"""Checkpoints in an SQLite file. Any number of processes of one machine may use the same file.

``synchronous=full`` is the default: a save that was acknowledged survives a power cut. ``normal`` survives a killed process
just as well but may lose the last commits with the power. The difference is one fsync a commit, and all saves of a group
commit share it, so it costs a lone writer some latency and a busy one next to nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json

from ...protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from ...protocol.errors import CheckpointError, NotStorable, SchemaVersionError
from .database_thread import DatabaseThread
from .delta import fold
from .store import MAX_STATE_BYTES, SaveOutcome, Store, check_id, conflict, encode_metadata
from .url import StoreUrl

SCHEMA_VERSION = 1
Synchronous = Literal["normal", "full"]

# ``state`` is last: SQLite then reads the other columns without touching the pages that a long state spills into.
_SCHEMA = """
CREATE TABLE umbel_checkpoints (
    number INTEGER PRIMARY KEY,
    thread_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    checkpoint_id TEXT NOT NULL,
    parent_id TEXT,
    depth INTEGER NOT NULL,
    base INTEGER NOT NULL,
    created_at REAL NOT NULL,
    metadata BLOB NOT NULL,
    state BLOB NOT NULL,
    UNIQUE (thread_id, position),
    UNIQUE (thread_id, checkpoint_id)
);
CREATE TABLE umbel_schema (version INTEGER NOT NULL);
"""
_NEWEST = "SELECT position, checkpoint_id, depth FROM umbel_checkpoints WHERE thread_id = ? ORDER BY position DESC LIMIT 1"
_EXISTS = "SELECT 1 FROM umbel_checkpoints WHERE thread_id = ? AND checkpoint_id = ?"
_INSERT = (
    "INSERT INTO umbel_checkpoints (thread_id, position, checkpoint_id, parent_id, depth, base, created_at, metadata, state)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (thread_id, checkpoint_id) DO NOTHING"
)
_FACTS = "SELECT checkpoint_id, parent_id, metadata, created_at, depth, position FROM umbel_checkpoints WHERE thread_id = ?"
_CHAIN = "SELECT base, state FROM umbel_checkpoints WHERE thread_id = ? AND position BETWEEN ? AND ? ORDER BY position"


class SqliteStore(Store):
    """A store in an SQLite file. Its URL is ``sqlite:///relative``, ``sqlite:////absolute`` or ``sqlite:///~/path``.

    One thread writes, another reads, so that a load never waits for a commit.

    Args:
        path: the file; it and its parent directories are created when missing.
        timeout: seconds to wait for another process's lock before :class:`StoreUnavailable`.
        synchronous: ``full`` survives a power cut, ``normal`` a killed process.
        max_bytes: the largest state that one checkpoint may hold.
    """

    def __init__(
        self, path: str | Path, *, timeout: float = 10.0, synchronous: Synchronous = "full", max_bytes: int = MAX_STATE_BYTES
    ) -> None:
        super().__init__(max_bytes=max_bytes)
        self.path = Path(path).expanduser().absolute()
        self._synchronous = synchronous
        self._writer = DatabaseThread(self.path, timeout=timeout, prepare=self._prepare)
        self._reader = DatabaseThread(self.path, timeout=timeout, prepare=self._prepare)

    @classmethod
    def from_url(cls, url: str) -> SqliteStore:
        """The store of a URL; options are ``timeout``, ``synchronous`` and ``max_bytes``."""
        parsed = StoreUrl.parse(url)
        parsed.expect("timeout", "synchronous", "max_bytes")
        synchronous: Synchronous = "normal" if parsed.choice("synchronous", "full", ("normal", "full")) == "normal" else "full"
        return cls(
            parsed.file(),
            timeout=parsed.number("timeout", 10.0),
            synchronous=synchronous,
            max_bytes=int(parsed.number("max_bytes", MAX_STATE_BYTES)),
        )

    async def open(self) -> None:
        """See :meth:`Store.open`."""
        await self._writer.run(lambda _: None)

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        """See :meth:`Store.save`."""
        return await self._writer.run(lambda connection: self._commit(connection, saves))

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        """See :meth:`Store.load`."""
        check_id(thread_id)
        return await self._reader.run(lambda connection: _load(connection, self.path, thread_id, checkpoint_id))

    async def history(self, thread_id: str, limit: int = 10) -> list[CheckpointLoaded]:
        """See :meth:`Store.history`."""
        check_id(thread_id)
        query = f"{_FACTS} ORDER BY position DESC LIMIT ?"

        def read(connection: sqlite3.Connection) -> list[CheckpointLoaded]:
            return [_loaded(row, None) for row in connection.execute(query, (thread_id, max(0, limit)))]

        return await self._reader.run(read)

    async def close(self) -> None:
        """See :meth:`Store.close`."""
        await self._reader.close()
        await self._writer.close()

    def _commit(self, connection: sqlite3.Connection, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        connection.execute("BEGIN IMMEDIATE")
        outcomes = [self._save(connection, save) for save in saves]
        connection.execute("COMMIT")
        self.commits += 1
        return outcomes

    def _save(self, connection: sqlite3.Connection, save: SaveCheckpoint) -> SaveOutcome:
        thread_id, checkpoint_id = save.thread_id, save.checkpoint_id
        try:
            metadata = encode_metadata(save, self.max_bytes)
        except NotStorable as error:
            return error
        saved = CheckpointSaved(checkpoint_id=checkpoint_id)
        position, found, depth = connection.execute(_NEWEST, (thread_id,)).fetchone() or (0, None, 0)
        if save.parent_id != found:
            known = connection.execute(_EXISTS, (thread_id, checkpoint_id)).fetchone()
            return saved if known else conflict(save, found)
        depth = depth + 1 if save.kind == "delta" else 0
        facts = (checkpoint_id, save.parent_id, depth, save.base, save.created_at, metadata, save.state)
        connection.execute(_INSERT, (thread_id, position + 1, *facts))
        return saved

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA synchronous = {self._synchronous.upper()}")
        version = _schema_version(connection)
        if version is None:
            connection.execute("BEGIN IMMEDIATE")
            version = _schema_version(connection)
            if version is None:
                for statement in _SCHEMA.split(";\n"):
                    connection.execute(statement)
                connection.execute("INSERT INTO umbel_schema VALUES (?)", (SCHEMA_VERSION,))
                version = SCHEMA_VERSION
            connection.execute("COMMIT")
        if version != SCHEMA_VERSION:
            raise SchemaVersionError(
                f"{self.path} holds checkpoints of schema version {version}, this Umbel reads {SCHEMA_VERSION};"
                " run the Umbel that wrote them, or choose another file",
                path=str(self.path),
                found=version,
                known=SCHEMA_VERSION,
            )


def _schema_version(connection: sqlite3.Connection) -> int | None:
    """The version of our tables, None when the file has none yet."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'umbel_schema'").fetchone() is None:
        return None
    row = connection.execute("SELECT max(version) FROM umbel_schema").fetchone()
    return int(row[0] or 0)


def _load(connection: sqlite3.Connection, path: Path, thread_id: str, checkpoint_id: str | None) -> CheckpointLoaded:
    # One read transaction: another process may add checkpoints between the two queries.
    connection.execute("BEGIN")
    if checkpoint_id is None:
        row = connection.execute(f"{_FACTS} ORDER BY position DESC LIMIT 1", (thread_id,)).fetchone()
    else:
        row = connection.execute(f"{_FACTS} AND checkpoint_id = ?", (thread_id, checkpoint_id)).fetchone()
    if row is None:
        return CheckpointLoaded()
    depth, position = row[4], row[5]
    chain = connection.execute(_CHAIN, (thread_id, position - depth, position)).fetchall()
    connection.execute("COMMIT")
    where = f"checkpoint {row[0]!r} of thread {thread_id!r} in {path}"
    if len(chain) != depth + 1:
        raise CheckpointError(f"{where} is damaged: {depth + 1 - len(chain)} of the checkpoints it builds on are missing")
    return _loaded(row, fold(chain[0][1], chain[1:], where=where))


def _loaded(row: tuple[Any, ...], state: bytes | None) -> CheckpointLoaded:
    return CheckpointLoaded(
        checkpoint_id=row[0],
        parent_id=row[1],
        metadata=from_json(row[2]),
        created_at=row[3],
        depth=row[4],
        state=state,
    )
