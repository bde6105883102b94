"""A write that arrives late, after its run was cancelled or its thread deleted, changes nothing. Whatever the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from umbel.actors.checkpoints import CheckpointerActor, Store, open_store
from umbel.actors.checkpoints.conformance.requests import LONG, STORE, a_record, a_save, begun, ids, saved, take
from umbel.actors.checkpoints.store import Write, WriteOutcome
from umbel.protocol.commands import SaveCheckpoint
from umbel.protocol.errors import CheckpointConflict, StaleWriter
from umbel.protocol.storage import TakeLease

pytestmark = [pytest.mark.case(16), pytest.mark.spec("OURS-15", "OURS-23")]


@dataclass
class SlowDisk:
    """The store as a process with a slow disk sees it: its writes wait at the gate, everything else passes."""

    store: Store
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    async def commit(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        self.waiting.set()
        await self.gate.wait()
        return await self.store.commit(writes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@dataclass
class Scene:
    """A thread with one checkpoint of run A, whose second write is under way and slow."""

    store: Store
    disk: SlowDisk
    actor: CheckpointerActor
    token: int

    async def hand_in(self, *writes: Write) -> list[asyncio.Task[Any]]:
        """Hand writes to the slow process."""
        tasks = [asyncio.create_task(self._write(write)) for write in writes]
        await self.disk.waiting.wait()
        return tasks

    async def _write(self, write: Write) -> Any:
        return await (self.actor.save(write) if isinstance(write, SaveCheckpoint) else self.actor.record(write))


@pytest.fixture(params=["with a lease", "without"])
async def scene(request: pytest.FixtureRequest, store: Store) -> AsyncIterator[Scene]:
    disk = SlowDisk(store)
    actor = CheckpointerActor(lambda _: disk)  # type: ignore[arg-type, return-value]
    token = 0
    if request.param == "with a lease":
        token = (await actor.lease(TakeLease(store=STORE, thread_id="thread", owner="run-a", seconds=LONG))).token
    await saved(store, a_save("a1", token=token, state=b'{"messages":["a1"]}'))
    yield Scene(store, disk, actor, token)
    disk.gate.set()
    await actor.close()


async def test_a_cancelled_runs_late_write_does_not_replace_the_next_runs(scene: Scene) -> None:
    late = a_save("a2", "a1", token=scene.token, settles=True, entries=(begun("a"),))
    [write, record] = await scene.hand_in(late, a_record(begun("late"), token=scene.token))
    write.cancel()  # run A is cancelled: nobody waits any more, but the write is on its way

    lease = await take(scene.store, "run-b", steal=True)
    for n, parent in ((1, "a1"), (2, "b1")):
        await saved(scene.store, a_save(f"b{n}", parent, token=lease.token, state=b'{"messages":["b"]}'))
    scene.disk.gate.set()
    outcomes = await asyncio.gather(write, record, return_exceptions=True)
    await scene.actor._commits[STORE].flush()

    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, StaleWriter]
    assert [entry.checkpoint_id for entry in await scene.store.history("thread")] == ["b2", "b1", "a1"]
    loaded = await scene.store.load("thread")
    assert (loaded.state, loaded.journal, loaded.token) == (b'{"messages":["b"]}', (), lease.token)


async def test_a_late_write_does_not_revive_a_deleted_thread(scene: Scene) -> None:
    tasks = await scene.hand_in(
        a_save("a2", "a1", token=scene.token), a_save("new", token=scene.token), a_record(begun("late"), token=scene.token)
    )
    assert (await scene.store.delete("thread")).existed
    scene.disk.gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [StaleWriter] * 3
    assert (await scene.store.load("thread")).checkpoint_id is None
    assert await ids(scene.store) == []
    assert await scene.store.history("thread") == []


async def test_a_late_write_does_not_mix_into_a_thread_that_was_deleted_and_begun_anew(scene: Scene) -> None:
    tasks = await scene.hand_in(a_save("a2", "a1", token=scene.token), a_save("a1", token=scene.token))
    await scene.store.delete("thread")
    lease = await take(scene.store, "run-b")
    await saved(scene.store, a_save("b1", token=lease.token, state=b'{"messages":["b"]}'))
    scene.disk.gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(outcome, StaleWriter | CheckpointConflict) for outcome in outcomes)
    assert [entry.checkpoint_id for entry in await scene.store.history("thread")] == ["b1"]


async def test_the_late_write_of_an_outage_is_safe_to_repeat(url: str) -> None:
    """The writer gave up waiting, the write was done all the same: it is told so, even if the lease is another's by now."""
    store = open_store(url)
    lease = await take(store, "run-a")
    save = a_save("a1", token=lease.token)
    await saved(store, save)
    await take(store, "run-b", steal=True)
    await saved(store, save)
    await store.close()
