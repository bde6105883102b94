"""The fleets of a store, for whoever looks at them: listed, shown, read, written to a file, deleted."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import ValidationError

from ...actors.checkpoints.registry import default_url, open_store
from ...actors.checkpoints.store import Store
from ...actors.checkpoints.url import StoreUrl, shown
from ...protocol.errors import ConfigurationError
from ...protocol.storage import LEDGER_PREFIX, ListThreads, ThreadInfo
from .holder import describe_holder, is_gone
from .record import FleetRecord, record_in, thread_of
from .results import TaskResult
from .sinks import PARQUET, write_file
from .stored import newest_lines

_PAGE = 500


def default_store() -> str:
    """The store of fleets whose user names none: ``fleets.sqlite`` in ``UMBEL_HOME`` (default ``~/.umbel``)."""
    return default_url(file="fleets.sqlite")


async def list_fleets(store_url: str | None = None) -> list[FleetRecord]:
    """Every fleet of a store, by name.

    Raises:
        StoreUnavailable: the store cannot be reached.
    """
    async with _opened(store_url) as store:
        return [record async for record in _records(store)]


async def load_fleet(store_url: str | None, name: str) -> FleetRecord:
    """A fleet's record.

    Raises:
        ConfigurationError: there is no such fleet; the message names those with a name like it.
        StoreUnavailable: the store cannot be reached.
    """
    async with _opened(store_url) as store:
        return await _known(store, name, store_url)


async def results_of(store_url: str | None, name: str) -> AsyncIterator[TaskResult]:
    """The newest result of each task, in the order in which they came, also of a fleet that runs.

    Raises:
        ConfigurationError: there is no such fleet.
        StoreUnavailable: the store cannot be reached.
    """
    async with _opened(store_url) as store:
        await _known(store, name, store_url)
        async for line in newest_lines(store, name):
            yield TaskResult.model_validate_json(line)


async def export(store_url: str | None, name: str, path: str | os.PathLike[str]) -> int:
    """Write a fleet's newest results to a ``.jsonl`` or ``.parquet`` file, which is replaced in one step; how many there are.

    Raises:
        ConfigurationError: there is no such fleet, or the file has another ending.
        StoreUnavailable: the store cannot be reached, or the file cannot be written.
    """
    async with _opened(store_url) as store:
        await _known(store, name, store_url)
        return await write_file(Path(path), newest_lines(store, name))


async def delete_fleet(store_url: str | None, name: str) -> bool:
    """Delete a fleet's results and record; whether there was one. A tombstone stays: a late write cannot bring it back.

    Threads of its runs are not touched.

    Raises:
        ConfigurationError: somebody runs it.
        StoreUnavailable: the store cannot be reached.
    """
    async with _opened(store_url) as store:
        record = await load_record(store, name)
        if record is not None and record.owner is not None and not is_gone(record.owner):
            raise ConfigurationError(f"fleet {name!r} is being run by {describe_holder(record.owner)}; stop it first")
        return (await store.delete(thread_of(name))).existed


async def open_results(text: str, store_url: str | None = None) -> AsyncIterator[TaskResult]:
    """The results of whatever ``text`` names: a ``.jsonl`` or ``.parquet`` file, or a fleet.

    Raises:
        ConfigurationError: there is neither such a file nor such a fleet, or the file holds no results.
        StoreUnavailable: the store cannot be reached.
    """
    path = Path(text)
    if path.suffix in {".jsonl", PARQUET}:
        if not await asyncio.to_thread(path.is_file):
            raise ConfigurationError(f"there is no results file {path}")
        read = _read_parquet if path.suffix == PARQUET else _read_jsonl
        async for result in read(path):
            yield result
        return
    async for result in results_of(store_url, text):
        yield result


async def load_record(store: Store, name: str) -> FleetRecord | None:
    """The record of a fleet, None when there is no such fleet.

    Raises:
        ConfigurationError: what is stored under its name is no fleet.
    """
    page = await store.threads(ListThreads(store="", prefix=thread_of(name), limit=1))
    for info in page.threads:
        if info.thread_id == thread_of(name):
            record = _record(info)
            if record is None:
                raise ConfigurationError(f"thread {info.thread_id!r} is no fleet; choose another name")
            return record
    return None


def _record(info: ThreadInfo) -> FleetRecord | None:
    owner = None if info.owner is None or is_gone(info.owner) else info.owner
    try:
        return record_in(info.metadata, owner)
    except ValidationError:
        return None


async def _records(store: Store) -> AsyncIterator[FleetRecord]:
    after = ""
    while True:
        page = (await store.threads(ListThreads(store="", prefix=LEDGER_PREFIX, after=after, limit=_PAGE))).threads
        for info in page:
            record = _record(info)
            if record is not None:
                yield record
        if len(page) < _PAGE:
            return
        after = page[-1].thread_id


async def _known(store: Store, name: str, url: str | None) -> FleetRecord:
    record = await load_record(store, name)
    if record is not None:
        return record
    names = [other.name async for other in _records(store)]
    close = difflib.get_close_matches(name, names, 3, 0.5) or sorted(names)[:10]
    hint = f"; there is {', '.join(close)}" if close else "; it holds no fleets"
    raise ConfigurationError(f"there is no fleet {name!r} in {shown(url or default_store())}{hint}")


@contextlib.asynccontextmanager
async def _opened(url: str | None) -> AsyncIterator[Store]:
    url = url or default_store()
    parsed = StoreUrl.parse(url)
    if parsed.scheme in {"sqlite", "file"} and not parsed.file().exists():
        raise ConfigurationError(f"there is no store at {parsed.file()}: no fleet has run there; name another one with --store")
    store = open_store(url)
    try:
        yield store
    finally:
        await store.close()


async def _read_jsonl(path: Path) -> AsyncIterator[TaskResult]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return  # torn, or on its way
            try:
                yield TaskResult.model_validate_json(line)
            except ValidationError:
                raise ConfigurationError(f"{path}:{number}: not a result line; is this a results file?") from None
            if number % 1_000 == 0:
                await asyncio.sleep(0)


async def _read_parquet(path: Path) -> AsyncIterator[TaskResult]:
    from .sinks import pyarrow_module

    pyarrow_module()
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1_000):
                for row in batch.to_pylist():
                    yield TaskResult.model_validate(row)
                await asyncio.sleep(0)
    except (ArrowException, ValidationError) as error:
        raise ConfigurationError(f"{path}: no results file ({str(error).splitlines()[0]})") from None
