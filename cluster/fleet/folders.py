"""A folder of text files as tasks: a file a task, its path in the folder the id, its text the prompt."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from ...protocol.errors import ConfigurationError
from .formats import Item
from .tasks import BadTask, Task


def read_folder(folder: Path, glob: str, max_bytes: int) -> Iterator[Item]:
    """The tasks of a folder and those below it, in the order of names. Hidden files and folders are left out.

    Args:
        folder: where they are.
        glob: names to take; with a slash, paths in the folder.
        max_bytes: a larger file is an invalid task.

    Raises:
        ConfigurationError: no file matches.
    """
    found = False
    for path in _files(folder, glob):
        found = True
        yield _read(path, path.relative_to(folder).as_posix(), max_bytes)
    if not found:
        raise ConfigurationError(f"{folder} has no file that matches {glob!r}; check the path and glob")


def count_files(folder: Path, glob: str) -> int:
    """How many there are."""
    return sum(1 for _ in _files(folder, glob))


def _files(folder: Path, glob: str) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            matched = path.relative_to(folder).as_posix() if "/" in glob else name
            if not name.startswith(".") and fnmatchcase(matched, glob):
                yield path


def _read(path: Path, name: str, max_bytes: int) -> Item:
    def bad(problem: str) -> BadTask:
        return BadTask(id=name, where=str(path), problem=problem)

    try:
        with path.open("rb") as stream:
            raw = stream.read(max_bytes + 1)
    except OSError as error:
        return bad(f"cannot be read: {error.strerror or error}")
    if len(raw) > max_bytes:
        return bad(f"over {max_bytes:,} bytes; split the file, choose others with glob, or raise max_bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return bad(f"not UTF-8 text (byte {error.start}); save it as UTF-8, or choose other files with glob")
    if not text.strip():
        return bad("empty; write into it what the agent is to do, or choose other files with glob")
    return Task(id=name, prompt=text, metadata={"path": name}, where=str(path))
