"""The newest checkpoint is the one that was saved last, and what is deleted is gone whole. Whatever the store."""

from __future__ import annotations

import pytest

from umbel.actors.checkpoints import Store
from umbel.actors.checkpoints.conformance.requests import a_save, ids, saved
from umbel.protocol.storage import ListThreads


@pytest.mark.spec("MEM-28", "MEM-34")
async def test_the_newest_checkpoint_is_the_last_one_whatever_its_writers_clock_said(store: Store) -> None:
    await saved(store, a_save("c1", created_at=200.0), a_save("c2", "c1", created_at=100.0))
    assert (await store.load("thread")).checkpoint_id == "c2"
    assert [stored.checkpoint_id for stored in await store.history("thread")] == ["c2", "c1"]
    [thread] = (await store.threads(ListThreads(store=""))).threads
    assert (thread.checkpoint_id, thread.updated_at) == ("c2", 100.0)


@pytest.mark.spec("MEM-28", "MEM-34")
async def test_a_deleted_thread_is_gone_however_long_it_was(store: Store) -> None:
    names = [f"c{number}" for number in range(1_100)]
    await saved(store, *(a_save(name, parent) for name, parent in zip(names, [None, *names], strict=False)))
    await saved(store, a_save("c0", thread_id="other"))
    assert (await store.delete("thread")).existed
    for checkpoint in (None, "c0", names[-1]):
        assert (await store.load("thread", checkpoint)).checkpoint_id is None
    assert await store.history("thread", 2_000) == []
    assert await ids(store) == ["other"]
