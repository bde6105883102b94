"""A disk that is full: what is stored stays, and saving goes on once there is room."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from umbel.actors.checkpoints import CheckpointerActor, open_store
from umbel.actors.checkpoints.conformance.requests import a_record, a_save, begun
from umbel.protocol.commands import LoadCheckpoint, SaveCheckpoint
from umbel.protocol.errors import StoreUnavailable

FILL = """
import asyncio, resource, sys
from umbel.actors.checkpoints import open_store
from umbel.actors.checkpoints.conformance.requests import a_save
from umbel.protocol.errors import StoreUnavailable

async def main(url):
    store = open_store(url)
    await store.open()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    parent = None
    for n in range(1_000):
        save = a_save(f"c{n}", parent, state=b'{"messages":["%s"]}' % (b"x" * (10_000 + 1_000 * n)))
        try:
            [outcome] = await store.save([save])
        except StoreUnavailable as error:
            print("full", error.message)
            break
        parent = save.checkpoint_id
    print("loaded", (await store.load("thread")).checkpoint_id, parent)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print("again", *[outcome.checkpoint_id for outcome in await store.save([save])])
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.spec("OURS-21", "OURS-22")
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_a_full_disk_is_an_outage_that_loses_nothing(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}:///{tmp_path}/store"
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", FILL, url], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    full, loaded, again = done.stdout.splitlines()
    assert full.startswith("full ") and str(tmp_path) in full
    assert "full" in full[5:] or "no space" in full, "what to do about it"
    _, newest, parent = loaded.split()
    assert newest == parent != "None"
    assert again == f"again c{int(newest[1:]) + 1}"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("there is no mount command: a small file system cannot be made")
    command = [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here (it takes root): {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path, room: int) -> Path:
    """Leave no more than ``room`` bytes; gives the file that takes the rest."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            with suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass
    assert shutil.disk_usage(disk).free == 0
    os.truncate(ballast, ballast.stat().st_size - room)
    return ballast


def says_what_to_do(message: str, url: str) -> None:
    assert "full" in message or "no space left" in message
    assert "free" in message and url.split("///")[1] in message


async def grow(actor: CheckpointerActor, url: str, thread: str, stored: dict[str, list[str]]) -> SaveCheckpoint:
    """Save steps of 5 kB until there is no more room; gives the one that was refused. ``stored`` is what was acknowledged."""
    for _ in range(1_000):
        line = stored.setdefault(thread, [])
        number, parent = len(line), line[-1] if line else None
        state = b'{"messages":["%s %d %s"]}' % (thread.encode(), number, b"x" * 5_000)
        kind = "delta" if line else "snapshot"
        step = a_save(f"{thread}{number}", parent, store=url, thread_id=thread, kind=kind, base=number, state=state)
        try:
            await actor.save(step)
        except StoreUnavailable as error:
            says_what_to_do(error.message, url)
            return step
        line.append(step.checkpoint_id)
    raise AssertionError("the disk was never full")


async def check(url: str, stored: dict[str, list[str]]) -> None:
    """A store that is opened now, as by another process, has exactly what was acknowledged."""
    store = open_store(url)
    for thread, line in stored.items():
        history = await store.history(thread, 10_000)
        assert [found.checkpoint_id for found in reversed(history)] == line, thread
        state = (await store.load(thread)).state or b"[]"
        assert [state.count(b"%s %d " % (thread.encode(), number)) for number in range(len(line))] == [1] * len(line)
    await store.close()


@pytest.mark.spec("OURS-21", "OURS-22")
@pytest.mark.parametrize("room", [0, 300_000])
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_a_disk_without_room_loses_nothing(disk: Path, scheme: str, room: int) -> None:
    url = f"{scheme}:///{disk}/store"
    actor = CheckpointerActor()
    stored: dict[str, list[str]] = {}
    for thread in ("a", "b"):
        first = a_save(f"{thread}0", store=url, thread_id=thread, state=b'{"messages":["%s 0 "]}' % thread.encode())
        await actor.save(first)
        stored[thread] = [first.checkpoint_id]
    ballast = fill(disk, room)
    refused = [await grow(actor, url, thread, stored) for thread in ("a", "new", "b")]
    stored = {thread: line for thread, line in stored.items() if line}
    assert (len(stored["a"]) > 10) == (room > 0)
    entries = tuple(begun("x" * 4_000 + str(number)) for number in range(100))
    with pytest.raises(StoreUnavailable):
        await actor.record(a_record(*entries, thread_id="a").evolve(store=url))
    await check(url, stored)
    newest = stored["b"][-1]
    end = a_save("end", newest, store=url, thread_id="b", state=b"x" * 100_000, supersedes=len(stored["b"]), onto=None)
    with pytest.raises(StoreUnavailable):
        await actor.save(end)
    assert (await actor.load(LoadCheckpoint(store=url, thread_id="b"))).checkpoint_id == newest
    await check(url, stored)

    ballast.unlink()
    for step in refused:
        await actor.save(step)
        stored.setdefault(step.thread_id, []).append(step.checkpoint_id)
    await actor.close()
    await check(url, stored)
