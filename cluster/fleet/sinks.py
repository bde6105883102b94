"""Files that are made from the ledger of a fleet with a name: JSON lines while it runs, Parquet when it ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import from_json

from ...actors.checkpoints.store import Store
from ...protocol.errors import ConfigurationError, MissingExtra, StoreUnavailable
from .results import TaskResult
from .results_file import ResultsFile
from .stored import newest_lines

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET = ".parquet"
_ROW_GROUP = 10_000
_ROW_GROUP_BYTES = 32 * 1024 * 1024


class Sink(Protocol):
    """A file that gets the results of a fleet.

    Attributes:
        path: of the file.
    """

    path: Path

    async def add(self, lines: Sequence[bytes]) -> None:
        """Results that have just been stored."""

    async def close(self, store: Store, name: str) -> None:
        """The fleet has ended: the file holds one line for each task that has a result."""

    def abandon(self) -> None:
        """Let go of the file as it is, if it is still open."""


class JsonLinesSink:
    """A JSONL file that grows while the fleet runs. A line is written once the store has it.

    Args:
        file: open, and holding what the store holds.
    """

    def __init__(self, file: ResultsFile) -> None:
        self.path = file.path
        self._file: ResultsFile | None = file

    async def add(self, lines: Sequence[bytes]) -> None:
        """See :meth:`Sink.add`."""
        assert self._file is not None
        if lines:
            self._file.put_lines((b"\n".join(lines) + b"\n",))
        await self._file.written()

    async def close(self, store: Store, name: str) -> None:
        """See :meth:`Sink.close`."""
        file, self._file = self._file, None
        if file is not None:
            await file.close()

    def abandon(self) -> None:
        """See :meth:`Sink.abandon`."""
        file, self._file = self._file, None
        if file is not None:
            file.abandon()


class ParquetSink:
    """A Parquet file, written in one step from the store when the fleet ends."""

    def __init__(self, path: Path) -> None:
        pyarrow_module()
        self.path = path

    async def add(self, lines: Sequence[bytes]) -> None:
        """See :meth:`Sink.add`."""

    async def close(self, store: Store, name: str) -> None:
        """See :meth:`Sink.close`."""
        await write_file(self.path, newest_lines(store, name))

    def abandon(self) -> None:
        """See :meth:`Sink.abandon`."""


async def write_file(path: Path, lines: AsyncIterator[bytes]) -> int:
    """Write result lines as a file of the kind that its name says; it is replaced in one step. How many there were.

    Raises:
        ConfigurationError: the name ends neither with ``.jsonl`` nor with ``.parquet``.
        StoreUnavailable: it cannot be written.
    """
    check_kind(path)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        count = await (_write_parquet if path.suffix == PARQUET else _write_jsonl)(fresh, lines)
        fresh.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreUnavailable(f"cannot write {path}: {reason}; the results are in the fleet's store") from None
    finally:
        fresh.unlink(missing_ok=True)
    return count


def check_kind(path: Path) -> None:
    """Refuse names that say no kind of file.

    Raises:
        ConfigurationError: see above.
    """
    if path.suffix not in {".jsonl", PARQUET}:
        raise ConfigurationError(f"{path}: results are written as .jsonl or .parquet; rename it")


async def _write_jsonl(path: Path, lines: AsyncIterator[bytes]) -> int:
    count = 0
    with path.open("wb") as file:
        async for line in lines:
            file.write(line + b"\n")
            count += 1
            if count % _ROW_GROUP == 0:
                await asyncio.sleep(0)
        file.flush()
        os.fsync(file.fileno())
    return count


async def _write_parquet(path: Path, lines: AsyncIterator[bytes]) -> int:
    from pyarrow import parquet

    schema, count = _schema(), 0
    with path.open("wb") as file:
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            rows: list[bytes] = []
            size = 0
            async for line in lines:
                rows.append(line)
                size += len(line)
                if len(rows) == _ROW_GROUP or size >= _ROW_GROUP_BYTES:
                    count += len(rows)
                    await asyncio.to_thread(_write_rows, writer, schema, rows)
                    rows, size = [], 0
            if rows:
                count += len(rows)
                await asyncio.to_thread(_write_rows, writer, schema, rows)
        file.flush()
        os.fsync(file.fileno())
    return count


def _write_rows(writer: Any, schema: pa.Schema, rows: list[bytes]) -> None:
    import pyarrow as pa

    writer.write_table(pa.Table.from_pylist([from_json(row) for row in rows], schema=schema))


def _schema() -> pa.Schema:
    """The columns of :class:`TaskResult`, in its order."""
    pa = pyarrow_module()
    kinds = {"tokens": pa.int64(), "attempts": pa.int64(), "cost_usd": pa.float64(), "duration_s": pa.float64()}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in TaskResult.model_fields])


def pyarrow_module() -> Any:
    """pyarrow, an optional dependency.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingExtra(f"Parquet files need pyarrow ({error}): pip install 'umbel[data]'") from None
    return pa
