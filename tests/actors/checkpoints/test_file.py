"""What only a directory can suffer: killed writers, torn files, strangers, locks, a full disk."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from umbel.actors.checkpoints import FileStore
from umbel.actors.checkpoints.conformance.requests import a_save, begun, garbage, ids, saved, take
from umbel.actors.checkpoints.file_record import ThreadRecord
from umbel.actors.checkpoints.file_thread import ThreadFolder
from umbel.protocol.commands import CheckpointLoaded, CheckpointSaved
from umbel.protocol.errors import CheckpointError, ConfigurationError, SchemaVersionError, StoreUnavailable

from .conftest import Start


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def found(path: Path, pattern: str) -> list[Path]:
    return sorted(path.glob(pattern))


async def filled(path: Path, count: int = 3) -> Path:
    """A store with one thread, and that thread's folder."""
    store = FileStore(path)
    for n in range(count):
        parent, kind = (f"c{n - 1}", "delta") if n else (None, "snapshot")
        await saved(store, a_save(f"c{n}", parent, kind=kind, base=n, state=b'{"messages":[%d]}' % n))
    await store.close()
    [record] = found(path, "threads/*/*/thread.json")
    return record.parent


async def test_a_directory_is_reopened(path: Path) -> None:
    await filled(path)
    store = FileStore(path)
    await saved(store, a_save("c3", "c2", kind="delta", base=3, state=b'{"messages":[3]}'))
    assert (await store.load("thread")).state == b'{"messages":[0,1,2,3]}'
    assert len(await store.history("thread")) == 4
    await store.close()


@pytest.mark.spec("MEM-30", "BUG-51")
async def test_ids_that_differ_only_in_punctuation_share_no_folder(path: Path) -> None:
    names = ["a#1", "a_1", "a/1", "../a", "..", "A_1", "a\x001", "x" * 5_000]
    store = FileStore(path)
    await saved(store, *(a_save("c1", thread_id=name) for name in names))
    await store.close()
    assert len(found(path, "threads/*/*/thread.json")) == len(names)
    assert found(path.parent, "*") == [path], "nothing leads out of the directory"


@pytest.mark.spec("BUG-52", "OURS-22", "MEM-29")
async def test_a_killed_writer_loses_nothing_it_acknowledged(path: Path, start: Start) -> None:
    writer = start(f"file:///{path}?synchronous=normal", "thread", "w", 1_000_000, "append")
    assert writer.stdout is not None
    lines = [await asyncio.to_thread(writer.stdout.readline) for _ in range(60)]
    writer.send_signal(signal.SIGKILL)
    rest, _ = await asyncio.to_thread(writer.communicate)
    acknowledged = [line.split()[2] for line in [*lines, *rest.splitlines(keepends=True)] if line.endswith("\n")]

    store = FileStore(path)
    newest = await store.load("thread")
    stored = [entry.checkpoint_id for entry in reversed(await store.history("thread", limit=1_000_000))]
    assert len(acknowledged) >= 60
    assert stored[: len(acknowledged)] == acknowledged
    assert len(stored) <= len(acknowledged) + 1
    assert (newest.state or b"").count(b'"role"') == len(stored)
    await saved(store, a_save("after", stored[-1]))
    await store.close()


async def test_what_a_killed_writer_left_half_done_does_not_count_and_goes(path: Path) -> None:
    folder = await filled(path)
    left = folder / f"00000004-{'a' * 40}.checkpoint"
    left.write_bytes(b"torn")
    (folder / ".thread.json.1.2.tmp").write_bytes(b"torn")
    store = FileStore(path)
    assert (await store.load("thread")).checkpoint_id == "c2"
    assert len(await store.history("thread")) == 3
    await saved(store, a_save("c3", "c2"))
    assert [entry.checkpoint_id for entry in await store.history("thread")] == ["c3", "c2", "c1", "c0"]
    await store.close()
    assert not left.exists()
    assert not list(folder.glob("*.tmp")) + list(folder.glob(".*.tmp"))


@pytest.mark.parametrize(("step", "stored"), [("before", ["c2", "c1", "c0"]), ("after", ["end", "c0"])])
async def test_a_writer_killed_while_it_supersedes_leaves_one_line_or_the_other(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, stored: list[str]
) -> None:
    await filled(path)
    end = a_save("end", "c2", kind="delta", base=1, state=b'{"messages":["end"]}', supersedes=2, onto="c0")
    name = "_put" if step == "before" else "_clean"  # before thread.json says so; or after, and nothing was removed yet
    works, calls = getattr(ThreadFolder, name), itertools.count(1)

    def killed(folder: ThreadFolder, record: ThreadRecord) -> Any:
        if next(calls) == (1 if step == "before" else 2):
            raise ConnectionAbortedError
        return works(folder, record)

    store = FileStore(path)
    with monkeypatch.context() as patch:
        patch.setattr(ThreadFolder, name, killed)
        with pytest.raises(StoreUnavailable):
            await store.save([end])
    assert len(found(path, "threads/*/*/*.checkpoint")) == 4, "the old ones and the new one are there"
    assert [entry.checkpoint_id for entry in await store.history("thread")] == stored
    expected = {"c2": b'{"messages":[0,1,2]}', "end": b'{"messages":[0,"end"]}'}
    assert (await store.load("thread")).state == expected[stored[0]]
    await saved(store, end)
    await saved(store, a_save("next", "end", kind="delta", base=2, state=b'{"messages":["next"]}'))
    assert (await store.load("thread")).state == b'{"messages":[0,"end","next"]}'
    assert len(found(path, "threads/*/*/*.checkpoint")) == 3
    await store.close()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


