"""Threads in a list, texts that are stored once, and what a store gives back: retention and garbage."""

from __future__ import annotations

import json
import time

import pytest

from ....protocol.commands import CheckpointLoaded
from ....protocol.errors import ConfigurationError, StaleWriter
from ....protocol.storage import ListThreads
from ..static_parts import MARK
from ..store import Store
from .requests import STORE, a_record, a_save, begun, garbage, give_back, ids, recorded, refused, saved, take

TEXT = "You are a careful assistant. " * 100
DIGEST = "d" * 64


def referring(digest: str = DIGEST) -> bytes:
    """A state that refers to a text."""
    return json.dumps({"messages": [{"role": "system", "content": MARK + digest}]}).encode()


async def write_line(store: Store, count: int, thread_id: str = "thread", **fields: object) -> None:
    """A thread with a snapshot and deltas; its message n is the number n."""
    for n in range(count):
        state = b'{"messages":[%d],"iteration":%d}' % (n, n)
        kind = "delta" if n else "snapshot"
        parent = f"c{n - 1}" if n else None
        save = a_save(f"c{n}", parent, thread_id=thread_id, kind=kind, base=n, state=state, metadata={"n": n}, **fields)
        await saved(store, save)


async def whole(store: Store, checkpoint_id: str | None = None, thread_id: str = "thread") -> object:
    """A loaded state as JSON."""
    return json.loads((await store.load(thread_id, checkpoint_id)).state or b"null")


