"""A disk that is full: what is stored stays, and saving goes on once there is room."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

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
