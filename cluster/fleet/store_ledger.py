"""The ledger of a fleet with a name: a thread in a store of checkpoints, written by the process that runs the fleet.

Its checkpoints are batches of results (``segments.py``), the metadata of the newest one is the fleet's record. So every store,
its transactions, fencing by leases and tombstones serve fleets, too: a batch is stored whole, with the record that counts it,
or not at all; and whoever has lost the lease cannot write any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ...actors.checkpoints.store import Store
from ...protocol.commands import SaveCheckpoint
from ...protocol.errors import StaleWriter, StoreUnavailable, ThreadBusy, UmbelError, from_wire
from ...protocol.storage import ReleaseLease, TakeLease
from .holder import describe_holder
from .ledger import Ending, id_hash
from .record import FACT, FleetRecord, thread_of
from .results import TaskResult
from .segments import Merge, pack
from .sinks import Sink
from .stored import Stored

T = TypeVar("T")
LEASE_SECONDS = 15.0
HEARTBEAT_SECONDS = 2.0
PACE_SECONDS = (0.1, 1.0)  # between batches, as a store is fast or slow
SHARE = 1 / 30  # of the time that may go into writing
OUTAGE_SECONDS = 60.0  # that a store may be away before the fleet is ended
_BACKLOG_BYTES = 8 * 1024 * 1024


class StoreLedger:
    """What a run of a named fleet records to. Made by :func:`~.opening.open_ledger`.

    Args:
        store: open; the ledger closes it.
        record: of the fleet, for this session.
        owner: who holds the lease, and the token that it came with.
        stored: what the store holds: its segments, the ids that are ok, and the status of those that are not.
        sinks: files that get the results, too.
        where: for people.
        outage: seconds that the store may be away before the fleet is ended.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        record: FleetRecord,
        *,
        owner: str,
        token: int,
        stored: Stored,
        sinks: Sequence[Sink] = (),
        where: str = "",
        outage: float = OUTAGE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.where = where
        self.sinks = tuple(sinks)
        self.files = tuple(sink.path for sink in sinks)
        self._store = store
        self._earlier = record
        self._owner = owner
        self._token = token
        self._stored = stored
        self._outage = outage
        self._clock = clock
        self._counts = Counter(record.counts)
        self._retries, self._tokens, self._cost = record.retries, record.tokens, record.cost_usd
        self._facts: dict[str, object] = {}
        self._opened = self._leased = time.monotonic()
        self._lines: list[bytes] = []
        self._backlog = 0
        self._fresh = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._writing = asyncio.Lock()
        self._error: UmbelError | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Say that the fleet runs, and go on saying so.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        await self._write()
        self._keeper = asyncio.create_task(self._keep(), name="umbel-fleet-ledger")

    @property
    def record(self) -> FleetRecord:
        """The fleet as it is now."""
        return self._earlier.evolve(
            updated_at=self._clock(),
            counts={status: count for status, count in self._counts.items() if count},
            retries=self._retries,
            tokens=self._tokens,
            cost_usd=self._cost,
            seconds=round(self._earlier.seconds + time.monotonic() - self._opened, 3),
            **self._facts,
        )

    def is_done(self, key: int) -> bool:
        """See :meth:`Ledger.is_done`."""
        return self._stored.is_done(key)

    def put(self, result: TaskResult, *, includes_earlier: bool = False) -> None:
        """See :meth:`Ledger.put`."""
        if self._stored.others:
            self._supersede(id_hash(result.id), includes_earlier=includes_earlier)
        self._counts[result.status] += 1
        self._retries += max(0, result.attempts - 1)
        self._tokens += result.tokens
        if result.cost_usd is not None:
            self._cost = (self._cost or 0.0) + result.cost_usd
        line = result.line()[:-1]
        self._lines.append(line)
        self._backlog += len(line)
        if self._backlog >= _BACKLOG_BYTES:
            self._room.clear()
        self._fresh.set()

    def _supersede(self, key: int, *, includes_earlier: bool) -> None:
        """The task has a result of an earlier session, which does not count any more; what it cost counts once."""
        before = self._stored.others.pop(key, None)
        if before is None:
            return
        self._counts[before.status] -= 1
        if includes_earlier:
            self._tokens -= before.tokens
            self._cost = None if self._cost is None else max(0.0, self._cost - before.cost_usd)

    def note(self, *, total: int | None = None, draining: str | None = None) -> None:
        """See :meth:`Ledger.note`."""
        if total is not None:
            self._facts["total"] = total
        if draining is not None:
            self._facts |= {"state": "draining", "reason": draining}
            self._fresh.set()

    async def room(self) -> None:
        """See :meth:`Ledger.room`."""
        if not self._room.is_set():
            await self._room.wait()
        self.check()

    def check(self) -> None:
        """See :meth:`Ledger.check`."""
        if self._error is not None:
            raise from_wire(self._error.to_wire())

    async def close(self, ending: Ending) -> None:
        """See :meth:`Ledger.close`. The lease is given back; every sink holds what the ledger holds."""
        try:
            async with self._writing:  # not in the middle of a batch: it must be known whether it is stored
                if self._keeper is not None:
                    self._keeper.cancel()
            await asyncio.gather(*filter(None, [self._keeper]), return_exceptions=True)
            self.check()
            self._facts |= {"state": ending.state, "reason": ending.reason, "exit_code": ending.exit_code}
            await self._write()
            for sink in self.sinks:
                await sink.close(self._store, self._earlier.name)
        finally:
            for sink in self.sinks:
                sink.abandon()
            with contextlib.suppress(StoreUnavailable):  # then it ends by itself
                release = ReleaseLease(store="", thread_id=self._thread, owner=self._owner, token=self._token)
                await self._store.release(release)
            await self._store.close()

    @property
    def _thread(self) -> str:
        return thread_of(self._earlier.name)

    async def _keep(self) -> None:
        """Write what has come, and a sign of life when nothing has."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await self._fresh.wait()
                self._fresh.clear()
                began = time.monotonic()
                await self._write()
                least, most = PACE_SECONDS
                await asyncio.sleep(min(max(least, (time.monotonic() - began) / SHARE), most))
        except UmbelError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - a defect in a store must end the fleet, not leave it unrecorded
            self._error = StoreUnavailable(f"{self.where} cannot be written: {type(error).__name__}: {error}")
        finally:
            self._room.set()

    async def _write(self) -> None:
        """Store everything that has come, together with a record that counts just that; then tell the sinks."""
        async with self._writing:
            if time.monotonic() - self._leased >= HEARTBEAT_SECONDS:
                await self._insist(self._prolong)
                self._leased = time.monotonic()
            lines, self._lines, self._backlog = self._lines, [], 0
            merge = self._stored.segments.merge(lines)
            save = self._save(merge)
            await self._insist(lambda: self._commit(save))
            self._stored.segments.stored(merge, save.checkpoint_id)
            self._room.set()
            for sink in self.sinks:
                await sink.add(lines)

    def _save(self, merge: Merge) -> SaveCheckpoint:
        return SaveCheckpoint(
            store="",
            thread_id=self._thread,
            checkpoint_id=os.urandom(16).hex(),
            parent_id=merge.parent,
            state=pack(merge.lines),
            metadata={FACT: self.record.model_dump(mode="json", exclude={"owner"})},
            created_at=self._clock(),
            token=self._token,
            supersedes=merge.supersedes,
            onto=merge.onto,
        )

    async def _commit(self, save: SaveCheckpoint) -> None:
        [outcome] = await self._store.save([save])
        if isinstance(outcome, UmbelError):
            raise outcome

    async def _prolong(self) -> None:
        request = TakeLease(store="", thread_id=self._thread, owner=self._owner, seconds=LEASE_SECONDS)
        try:
            taken = await self._store.lease(request)
        except ThreadBusy as busy:
            by = describe_holder(str(busy.details.get("owner")))
            raise StaleWriter(f"fleet {self._earlier.name!r} was taken over by {by}", owner=busy.details.get("owner")) from None
        if taken.token != self._token:
            raise StaleWriter(f"fleet {self._earlier.name!r} was run by another process, or deleted, meanwhile")

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it, again while the store is away: its restart must not end a fleet. Every request is safe to repeat."""
        began, delay = time.monotonic(), 0.1
        while True:
            try:
                return await work()
            except StoreUnavailable:
                if time.monotonic() - began + delay > self._outage:
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, 2.0)
