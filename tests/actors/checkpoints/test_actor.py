from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from umbel.actors.checkpoints import CheckpointerActor, MemoryStore, SaveOutcome
from umbel.protocol.bundle import Bundle
from umbel.protocol.commands import CheckpointLoaded, CheckpointSaved, Failure, LoadCheckpoint, SaveCheckpoint
from umbel.protocol.errors import (
    CheckpointConflict,
    ConfigurationError,
    RuntimeClosed,
    StaleWriter,
    StoreUnavailable,
    ThreadBusy,
)
from umbel.protocol.storage import RecordCalls, TakeLease

from .conftest import SaveMaker


class GatedStore(MemoryStore):
    """Commits only while the gate is open, and says when a commit has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.failure: Exception | None = None
        self.batches: list[int] = []

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        self.batches.append(len(saves))
        self.begun.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return await super().save(saves)

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        if self.failure is not None:
            raise self.failure
        return await super().load(thread_id, checkpoint_id)


@pytest.fixture
async def actor() -> AsyncIterator[CheckpointerActor]:
    actor = CheckpointerActor()
    yield actor
    await actor.close()


async def test_200_concurrent_saves_share_few_transactions(actor: CheckpointerActor, url: str, save: SaveMaker) -> None:
    async def run(thread_id: str) -> None:
        parent = None
        for step in range(5):
            await actor.save(save(f"c{step}", parent, store=url, thread_id=thread_id))
            parent = f"c{step}"

    await asyncio.gather(*(run(f"thread-{number}") for number in range(200)))
    assert actor.stats()[url] <= 25
    for number in range(200):
        assert (await actor.load(LoadCheckpoint(store=url, thread_id=f"thread-{number}"))).checkpoint_id == "c4"


async def test_what_arrives_during_a_commit_shares_the_next_one(save: SaveMaker) -> None:
    store = GatedStore()
    actor = CheckpointerActor(lambda _: store)
    first = asyncio.create_task(actor.save(save("c1", thread_id="first")))
    await store.begun.wait()
    rest = [asyncio.create_task(actor.save(save("c1", thread_id=str(number)))) for number in range(199)]
    await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(first, *rest)
    await actor.close()

    assert store.batches == [1, 199]


async def test_a_batch_has_a_limit(save: SaveMaker) -> None:
    store = GatedStore()
    store.gate.set()
    actor = CheckpointerActor(lambda _: store)
    await asyncio.gather(*(actor.save(save("c1", thread_id=str(number))) for number in range(2_500)))
    await asyncio.gather(*(actor.save(save("c1", thread_id=f"big-{n}", state=bytes(9 << 20))) for n in range(3)))
    await actor.close()

    assert store.batches == [1_000, 1_000, 500, 2, 1]


async def test_each_caller_of_a_batch_gets_its_own_answer(actor: CheckpointerActor, url: str, save: SaveMaker) -> None:
    outcomes = await asyncio.gather(
        *(actor.save(save(f"c{number}", store=url)) for number in range(10)), return_exceptions=True
    )

    assert outcomes[0] == CheckpointSaved(checkpoint_id="c0")
    assert [type(outcome) for outcome in outcomes[1:]] == [CheckpointConflict] * 9
    assert all(outcome.details["found"] == "c0" for outcome in outcomes if isinstance(outcome, CheckpointConflict))


@pytest.mark.spec("OURS-21", "MEM-31")
@pytest.mark.parametrize("failure", [StoreUnavailable("disk gone"), KeyError("a defect")])
async def test_an_outage_is_an_error_for_everyone_and_passes(save: SaveMaker, failure: Exception) -> None:
    store = GatedStore()
    store.gate.set()
    store.failure = failure
    actor = CheckpointerActor(lambda _: store)
    outcomes = await asyncio.gather(*(actor.save(save("c1", thread_id=str(n))) for n in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 5
    assert len({id(outcome) for outcome in outcomes}) == 5
    with pytest.raises(type(failure)):
        await actor.load(LoadCheckpoint(store="x://", thread_id="0"))

    store.failure = None
    await actor.save(save("c1", thread_id="0"))
    assert (await actor.load(LoadCheckpoint(store="memory://", thread_id="0"))).checkpoint_id == "c1"
    await actor.close()


async def test_a_cancelled_caller_does_not_disturb_its_batch(save: SaveMaker) -> None:
    store = GatedStore()
    actor = CheckpointerActor(lambda _: store)
    tasks = [asyncio.create_task(actor.save(save("c1", thread_id=str(number)))) for number in range(3)]
    await store.begun.wait()
    tasks[1].cancel()
    store.gate.set()
    outcomes: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
    await actor.close()

    saved = CheckpointSaved(checkpoint_id="c1")
    assert [outcomes[0], type(outcomes[1]), outcomes[2]] == [saved, asyncio.CancelledError, saved]


async def test_close_commits_what_was_handed_in(url: str, save: SaveMaker) -> None:
    actor = CheckpointerActor()
    saves = [asyncio.create_task(actor.save(save("c1", store=url, thread_id=str(number)))) for number in range(50)]
    await asyncio.sleep(0)
    await actor.close()
    await actor.close()

    assert [task.result() for task in saves] == [CheckpointSaved(checkpoint_id="c1")] * 50
    with pytest.raises(RuntimeClosed):
        await actor.load(LoadCheckpoint(store=url, thread_id="0"))


async def test_a_url_is_opened_once(save: SaveMaker) -> None:
    opened = []

    def open_store(url: str) -> MemoryStore:
        opened.append(url)
        return MemoryStore()

    actor = CheckpointerActor(open_store)
    for url in ("memory://a", "memory://b", "memory://a"):
        await actor.save(save("c1", store=url))
    assert (await actor.load(LoadCheckpoint(store="memory://a", thread_id="thread"))).checkpoint_id == "c1"
    await actor.close()
    assert opened == ["memory://a", "memory://b"]


async def test_a_wrong_url_is_a_configuration_error(actor: CheckpointerActor, save: SaveMaker) -> None:
    with pytest.raises(ConfigurationError, match="no store is called carrier-pigeon://"):
        await actor.save(save("c1", store="carrier-pigeon://loft"))


@pytest.mark.spec("MEM-27")
def test_one_loop_after_another_but_not_two_at_once(url: str, save: SaveMaker) -> None:
    actor = CheckpointerActor()
    asyncio.run(_save(actor, save("c1", store=url)))
    asyncio.run(_save(actor, save("c2", "c1", store=url)))

    async def two_loops() -> None:
        await _save(actor, save("c3", "c2", store=url))
        with pytest.raises(ConfigurationError, match="one event loop"):
            await asyncio.to_thread(asyncio.run, _save(actor, save("c4", "c3", store=url)))
        await actor.close()

    asyncio.run(two_loops())


async def _save(actor: CheckpointerActor, save: SaveCheckpoint) -> None:
    await actor.save(save)


@pytest.mark.spec("OURS-15")
@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
async def test_a_thread_is_loaded_and_leased_at_once_and_given_back_with_a_save(scheme: str, tmp_path: Path) -> None:
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/t.db"
    actor = CheckpointerActor()
    taken = await actor.load(LoadCheckpoint(store=url, thread_id="t", owner="one", seconds=60.0))
    assert taken.checkpoint_id is None and taken.token > 0
    with pytest.raises(ThreadBusy, match="'one'"):
        await actor.load(LoadCheckpoint(store=url, thread_id="t", owner="two", seconds=60.0))
    save = SaveCheckpoint(store=url, thread_id="t", checkpoint_id="c1", state=b"{}", token=taken.token, release="one")
    await actor.save(save)
    again = await actor.load(LoadCheckpoint(store=url, thread_id="t", owner="two", seconds=60.0))
    assert again.checkpoint_id == "c1" and again.token > taken.token
    with pytest.raises(StaleWriter):
        await actor.save(save.evolve(checkpoint_id="c2", parent_id="c1"))
    await actor.save(save)  # sent again: it is stored, and the new owner keeps the lease
    with pytest.raises(ThreadBusy, match="'two'"):
        await actor.lease(TakeLease(store=url, thread_id="t", owner="three", seconds=60.0))
    await actor.close()


class Unsafe(MemoryStore):
    """Says what is wrong with it."""

    opened = 0

    async def open(self) -> None:
        self.opened += 1
        if self.opened == 1:
            raise StoreUnavailable("away")

    async def warnings(self) -> list[str]:
        return ["it is only memory; do something"]


async def test_what_can_lose_checkpoints_is_told_once(save: SaveMaker, caplog: pytest.LogCaptureFixture) -> None:
    store = Unsafe()
    for told in (0, 1):
        actor = CheckpointerActor(lambda _: store)
        await asyncio.gather(*(actor.save(save("c1", store="unsafe://", thread_id=f"{told}{n}")) for n in range(3)))
        await actor.load(LoadCheckpoint(store="unsafe://", thread_id="00"))
        assert [record.message for record in caplog.records] == ["it is only memory; do something"] * told
    assert store.opened == 2, "once for each actor"
    await actor.close()


async def test_a_bundle_is_answered_part_by_part(actor: CheckpointerActor, url: str, save: SaveMaker) -> None:
    first = save("c0", store=url)
    load = LoadCheckpoint(store=url, thread_id="thread", owner="me", seconds=30.0)
    parts = [first, save("c1", "nowhere", store=url), save("d0", store=url, thread_id="other"), first.evolve(store="no://")]
    replies = (await actor.bundle(Bundle.of([*parts, RecordCalls(store=url, thread_id="other")]))).messages()
    assert [reply.code if isinstance(reply, Failure) else type(reply).__name__ for reply in replies] == [
        "CheckpointSaved",
        CheckpointConflict.code,
        "CheckpointSaved",
        ConfigurationError.code,
        "CallsRecorded",
    ]
    leased = (await actor.bundle(Bundle.of([load, load.evolve(owner="another")]))).messages()
    assert {type(reply) for reply in leased} == {CheckpointLoaded, Failure}, "one of the two has the thread"
    assert (await actor.load(LoadCheckpoint(store=url, thread_id="thread"))).checkpoint_id == "c0"
