"""A connection to an SQLite file, and what its errors mean."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ...protocol.errors import CheckpointError, ConfigurationError, NotStorable, StoreUnavailable, UmbelError

T = TypeVar("T")
LONGEST_PAUSE = 0.05  # seconds between two looks whether a lock is free
SLOW_SECONDS = 0.25  # a short transaction that takes longer tells of a slow disk:
AFTER_SLOW_SECONDS = 60.0  # for so long, short ones run in the thread, too
_ELSEWHERE = "choose another place with checkpointer='sqlite:///path' or UMBEL_HOME"
_UNWRITABLE = (ConfigurationError, f"cannot be opened for writing ({{error}}); check its permissions, or {_ELSEWHERE}")
_LOCKED = (
    StoreUnavailable,
    "is locked by another process ({error}); end what holds it, or wait longer with ?timeout=SECONDS",
)
_DAMAGED = "is damaged ({error}); restore a backup, or rescue what is left with: sqlite3 '{path}' .recover"
_MEANINGS: dict[int, tuple[type[UmbelError], str]] = {
    sqlite3.SQLITE_NOTADB: (ConfigurationError, f"is not an SQLite database; move it away, or {_ELSEWHERE}"),
    sqlite3.SQLITE_CORRUPT: (CheckpointError, _DAMAGED),
    sqlite3.SQLITE_CANTOPEN: _UNWRITABLE,
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_AUTH: _UNWRITABLE,
    sqlite3.SQLITE_TOOBIG: (NotStorable, "cannot hold so large a state: {error}"),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_IOERR: (
        StoreUnavailable,
        "cannot be read or written ({error}): its disk is full or fails; try again after that",
    ),
    sqlite3.SQLITE_FULL: (StoreUnavailable, "has no space left; free some and try again"),
}


class TooLong(Exception):
    """Raised by work that finds out that it would keep its caller's thread for long."""


class Database:
    """One connection to an SQLite file, opened at its first use in a thread of its own.

    Work that is known to be short runs on the caller's thread: a transaction takes tens of microseconds, handing it over and
    getting the answer back takes more, and with an interpreter that runs one thread at a time every statement would wait for
    its turn. Whatever would wait does so in the connection's thread: for another process's lock, for the disk, for a long read.

    Args:
        path: the database file; missing parent directories are created.
        timeout: seconds to wait for another process's lock.
        prepare: called once with the new connection (settings, schema).
    """

    def __init__(self, path: Path, *, timeout: float, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self._path = path
        self._timeout = timeout
        self._prepare = prepare
        self._connection: sqlite3.Connection | None = None
        self._identity = (0, 0)
        self._closed = False
        self._lock = threading.Lock()  # who has the connection
        self._slow_until = 0.0
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="umbel-sqlite")

    async def run(self, work: Callable[[sqlite3.Connection], T], *, short: bool = False) -> T:
        """What ``work`` returns. A transaction that it leaves open is rolled back; when the file is locked it is called again.

        Args:
            work: gets the connection.
            short: it may run on the caller's thread.

        Raises:
            UmbelError: every error of SQLite and of the file system, as what it means to the caller.
            TooLong: ``work`` raised it.
        """
        if self._closed:
            raise StoreUnavailable(f"the store {self._path} was closed")
        if short and self._connection is not None and self._lock.acquire(blocking=False):
            try:
                if time.monotonic() >= self._slow_until:
                    return self._try(work, self._connection)
            except _Locked:
                pass
            finally:
                self._lock.release()
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._call, work)

    async def close(self) -> None:
        """Finish what was started, close the connection, end the thread."""
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._executor, self._disconnect)
            self._executor.shutdown(wait=True)

    def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        deadline = time.monotonic() + self._timeout
        pause = 0.001
        with self._lock:
            while True:
                try:
                    return self._try(work, self._connection or self._connect())
                except _Locked as locked:
                    if time.monotonic() >= deadline:
                        raise explain(locked.error, self._path) from locked.error
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _try(self, work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
        started = time.monotonic()
        try:
            self._check_file()
            return work(connection)
        except sqlite3.Error as error:
            if _code(error) == sqlite3.SQLITE_BUSY:
                raise _Locked(error) from None
            raise explain(error, self._path) from error
        finally:
            if connection.in_transaction:
                connection.rollback()
            ended = time.monotonic()
            if ended - started > SLOW_SECONDS:
                self._slow_until = ended + AFTER_SLOW_SECONDS

    def _connect(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"cannot create the directory {self._path.parent}: {error.strerror}; {_ELSEWHERE}"
            ) from error
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False)
            if connection.execute("PRAGMA page_count").fetchone() == (0,):  # in a file with pages it would need its lock
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._use_write_ahead_log(connection)
            self._prepare(connection)
            connection.execute("PRAGMA busy_timeout = 0")  # from now on it is not SQLite that waits
            self._identity = self._find_file()
        except BaseException as error:  # whatever it was, the connection must not stay open
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise explain(error, self._path) from error
            raise
        self._connection = connection
        return connection

    def _use_write_ahead_log(self, connection: sqlite3.Connection) -> None:
        """Switch a new file to WAL. Processes that do it at once get "locked" at once, without SQLite's own waiting."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _find_file(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        """SQLite would go on writing into a file that nobody can find any more."""
        if self._find_file() != self._identity:
            raise StoreUnavailable(
                f"{self._path} was removed or replaced while it was in use; restart what uses it", path=str(self._path)
            )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Locked(Exception):
    """Another process has the file; nothing was done."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__(str(error))
        self.error = error


def explain(error: sqlite3.Error, path: Path) -> UmbelError:
    """``error`` as an Umbel error that names the file and what to do."""
    kind, text = _MEANINGS.get(_code(error), (StoreUnavailable, "failed: {error}"))
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return kind(f"{path} " + text.format(error=error, path=path), path=str(path), sqlite=name)


def _code(error: sqlite3.Error) -> int:
    """SQLite's own number of the error."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
