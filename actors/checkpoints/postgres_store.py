"""Checkpoints in PostgreSQL: for clusters that have one, with transactions over all that came together.

A commit locks the rows of its threads, always in the same order, decides every write in memory, and writes what it accepted in
one transaction; writers of other threads do not wait. The server's clock is the clock of the leases. What was acknowledged
survives whatever the server survives (``synchronous_commit`` decides whether that includes a power cut; on is the default).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic_core import from_json

from ...protocol.commands import CheckpointLoaded, SaveCheckpoint
from ...protocol.errors import CheckpointError, NotStorable
from ...protocol.messages import NOTHING
from ...protocol.storage import (
    CollectGarbage,
    GarbageCollected,
    JournalEntry,
    LeaseReleased,
    LeaseTaken,
    ListThreads,
    RecordCalls,
    ReleaseLease,
    TakeLease,
    ThreadDeleted,
    ThreadInfo,
    ThreadsListed,
)
from . import postgres_schema as sql
from .delta import fold
from .lease import Lease
from .loop_thread import LoopThread
from .postgres_client import PostgresClient, Row, Work
from .postgres_rows import Encoded, ThreadRow, decide_batch, lock_threads, read_fact, to_bytes, to_text
from .static_parts import references
from .store import (
    MAX_STATE_BYTES,
    RecordOutcome,
    SaveOutcome,
    Store,
    Write,
    WriteOutcome,
    check_id,
    check_keep,
    encode_entries,
    encode_metadata,
    has_values,
    passing_over_damage,
)
from .url import StoreUrl

T = TypeVar("T")
_PAGE = 100
_LIBPQ = ("application_name", "sslcert", "sslkey", "sslmode", "sslrootcert", "target_session_attrs")


class PostgresStore(Store):
    """A store in PostgreSQL 13 or newer. Its URL is ``postgresql://user:password@host:port/database``.

    Args:
        url: of the database, as libpq reads it, without our options.
        schema: holds the tables; it is created when missing.
        timeout: seconds to wait for a connection, for a lock, and for an answer.
        max_bytes: the largest state that one checkpoint may hold.
    """

    def __init__(self, url: str, *, schema: str = "umbel", timeout: float = 10.0, max_bytes: int = MAX_STATE_BYTES) -> None:
        super().__init__(max_bytes=max_bytes)
        self._client = PostgresClient(url, schema=schema, timeout=timeout)
        self.place = self._client.place
        self._thread = LoopThread(self.place)

    @classmethod
    def from_url(cls, url: str) -> PostgresStore:
        """The store of a URL; options are ``schema``, ``timeout``, ``max_bytes``, and some of libpq's, such as ``sslmode``."""
        parsed = StoreUrl.parse(url)
        parsed.expect("schema", "timeout", "max_bytes", *_LIBPQ)
        options = urlencode({name: value for name, value in parsed.options.items() if name in _LIBPQ})
        return cls(
            f"postgresql://{parsed.place}" + (f"?{options}" if options else ""),
            schema=parsed.options.get("schema", "umbel"),
            timeout=parsed.number("timeout", 10.0),
            max_bytes=int(parsed.number("max_bytes", MAX_STATE_BYTES)),
        )

    async def open(self) -> None:
        """See :meth:`Store.open`."""
        await self._work(lambda work: work.one(sql.NOW))

    async def warnings(self) -> list[str]:
        """See :meth:`Store.warnings`."""
        off = await self._work(lambda work: work.one(sql.ARE_OFF))
        return [
            f"PostgreSQL at {self.place} has {name} off: {loss}; set {name} = on"
            for name, loss, is_off in zip(sql.SAFE_SETTINGS, sql.LOSSES, off, strict=True)
            if is_off
        ]

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        """See :meth:`Store.save`."""
        return await self.commit(saves)  # type: ignore[return-value]  # a save's outcome is never CallsRecorded

    async def record(self, records: Sequence[RecordCalls]) -> list[RecordOutcome]:
        """See :meth:`Store.record`."""
        return await self.commit(records)  # type: ignore[return-value]  # a record's outcome is never CheckpointSaved

    async def commit(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        """See :meth:`Store.commit`: all of them in one transaction."""
        outcomes: list[WriteOutcome | None] = [None] * len(writes)
        batch: list[Encoded] = []
        for number, write in enumerate(writes):
            try:
                batch.append(self._encode(write))
            except NotStorable as error:
                outcomes[number] = error
        decided = await self._work(lambda work: decide_batch(work, batch))
        self.commits += 1
        rest = iter(decided)
        return [next(rest) if outcome is None else outcome for outcome in outcomes]

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        """See :meth:`Store.load`."""
        check_id(thread_id)
        check_id(checkpoint_id or "")
        return await self._work(lambda work: self._load(work, thread_id, checkpoint_id), sql.BEGIN_READING)

    async def history(self, thread_id: str, limit: int = 10) -> list[CheckpointLoaded]:
        """See :meth:`Store.history`."""
        check_id(thread_id)

        async def read(work: Work) -> list[CheckpointLoaded]:
            found = await work.rows(sql.READ_THREAD, to_bytes(thread_id))
            rows = await work.rows(sql.HISTORY, found[0][0], max(0, limit)) if found else []
            return [read_fact(row) for row in rows]

        return await self._work(read, sql.BEGIN_READING)

    async def lease(self, request: TakeLease) -> LeaseTaken:
        """See :meth:`Store.lease`. The clock is the server's."""
        check_id(request.thread_id)
        check_id(request.owner)
        Lease().taken(request, 0.0)  # refuses a request that makes no sense

        async def take(work: Work) -> LeaseTaken:
            [thread] = (await lock_threads(work, [request.thread_id])).values()
            lease = thread.lease.taken(request, (await work.one(sql.NOW))[0])
            await _set_lease(work, thread.number, lease)
            return lease.answer()

        return await self._work(take)

    async def release(self, request: ReleaseLease) -> LeaseReleased:
        """See :meth:`Store.release`."""
        check_id(request.thread_id)

        async def release(work: Work) -> LeaseReleased:
            [thread] = (await lock_threads(work, [request.thread_id])).values()
            await _set_lease(work, thread.number, thread.lease.released(request))
            return LeaseReleased()

        return await self._work(release)

    async def threads(self, request: ListThreads) -> ThreadsListed:
        """See :meth:`Store.threads`."""
        page: list[ThreadInfo] = []
        after, first = request.after, not request.after
        while len(page) < request.limit:
            rows = await self._work(partial(_list, prefix=request.prefix, after=after, first=first), sql.BEGIN_READING)
            infos = [_info(row) for row in rows]
            page += [info for info in infos if has_values(info.metadata, request.where)]
            if len(rows) < _PAGE:
                break
            after, first = infos[-1].thread_id, False
        return ThreadsListed(threads=tuple(page[: request.limit]))

    async def delete(self, thread_id: str) -> ThreadDeleted:
        """See :meth:`Store.delete`."""
        check_id(thread_id)

        async def delete(work: Work) -> ThreadDeleted:
            [thread] = (await lock_threads(work, [thread_id])).values()
            await _empty(work, thread)
            return ThreadDeleted(existed=thread.position > 0)

        return await self._work(delete)

    async def collect(self, request: CollectGarbage) -> GarbageCollected:
        """See :meth:`Store.collect`."""
        check_keep(request)
        freed, last = GarbageCollected(), 0
        while numbers := await self._work(partial(_numbers, after=last), sql.BEGIN_READING):
            for number in numbers:
                freed = _sum(freed, await self._work(partial(self._collect, number=number, request=request)))
            last = numbers[-1]
        sizes = await self._work(_free_texts)
        return freed.evolve(static_parts=len(sizes), bytes=freed.bytes + sum(sizes))

    async def close(self) -> None:
        """See :meth:`Store.close`."""
        await self._thread.close(self._client.close())

    async def _work(self, steps: Callable[[Work], Coroutine[Any, Any, T]], begin: str = "BEGIN") -> T:
        return await self._thread.run(self._client.work(steps, begin))

    def _encode(self, write: Write) -> Encoded:
        metadata = encode_metadata(write, self.max_bytes) if isinstance(write, SaveCheckpoint) else b""
        return Encoded(write, metadata, encode_entries(write.thread_id, write.entries, self.max_bytes))

    async def _load(self, work: Work, thread_id: str, checkpoint_id: str | None) -> CheckpointLoaded:
        found = await work.rows(sql.READ_THREAD, to_bytes(thread_id))
        if not found:
            return CheckpointLoaded()
        thread = ThreadRow.read(found[0])
        journal: tuple[JournalEntry, ...] = ()
        if checkpoint_id is None:
            journal = self._read_journal(await work.rows(sql.JOURNAL, thread.number), thread_id)
            facts = await work.rows(sql.FACT_AT, thread.number, thread.position)
        else:
            facts = await work.rows(sql.FACT_OF, thread.number, to_bytes(checkpoint_id))
        if not facts and checkpoint_id is None and thread.position:
            raise CheckpointError(
                f"thread {thread_id!r} in PostgreSQL at {self.place} is damaged: its newest checkpoint is missing"
            )
        if not facts:
            return CheckpointLoaded(journal=journal, token=thread.lease.token)
        state = await self._state(work, thread, facts[0])
        digests = [to_bytes(digest) for digest in references(state)]
        texts = await work.rows(sql.TEXTS, thread.number, digests) if digests else []
        statics = {to_text(digest): to_text(text) for digest, text in texts} or NOTHING
        return read_fact(facts[0], state).evolve(journal=journal, statics=statics, token=thread.lease.token)

    async def _state(self, work: Work, thread: ThreadRow, fact: Sequence[Any]) -> bytes:
        """The whole state of the checkpoint ``fact``.

        Raises:
            CheckpointError: a part of it is missing or damaged.
        """
        position, root = fact[0], fact[3]
        where = f"checkpoint {to_text(fact[1])!r} of thread {thread.thread_id!r} in PostgreSQL at {self.place}"
        chain = await work.rows(sql.CHAIN, thread.number, root, position)
        if len(chain) != position - root + 1:
            raise CheckpointError(f"{where} is damaged: checkpoints that it builds on are missing")
        return fold(chain[0][1], [(base, delta) for base, delta in chain[1:]], where=where)

    def _read_journal(self, rows: Sequence[Sequence[Any]], thread_id: str) -> tuple[JournalEntry, ...]:
        try:
            return tuple(JournalEntry.model_validate_json(entry) for (entry,) in rows)
        except ValueError as error:
            where = f"thread {thread_id!r} in PostgreSQL at {self.place}"
            raise CheckpointError(f"the journal of {where} is damaged: {error}") from None

    async def _collect(self, work: Work, number: int, request: CollectGarbage) -> GarbageCollected:
        rows = await work.rows(sql.LOCK_NUMBER, number)
        now = (await work.one(sql.NOW))[0]
        if not rows or (thread := ThreadRow.read(rows[0])).lease.holder(now) is not None:
            return GarbageCollected()
        before, size = await work.one(sql.SIZE, number)
        expired = False
        limit, keep = request.limit(thread.thread_id), request.kept(thread.thread_id)
        if thread.position and limit is not None:
            created_at = (await work.one(sql.NEWEST_AT, number, thread.position))[0]
            expired = created_at < now - limit
        if expired:
            await _empty(work, thread)
        elif thread.position and keep is not None:
            with passing_over_damage():
                await self._fold(work, thread, keep)
        after, less = await work.one(sql.SIZE, number)
        lease = thread.lease.deleted(now) if expired else thread.lease
        tombstones = await work.run(sql.FORGET, number) if lease.is_forgotten(request.tombstones, now) else 0
        if lease == Lease() and not thread.position:
            await work.run(sql.FORGET, number)  # a write that was refused left it
        return GarbageCollected(
            threads=int(expired), checkpoints=before - after, tombstones=tombstones, bytes=max(0, int(size) - int(less))
        )

    async def _fold(self, work: Work, thread: ThreadRow, keep: int) -> None:
        oldest = await work.rows(sql.OLDEST_KEPT, thread.number, keep - 1)
        if not oldest:
            return
        position = oldest[0][0]
        state = await self._state(work, thread, await work.one(sql.FACT_AT, thread.number, position))
        if not await work.run(sql.DROP_BEFORE, thread.number, position):
            return
        await work.run(sql.MAKE_SNAPSHOT, state, thread.number, position)
        await work.run(sql.MAKE_ROOT, position, thread.number, position)
        await work.run(sql.RAISE_ROOT, position, thread.number)
        await work.run(sql.UNREFER, thread.number)


async def _list(work: Work, *, prefix: str, after: str, first: bool) -> list[Row]:
    """A page of rows for :func:`_info`; ``first`` lets an empty id be in it."""
    values = {"after": to_bytes(after), "first": first, "prefix": to_bytes(prefix), "limit": _PAGE}
    return await work.named(sql.LIST, **values)


async def _numbers(work: Work, *, after: int) -> list[int]:
    return [number for (number,) in await work.rows(sql.NUMBERS, after)]


async def _set_lease(work: Work, number: int, lease: Lease) -> None:
    owner = None if lease.owner is None else to_bytes(lease.owner)
    await work.run(sql.SET_LEASE, lease.token, owner, lease.expires_at, lease.deleted_at, number)


async def _empty(work: Work, thread: ThreadRow) -> None:
    """Leave only a tombstone of a thread."""
    for statement in sql.EMPTY:
        await work.run(statement, thread.number)
    await _set_lease(work, thread.number, thread.lease.deleted((await work.one(sql.NOW))[0]))


async def _free_texts(work: Work) -> list[int]:
    """Delete the texts that no thread refers to: how large they were. Nobody may begin to refer to one meanwhile."""
    await work.run(sql.EXCLUDE, sql.LOCK)
    return [size for (size,) in await work.rows(sql.FREE_TEXTS)]


def _sum(one: GarbageCollected, other: GarbageCollected) -> GarbageCollected:
    return GarbageCollected(
        threads=one.threads + other.threads,
        checkpoints=one.checkpoints + other.checkpoints,
        tombstones=one.tombstones + other.tombstones,
        bytes=one.bytes + other.bytes,
    )


def _info(row: Sequence[Any]) -> ThreadInfo:
    thread_id, newest, count, size, created_at, updated_at, metadata, owner = row
    return ThreadInfo(
        thread_id=to_text(thread_id),
        checkpoint_id=to_text(newest),
        checkpoints=count,
        bytes=int(size),
        created_at=created_at,
        updated_at=updated_at,
        metadata=from_json(metadata),
        owner=None if owner is None else to_text(owner),
    )
