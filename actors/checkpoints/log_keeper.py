"""What a commit leaves to be done: SQLite's write-ahead log reaches the disk, and then the database file."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from pathlib import Path

logger = logging.getLogger("umbel.checkpointer")
SYNC_SECONDS = 0.1
MOVE_PAGES = 1_000  # about 4 MiB; SQLite's own number
LONG_LOG_PAGES = 4_000  # about 16 MiB
LOCK_SECONDS = 1.0


class LogKeeper:
    """A thread that syncs the log at most ``SYNC_SECONDS`` after a commit, and moves its pages to the database now and then.

    A connection with ``synchronous=normal`` and ``wal_autocheckpoint=0`` does neither, so its commits never wait for the disk.
    Source: https://www.sqlite.org/wal.html, "Checkpointing".

    Args:
        path: the database file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = Path(f"{path}-wal")
        self._pages = 0
        self._dirty = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def wrote(self, pages: int) -> None:
        """A transaction with about so many pages was committed."""
        self._pages += pages
        if self._dirty.is_set():
            return
        self._dirty.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="umbel-sqlite-log", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Sync once more, and end the thread."""
        self._closed.set()
        self._dirty.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        self._pages += self._size()  # what a killed process left
        while not self._closed.is_set():
            self._dirty.wait()
            self._closed.wait(SYNC_SECONDS)  # what else is committed now shares the sync
            self._dirty.clear()
            try:
                sync(self._log)
                if self._pages >= MOVE_PAGES and self._path.exists():
                    self._pages = 0
                    self._move()
            except (OSError, sqlite3.Error) as error:  # the next commit meets the same disk, and tells its caller
                logger.warning("%s could not be brought to the disk: %s", self._log, error)

    def _move(self) -> None:
        """Copy the log's pages to the database. Who writes meanwhile makes it longer: once it is long, they wait a moment."""
        connection = sqlite3.connect(self._path, timeout=LOCK_SECONDS, isolation_level=None)
        try:
            _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if pages > LONG_LOG_PAGES:
                connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        finally:
            connection.close()

    def _size(self) -> int:
        try:
            return self._log.stat().st_size // 4096
        except OSError:
            return 0


def sync(file: Path) -> None:
    """Wait until the disk has what was written to ``file``, if there is one."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
