"""What the stores in files have in common: places where they cannot be, and processes that make one at once."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from umbel.actors.checkpoints import open_store
from umbel.protocol.errors import ConfigurationError

from .conftest import Start


@pytest.mark.parametrize(
    ("scheme", "place"), [("sqlite", "folder"), ("sqlite", "file/t.db"), ("file", "file"), ("file", "file/store")]
)
async def test_a_path_that_cannot_be_is_a_configuration_error(tmp_path: Path, scheme: str, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    store = open_store(f"{scheme}:///{tmp_path}/{place}")
    with pytest.raises(ConfigurationError, match=rf"checkpointer='{scheme}:///") as raised:
        await store.open()
    await store.close()
    assert str(tmp_path) in raised.value.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_a_directory_without_permission_is_a_configuration_error(protected: Path, scheme: str) -> None:
    store = open_store(f"{scheme}:///{protected}/store")
    with pytest.raises(ConfigurationError, match="check its permissions"):
        await store.open()
    await store.close()


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_processes_may_create_it_at_once(tmp_path: Path, start: Start, scheme: str) -> None:
    writers = [start(f"{scheme}:///{tmp_path}/store", f"thread-{n}", "w", 1, "append") for n in range(4)]
    outputs = await asyncio.gather(*(asyncio.to_thread(writer.communicate) for writer in writers))
    assert [output for output, _ in outputs] == ["saved None w-0\n"] * 4
