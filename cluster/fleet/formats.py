"""Task files: JSON lines and CSV, plain or gzip, and Parquet, read as streams."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from ...protocol.errors import ConfigurationError, MissingExtra
from .inputs import Columns, Format, plain
from .tasks import MAX_LINE_BYTES, BadTask, Task, found_instead, parse_line, parse_value, rename_advice

Item = Task | BadTask
COUNT_LIMIT_BYTES = 200 * 1024 * 1024
_SUFFIXES: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_BROKEN_STREAM = (OSError, EOFError, zlib.error)
_USUAL = Columns()
_ROWS = 256


def read_file(path: Path, columns: Columns = _USUAL, kind: Format | None = None) -> Iterator[Item]:
    """The tasks of a file, one by one. It is opened when the first is asked for.

    Args:
        path: the file.
        columns: which column is what.
        kind: what it holds; None tells it from the name.

    Raises:
        ConfigurationError: the file cannot be opened, or its name does not say what it holds.
    """
    match kind or kind_of_file(path):
        case "jsonl":
            return _read_opened(path, lambda stream, name: read_jsonl(stream, name, columns))
        case "csv":
            return _read_opened(path, lambda stream, name: read_csv(stream, name, columns))
        case "parquet":
            return read_parquet(path, columns)
        case _:
            raise ConfigurationError(f"{path}: format 'text' reads a folder, one file a task; this is a file")


def _read_opened(path: Path, read: Callable[[IO[bytes], str], Iterator[Item]]) -> Iterator[Item]:
    try:
        stream = _open_binary(path)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}; check the path") from None
    yield from read(stream, str(path))


def kind_of_file(path: Path) -> Format:
    """What a file holds, by its name.

    Raises:
        ConfigurationError: the name does not say.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    ending = suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:]
    if ending and ending[0] in _SUFFIXES:
        return _SUFFIXES[ending[0]]
    advice = "expected a name that ends in .jsonl, .csv (or these with .gz) or .parquet, or a folder of text files"
    if ending == [".json"]:
        advice += f"; turn a JSON array into lines with: jq -c '.[]' {path} > {path.with_suffix('.jsonl')}"
    raise ConfigurationError(f"cannot tell what {path} holds: {advice}")


def _open_binary(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


def read_jsonl(stream: IO[bytes], name: str, columns: Columns = _USUAL) -> Iterator[Item]:
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
                yield parse_line(raw, default_id=default_id, where=where, columns=columns)


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


def read_csv(stream: IO[bytes], name: str, columns: Columns = _USUAL) -> Iterator[Item]:
    """One item per row: the columns ``prompt`` and, if there, ``id``; all others are metadata.

    Raises:
        ConfigurationError: on the first row asked for, when the header has no ``prompt`` or names a column twice.
    """
    csv.field_size_limit(MAX_LINE_BYTES)  # the default of 128 KB is less than a long prompt
    with io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        rows = csv.reader(text, strict=True)
        header = _read_header(rows, name, columns)
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
                where = _lines(name, line, rows.line_num)
                yield _parse_row(header, row, columns, default_id=f"line-{line}", where=where)


def _lines(name: str, first: int, last: int) -> str:
    return f"{name}:{first}" if last <= first else f"{name}:{first}-{last}"


def _read_header(rows: Iterator[list[str]], name: str, columns: Columns) -> list[str]:
    try:
        header = [column.strip() for column in next(rows, [])]
    except (csv.Error, *_BROKEN_STREAM) as error:
        raise ConfigurationError(f"{name}:1: not CSV ({error}); expected a first line with the columns' names") from None
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise ConfigurationError(f"{name}:1: column {twice[0]!r} is there twice; rename one")
    missing = columns.missing(header) if header else None
    if missing is not None:
        separators = [mark for mark in ";\t|" if len(header) == 1 and mark in header[0]]
        advice = f"; the columns look separated by {separators[0]!r}, save the file with commas" if separators else ""
        found = rename_advice(header) if columns.usual else found_instead(header)
        raise ConfigurationError(f"{name}:1: column {missing!r}: missing{found}{advice}")
    return header


def _parse_row(header: list[str], row: list[str], columns: Columns, *, default_id: str, where: str) -> Item:
    if len(row) > len(header):
        problem = f"{len(row)} fields, the header has {len(header)}; put quotes around fields with commas"
        return BadTask(id=default_id, where=where, problem=problem)
    if any("\udc80" <= char <= "\udcff" for field in row if not field.isascii() for char in field):
        return BadTask(id=default_id, where=where, problem="not UTF-8 text; save the file as UTF-8")
    record: dict[str, str | None] = {**dict.fromkeys(columns.needed, ""), **dict(zip(header, row, strict=False))}
    given = {**record, columns.id: record.get(columns.id) or None}
    value = {**columns.task_of({name: field for name, field in given.items() if name != "metadata"})}
    if "metadata" in given and "metadata" not in (columns.id, *columns.needed):
        value["metadata"] = {**value["metadata"], "metadata": given["metadata"]}  # a column like any other: CSV has no objects
    return parse_value(value, default_id=default_id, where=where)


def read_parquet(path: Path, columns: Columns = _USUAL) -> Iterator[Item]:
    """One item per row, a few hundred rows in memory at a time.

    Raises:
        ConfigurationError: no such file, not Parquet, or a column is missing.
        MissingExtra: pyarrow is not installed.
    """
    with _open_parquet(path) as file:
        names = file.schema_arrow.names
        missing = columns.missing(names)
        if missing is not None:
            found = rename_advice(names) if columns.usual else found_instead(names)
            raise ConfigurationError(f"{path}: column {missing!r}: missing{found}")
        number = 0
        try:
            for batch in file.iter_batches(_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield parse_row(row, columns, number, f"{path}, row {number}")
        except (OSError, ValueError) as error:  # what Arrow raises for broken pages
            problem = f"the file cannot be read from here on ({error}); repair it, then run again with resume"
            yield BadTask(id=f"row-{number + 1}", where=f"{path}, row {number + 1}", problem=problem)


def parse_row(row: Mapping[str, Any], columns: Columns, number: int, where: str) -> Item:
    """A row of a table; its values may be of kinds that JSON does not have."""
    return parse_value(plain(row), default_id=f"row-{number}", where=where, columns=columns)


def _open_parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra(f'{path}: reading Parquet needs pyarrow: pip install "umbel[data]"') from None
    try:
        return parquet.ParquetFile(path)
    except FileNotFoundError:
        raise ConfigurationError(f"cannot read {path}: there is no such file; check the path") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: not a Parquet file ({error})") from None


def count_tasks(path: Path, kind: Format | None = None) -> int | None:
    """How many tasks a file holds: lines that are not blank, or rows. None when it has over 200 MB."""
    kind = kind or kind_of_file(path)
    try:
        if kind == "parquet":
            with _open_parquet(path) as file:
                return int(file.metadata.num_rows)
        with _open_binary(path) as stream:
            return _count_rows(stream) if kind == "csv" else _count_lines(stream)
    except (csv.Error, ConfigurationError, *_BROKEN_STREAM):
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
