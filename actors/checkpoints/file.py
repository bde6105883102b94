"""Checkpoints in plain files: a folder for each thread. Any number of processes that share the directory may use it.

It is for looking inside, for backups by copying, and for disks that SQLite does not like; ``sqlite://`` is faster and lists
many threads sooner. Every write is a temporary file, ``fsync`` and a rename, under a lock of its thread, so that a killed
process leaves each thread as it was before or after a save. Every file carries a checksum: what was damaged is an error and
never an empty thread. Source: OURS-21, MEM-29, MEM-30.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import TypeVar, cast

from pydantic import ValidationError

from ...protocol.commands import CheckpointLoaded, SaveCheckpoint
from ...protocol.errors import CheckpointError, ConfigurationError, NotStorable, StoreUnavailable
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
    ThreadInfo,
    ThreadsListed,
)
from .durable_file import DurableFiles, explain, read_whole
from .file_texts import TextFolder
from .file_thread import RECORD, ThreadFolder, ThreadRecord
from .store import (
    MAX_STATE_BYTES,
    RecordOutcome,
    SaveOutcome,
    Store,
    Write,
    WriteOutcome,
    check_id,
    check_keep,
    has_values,
)
from .url import StoreUrl, Synchronous

_MARKER = "umbel-store"
_README = b"Checkpoints of Umbel. Change nothing in here by hand: every file carries a checksum.\n"
_T = TypeVar("_T")


class FileStore(Store):
    """A store in a directory. Its URL is ``file:///relative``, ``file:////absolute`` or ``file:///~/path``.

    Args:
        path: the directory; it is created when missing, and must be empty or a store.
        timeout: seconds to wait for another process's lock before :class:`StoreUnavailable`.
        synchronous: ``full`` survives a power cut, ``normal`` a killed process.
        max_bytes: the largest state that one checkpoint may hold.
        clock: seconds since the epoch; leases and tombstones go by it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        timeout: float = 10.0,
        synchronous: Synchronous = "full",
        max_bytes: int = MAX_STATE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(max_bytes=max_bytes)
        self.path = Path(path).expanduser().absolute()
        self._clock = clock
        self._files = DurableFiles(timeout=timeout, synchronous=synchronous == "full")
        self._texts = TextFolder(self.path / "texts", self._files)
        self._identity: tuple[int, int] | None = None
        self._closed = False
        self._executor = ThreadPoolExecutor(max_workers=8, thread_name_prefix="umbel-file")

    @classmethod
    def from_url(cls, url: str) -> FileStore:
        """The store of a URL; options are ``timeout``, ``synchronous`` and ``max_bytes``."""
        parsed = StoreUrl.parse(url)
        parsed.expect("timeout", "synchronous", "max_bytes")
        return cls(
            parsed.file(),
            timeout=parsed.number("timeout", 10.0),
            synchronous=parsed.synchronous("full"),
            max_bytes=int(parsed.number("max_bytes", MAX_STATE_BYTES)),
        )

    async def open(self) -> None:
        """See :meth:`Store.open`."""
        await self._run(lambda: None)

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        """See :meth:`Store.save`; a transaction for each thread."""
        return cast("list[SaveOutcome]", await self.commit(saves))

    async def record(self, records: Sequence[RecordCalls]) -> list[RecordOutcome]:
        """See :meth:`Store.record`; a transaction for each thread."""
        return cast("list[RecordOutcome]", await self.commit(records))

    async def commit(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        """See :meth:`Store.commit`; a transaction for each thread, several threads at a time."""
        outcomes: dict[int, WriteOutcome] = {}
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for number, write in enumerate(writes):
            try:
                check_id(write.thread_id)
            except NotStorable as error:
                outcomes[number] = error
            else:
                numbers[write.thread_id].append(number)
        jobs = [self._write(thread_id, [writes[number] for number in group]) for thread_id, group in numbers.items()]
        for group, done in zip(numbers.values(), await asyncio.gather(*jobs), strict=True):
            outcomes |= zip(group, done, strict=True)
        self.commits += 1
        return [outcomes[number] for number in range(len(writes))]

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        """See :meth:`Store.load`."""
        check_id(thread_id)
        if checkpoint_id is not None:
            check_id(checkpoint_id)
        return await self._run(lambda: self._thread(thread_id).load(checkpoint_id))

    async def history(self, thread_id: str, limit: int = 10) -> list[CheckpointLoaded]:
        """See :meth:`Store.history`."""
        check_id(thread_id)
        return await self._run(lambda: self._thread(thread_id).history(limit))

    async def lease(self, request: TakeLease) -> LeaseTaken:
        """See :meth:`Store.lease`."""
        check_id(request.thread_id)
        check_id(request.owner)
        thread = self._thread(request.thread_id)
        return (await self._run(lambda: thread.change_lease(lambda lease: lease.taken(request, self._clock())))).answer()

    async def release(self, request: ReleaseLease) -> LeaseReleased:
        """See :meth:`Store.release`."""
        check_id(request.thread_id)
        thread = self._thread(request.thread_id)
        await self._run(lambda: thread.change_lease(lambda lease: lease.released(request)))
        return LeaseReleased()

    async def threads(self, request: ListThreads) -> ThreadsListed:
        """See :meth:`Store.threads`. It reads a small file of every thread."""
        return await self._run(lambda: self._list(request))

    async def delete(self, thread_id: str) -> ThreadDeleted:
        """See :meth:`Store.delete`."""
        check_id(thread_id)
        return ThreadDeleted(existed=await self._run(lambda: self._thread(thread_id).delete(self._clock())))

    async def collect(self, request: CollectGarbage) -> GarbageCollected:
        """See :meth:`Store.collect`; only the thread that is collected is locked."""
        check_keep(request)
        total = Counter[str]()
        for record in await self._run(lambda: list(self._records())):
            thread = self._thread(record.thread_id)
            freed = await self._run(lambda thread=thread: thread.collect(request, self._clock()))  # type: ignore[misc]
            total.update(freed.model_dump())
        texts, size = await self._run(self._collect_texts)
        total.update(static_parts=texts, bytes=size)
        return GarbageCollected(**total)

    async def close(self) -> None:
        """See :meth:`Store.close`."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._executor.shutdown, wait=True)

    async def _run(self, work: Callable[[], _T]) -> _T:
        """What ``work`` returns, called in a thread. Every error of the file system comes as what it means."""
        if self._closed:
            raise StoreUnavailable(f"the store {self.path} was closed")
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._call, work)

    def _call(self, work: Callable[[], _T]) -> _T:
        try:
            self._check_place()
            return work()
        except OSError as error:
            raise explain(error, self.path) from error

    def _check_place(self) -> None:
        """A directory that is gone must not be made anew, empty, as if nothing had ever been stored."""
        if self._identity is None:
            self._files.make_folder(self.path)
            self._check_marker()
            self._identity = self._find()
        elif self._find() != self._identity:
            raise StoreUnavailable(
                f"{self.path} was removed or replaced while it was in use; restart what uses it", path=str(self.path)
            )

    def _find(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_dev, found.st_ino

    def _check_marker(self) -> None:
        marker = self.path / _MARKER
        if read_whole(marker) is not None:
            return
        strangers = [path for path in self.path.iterdir() if _MARKER not in path.name]
        if strangers and not marker.exists():
            raise ConfigurationError(
                f"{self.path} is neither empty nor a store: it holds {strangers[0].name!r}; name a directory of its own"
            )
        self._files.write(marker, _README)

    async def _write(self, thread_id: str, writes: list[Write]) -> list[WriteOutcome]:
        return await self._run(lambda: self._thread(thread_id).write(writes, self._clock()))

    def _thread(self, thread_id: str) -> ThreadFolder:
        name = sha256(thread_id.encode()).hexdigest()
        folder = self.path / "threads" / name[:2] / name
        return ThreadFolder(folder, thread_id, self._texts, self._files, self.max_bytes)

    def _records(self) -> Iterator[ThreadRecord]:
        """What is known of every thread, deleted ones too, in no order."""
        for path in self.path.glob(f"threads/*/*/{RECORD}"):
            payload = read_whole(path)
            if payload is None:
                continue  # it was forgotten meanwhile
            try:
                yield ThreadRecord.model_validate_json(payload)
            except ValidationError as error:
                raise CheckpointError(f"{path} is damaged: {error.errors()[0]['msg']}") from None

    def _list(self, request: ListThreads) -> ThreadsListed:
        page: list[ThreadInfo] = []
        found = [record for record in self._records() if record.newest and record.thread_id > request.after]
        for record in sorted(found, key=lambda record: record.thread_id):
            if len(page) >= request.limit:
                break
            if record.thread_id.startswith(request.prefix) and has_values(record.metadata, request.where):
                info = self._thread(record.thread_id).info(self._clock())
                page += [info] if info is not None else []
        return ThreadsListed(threads=tuple(page))

    def _collect_texts(self) -> tuple[int, int]:
        with self._texts.alone():
            return self._texts.collect({digest for record in self._records() for digest in record.statics})