@pytest.mark.spec("MEM-29", "OURS-21", "OURS-22")
@pytest.mark.parametrize("damage", [cut, empty, flip, Path.unlink])
@pytest.mark.parametrize("pattern", ["00000001-*", "00000002-*", "thread.json"])
async def test_damage_is_an_error_that_names_the_file_and_not_an_empty_thread(
    path: Path, damage: Callable[[Path], None], pattern: str
) -> None:
    folder = await filled(path)
    [file] = folder.glob(pattern)
    damage(file)
    store = FileStore(path)
    with pytest.raises(CheckpointError, match=r"damaged") as raised:
        await store.load("thread")
    assert str(folder) in raised.value.message
    assert not raised.value.retryable
    if pattern == "thread.json":
        with pytest.raises(CheckpointError, match=r"damaged"):
            await store.save([a_save("c0")])
        with pytest.raises(CheckpointError, match=r"damaged"):
            await take(store, "a")
    await saved(store, a_save("c0", thread_id="another"), a_save("c1", "c0", thread_id="another"))
    assert (await store.collect(garbage(keep=1))).checkpoints == 1, "the damaged one keeps nobody from it"
    await store.close()


async def test_a_damaged_or_locked_thread_does_not_disturb_others_that_are_written_with_it(path: Path) -> None:
    folder = await filled(path)
    store = FileStore(path, timeout=0.05)
    with (folder / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        locked, sound = await store.save([a_save("c3", "c2"), a_save("c0", thread_id="another")])
    assert isinstance(locked, StoreUnavailable) and sound == CheckpointSaved(checkpoint_id="c0")
    cut(folder / "thread.json")
    damaged, sound = await store.save([a_save("c3", "c2"), a_save("c1", "c0", thread_id="another")])
    assert isinstance(damaged, CheckpointError) and "damaged" in damaged.message
    assert sound == CheckpointSaved(checkpoint_id="c1")
    await store.close()


async def test_a_lost_or_changed_text_is_an_error(path: Path) -> None:
    digest = "d" * 64
    state = b'{"messages":[{"role":"system","content":"umbel-static:%s"}]}' % digest.encode()
    store = FileStore(path)
    await saved(store, a_save("c1", state=state, statics={digest: "text"}))
    [text] = (file for file in (path / "texts").iterdir() if file.name != "lock")
    flip(text)
    with pytest.raises(CheckpointError, match="damaged"):
        await store.load("thread")
    await asyncio.to_thread(text.unlink)
    with pytest.raises(CheckpointError, match="is missing"):
        await store.load("thread")
    await store.close()


async def test_a_directory_removed_while_in_use_is_an_outage(path: Path, tmp_path: Path) -> None:
    await filled(path)
    store = FileStore(path)
    assert (await store.load("thread")).checkpoint_id == "c2"
    await asyncio.to_thread(path.rename, tmp_path / "elsewhere")
    for replaced in (False, True):
        if replaced:
            await asyncio.to_thread(path.mkdir)
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await store.load("thread")
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await store.save([a_save("c3", "c2")])
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await take(store, "a")
    await store.close()


async def test_a_directory_of_something_else_is_refused_and_left_alone(path: Path) -> None:
    await asyncio.to_thread(path.mkdir)
    (path / "notes.txt").write_text("mine")
    store = FileStore(path)
    with pytest.raises(ConfigurationError, match=r"neither empty nor a store: it holds 'notes\.txt'"):
        await store.open()
    await store.close()
    assert found(path, "*") == [path / "notes.txt"]


async def test_a_newer_format_is_refused_by_version(path: Path) -> None:
    await filled(path)
    marker = path / "umbel-store"
    marker.write_bytes(marker.read_bytes().replace(b"umbel1 ", b"umbel2 "))
    store = FileStore(path)
    with pytest.raises(SchemaVersionError, match="another version of Umbel"):
        await store.load("thread")
    await store.close()


@pytest.mark.spec("OURS-21")
async def test_a_thread_that_another_process_holds_for_long_is_unavailable(path: Path) -> None:
    folder = await filled(path)
    store = FileStore(path, timeout=0.05)
    with (folder / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="locked by another process") as raised:
            await store.save([a_save("c3", "c2")])
        with pytest.raises(StoreUnavailable, match="locked by another process"):
            await store.load("thread")
        await saved(store, a_save("c1", thread_id="another"))
    assert raised.value.retryable
    await saved(store, a_save("c3", "c2"))
    await store.close()


async def test_a_thread_whose_forgetting_was_cut_short_is_forgotten_again(path: Path) -> None:
    """As in containers, where every process has the same id."""
    folder = await filled(path)
    for left in (folder.with_name(f"{folder.name}.{os.getpid()}.tmp"), folder.with_name(f"{folder.name}.7.tmp")):
        await asyncio.to_thread(shutil.copytree, folder, left)
    store = FileStore(path)
    assert await ids(store) == ["thread"]
    await store.delete("thread")
    assert (await store.collect(garbage(tombstones=0.0))).tombstones == 1
    assert found(path, "threads/*/*") == []
    await store.close()


async def test_a_forgotten_thread_leaves_no_folder(path: Path) -> None:
    store = FileStore(path)
    await saved(store, a_save("c1", entries=(begun("1"),)))
    await store.delete("thread")
    assert found(path, "threads/*/*/*.checkpoint") == []
    await store.collect(garbage(tombstones=0.0))
    assert found(path, "threads/*/*") == []
    assert await store.load("thread") == CheckpointLoaded()
    await store.close()
