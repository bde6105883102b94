"""What an SQLite file is like after years: older schemas, space that is given back, leases that are asked for at once."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from umbel.actors.checkpoints import SqliteStore
from umbel.actors.checkpoints.conformance.requests import a_record, a_save, begun, garbage, saved, take
from umbel.actors.checkpoints.group_commit import GroupCommit
from umbel.protocol.errors import StoreUnavailable, ThreadBusy
from umbel.protocol.storage import ReleaseLease, TakeLease

VERSION_1 = """
CREATE TABLE umbel_checkpoints (
    number INTEGER PRIMARY KEY, thread_id TEXT NOT NULL, position INTEGER NOT NULL, checkpoint_id TEXT NOT NULL,
    parent_id TEXT, depth INTEGER NOT NULL, base INTEGER NOT NULL, created_at REAL NOT NULL,
    metadata BLOB NOT NULL, state BLOB NOT NULL,
    UNIQUE (thread_id, position), UNIQUE (thread_id, checkpoint_id)
);
CREATE TABLE umbel_schema (version INTEGER NOT NULL);
INSERT INTO umbel_schema VALUES (1);
INSERT INTO umbel_checkpoints VALUES (1, 'thread', 1, 'c1', NULL, 0, 0, 1.5, '{"n":1}', CAST('{"messages":[1]}' AS BLOB));
INSERT INTO umbel_checkpoints VALUES (2, 'thread', 2, 'c2', 'c1', 1, 1, 2.5, '{"n":2}', CAST('{"messages":[2]}' AS BLOB));
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.sqlite"


@pytest.fixture
def old(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1)
    connection.close()
    return path


@pytest.mark.spec("OURS-22")
async def test_a_file_of_version_1_is_upgraded_in_place(old: Path) -> None:
    store = SqliteStore(old)
    loaded = await store.load("thread")
    assert (loaded.checkpoint_id, loaded.state, loaded.metadata, loaded.depth) == ("c2", b'{"messages":[1,2]}', {"n": 2}, 1)
    lease = await take(store, "a")
    save = a_save("c3", "c2", kind="delta", base=2, state=b'{"messages":[3]}', token=lease.token, entries=(begun("1"),))
    await saved(store, save)
    loaded = await store.load("thread")
    assert (loaded.state, loaded.journal, loaded.token) == (b'{"messages":[1,2,3]}', (begun("1"),), lease.token)
    await store.close()

    again = SqliteStore(old)
    assert [entry.checkpoint_id for entry in await again.history("thread")] == ["c3", "c2", "c1"]
    await again.close()


async def test_processes_may_upgrade_a_file_at_once(old: Path) -> None:
    stores = [SqliteStore(old) for _ in range(6)]
    loaded = await asyncio.gather(*(store.load("thread") for store in stores))
    assert {found.checkpoint_id for found in loaded} == {"c2"}
    for store in stores:
        await store.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_collecting_makes_the_file_smaller_while_others_write(request: pytest.FixtureRequest, version: int) -> None:
    path: Path = request.getfixturevalue("old" if version == 1 else "path")
    store = SqliteStore(path)
    for n in range(40):
        state = b'{"messages":["%s"]}' % (b"x" * 100_000)
        await saved(store, a_save(f"b{n}", f"b{n - 1}" if n else None, thread_id="big", state=state))
    await store.close()  # what is in the log comes into the file
    store, other = SqliteStore(path), SqliteStore(path)
    full = _bytes_of(path)

    async def write() -> None:
        for n in range(50):
            await saved(other, a_save(f"w{n}", f"w{n - 1}" if n else None, thread_id="written"))

    freed, _ = await asyncio.gather(store.collect(garbage(keep=2)), write())
    assert freed.checkpoints >= 38
    assert freed.bytes > 3_700_000
    await store.close()
    await other.close()
    assert full > 3_000_000
    assert _bytes_of(path) < 600_000
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def _bytes_of(path: Path) -> int:
    return path.stat().st_size


async def test_leases_that_are_asked_for_at_once_share_transactions(path: Path) -> None:
    store = SqliteStore(path)
    commit = GroupCommit(store)
    await take(store, "first", thread_id="t7")

    async def ask(n: int) -> int:
        try:
            return (await commit.lease(TakeLease(store="", thread_id=f"t{n % 100}", owner=f"run-{n}", seconds=30))).token
        except ThreadBusy:
            return 0

    tokens = await asyncio.gather(*(ask(n) for n in range(200)))
    assert sum(tokens) == 99, "one of each pair, and none of the thread that was taken"
    assert store.commits < 60
    await store.close()


async def test_a_locked_file_refuses_every_request_for_a_lease(path: Path) -> None:
    store = SqliteStore(path, timeout=0.05)
    await store.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    give_back = store.release(ReleaseLease(store="", thread_id="x", owner="a", token=1))
    asked = [take(store, "a", thread_id=str(n)) for n in range(5)]
    outcomes = await asyncio.gather(give_back, *asked, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 6
    other.execute("ROLLBACK")
    other.close()
    assert (await store.lease(TakeLease(store="", thread_id="1", owner="b", seconds=60.0))).token == 1
    await store.close()


async def test_records_and_saves_of_a_group_commit_share_a_transaction(path: Path) -> None:
    store = SqliteStore(path)
    await store.commit([a_record(begun("1")), a_save("c1", settles=True), a_record(begun("2"))])
    assert store.commits == 1
    assert (await store.load("thread")).journal == (begun("2"),)
    await store.close()
