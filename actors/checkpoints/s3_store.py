"""Checkpoints in a bucket of S3, or of a server like it: for clusters without a database, and for keeping much for little.

Every write costs a few requests, and leases need the server's clock, which it tells in whole seconds: they last up to two
seconds longer than asked for. The bucket's server must honour conditional writes; that is checked before the first use. What
was acknowledged is as durable as the bucket. Credentials come from where boto3 looks for them (environment, files, roles),
never from the URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import unquote

from ...protocol.commands import CheckpointLoaded, SaveCheckpoint
from ...protocol.errors import ConfigurationError, NotStorable, StoreUnavailable, UmbelError
from ...protocol.storage import (
    CollectGarbage,
    GarbageCollected,
    LeaseReleased,
    LeaseTaken,
    ListThreads,
    RecordCalls,
    ReleaseLease,
    TakeLease,
    ThreadDeleted,
    ThreadsListed,
)
from .s3_client import S3Client
from .s3_garbage import S3Garbage
from .s3_threads import S3Threads
from .store import (
    MAX_STATE_BYTES,
    RecordOutcome,
    SaveOutcome,
    Store,
    Write,
    WriteOutcome,
    by_number,
    check_id,
    check_keep,
    encode_entries,
    encode_metadata,
)
from .url import StoreUrl

T = TypeVar("T")
_CLOCK_SECONDS = 1.0  # how coarse the server's clock is: without them a lease would end too early


class S3Store(Store):
    """A store in a bucket. Its URL is ``s3://bucket/prefix``, elsewhere than at Amazon with ``?endpoint=https://host``.

    Args:
        bucket: must exist.
        prefix: of every key.
        endpoint: URL of a server that is not Amazon's.
        region: where the bucket is.
        timeout: seconds to wait for a connection, for an answer, and for a thread that others write to all the time.
        max_bytes: the largest state that one checkpoint may hold.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        timeout: float = 30.0,
        max_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        super().__init__(max_bytes=max_bytes)
        folder = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        client = S3Client(bucket, folder, endpoint=endpoint, region=region, timeout=timeout)
        self.place = client.place
        self._threads = S3Threads(client, timeout=timeout, max_bytes=max_bytes)
        self._executor = ThreadPoolExecutor(16, thread_name_prefix="umbel-s3")
        self._closed = False

    @classmethod
    def from_url(cls, url: str) -> S3Store:
        """The store of a URL; options are ``endpoint``, ``region``, ``timeout`` and ``max_bytes``."""
        parsed = StoreUrl.parse(url)
        parsed.expect("endpoint", "region", "timeout", "max_bytes")
        bucket, _, prefix = parsed.place.partition("/")
        if not bucket or "@" in bucket or ":" in bucket:
            raise ConfigurationError(
                "an s3:// URL names a bucket and a prefix, s3://bucket/prefix, and no credentials:"
                " those come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return cls(
            bucket,
            unquote(prefix),
            endpoint=parsed.options.get("endpoint"),
            region=parsed.options.get("region"),
            timeout=parsed.number("timeout", 30.0),
            max_bytes=int(parsed.number("max_bytes", MAX_STATE_BYTES)),
        )

    async def open(self) -> None:
        """See :meth:`Store.open`."""
        await self._run(lambda: self._threads.client.get("probe"))

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        """See :meth:`Store.save`."""
        return await self.commit(saves)  # type: ignore[return-value]  # a save's outcome is never CallsRecorded

    async def record(self, records: Sequence[RecordCalls]) -> list[RecordOutcome]:
        """See :meth:`Store.record`."""
        return await self.commit(records)  # type: ignore[return-value]  # a record's outcome is never CheckpointSaved

    async def commit(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        """See :meth:`Store.commit`: the writes of a thread count from one moment on, threads are written side by side."""
        outcomes: dict[int, WriteOutcome] = {}
        numbers: dict[str, list[int]] = {}
        for number, write in enumerate(writes):
            try:
                self._check(write)
            except NotStorable as error:
                outcomes[number] = error
                continue
            numbers.setdefault(write.thread_id, []).append(number)
        batches = {thread_id: [writes[number] for number in mine] for thread_id, mine in numbers.items()}
        answers = await asyncio.gather(*(self._attempt(thread_id, batch) for thread_id, batch in batches.items()))
        self.commits += 1
        outcomes |= by_number(numbers.values(), answers)
        return [outcomes[number] for number in range(len(writes))]

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        """See :meth:`Store.load`."""
        check_id(thread_id)
        check_id(checkpoint_id or "")
        return await self._run(lambda: self._threads.load(thread_id, checkpoint_id))

    async def history(self, thread_id: str, limit: int = 10) -> list[CheckpointLoaded]:
        """See :meth:`Store.history`."""
        check_id(thread_id)
        return await self._run(lambda: self._threads.history(thread_id, max(0, limit)))

    async def lease(self, request: TakeLease) -> LeaseTaken:
        """See :meth:`Store.lease`. The clock is the server's, which tells whole seconds."""
        check_id(request.thread_id)
        check_id(request.owner)
        longer = request.evolve(seconds=request.seconds + _CLOCK_SECONDS) if request.seconds > 0 else request
        lease = await self._run(
            lambda: self._threads.change_lease(request.thread_id, lambda lease, now: lease.taken(longer, now))
        )
        return lease.answer()

    async def release(self, request: ReleaseLease) -> LeaseReleased:
        """See :meth:`Store.release`."""
        check_id(request.thread_id)
        await self._run(lambda: self._threads.change_lease(request.thread_id, lambda lease, _: lease.released(request)))
        return LeaseReleased()

    async def threads(self, request: ListThreads) -> ThreadsListed:
        """See :meth:`Store.threads`. Ids that share their first 400 bytes are in the order of their hashes."""
        check_id(request.prefix)
        check_id(request.after)
        return ThreadsListed(threads=tuple(await self._run(lambda: self._threads.list(request))))

    async def delete(self, thread_id: str) -> ThreadDeleted:
        """See :meth:`Store.delete`."""
        check_id(thread_id)
        gone = await self._run(lambda: self._threads.delete(thread_id))
        return ThreadDeleted(existed=bool(gone.line))

    async def collect(self, request: CollectGarbage) -> GarbageCollected:
        """See :meth:`Store.collect`."""
        check_keep(request)
        return await self._run(lambda: S3Garbage(self._threads).collect(request))

    async def close(self) -> None:
        """See :meth:`Store.close`."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._executor.shutdown, wait=True)  # a call that still runs would connect again
            await asyncio.to_thread(self._threads.close)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreUnavailable(f"the store {self.place} was closed")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _attempt(self, thread_id: str, batch: list[Write]) -> list[WriteOutcome] | UmbelError:
        try:
            return await self._run(lambda: self._threads.commit(thread_id, batch))
        except UmbelError as error:
            return error

    def _check(self, write: Write) -> None:
        if isinstance(write, SaveCheckpoint):
            encode_metadata(write, self.max_bytes)
        encode_entries(write.thread_id, write.entries, self.max_bytes)
