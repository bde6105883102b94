"""What a process leaves behind that is killed at some point of a run: copies of its store, made while it runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def copy_of(database: Path, target: Path) -> str:
    """The URL of a copy of a SQLite store as it is now, whose leases have ended, as they do some time after a crash."""
    with sqlite3.connect(database) as source, sqlite3.connect(target) as copy:
        source.backup(copy)
        copy.execute("UPDATE umbel_threads SET owner = NULL, expires_at = 0")
    source.close()
    copy.close()
    return f"sqlite:///{target}"


class Effects:
    """Side effects of members, in a file, and copies of the store at each of them.

    Args:
        folder: for the file and the copies; ``threads.db`` in it is the store.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "effects"

    @property
    def store(self) -> str:
        """The store's URL."""
        return f"sqlite:///{self.folder / 'threads.db'}"

    @property
    def done(self) -> list[str]:
        """What was done so far, in order."""
        return self.log.read_text().split() if self.log.exists() else []

    def add(self, what: str) -> None:
        """Do it."""
        with self.log.open("a") as log:
            log.write(what + "\n")

    def crash(self) -> tuple[str, list[str]]:
        """The store as a process that dies now would leave it, and what was done by then."""
        return copy_of(
            self.folder / "threads.db", self.folder / f"crash-{len(list(self.folder.glob('crash-*')))}.db"
        ), self.done