class Keeping:
    """Lists, texts, retention."""

    async def test_threads_are_listed_in_order_by_prefix_and_page(self, store: Store) -> None:
        names = ["b", "a", "a/2", "a/1", "a%", "a_1", "ab", "é", "Z", "a*"]
        await saved(store, *(a_save("c1", thread_id=name) for name in names))

        assert await ids(store) == sorted(names)
        assert await ids(store, prefix="a/") == ["a/1", "a/2"]
        assert await ids(store, prefix="a_") == ["a_1"]
        assert await ids(store, prefix="a%") == ["a%"]
        assert await ids(store, prefix="a*") == ["a*"]
        assert await ids(store, prefix="A") == []
        assert await ids(store, limit=0) == []
        pages, last = [], ""
        while page := await ids(store, prefix="a", after=last, limit=2):
            pages.append(page)
            last = page[-1]
        assert [name for page in pages for name in page] == sorted(name for name in names if name.startswith("a"))
        assert {len(page) for page in pages[:-1]} == {2}

    async def test_threads_are_found_by_their_newest_metadata(self, store: Store) -> None:
        await saved(store, a_save("c1", thread_id="one", metadata={"finished": False, "user": {"id": "ü"}, "n": 1}))
        await saved(store, a_save("c1", thread_id="two", metadata={"finished": True, "n": None}))
        await saved(store, a_save("c2", "c1", thread_id="one", metadata={"finished": True, "user": {"id": "ü"}, "n": 1}))

        assert await ids(store, where={"finished": True}) == ["one", "two"]
        assert await ids(store, where={"finished": False}) == []
        assert await ids(store, where={"finished": 1}) == []
        assert await ids(store, where={"user": {"id": "ü"}, "finished": True}) == ["one"]
        assert await ids(store, where={"n": None}) == ["two"], "a value that is null is there, one that is absent is not"
        assert await ids(store, where={"finished": True}, limit=1) == ["one"]
        assert await ids(store, where={"finished": True}, limit=1, after="one") == ["two"]

    async def test_a_list_tells_what_a_thread_holds_and_who_holds_it(self, store: Store) -> None:
        await saved(store, a_save("c1", state=b"x" * 700, created_at=10.5))
        await saved(store, a_save("c2", "c1", state=b"y" * 300, created_at=20.25, metadata={"reason": "complete"}))
        await take(store, "run-7")
        [thread] = (await store.threads(ListThreads(store=STORE))).threads

        assert (thread.thread_id, thread.checkpoint_id, thread.checkpoints) == ("thread", "c2", 2)
        assert (thread.created_at, thread.updated_at) == (10.5, 20.25)
        assert thread.metadata == {"reason": "complete"}
        assert thread.owner == "run-7"
        assert 1_000 <= thread.bytes < 3_000

    async def test_texts_come_back_with_the_states_that_refer_to_them(self, store: Store) -> None:
        other = "0f" * 32
        statics = {DIGEST: TEXT, other: "naïve 😀 \x00"}
        await saved(store, a_save("c1", state=referring(), statics=statics))
        await saved(store, a_save("c2", "c1", kind="delta", base=1, state=b'{"messages":[2]}'))
        await saved(store, a_save("c3", "c2", state=referring(other)))
        await saved(store, a_save("c4", "c3"))

        assert (await store.load("thread", "c2")).statics == {DIGEST: TEXT}
        assert (await store.load("thread", "c3")).statics == {other: statics[other]}
        assert (await store.load("thread")).statics == {}

    async def test_a_text_is_stored_once_for_all_threads(self, store: Store) -> None:
        for n in range(20):
            save = a_save("c1", thread_id=f"t{n}", state=referring(), statics={DIGEST: TEXT})
            await saved(store, save)
        assert all(thread.bytes < 1_000 for thread in (await store.threads(ListThreads(store=STORE))).threads)
        for n in range(19):
            await store.delete(f"t{n}")
        assert (await store.collect(garbage())).static_parts == 0
        assert (await store.load("t19")).statics == {DIGEST: TEXT}
        await store.delete("t19")
        freed = await store.collect(garbage())
        assert (freed.static_parts, freed.bytes >= len(TEXT)) == (1, True)

    async def test_a_text_of_a_refused_save_is_not_kept_for_the_thread(self, store: Store) -> None:
        await saved(store, a_save("c1", state=referring()))
        await store.save([a_save("c2", "never", state=referring(), statics={DIGEST: TEXT})])
        assert (await store.load("thread")).statics == {}

    async def test_collecting_folds_what_is_older_than_the_newest(self, store: Store) -> None:
        await write_line(store, 60)
        expected = {n: await whole(store, f"c{n}") for n in range(57, 60)}
        await saved(store, a_save("short", thread_id="short"))
        freed = await store.collect(garbage(keep=3))

        assert (freed.checkpoints, freed.threads) == (57, 0)
        history = await store.history("thread", 100)
        assert [(entry.checkpoint_id, entry.metadata) for entry in history] == [(f"c{n}", {"n": n}) for n in (59, 58, 57)]
        assert {n: await whole(store, f"c{n}") for n in range(57, 60)} == expected
        assert (await store.load("thread")).depth == 2
        assert await store.load("thread", "c56") == CheckpointLoaded()
        await saved(store, a_save("c60", "c59", kind="delta", base=60, state=b'{"messages":[60]}'))
        assert await whole(store) == {"messages": list(range(61)), "iteration": 59}
        assert (await store.collect(garbage(keep=3))).checkpoints == 1
        assert await whole(store) == {"messages": list(range(61)), "iteration": 59}

    async def test_collecting_keeps_the_chains_behind_a_later_snapshot(self, store: Store) -> None:
        await write_line(store, 4)
        await saved(store, a_save("s", "c3", state=b'{"messages":["s"]}'))
        await saved(store, a_save("d", "s", kind="delta", base=1, state=b'{"messages":["d"]}'))
        await store.collect(garbage(keep=4))

        assert await whole(store) == {"messages": ["s", "d"]}
        assert await whole(store, "s") == {"messages": ["s"]}
        assert await whole(store, "c3") == {"messages": [0, 1, 2, 3], "iteration": 3}
        assert (await store.load("thread")).depth == 1
        assert (await store.load("thread", "c3")).depth == 1

    async def test_collecting_frees_texts_that_only_folded_checkpoints_refer_to(self, store: Store) -> None:
        new = "e" * 64
        await saved(store, a_save("c1", state=referring(), statics={DIGEST: TEXT}))
        await saved(store, a_save("c2", "c1", state=referring(new), statics={new: "new"}))
        await saved(store, a_save("c3", "c2", kind="delta", base=1, state=b'{"messages":[]}'))
        assert (await store.collect(garbage())).static_parts == 0
        assert (await store.collect(garbage(keep=1))).static_parts == 1
        assert (await store.load("thread")).statics == {new: "new"}

    async def test_collecting_leaves_a_thread_with_a_lease_alone(self, store: Store) -> None:
        await write_line(store, 5)
        lease = await take(store, "a")
        freed = await store.collect(garbage(keep=1, older_than=1.0))
        assert (freed.threads, freed.checkpoints) == (0, 0)
        assert len(await store.history("thread")) == 5
        await give_back(store, "a", lease.token)
        assert (await store.collect(garbage(keep=1))).checkpoints == 4

    async def test_collecting_deletes_threads_that_nobody_wrote_for_long(self, store: Store) -> None:
        now = time.time()
        await write_line(store, 3, "old", created_at=now - 7_200)
        await write_line(store, 3, "touched", created_at=now - 7_200)
        await saved(store, a_save("c3", "c2", thread_id="touched", created_at=now))
        freed = await store.collect(garbage(older_than=3_600.0))

        assert (freed.threads, freed.checkpoints) == (1, 3)
        assert freed.bytes > 0
        assert await ids(store) == ["touched"]
        assert isinstance(await refused(store, a_save("c3", "c2", thread_id="old")), StaleWriter)

    async def test_collecting_spares_old_threads_that_are_named(self, store: Store) -> None:
        for name in ("old", "needed"):
            await write_line(store, 3, name, created_at=time.time() - 7_200)
        freed = await store.collect(garbage(older_than=3_600.0, spare=("needed",), keep=1))
        assert (freed.threads, freed.checkpoints) == (1, 5)
        assert await ids(store) == ["needed"]
        assert len(await store.history("needed")) == 1

    async def test_collecting_forgets_old_tombstones_only(self, store: Store) -> None:
        await saved(store, a_save("c1"))
        await store.delete("thread")
        assert (await store.collect(garbage())).tombstones == 0
        assert isinstance(await refused(store, a_save("c1")), StaleWriter)
        assert (await store.collect(garbage(tombstones=0.0))).tombstones == 1
        await saved(store, a_save("c1"))

    async def test_collecting_keeps_the_tombstone_of_a_thread_that_is_begun_anew(self, store: Store) -> None:
        await store.delete("thread")
        lease = await take(store, "a")
        await recorded(store, a_record(begun("1"), token=lease.token))
        assert (await store.collect(garbage(tombstones=0.0))).tombstones == 0
        await saved(store, a_save("c1", token=lease.token))
        assert (await store.load("thread")).journal == (begun("1"),)

    async def test_collecting_keeps_a_journal_and_a_token(self, store: Store) -> None:
        lease = await take(store, "a")
        await recorded(store, a_record(begun("1"), token=lease.token))
        await saved(store, a_save("c1", token=lease.token), a_save("c2", "c1", token=lease.token))
        await give_back(store, "a", lease.token)
        await store.collect(garbage(keep=1, tombstones=0.0))
        loaded = await store.load("thread")
        assert (loaded.journal, loaded.token) == ((begun("1"),), lease.token)

    async def test_collecting_everything_is_refused(self, store: Store) -> None:
        with pytest.raises(ConfigurationError, match="keep at least 1"):
            await store.collect(garbage(keep=0))
