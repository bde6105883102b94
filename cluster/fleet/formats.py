"""Task files: JSON lines and CSV, plain or gzip, read as streams."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, cast

from ...protocol.errors import ConfigurationError
from .tasks import MAX_LINE_BYTES, BadTask, Task, parse_line, parse_value, rename_advice

Item = Task | BadTask
COUNT_LIMIT_BYTES = 200 * 1024 * 1024
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
_BROKEN_STREAM = (OSError, EOFError, zlib.error)


def read_file(path: Path) -> Iterator[Item]:
    """The tasks of a file, one by one. It is opened when the first is asked for.

    Raises:
        ConfigurationError: the file cannot be opened, or its name does not say what it holds.
    """
    read = read_jsonl if _kind_of_file(path) == "jsonl" else read_csv
    return _read_opened(path, read)


def _read_opened(path: Path, read: Callable[[IO[bytes], str], Iterator[Item]]) -> Iterator[Item]:
    try:
        stream = _open_binary(path)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}; check the path") from None
    yield from read(stream, str(path))


def _kind_of_file(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    ending = suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:]
    if ending and ending[0] in _SUFFIXES:
        return _SUFFIXES[ending[0]]
    advice = "expected a name that ends in .jsonl or .csv (or these with .gz)"
    if ending == [".json"]:
        advice += f"; turn a JSON array into lines with: jq -c '.[]' {path} > {path.with_suffix('.jsonl')}"
    raise ConfigurationError(f"cannot tell what {path} holds: {advice}")


def _open_binary(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


def read_jsonl(stream: IO[bytes], name: str) -> Iterator[Item]:
    """One item per line that is not blank; ``name`` is the file's name in messages."""
    with stream:
        number = 0
        while True:
            number += 1
            where, default_id = f"{name}:{number}", f"line-{number}"
            try:
                raw = _read_line(stream)
            except _BROKEN_STREAM as error:
                yield _broken(name, number, error)
                return
            if raw == b"":
                return
            if raw is None:
                yield BadTask(
                    id=default_id, where=where, problem=f"a line of over {MAX_LINE_BYTES} bytes; is this a JSONL file?"
                )
                continue
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if raw.strip():
                yield parse_line(raw, default_id=default_id, where=where)


def _read_line(stream: IO[bytes]) -> bytes | None:
    """A line with its newline, b"" at the end of the stream, None for a line that is too long (which is skipped)."""
    raw = stream.readline(MAX_LINE_BYTES)
    if len(raw) < MAX_LINE_BYTES or raw.endswith(b"\n"):
        return raw
    while raw and not raw.endswith(b"\n"):
        raw = stream.readline(MAX_LINE_BYTES)
    return None


def _broken(name: str, number: int, error: BaseException) -> BadTask:
    problem = f"the file cannot be read from here on ({error}); repair it, then run again with resume"
    return BadTask(id=f"line-{number}", where=f"{name}:{number}", problem=problem)


def read_csv(stream: IO[bytes], name: str) -> Iterator[Item]:
    """One item per row: the columns ``prompt`` and, if there, ``id``; all others are metadata.

    Raises:
        ConfigurationError: on the first row asked for, when the header has no ``prompt`` or names a column twice.
    """
    csv.field_size_limit(MAX_LINE_BYTES)  # the default of 128 KB is less than a long prompt
    with io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        rows = csv.reader(text, strict=True)
        header = _read_header(rows, name)
        while header:
            line = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except _BROKEN_STREAM as error:
                yield _broken(name, line, error)
                return
            except csv.Error as error:
                problem = f"not CSV ({error}); a field with commas, quotes or newlines needs quotes around it"
                yield BadTask(id=f"line-{line}", where=_lines(name, line, rows.line_num), problem=problem)
                continue
            if row:
                yield _parse_row(header, row, default_id=f"line-{line}", where=_lines(name, line, rows.line_num))


def _lines(name: str, first: int, last: int) -> str:
    return f"{name}:{first}" if last <= first else f"{name}:{first}-{last}"


def _read_header(rows: Iterator[list[str]], name: str) -> list[str]:
    try:
        header = [column.strip() for column in next(rows, [])]
    except (csv.Error, *_BROKEN_STREAM) as error:
        raise ConfigurationError(f"{name}:1: not CSV ({error}); expected a first line with the columns' names") from None
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise ConfigurationError(f"{name}:1: column {twice[0]!r} is there twice; rename one")
    if header and "prompt" not in header:
        separators = [mark for mark in ";\t|" if len(header) == 1 and mark in header[0]]
        advice = f"; the columns look separated by {separators[0]!r}, save the file with commas" if separators else ""
        raise ConfigurationError(f"{name}:1: column 'prompt': missing{rename_advice(header)}{advice}")
    return header


def _parse_row(header: list[str], row: list[str], *, default_id: str, where: str) -> Item:
    if len(row) > len(header):
        problem = f"{len(row)} fields, the header has {len(header)}; put quotes around fields with commas"
        return BadTask(id=default_id, where=where, problem=problem)
    if any("\udc80" <= char <= "\udcff" for field in row if not field.isascii() for char in field):
        return BadTask(id=default_id, where=where, problem="not UTF-8 text; save the file as UTF-8")
    record = dict(zip(header, row, strict=False))
    metadata = {column: value for column, value in record.items() if column not in ("id", "prompt")}
    value = {"id": record.get("id") or None, "prompt": record.get("prompt", ""), "metadata": metadata}
    return parse_value(value, default_id=default_id, where=where)


def count_tasks(path: Path) -> int | None:
    """How many tasks a file holds: lines that are not blank, or rows. None when it has over 200 MB."""
    try:
        with _open_binary(path) as stream:
            return _count_rows(stream) if _kind_of_file(path) == "csv" else _count_lines(stream)
    except (csv.Error, *_BROKEN_STREAM):
        return None


def _count_lines(stream: IO[bytes]) -> int | None:
    count = size = 0
    for raw in iter(lambda: stream.readline(MAX_LINE_BYTES), b""):
        count += not raw.isspace()
        size += len(raw)
        if size > COUNT_LIMIT_BYTES:
            return None
    return count


def _count_rows(stream: IO[bytes]) -> int | None:
    with io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="") as text:
        rows = csv.reader(text)
        count = sum(1 for row in islice(rows, 1, 1_000_001) if row)
        return count if next(rows, None) is None else None
