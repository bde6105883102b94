"""Saves that take the place of others: the end of a turn, and the checkpoints of its iterations."""

from __future__ import annotations

from typing import Any

from ....protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from ....protocol.errors import CheckpointConflict, NotStorable, StaleWriter
from ....protocol.storage import ListThreads
from ..store import Store
from .keeping import DIGEST, TEXT, referring, whole, write_line
from .requests import STORE, a_record, a_save, begun, garbage, give_back, recorded, refused, saved, take


def the_end(checkpoint_id: str, parent_id: str, supersedes: int, onto: str | None, **fields: Any) -> SaveCheckpoint:
    """A delta behind message 0 of :func:`write_line` that takes the place of the ``supersedes`` newest checkpoints."""
    fields = {"kind": "delta", "base": 1, "state": b'{"messages":["end"],"iteration":9}'} | fields
    return a_save(checkpoint_id, parent_id, supersedes=supersedes, onto=onto, **fields)


async def line(store: Store) -> list[tuple[str | None, str | None, int]]:
    """Id, parent and depth of every checkpoint, newest first."""
    return [(entry.checkpoint_id, entry.parent_id, entry.depth) for entry in await store.history("thread", 100)]


class Superseding:
    """What ``SaveCheckpoint.supersedes`` promises."""

    async def test_a_save_takes_the_place_of_the_newest_checkpoints(self, store: Store) -> None:
        await write_line(store, 5)
        await saved(store, the_end("end", "c4", 4, "c0", metadata={"finished": True}, created_at=7.0))

        assert await line(store) == [("end", "c0", 1), ("c0", None, 0)]
        assert await whole(store) == await whole(store, "end") == {"messages": [0, "end"], "iteration": 9}
        assert await whole(store, "c0") == {"messages": [0], "iteration": 0}
        assert [await store.load("thread", f"c{n}") for n in range(1, 5)] == [CheckpointLoaded()] * 4
        [thread] = (await store.threads(ListThreads(store=STORE))).threads
        assert (thread.checkpoint_id, thread.checkpoints, thread.metadata) == ("end", 2, {"finished": True})

    async def test_the_thread_goes_on_behind_it(self, store: Store) -> None:
        await write_line(store, 5)
        await saved(store, the_end("end", "c4", 2, "c2", base=3))
        await saved(store, the_end("next", "end", 0, None, base=4, state=b'{"messages":[1]}'))
        await saved(store, the_end("more", "next", 0, None, base=5, state=b'{"messages":[2]}'))
        await saved(store, the_end("last", "more", 2, "end", base=4, state=b'{"messages":["last"]}'))

        chain = [("last", "end", 4), ("end", "c2", 3), ("c2", "c1", 2), ("c1", "c0", 1), ("c0", None, 0)]
        assert await line(store) == chain
        assert (await store.load("thread")).depth == 4
        assert await whole(store) == {"messages": [0, 1, 2, "end", "last"], "iteration": 9}
        assert (await store.collect(garbage(keep=2))).checkpoints == 3
        assert await line(store) == [("last", "end", 1), ("end", None, 0)]
        assert await whole(store, "end") == {"messages": [0, 1, 2, "end"], "iteration": 9}
        await saved(store, the_end("only", "last", 1, "end", base=4))
        assert await line(store) == [("only", "end", 1), ("end", None, 0)]

    async def test_a_snapshot_takes_the_place_of_everything(self, store: Store) -> None:
        await write_line(store, 3)
        await saved(store, the_end("end", "c2", 3, None, kind="snapshot", base=0, created_at=7.0))
        assert await line(store) == [("end", None, 0)]
        assert await whole(store) == {"messages": ["end"], "iteration": 9}
        [thread] = (await store.threads(ListThreads(store=STORE))).threads
        assert (thread.checkpoints, thread.created_at) == (1, 7.0)
        await saved(store, the_end("next", "end", 0, None))
        assert await line(store) == [("next", "end", 1), ("end", None, 0)]

    async def test_a_snapshot_may_stand_on_an_earlier_one(self, store: Store) -> None:
        await write_line(store, 3)
        await saved(store, the_end("end", "c2", 1, "c1", kind="snapshot", base=0))
        await saved(store, the_end("next", "end", 0, None))
        assert await line(store) == [("next", "end", 1), ("end", "c1", 0), ("c1", "c0", 1), ("c0", None, 0)]
        assert await whole(store) == {"messages": ["end", "end"], "iteration": 9}

    async def test_it_may_come_together_with_what_it_supersedes(self, store: Store) -> None:
        await write_line(store, 2)
        step = a_save("c2", "c1", kind="delta", base=2, state=b'{"messages":[2],"iteration":2}')
        after = the_end("next", "end", 0, None, base=2, state=b'{"messages":["next"]}')
        await saved(store, step, the_end("end", "c2", 2, "c0"), after)
        assert await line(store) == [("next", "end", 2), ("end", "c0", 1), ("c0", None, 0)]
        assert await whole(store) == {"messages": [0, "end", "next"], "iteration": 9}

    async def test_saving_it_again_changes_nothing(self, store: Store) -> None:
        await write_line(store, 4)
        end = the_end("end", "c3", 3, "c0")
        await saved(store, end)
        await saved(store, end, end)
        assert await line(store) == [("end", "c0", 1), ("c0", None, 0)]
        again = the_end("c0", "end", 1, "c0", state=b'{"messages":["other"]}')
        assert await store.save([again]) == [CheckpointSaved(checkpoint_id="c0")]
        assert await whole(store) == {"messages": [0, "end"], "iteration": 9}
        late = a_save("c3", "c2", kind="delta", base=3, state=b'{"messages":[3]}')
        assert isinstance(await refused(store, late), CheckpointConflict), "what was superseded does not come back"

    async def test_one_that_does_not_stand_where_it_says_is_a_conflict(self, store: Store) -> None:
        await write_line(store, 4)
        wrong = [
            the_end("end", "c2", 2, "c0"),  # not the newest
            the_end("end", "c3", 2, "c0"),
            the_end("end", "c3", 2, "c2"),
            the_end("end", "c3", 2, "never"),
            the_end("end", "c3", 9, "c0"),
            the_end("end", "c3", 2, None, kind="snapshot", base=0),
        ]
        for save in wrong:
            assert isinstance(await refused(store, save), CheckpointConflict), save
        for save in (the_end("end", "c3", 4, None), the_end("end", "c3", -1, "c0")):
            assert isinstance(await refused(store, save), NotStorable)
        assert [entry[0] for entry in await line(store)] == ["c3", "c2", "c1", "c0"]
        assert await whole(store) == {"messages": [0, 1, 2, 3], "iteration": 3}

    async def test_it_keeps_journal_texts_and_lease_as_any_save(self, store: Store) -> None:
        lease = await take(store, "a")
        await saved(store, a_save("c0", token=lease.token, state=referring(), statics={DIGEST: TEXT}))
        step = a_save("c1", "c0", token=lease.token, kind="delta", base=1, state=b'{"messages":[1]}')
        await saved(store, step)
        await recorded(store, a_record(begun("1"), token=lease.token))
        assert isinstance(await refused(store, the_end("end", "c1", 1, "c0")), StaleWriter)
        end = the_end("end", "c1", 1, "c0", token=lease.token, settles=True, entries=(begun("2"),))
        await saved(store, end)
        loaded = await store.load("thread")
        assert (loaded.journal, loaded.statics, loaded.token) == ((begun("2"),), {DIGEST: TEXT}, lease.token)
        await give_back(store, "a", lease.token)

    async def test_what_is_superseded_takes_no_room(self, store: Store) -> None:
        await saved(store, a_save("c0"))
        before = (await store.threads(ListThreads(store=STORE))).threads[0].bytes
        for turn in range(5):
            base = "c0" if not turn else f"end{turn - 1}"
            for n in range(5):
                parent = f"{turn}-{n - 1}" if n else base
                await saved(
                    store, a_save(f"{turn}-{n}", parent, kind="delta", base=1, state=b'{"messages":[%s]}' % (b"1" * 400))
                )
            await saved(store, the_end(f"end{turn}", f"{turn}-4", 5, base, state=b'{"messages":[]}'))
        [thread] = (await store.threads(ListThreads(store=STORE))).threads
        assert thread.checkpoints == 6
        assert 0 < thread.bytes - before < 5 * 300
