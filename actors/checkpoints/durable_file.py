"""Files that are either whole or not there, locks between processes, and what errors of the file system mean."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from ...protocol.errors import CheckpointError, ConfigurationError, SchemaVersionError, StoreUnavailable, UmbelError

MARK = b"umbel1 "
TEMPORARY = ".tmp"
_POLL = 0.002  # seconds
_ELSEWHERE = "choose another place with checkpointer='file:///directory'"
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_WRONG_PLACE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR})


class DurableFiles:
    """How the files of one store are written.

    Args:
        timeout: seconds to wait for a lock.
        synchronous: wait for the disk, so that a power cut loses nothing; a killed process never does.
    """

    def __init__(self, *, timeout: float, synchronous: bool) -> None:
        self._timeout = timeout
        self._synchronous = synchronous

    def write(self, path: Path, payload: bytes) -> None:
        """Write a file of its own first, then put it in the place of ``path``: at a crash the old one is there, or the new one.

        Raises:
            OSError: the file system refuses; ``path`` is as before.
        """
        # Not by process id: containers that share a directory all have a process 1.
        temporary = path.with_name(f".{path.name}.{uuid4().hex}{TEMPORARY}")
        try:
            with temporary.open("wb") as file:
                file.write(MARK + sha256(payload).hexdigest().encode() + b"\n")
                file.write(payload)
                file.flush()
                if self._synchronous:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:  # nothing half-written stays, whatever it was; it is raised again
            temporary.unlink(missing_ok=True)
            raise
        self._sync_names(path.parent)

    def make_folder(self, folder: Path) -> None:
        """Create ``folder`` and the ones above it."""
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        self._sync_names(folder.parent)

    @contextmanager
    def locked(self, path: Path, *, shared: bool = False) -> Iterator[None]:
        """Hold the lock of the file ``path``, which is created, against every other thread and process.

        Args:
            path: the lock's file.
            shared: let others share it; only who takes it unshared is kept out.

        Raises:
            FileNotFoundError: its folder is not there.
            StoreUnavailable: somebody held it for longer than ``timeout``.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                _lock(descriptor, path, deadline, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
                if _is_there(descriptor, path):
                    yield
                    return
            finally:
                os.close(descriptor)  # this also unlocks it

    def _sync_names(self, folder: Path) -> None:
        """Make the names in ``folder`` as durable as what they name."""
        if not self._synchronous:
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_whole(path: Path) -> bytes | None:
    """The payload that was written; None when there is no such file.

    Raises:
        CheckpointError: it is damaged.
        SchemaVersionError: a newer Umbel wrote it.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    head, _, payload = data.partition(b"\n")
    if head.startswith(b"umbel") and not head.startswith(MARK):
        raise SchemaVersionError(f"{path} was written by another version of Umbel; run that one, or choose another directory")
    if head != MARK + sha256(payload).hexdigest().encode():
        raise CheckpointError(
            f"{path} is damaged: its {len(data)} bytes are not the ones that were written; restore a backup",
            path=str(path),
        )
    return payload


def _lock(descriptor: int, path: Path, deadline: float, kind: int) -> None:
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{path} is locked by another process; end what holds it, or wait longer with ?timeout=SECONDS",
                    path=str(path),
                ) from None
            time.sleep(_POLL)


def _is_there(descriptor: int, path: Path) -> bool:
    """Whether the lock still has its name: a thread that is forgotten takes its folder along."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def explain(error: OSError, path: Path) -> UmbelError:
    """``error`` as an Umbel error that names the place and what to do."""
    place = error.filename or str(path)
    if error.errno in _NO_SPACE:
        return StoreUnavailable(f"no space left for {place} ({error.strerror}); free some and try again", path=str(place))
    if error.errno in _WRONG_PLACE:
        return ConfigurationError(f"{place} cannot be used ({error.strerror}); check its permissions, or {_ELSEWHERE}")
    return StoreUnavailable(f"{place} cannot be read or written: {error.strerror or error}", path=str(place))
