"""What only a file can do: outlive its process, be shared, be locked, be broken."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from umbel.actors.checkpoints import SqliteStore
from umbel.protocol.errors import CheckpointError, ConfigurationError, SchemaVersionError, StoreUnavailable
from umbel.protocol.storage import CollectGarbage

from .conftest import SaveMaker, Start


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.sqlite"


async def filled(path: Path, save: SaveMaker, count: int = 3) -> None:
    store = SqliteStore(path)
    for n in range(count):
        await store.save([save(f"c{n}", f"c{n - 1}" if n else None, state=b'{"messages":["%s"]}' % (b"x" * 3_000))])
    await store.close()


def damage(path: Path) -> None:
    """Overwrite every page but the first."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"\x5a" * (size - 4_096))


async def test_a_file_is_reopened(path: Path, save: SaveMaker) -> None:
    await filled(path, save)
    store = SqliteStore(path)
    assert (await store.load("thread")).checkpoint_id == "c2"
    await store.save([save("c3", "c2")])
    assert len(await store.history("thread")) == 4
    await store.close()


@pytest.mark.spec("BUG-52", "OURS-22")
@pytest.mark.parametrize("synchronous", ["full", "normal"])
async def test_a_killed_writer_loses_nothing_it_acknowledged(path: Path, start: Start, synchronous: str) -> None:
    writer = start(f"sqlite:///{path}?synchronous={synchronous}", "thread", "w", 1_000_000, "append")
    assert writer.stdout is not None
    lines = [await asyncio.to_thread(writer.stdout.readline) for _ in range(100)]
    writer.send_signal(signal.SIGKILL)
    rest, _ = await asyncio.to_thread(writer.communicate)
    acknowledged = [line.split()[2] for line in [*lines, *rest.splitlines(keepends=True)] if line.endswith("\n")]

    store = SqliteStore(path)
    stored = [entry.checkpoint_id for entry in reversed(await store.history("thread", limit=10_000_000))]
    newest = await store.load("thread")
    await store.close()
    assert len(acknowledged) >= 100
    assert stored[: len(acknowledged)] == acknowledged
    assert len(stored) <= len(acknowledged) + 1
    assert (newest.state or b"").count(b'"role"') == len(stored)


@pytest.mark.spec("OURS-21")
async def test_a_locked_file_is_unavailable_until_it_is_free(path: Path, save: SaveMaker) -> None:
    await filled(path, save)
    store = SqliteStore(path, timeout=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked by another process") as raised:
        await store.save([save("c3", "c2")])
    assert raised.value.retryable
    assert str(path) in raised.value.message
    assert (await store.load("thread")).checkpoint_id == "c2"

    other.execute("ROLLBACK")
    other.close()
    await store.save([save("c3", "c2")])
    assert (await store.load("thread")).checkpoint_id == "c3"
    await store.close()


@pytest.fixture
def notes(path: Path) -> Iterator[Path]:
    text = b"these are my notes, not a database\n" * 100
    path.write_bytes(text)
    yield path
    assert path.read_bytes() == text


async def test_a_file_of_something_else_is_refused_and_left_alone(notes: Path) -> None:
    store = SqliteStore(notes)
    with pytest.raises(ConfigurationError, match="is not an SQLite database"):
        await store.load("thread")
    with pytest.raises(ConfigurationError, match="is not an SQLite database"):
        await store.open()
    await store.close()


@pytest.mark.spec("MEM-29", "OURS-21")
async def test_a_damaged_file_is_an_error_and_not_empty(path: Path, save: SaveMaker) -> None:
    await filled(path, save, count=30)
    damage(path)

    store = SqliteStore(path)
    with pytest.raises(CheckpointError, match="damaged") as raised:
        await store.load("thread")
    await store.close()
    assert not raised.value.retryable
    assert str(path) in raised.value.message


async def test_a_missing_part_of_a_chain_is_an_error(path: Path, save: SaveMaker) -> None:
    store = SqliteStore(path)
    await store.save([save("c0"), save("c1", "c0", kind="delta"), save("c2", "c1", kind="delta")])
    other = sqlite3.connect(path)
    other.execute("DELETE FROM umbel_checkpoints WHERE checkpoint_id = 'c1'")
    other.commit()
    other.close()

    with pytest.raises(CheckpointError, match="1 of the checkpoints it builds on are missing"):
        await store.load("thread")
    await store.save([save("c1", thread_id="sound"), save("c2", "c1", thread_id="sound")])
    freed = await store.collect(CollectGarbage(store="", keep=1))
    assert freed.checkpoints == 1, "the damaged one keeps nobody from it"
    await store.close()


async def test_a_newer_schema_is_refused_by_version(path: Path, save: SaveMaker) -> None:
    await filled(path, save)
    other = sqlite3.connect(path)
    other.execute("UPDATE umbel_schema SET version = 99")
    other.commit()
    other.close()

    store = SqliteStore(path)
    with pytest.raises(SchemaVersionError, match="schema version 99, this Umbel reads 2"):
        await store.save([save("c3", "c2")])
    await store.close()


@pytest.mark.spec("OURS-21")
async def test_a_file_removed_while_in_use_is_an_outage(path: Path, save: SaveMaker) -> None:
    store = SqliteStore(path)
    await store.save([save("c1")])
    assert (await store.load("thread")).checkpoint_id == "c1"
    await asyncio.to_thread(path.unlink)

    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        await store.save([save("c2", "c1")])
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        await store.load("thread")
    await store.close()


async def test_another_applications_tables_are_left_alone(path: Path, save: SaveMaker) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE checkpoints (mine)")
    other.commit()
    await filled(path, save)

    assert other.execute("SELECT count(*) FROM checkpoints").fetchone() == (0,)
    other.close()


def size_of(path: Path) -> int:
    return path.stat().st_size


async def test_the_log_is_moved_into_the_file_behind_the_writers_back(path: Path, save: SaveMaker) -> None:
    store = SqliteStore(path)
    for n in range(60):
        await store.save([save(f"c{n}", f"c{n - 1}" if n else None, state=b'{"messages":["%s"]}' % (b"x" * 100_000))])
    for _ in range(200):
        if size_of(path) > 2_000_000:
            break
        await asyncio.sleep(0.05)
    assert size_of(path) > 2_000_000
    for n in range(60, 300):  # 120 MB in all, and never a pause in which the log could begin anew by itself
        await store.save([save(f"c{n}", f"c{n - 1}", state=b'{"messages":["%s"]}' % (b"x" * 500_000))])
        await asyncio.sleep(0.005)
    assert size_of(path.with_name(path.name + "-wal")) < 80_000_000
    assert (await store.load("thread")).checkpoint_id == "c299"
    await store.close()


async def test_one_that_finds_the_file_locked_waits_without_holding_up_its_event_loop(path: Path, save: SaveMaker) -> None:
    await filled(path, save)
    store = SqliteStore(path)
    await store.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    saving = asyncio.ensure_future(store.save([save("c3", "c2")]))
    await asyncio.sleep(0.1)
    assert not saving.done()
    other.execute("ROLLBACK")
    other.close()
    assert [type(outcome).__name__ for outcome in await saving] == ["CheckpointSaved"]
    await store.close()
