"""Where tasks come from: files, standard input, iterables. Always streamed; nothing here ever holds all tasks."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Protocol

from ...protocol.errors import ConfigurationError
from .formats import Item, count_tasks, read_file, read_jsonl
from .tasks import BadTask, kind_of, parse_value

Tasks = str | os.PathLike[str] | Iterable[Any] | AsyncIterable[Any]
_FILE_BATCH = 64


class Feed(Protocol):
    """Items in batches; an empty batch is the end."""

    async def batch(self) -> list[Item]:
        """The next items, as many as are there without a wait."""

    async def close(self) -> None:
        """Let go of what is behind it."""


class TaskSource:
    """Tasks in order, one at a time, for any number of concurrent takers.

    Args:
        feed: where batches come from.
        name: what to call the source in messages.
        path: the file behind it, if any.
        size: how many tasks there are, when that is known at once.
    """

    def __init__(self, feed: Feed, name: str, *, path: Path | None = None, size: int | None = None) -> None:
        self.name = name
        self.path = path
        self.error: Exception | None = None
        self._feed = feed
        self._size = size
        self._ready: deque[Item] = deque()
        self._ended = False
        self._turn = asyncio.Lock()

    async def next(self) -> Item | None:
        """The next task, or None at the end. An error of the source ends it too and stays in ``error``."""
        while not self._ready and not self._ended:
            await self._fill()
        return self._ready.popleft() if self._ready else None

    async def check(self) -> None:
        """Read the first task.

        Raises:
            ConfigurationError: it is not one, so probably none is.
        """
        await self._fill()
        if self.error is not None:
            raise self.error
        if self._ready and isinstance(self._ready[0], BadTask):
            raise ConfigurationError(str(self._ready[0]))

    async def count(self) -> int | None:
        """How many tasks there are, or None when finding out would mean reading a stream or more than 200 MB."""
        if self._size is not None or self.path is None:
            return self._size
        return await asyncio.to_thread(count_tasks, self.path)

    async def close(self) -> None:
        """No more tasks; the file or iterator is closed."""
        self._ended = True
        await self._feed.close()

    async def _fill(self) -> None:
        async with self._turn:
            if self._ready or self._ended:
                return
            try:
                self._ready.extend(await self._feed.batch())
            except Exception as error:  # noqa: BLE001 - the iterable is the caller's code: it may raise anything; the fleet re-raises it
                self.error = error
            self._ended = not self._ready


def open_source(tasks: Tasks) -> TaskSource:
    """A source for whatever ``Fleet.run`` accepts: a path, ``"-"``, an iterable or an async iterable.

    Raises:
        ConfigurationError: an unknown kind of file or value. Whether the file is there, ``check`` finds out.
    """
    if isinstance(tasks, str) and tasks == "-":
        return TaskSource(_ThreadFeed(read_jsonl(_standard_input(), "stdin"), batch=1), "stdin")
    if isinstance(tasks, str | os.PathLike):
        path = Path(tasks)
        return TaskSource(_ThreadFeed(read_file(path), batch=_FILE_BATCH), str(path), path=path)
    if isinstance(tasks, AsyncIterable):
        return TaskSource(_AsyncFeed(aiter(tasks)), "tasks")
    values: object = tasks  # callers without a type checker pass anything
    if isinstance(values, Iterable) and not isinstance(values, bytes | Mapping):
        size = len(values) if isinstance(values, Sized) else None
        return TaskSource(_IterableFeed(iter(values)), "tasks", size=size)
    raise ConfigurationError(f"tasks: expected a path, '-' or an iterable of tasks, found {kind_of(tasks)}")


def _standard_input() -> IO[bytes]:
    try:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")  # own lock: a reader blocked at exit must not hold that of sys.stdin
    except (OSError, ValueError, AttributeError):
        return sys.stdin.buffer


def _parse_nth(value: object, number: int) -> Item:
    return parse_value(value, default_id=f"task-{number}", where=f"task {number}")


class _IterableFeed:
    """A plain iterable, read on the event loop as workers get free: its iterator may belong to this thread."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = enumerate(values, 1)

    async def batch(self) -> list[Item]:
        return [_parse_nth(value, number) for number, value in islice(self._values, 1)]

    async def close(self) -> None:
        return None


class _AsyncFeed:
    def __init__(self, values: AsyncIterator[Any]) -> None:
        self._values = values
        self._count = 0

    async def batch(self) -> list[Item]:
        try:
            value = await anext(self._values)
        except StopAsyncIteration:
            return []
        self._count += 1
        return [_parse_nth(value, self._count)]

    async def close(self) -> None:
        close = getattr(self._values, "aclose", None)
        if close is not None:
            await close()


class _ThreadFeed:
    """A blocking iterator, read in a daemon thread.

    A read from a terminal or pipe may never return; it must not keep the event loop busy or the process alive.
    """

    def __init__(self, items: Iterator[Item], *, batch: int) -> None:
        self._items = items
        self._size = batch
        self._asked: SimpleQueue[Future[list[Item]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def batch(self) -> list[Item]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="umbel-fleet-tasks", daemon=True)
            self._thread.start()
        answer: Future[list[Item]] = Future()
        self._asked.put(answer)
        return await asyncio.wrap_future(answer)

    async def close(self) -> None:
        self._asked.put(None)

    def _serve(self) -> None:
        while (answer := self._asked.get()) is not None:
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(list(islice(self._items, self._size)))
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for the batch
                answer.set_exception(error)
        close = getattr(self._items, "close", None)
        if close is not None:
            close()
