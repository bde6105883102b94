"""The tables of the SQLite store, and the way from older ones."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ...protocol.errors import SchemaVersionError

SCHEMA_VERSION = 2

# ``state`` is last: SQLite then reads the other columns without touching the pages that a long state spills into.
_CHECKPOINTS = """
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
INSERT INTO umbel_schema VALUES (1);
"""
_BESIDE_CHECKPOINTS = """
CREATE TABLE umbel_threads (
    thread_id TEXT PRIMARY KEY,
    token INTEGER NOT NULL,
    owner TEXT,
    expires_at REAL NOT NULL,
    deleted_at REAL
) WITHOUT ROWID;
CREATE TABLE umbel_journal (
    number INTEGER PRIMARY KEY,
    thread_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    phase TEXT NOT NULL,
    entry BLOB NOT NULL,
    UNIQUE (thread_id, call_id, phase)
);
CREATE TABLE umbel_statics (digest TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE umbel_static_uses (
    thread_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (thread_id, digest)
) WITHOUT ROWID;
CREATE INDEX umbel_static_users ON umbel_static_uses (digest);
UPDATE umbel_schema SET version = 2;
"""
_UPGRADES = {0: _CHECKPOINTS, 1: _BESIDE_CHECKPOINTS}  # from a version to the next


def prepare_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or bring older ones up to date in place.

    Raises:
        SchemaVersionError: a newer Umbel wrote the file.
    """
    version = _version(connection)
    if version < SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        version = _version(connection)  # another process may have been first
        while version in _UPGRADES:
            for statement in _UPGRADES[version].split(";\n"):
                connection.execute(statement)
            version += 1
        connection.execute("COMMIT")
    if version != SCHEMA_VERSION:
        raise SchemaVersionError(
            f"{path} holds checkpoints of schema version {version}, this Umbel reads {SCHEMA_VERSION};"
            " run the Umbel that wrote them, or choose another file",
            path=str(path),
            found=version,
            known=SCHEMA_VERSION,
        )


def _version(connection: sqlite3.Connection) -> int:
    """The version of our tables, 0 when the file has none yet."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'umbel_schema'").fetchone() is None:
        return 0
    row = connection.execute("SELECT max(version) FROM umbel_schema").fetchone()
    return int(row[0] or 0)
