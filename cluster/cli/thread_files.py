"""Threads out into a file of JSON lines, and in from one."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ...protocol.errors import CheckpointConflict, CheckpointNotFound, ConfigurationError

if TYPE_CHECKING:
    from ...actors.threads import Threads

NAMED = 5  # threads that an error names


async def export_threads(threads: Threads, ids: AsyncIterator[str], out: IO[str], *, listed: bool = False) -> int:
    """Write a line for each thread; how many.

    Args:
        threads: where they are.
        ids: of the threads.
        out: the file.
        listed: the ids come from a list, so one that is not there any more was deleted since, and is passed over.

    Raises:
        CheckpointNotFound: one is not there.
    """
    from ...actors.checkpoints.archive import ThreadRecord

    count = 0
    async for thread_id in ids:
        try:
            record = ThreadRecord.of(thread_id, await threads.load(thread_id))
        except CheckpointNotFound:
            if listed:
                continue
            raise
        out.write(record.to_line())
        count += 1
    return count


async def import_threads(threads: Threads, file: IO[str], source: str, *, force: bool) -> dict[str, Any]:
    """Store every thread of a file, once all of it was read and found right.

    Args:
        threads: where they go.
        file: what :func:`export_threads` wrote; it is read twice.
        source: its name, for errors.
        force: a thread that exists gets the file's state as its newest checkpoint; otherwise nothing is imported.

    Returns:
        How many are new (``imported``), and how many existed (``replaced``).

    Raises:
        ConfigurationError: a line is wrong.
        CheckpointConflict: a thread exists, and ``force`` is not set.
    """
    from ...actors.checkpoints.archive import read_records

    existing = {record.thread_id for record in read_records(file, source) if await threads.exists(record.thread_id)}
    if existing and not force:
        named = ", ".join(map(repr, sorted(existing)[:NAMED])) + (", ..." if len(existing) > NAMED else "")
        raise CheckpointConflict(
            f"{len(existing)} of the threads exist already ({named}); nothing was imported. Remove them, or use --force,"
            " which writes the file's state as their newest checkpoint"
        )
    file.seek(0)
    count = 0
    for record in read_records(file, source):
        await threads.write(
            record.thread_id,
            record.state,
            checkpoint_id=record.checkpoint_id,
            created_at=record.created_at,
            metadata=record.metadata,
            journal=record.journal,
            replace=force,
        )
        count += 1
    return {"imported": count - len(existing), "replaced": len(existing)}


@contextlib.contextmanager
def written_whole(path: Path | None, *, overwrite: bool) -> Iterator[IO[str]]:
    """A file that is there once it is complete; None is standard output.

    Raises:
        ConfigurationError: it exists, or its folder does not.
    """
    if path is None:
        yield sys.stdout
        return
    if path.exists() and not overwrite:
        raise ConfigurationError(f"{path} exists; choose another name, or replace it with --overwrite")
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"there is no folder {path.absolute().parent} for {path.name}")
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def read_twice(path: str) -> Iterator[tuple[IO[str], str]]:
    """A file that can be read from its beginning again, and its name; a pipe, or for ``-`` standard input, is copied first.

    Raises:
        ConfigurationError: it cannot be read.
    """
    name = "standard input" if path == "-" else path
    if path != "-" and (not Path(path).exists() or Path(path).is_dir()):
        raise ConfigurationError(f"there is no file {path}; - reads standard input")
    try:
        with contextlib.nullcontext(sys.stdin) if path == "-" else Path(path).open(encoding="utf-8") as given:
            if path != "-" and Path(path).is_file():
                yield given, name
                return
            with tempfile.TemporaryFile("w+", encoding="utf-8") as kept:
                shutil.copyfileobj(given, kept)
                kept.seek(0)
                yield kept, name
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name}: not UTF-8 text: {error}") from None
    except PermissionError:
        raise ConfigurationError(f"{name} may not be read") from None


async def chosen(threads: Threads, ids: Sequence[str], prefix: str, where: dict[str, Any]) -> AsyncIterator[str]:
    """The ids that were named, or those of all threads that fit."""
    for thread_id in ids:
        yield thread_id
    if not ids:
        async for thread in threads.every(prefix, where=where):
            yield thread.thread_id
