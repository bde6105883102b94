"""One thread, one writer: leases, fencing tokens, the journal of calls, and tombstones."""

from __future__ import annotations

import time

import pytest

from ....protocol.commands import CheckpointLoaded, CheckpointSaved
from ....protocol.errors import CheckpointConflict, ConfigurationError, NotStorable, StaleWriter, ThreadBusy
from ....protocol.storage import ThreadDeleted
from ..store import Store
from .requests import (
    BRIEF,
    a_record,
    a_save,
    begun,
    done,
    give_back,
    ids,
    recorded,
    refused,
    saved,
    take,
    take_when_free,
)


class Leases:
    """Leases, fencing, journal, tombstones."""

    async def test_a_lease_keeps_others_out_and_says_who_holds_it(self, store: Store) -> None:
        first = await take(store, "a", 60.0)
        assert first.token >= 1
        assert abs(first.expires_at - time.time() - 60.0) < 30.0, "seconds since the epoch; clocks differ a little"
        with pytest.raises(ThreadBusy, match="'a'") as raised:
            await take(store, "b")
        assert raised.value.details["owner"] == "a"
        assert raised.value.details["expires_at"] == first.expires_at
        assert (await take(store, "b", thread_id="another")).token >= 1

    async def test_an_owner_prolongs_and_keeps_its_token(self, store: Store) -> None:
        first = await take(store, "a", 60.0)
        again = await take(store, "a", 600.0)
        assert again.token == first.token
        assert again.expires_at > first.expires_at + 500.0

    async def test_every_new_owner_has_a_larger_token(self, store: Store) -> None:
        first = await take(store, "a")
        stolen = await take(store, "b", steal=True)
        await give_back(store, "b", stolen.token)
        third = await take(store, "c", BRIEF)
        fourth = await take_when_free(store, "d")
        assert first.token < stolen.token < third.token < fourth.token

    async def test_a_lease_ends_by_itself(self, store: Store) -> None:
        await take(store, "a", BRIEF)
        await take_when_free(store, "b")
        with pytest.raises(ThreadBusy, match="'b'"):
            await take(store, "a")

    async def test_only_its_owner_gives_a_lease_back(self, store: Store) -> None:
        await give_back(store, "nobody", 1)
        lost = await take(store, "a")
        kept = await take(store, "b", steal=True)
        await give_back(store, "a", lost.token)
        await give_back(store, "a", kept.token)
        await give_back(store, "b", lost.token)
        with pytest.raises(ThreadBusy, match="'b'"):
            await take(store, "c")

    @pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
    async def test_a_lease_without_an_end_or_an_owner_is_refused(self, store: Store, seconds: float) -> None:
        with pytest.raises(ConfigurationError, match="seconds above 0"):
            await take(store, "a", seconds)
        with pytest.raises(ConfigurationError, match="owner"):
            await take(store, "")

    async def test_a_lease_alone_is_no_thread(self, store: Store) -> None:
        lease = await take(store, "a")
        assert await store.load("thread") == CheckpointLoaded(token=lease.token)
        assert await ids(store) == []
        assert await store.history("thread") == []

    async def test_who_lost_the_lease_writes_nothing_more(self, store: Store) -> None:
        lost = await take(store, "a")
        await saved(store, a_save("c1", token=lost.token))
        new = await take(store, "b", steal=True)
        late = a_save("late", "c1", token=lost.token, entries=(begun("late"),), settles=True)
        for write in (late, a_record(begun("late"), token=lost.token)):
            outcome = await refused(store, write)
            assert isinstance(outcome, StaleWriter)
            assert "'thread'" in outcome.message
            assert "'b'" in outcome.message
            assert not outcome.retryable
        await recorded(store, a_record(begun("mine"), token=new.token))
        await saved(store, a_save("c2", "c1", token=new.token))
        assert isinstance(await refused(store, late), StaleWriter)

        loaded = await store.load("thread")
        assert (loaded.checkpoint_id, loaded.token) == ("c2", new.token)
        assert loaded.journal == (begun("mine"),)

    async def test_the_token_outlives_the_lease(self, store: Store) -> None:
        lost = await take(store, "a")
        new = await take(store, "b", steal=True)
        await give_back(store, "b", new.token)
        assert isinstance(await refused(store, a_save("late", token=lost.token)), StaleWriter)
        await saved(store, a_save("c1", token=new.token))

    async def test_a_writer_without_a_lease_is_refused_while_somebody_has_one(self, store: Store) -> None:
        await saved(store, a_save("c1"))
        lease = await take(store, "a")
        assert isinstance(await refused(store, a_save("c2", "c1")), StaleWriter)
        assert isinstance(await refused(store, a_record(begun("call"))), StaleWriter)
        await give_back(store, "a", lease.token)
        await recorded(store, a_record(begun("call")))
        await saved(store, a_save("c2", "c1"))

    async def test_a_save_that_was_done_is_done_however_late_it_is_repeated(self, store: Store) -> None:
        lost = await take(store, "a")
        save = a_save("c1", token=lost.token, entries=(begun("one"),))
        await saved(store, save)
        new = await take(store, "b", steal=True)
        await saved(store, a_save("c2", "c1", token=new.token, settles=True))
        assert await refused(store, save) == CheckpointSaved(checkpoint_id="c1")
        assert (await store.load("thread")).journal == (), "and it changes nothing"

    async def test_one_refused_record_leaves_its_batch_alone(self, store: Store) -> None:
        await take(store, "a", thread_id="leased")
        records = [a_record(begun("x"), thread_id=thread) for thread in ("one", "leased", "\ud83d", "two")]
        outcomes = await store.record(records)
        assert [isinstance(outcome, StaleWriter) for outcome in outcomes] == [False, True, False, False]
        assert [isinstance(outcome, NotStorable) for outcome in outcomes] == [False, False, True, False]
        assert [(await store.load(name)).journal for name in ("one", "leased", "two")] == [(begun("x"),), (), (begun("x"),)]

    async def test_a_journal_is_kept_in_order_until_a_save_settles_it(self, store: Store) -> None:
        await recorded(store, a_record(begun("1"), begun("2")), a_record(done("2", "naïve 😀 \x00")))
        assert (await store.load("thread")).journal == (begun("1"), begun("2"), done("2", "naïve 😀 \x00"))
        await saved(store, a_save("c1", entries=(done("1"),)))
        loaded = await store.load("thread")
        assert loaded.journal == (begun("1"), begun("2"), done("2", "naïve 😀 \x00"), done("1"))
        assert (await store.load("thread", "c1")).journal == (), "it belongs to the newest state only"

        await saved(store, a_save("c2", "c1", settles=True, entries=(begun("3"),)))
        assert (await store.load("thread")).journal == (begun("3"),)
        await saved(store, a_save("c3", "c2", settles=True))
        assert (await store.load("thread")).journal == ()

    async def test_an_entry_again_changes_nothing(self, store: Store) -> None:
        record = a_record(begun("1"), done("1", "first"))
        await recorded(store, record, record)
        await recorded(store, record, a_record(done("1", "second"), begun("1")))
        await saved(store, a_save("c1", entries=record.entries))
        assert (await store.load("thread")).journal == record.entries

    async def test_a_save_that_is_refused_leaves_the_journal_alone(self, store: Store) -> None:
        await saved(store, a_save("c1", entries=(begun("1"),)))
        outcome = await refused(store, a_save("c2", "never", settles=True, entries=(begun("2"),)))
        assert isinstance(outcome, CheckpointConflict)
        assert (await store.load("thread")).journal == (begun("1"),)

    async def test_records_and_saves_together_keep_the_order_of_their_thread(self, store: Store) -> None:
        outcomes = await store.commit(
            [
                a_record(begun("1")),
                a_save("other", thread_id="other"),
                a_save("c1", settles=True),
                a_record(begun("2")),
                a_record(begun("x"), token=9),
                a_save("c2", "c1", entries=(done("2"),)),
                a_record(begun("3")),
            ]
        )
        assert [isinstance(outcome, StaleWriter) for outcome in outcomes] == [False] * 4 + [True] + [False] * 2
        assert [outcome.checkpoint_id for outcome in outcomes if isinstance(outcome, CheckpointSaved)] == ["other", "c1", "c2"]
        assert (await store.load("thread")).journal == (begun("2"), done("2"), begun("3"))

    async def test_a_deleted_thread_is_gone_whole(self, store: Store) -> None:
        text = "x" * 2_000
        await saved(store, a_save("c1", statics={"a" * 64: text}, entries=(begun("1"),)), a_save("c1", thread_id="other"))
        await take(store, "a")
        assert await store.delete("thread") == ThreadDeleted(existed=True)

        loaded = await store.load("thread")
        assert (loaded.checkpoint_id, loaded.state, loaded.journal, loaded.statics) == (None, None, (), {})
        assert (await store.load("thread", "c1")).checkpoint_id is None
        assert await store.history("thread") == []
        assert await ids(store) == ["other"]
        assert await store.delete("thread") == ThreadDeleted(existed=False)
        assert await store.delete("never") == ThreadDeleted(existed=False)

    async def test_no_late_write_revives_a_deleted_thread(self, store: Store) -> None:
        lease = await take(store, "a")
        await saved(store, a_save("c1", token=lease.token))
        await store.delete("thread")
        await store.delete("not yet")
        for token in (0, lease.token):
            for write in (
                a_save("c2", "c1", token=token),
                a_save("first", token=token),
                a_record(begun("1"), token=token),
            ):
                assert isinstance(await refused(store, write), StaleWriter), (token, write)
        assert isinstance(await refused(store, a_save("first", thread_id="not yet")), StaleWriter)
        assert (await store.load("thread")).checkpoint_id is None
        assert await ids(store) == []

    async def test_a_new_lease_begins_a_deleted_thread_anew(self, store: Store) -> None:
        old = await take(store, "a")
        await saved(store, a_save("c1", token=old.token))
        await store.delete("thread")
        new = await take(store, "b")
        assert new.token > old.token
        assert isinstance(await refused(store, a_save("c1", token=old.token)), StaleWriter)
        await recorded(store, a_record(begun("1"), token=new.token))
        await saved(store, a_save("new", token=new.token))
        await give_back(store, "b", new.token)

        for late in (a_save("c2", "c1"), a_save("c1")):
            assert isinstance(await refused(store, late), CheckpointConflict)
        await saved(store, a_save("newer", "new"))
        assert [entry.checkpoint_id for entry in await store.history("thread")] == ["newer", "new"]

    async def test_the_same_owner_after_a_deletion_is_a_new_one(self, store: Store) -> None:
        old = await take(store, "a")
        await store.delete("thread")
        assert (await take(store, "a")).token > old.token
        assert isinstance(await refused(store, a_save("late", token=old.token)), StaleWriter)
