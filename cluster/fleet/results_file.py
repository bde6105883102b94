"""The results file: one line a task, appended as results come, never lost, never doubled, resumable after a crash.

It is the ledger of a fleet without a name, and a sink of a fleet with one.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from ...protocol.errors import ConfigurationError, StoreUnavailable
from .ledger import Ending, id_hash
from .record import FleetRecord
from .results import TaskResult

OUT_EXISTS = "is there already; --resume goes on with it, --overwrite replaces it, or choose another file"
_BACKLOG = 2_000
_SYNC_SECONDS = 1.0


class ResultsFile:
    """Appends results to a file from a thread of its own, in batches; each is with the operating system within milliseconds.

    Args:
        path: the file; its folder is made when missing.
        resume: go on with a file that is there: repair a torn last line, learn which ids are ok.
        overwrite: replace a file that is there.

    Raises:
        ConfigurationError: the file is there and neither was asked for, it is no results file, or another fleet writes it.
    """

    def __init__(self, path: Path, *, resume: bool = False, overwrite: bool = False) -> None:
        if resume and overwrite:
            raise ConfigurationError("resume goes on with a results file and overwrite replaces it; choose one")
        self.path = path
        self.where = str(path)
        self.files = (path,)
        self.record: FleetRecord | None = None
        self.done: set[int] = set()
        self._reruns = False
        self._stream = _open_locked(path, fresh=not (resume or overwrite))
        try:
            if overwrite:
                _empty(self._stream)
            elif stat.S_ISREG(os.fstat(self._stream.fileno()).st_mode):
                self.done, self._reruns = _recover(self._stream, path)
        except BaseException:  # whatever it was: the file is closed, and it is raised again
            self._stream.close()
            raise
        self._lines: list[bytes] = []
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="umbel-fleet-results")
        self._writing: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._error: OSError | None = None
        self._synced = time.monotonic()

    def is_done(self, key: int) -> bool:
        """See :meth:`Ledger.is_done`."""
        return key in self.done

    def put(self, result: TaskResult, *, includes_earlier: bool = False) -> None:
        """Take a result; it is written as soon as the batch before it is."""
        self.put_lines((result.line(),))

    def put_lines(self, lines: Iterable[bytes]) -> None:
        """The same for results that are lines already."""
        self._lines.extend(lines)
        if len(self._lines) >= _BACKLOG:
            self._room.clear()
        if self._writing is None and self._error is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def room(self) -> None:
        """Wait while the disk is behind.

        Raises:
            StoreUnavailable: the file cannot be written.
        """
        if not self._room.is_set():
            await self._room.wait()
        self.check()

    def note(self, *, total: int | None = None, draining: str | None = None) -> None:
        """See :meth:`Ledger.note`; a file says nothing about its fleet."""

    async def close(self, ending: Ending | None = None) -> None:
        """Write what is left, make it durable, drop lines that a resumed run superseded.

        Raises:
            StoreUnavailable: the file cannot be written.
        """
        try:
            await self.written()
            await asyncio.get_running_loop().run_in_executor(self._executor, self._finish)
        except OSError as error:
            self._error = error
            self.check()
        finally:
            self._executor.shutdown(wait=False)
            self._stream.close()

    def abandon(self) -> None:
        """Close the file as it is: what was not written yet is lost."""
        self._executor.shutdown(wait=True)
        self._stream.close()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._lines:
                lines, self._lines = self._lines, []
                await loop.run_in_executor(self._executor, self._append, b"".join(lines))
                self._room.set()
        except OSError as error:
            self._error = error
        finally:
            self._writing = None
            self._room.set()

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._stream.fileno(), view) :]
        now = time.monotonic()
        if now - self._synced >= _SYNC_SECONDS:
            self._synced = now
            _sync(self._stream)

    def _finish(self) -> None:
        if self._reruns:
            _drop_superseded(self._stream, self.path)
        else:
            _sync(self._stream)

    async def written(self) -> None:
        """Wait until everything is with the operating system.

        Raises:
            StoreUnavailable: the file cannot be written.
        """
        while self._writing is not None:
            await self._writing
        self.check()

    def check(self) -> None:
        """See :meth:`Ledger.check`."""
        if self._error is not None:
            reason = self._error.strerror or str(self._error)
            raise StoreUnavailable(f"cannot write {self.path}: {reason}; free the disk, then run again with resume") from None


def _sync(stream: IO[bytes]) -> None:
    try:
        os.fsync(stream.fileno())
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


_NO_SYNC = {22, 45, 95}  # EINVAL, ENOTSUP, EOPNOTSUPP: pipes and some network file systems


def _open_locked(path: Path, *, fresh: bool) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+b", buffering=0)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror or error}; choose another results file") from None
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        raise ConfigurationError(f"another fleet is writing {path}; wait for it or choose another results file") from None
    if fresh and os.fstat(stream.fileno()).st_size:
        stream.close()
        raise ConfigurationError(f"{path} {OUT_EXISTS}")
    return stream


def _empty(stream: IO[bytes]) -> None:
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.truncate(0)


def _recover(stream: IO[bytes], path: Path) -> tuple[set[int], bool]:
    """Ids that are ok, and whether there are others, which will run again. A torn last line is cut off or completed."""
    done: set[int] = set()
    others = torn = False
    entry = None
    end = 0
    with path.open("rb") as reader:
        for number, raw in enumerate(reader, 1):
            entry = _read_entry(raw)
            torn = not raw.endswith(b"\n")
            if entry is None and not torn:
                raise _no_result(path, number)
            if entry is None:
                break
            end += len(raw)
            task_id, ok = entry
            if ok:
                done.add(id_hash(task_id))
            else:
                others = True
    stream.truncate(end)
    if torn and entry is not None:
        os.write(stream.fileno(), b"\n")
    return done, others


def _read_entry(raw: bytes) -> tuple[str, bool] | None:
    try:
        record = json.loads(raw)
        return str(record["id"]), record["status"] == "ok"
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def read_ids(path: Path) -> Iterator[str]:
    """The ids of a results file, a torn last line left out.

    Raises:
        ConfigurationError: a line is no result.
    """
    with path.open("rb") as reader:
        for number, raw in enumerate(reader, 1):
            entry = _read_entry(raw)
            if entry is not None:
                yield entry[0]
            elif raw.endswith(b"\n"):
                raise _no_result(path, number)


def _no_result(path: Path, number: int) -> ConfigurationError:
    return ConfigurationError(f"{path}:{number}: not a result line; is this the results file? move it away or mend the line")


def _drop_superseded(stream: IO[bytes], path: Path) -> None:
    """Keep only the newest line of each task that ran again; the file is replaced in one step."""
    newest = _newest_offsets(path)
    fresh = path.with_name(f".{path.name}.compacting")
    with path.open("rb") as old, fresh.open("wb") as new:
        offset = 0
        for raw in old:
            entry = _read_entry(raw)
            if entry is None or newest.get(id_hash(entry[0]), offset) == offset:
                new.write(raw)
            offset += len(raw)
        new.flush()
        os.fchmod(new.fileno(), os.fstat(stream.fileno()).st_mode & 0o777)
        _sync(new)
    fresh.replace(path)


def _newest_offsets(path: Path) -> dict[int, int]:
    """For ids with a line that is not ok: where the newest line of that id starts."""
    newest: dict[int, int] = {}
    for key, ok, _ in _scan(path):
        if not ok:
            newest[key] = -1
    for key, _, offset in _scan(path):
        if key in newest:
            newest[key] = offset
    return newest


def _scan(path: Path) -> Iterator[tuple[int, bool, int]]:
    offset = 0
    with path.open("rb") as reader:
        for raw in reader:
            entry = _read_entry(raw)
            if entry is not None:
                yield id_hash(entry[0]), entry[1], offset
            offset += len(raw)
