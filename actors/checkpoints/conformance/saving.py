"""Saving and loading: exact, in a line, one winner for each parent."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from ....protocol.commands import CheckpointLoaded, CheckpointSaved
from ....protocol.errors import CheckpointConflict, CheckpointError, NotStorable, StoreUnavailable
from ..store import Store
from .requests import a_record, a_save, done, saved


class Saving:
    """Saves, loads and history."""

    async def test_a_new_thread_is_empty(self, store: Store) -> None:
        assert await store.load("nobody") == CheckpointLoaded()
        assert await store.history("nobody") == []

    async def test_what_was_saved_is_loaded(self, store: Store) -> None:
        state = json.dumps({"messages": [{"role": "user", "content": "naïve 😀 \x00 \ufffd"}]}, ensure_ascii=False).encode()
        metadata = {"finished": True, "ünï": [1, 2.5, None, {"deep": "é"}]}
        outcomes = await store.save([a_save("c1", state=state, metadata=metadata, created_at=1234.5678)])

        assert outcomes == [CheckpointSaved(checkpoint_id="c1")]
        expected = CheckpointLoaded(checkpoint_id="c1", state=state, metadata=metadata, created_at=1234.5678)
        assert await store.load("thread") == expected
        assert await store.load("thread", "c1") == expected
        assert await store.load("thread", "c2") == CheckpointLoaded()

    async def test_threads_are_told_apart_by_every_character(self, store: Store) -> None:
        names = ["a#1", "a_1", "A_1", "a/1", "a/../1", "a 1", "", "é", "e\u0301", "%61_1", "a\x001", "*", "x" * 2_000]
        await store.save([a_save("same-id", thread_id=name, state=json.dumps({"messages": [name]}).encode()) for name in names])

        for name in names:
            assert json.loads((await store.load(name)).state or b"") == {"messages": [name]}

    async def test_history_is_newest_first_and_without_states(self, store: Store) -> None:
        await store.save([a_save(f"c{n}", f"c{n - 1}" if n else None, metadata={"n": n}, created_at=n) for n in range(12)])

        newest = await store.history("thread")
        assert [entry.checkpoint_id for entry in newest] == [f"c{n}" for n in range(11, 1, -1)]
        assert [entry.metadata["n"] for entry in await store.history("thread", limit=2)] == [11, 10]
        assert [entry.parent_id for entry in await store.history("thread", limit=100)] == [
            *(f"c{n}" for n in range(10, -1, -1)),
            None,
        ]
        assert {entry.state for entry in newest} == {None}
        assert await store.history("thread", limit=0) == []

    async def test_the_newest_is_the_last_saved_whatever_the_clocks_say(self, store: Store) -> None:
        await store.save([a_save("c1", created_at=2_000.0)])
        await store.save([a_save("c2", "c1", created_at=1_000.0)])

        assert (await store.load("thread")).checkpoint_id == "c2"

    @pytest.mark.parametrize(("parent", "found"), [(None, "c2"), ("c1", "c2"), ("never", "c2")])
    async def test_a_save_on_another_parent_than_the_newest_is_a_conflict(
        self, store: Store, parent: str | None, found: str
    ) -> None:
        await store.save([a_save("c1"), a_save("c2", "c1")])
        [outcome] = await store.save([a_save("c3", parent)])

        assert isinstance(outcome, CheckpointConflict)
        assert outcome.details == {"thread_id": "thread", "expected": parent, "found": found}
        assert "'thread'" in outcome.message
        assert (await store.load("thread")).checkpoint_id == "c2"

    async def test_a_parent_in_a_thread_without_checkpoints_is_a_conflict(self, store: Store) -> None:
        [outcome] = await store.save([a_save("c2", "c1")])

        assert isinstance(outcome, CheckpointConflict)
        assert outcome.details["found"] is None

    async def test_saving_an_id_again_changes_nothing(self, store: Store) -> None:
        first = a_save("c1", state=b'{"messages":[1]}')
        await store.save([first, a_save("c2", "c1")])
        again = [first, a_save("c2", "c1", state=b'{"messages":["other"]}'), a_save("c1", "c2")]

        assert [type(outcome) for outcome in await store.save(again)] == [CheckpointSaved] * 3
        assert [entry.checkpoint_id for entry in await store.history("thread")] == ["c2", "c1"]
        assert (await store.load("thread")).state == b'{"messages":[]}'

    async def test_one_refused_save_leaves_its_batch_alone(self, store: Store) -> None:
        outcomes = await store.save(
            [
                a_save("a1", thread_id="a"),
                a_save("b2", "b1", thread_id="b"),
                a_save("a2", "a1", thread_id="a"),
                a_save("d1", None, thread_id="d", kind="delta"),
                a_save("e\ud83d", thread_id="e"),
                a_save("f1", thread_id="f"),
            ]
        )

        kinds = [CheckpointSaved, CheckpointConflict, CheckpointSaved, NotStorable, NotStorable, CheckpointSaved]
        assert [type(outcome) for outcome in outcomes] == kinds
        assert (await store.load("a")).checkpoint_id == "a2"
        assert (await store.load("f")).checkpoint_id == "f1"
        assert store.commits == 1

    async def test_an_id_that_is_no_unicode_is_refused_and_not_absent(self, store: Store) -> None:
        [outcome] = await store.save([a_save("c1", thread_id="\ud83d")])
        assert isinstance(outcome, NotStorable)
        with pytest.raises(NotStorable, match="not valid Unicode"):
            await store.load("\ud83d")

    async def test_deltas_are_folded(self, store: Store) -> None:
        await store.save([a_save("c0", state=b'{"messages":[0],"iteration":0,"agent":"x"}')])
        for n in range(1, 300):
            state = b'{"messages":[%d],"iteration":%d}' % (n, n)
            await store.save([a_save(f"c{n}", f"c{n - 1}", kind="delta", base=n, state=state)])

        newest = await store.load("thread")
        assert json.loads(newest.state or b"") == {"messages": list(range(300)), "iteration": 299, "agent": "x"}
        assert newest.depth == 299
        middle = await store.load("thread", "c7")
        assert json.loads(middle.state or b"") == {"messages": list(range(8)), "iteration": 7, "agent": "x"}

    async def test_a_snapshot_ends_the_chain(self, store: Store) -> None:
        delta = {"kind": "delta", "base": 1, "state": b'{"messages":[2]}'}
        await store.save([a_save("c1", state=b'{"messages":[1]}'), a_save("c2", "c1", **delta)])
        await store.save([a_save("c3", "c2", state=b'{"messages":[3]}'), a_save("c4", "c3", **delta)])

        newest = await store.load("thread")
        assert (newest.depth, json.loads(newest.state or b"")) == (1, {"messages": [3, 2]})

    @pytest.mark.parametrize(
        "state", [b"", b"{", b"[]", b'{"messages":3}', b'{"messages":[1],"_chain":{"bases":{"errors":9}},"errors":[]}', b"\xff"]
    )
    async def test_a_damaged_delta_is_an_error_and_not_another_state(self, store: Store, state: bytes) -> None:
        await store.save([a_save("c1"), a_save("c2", "c1", kind="delta", base=0, state=state)])

        with pytest.raises(CheckpointError, match="'c2' of thread 'thread'") as raised:
            await store.load("thread")
        assert not raised.value.retryable
        assert (await store.load("thread", "c1")).checkpoint_id == "c1"

    async def test_a_state_over_the_limit_is_refused_for_good_with_sizes(self, store: Store) -> None:
        store.max_bytes = 1_000_000
        big = "x" * 2_000_000
        saves = [
            a_save("big", state=big.encode()),
            a_save("static", statics={"0" * 64: big}),
            a_save("entries", entries=(done("call", big),)),
        ]
        for outcome in [*await store.save(saves), *await store.record([a_record(done("call", big))])]:
            assert isinstance(outcome, NotStorable)
            assert not outcome.retryable
            assert outcome.details["limit"] == 1_000_000
            assert 2_000_000 <= outcome.details["size"] < 2_001_000
        assert await store.load("thread") == CheckpointLoaded()
        await saved(store, a_save("small"))

    async def test_every_byte_of_a_state_comes_back(self, store: Store) -> None:
        state = bytes(range(256)) * 3 + b"\x00\r\n"
        await saved(store, a_save("c1", state=state), a_save("empty", thread_id="empty", state=b""))
        assert (await store.load("thread")).state == state
        assert (await store.load("empty")).state == b""

    async def test_of_many_tasks_one_wins_each_parent(self, store: Store) -> None:
        parent: str | None = None
        for step in range(10):
            outcomes = await asyncio.gather(*(store.save([a_save(f"{step}-{writer}", parent)]) for writer in range(20)))
            winners = [outcome.checkpoint_id for [outcome] in outcomes if isinstance(outcome, CheckpointSaved)]
            assert len(winners) == 1
            parent = winners[0]
        assert len(await store.history("thread", limit=100)) == 10

    async def test_of_many_threads_with_loops_of_their_own_one_wins_each_parent(self, store: Store) -> None:
        wins: list[tuple[str | None, str]] = []
        barrier = threading.Barrier(4)

        async def race(writer: int) -> None:
            for step in range(25):
                parent = (await store.load("thread")).checkpoint_id
                [outcome] = await store.save([a_save(f"{writer}-{step}", parent)])
                if isinstance(outcome, CheckpointSaved):
                    wins.append((parent, outcome.checkpoint_id))

        def thread(writer: int) -> None:
            barrier.wait()
            asyncio.run(race(writer))

        await asyncio.gather(*(asyncio.to_thread(thread, writer) for writer in range(4)))
        line = [(entry.parent_id, entry.checkpoint_id) for entry in await store.history("thread", limit=1_000)]
        assert sorted(wins, key=str) == sorted(line, key=str)
        assert len({parent for parent, _ in line}) == len(line)

    async def test_a_closed_store_is_unavailable_and_not_empty(self, store: Store) -> None:
        await store.save([a_save("c1")])
        await store.close()
        await store.close()

        with pytest.raises(StoreUnavailable):
            await store.load("thread")
        with pytest.raises(StoreUnavailable):
            await store.history("thread")
        with pytest.raises(StoreUnavailable):
            await store.save([a_save("c2", "c1")])
