"""Where tasks come from: files, folders, datasets, standard input, iterables. Streamed; nothing here holds all tasks."""

from __future__ import annotations

import asyncio
import heapq
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Protocol

from ...protocol.errors import ConfigurationError
from ..loading import load_function
from .datasets import is_dataset, read_dataset
from .folders import count_files, read_folder
from .formats import Item, count_tasks, read_file, read_jsonl
from .inputs import Columns, TaskInput
from .priority import LOOK_AHEAD, priority_of
from .reordering import ReorderedFeed, Sampled, Shuffled
from .tasks import BadTask, kind_of, parse_value

Tasks = str | os.PathLike[str] | TaskInput | Iterable[Any] | AsyncIterable[Any]
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
        count: finds out how many tasks there are; blocks, so it is called in a thread.
        at_once: whether waiting for more of it never takes long: then priorities look further ahead.
        needs_ray: whether it can be read only after Ray was joined.
    """

    def __init__(
        self,
        feed: Feed,
        name: str,
        *,
        path: Path | None = None,
        count: Callable[[], int | None] | None = None,
        at_once: bool = False,
        needs_ray: bool = False,
    ) -> None:
        self.name = name
        self.path = path
        self.needs_ray = needs_ray
        self.error: Exception | None = None
        self._feed = feed
        self._count = count
        self._at_once = at_once
        self._ready: Waiting = Waiting(None)
        self._ended = False
        self._turn = asyncio.Lock()
        self._filling: asyncio.Task[None] | None = None

    def reorder(self, *, sample: int | None, seed: int | None) -> None:
        """Give out a random sample, or all in a random order; before the first task is taken."""
        order = Sampled(sample, seed) if sample is not None else Shuffled(seed or 0)
        feed = self._feed
        self._feed = ReorderedFeed(feed.batch, feed.close, order)
        self._at_once = True
        if sample is not None:
            self._count = None

    def prefer(self, field: str) -> None:
        """Of the tasks that wait, give out those with the highest number in ``field`` first; before the first is taken."""
        self._ready = Waiting(field)

    async def next(self) -> Item | None:
        """The next task, or None at the end. An error of the source ends it too and stays in ``error``."""
        if self._at_once:
            await self._fill(self._ready.width)
        elif self._ready.width > 1:
            self._look_ahead()
        await self._fill(1)
        return self._ready.pop() if self._ready else None

    async def check(self) -> None:
        """Read the first task.

        Raises:
            ConfigurationError: it is not one, so probably none is.
        """
        await self._fill(1)
        if self.error is not None:
            raise self.error
        first = self._ready.first
        if isinstance(first, BadTask):
            raise ConfigurationError(str(first))

    async def count(self) -> int | None:
        """How many tasks there are, or None when finding out would mean reading a stream or more than 200 MB."""
        size = getattr(self._feed, "size", None)
        if size is not None:
            return int(size)
        return None if self._count is None else await asyncio.to_thread(self._count)

    async def close(self) -> None:
        """No more tasks; the file or iterator is closed."""
        self._ended = True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)
        await self._feed.close()

    def _look_ahead(self) -> None:
        """Read on in a slow stream without waiting for it."""
        if self._filling is None or self._filling.done():
            self._filling = asyncio.ensure_future(self._fill(self._ready.width))

    async def _fill(self, least: int) -> None:
        """Read until that many wait, or the feed ends."""
        while len(self._ready) < least and not self._ended:
            async with self._turn:
                if len(self._ready) >= least or self._ended:
                    return
                try:
                    batch = await self._feed.batch()
                except Exception as error:  # noqa: BLE001 - the caller's iterable may raise anything; the fleet re-raises it
                    self.error = error
                    batch = []
                self._ready.extend(batch)
                self._ended |= not batch


class Waiting:
    """Items that were read and not taken: in order, or the most urgent first.

    Args:
        field: of a task's metadata, a number: higher comes first, and those with the same in order. None: all in order.
    """

    def __init__(self, field: str | None) -> None:
        self._field = field
        self._queue: deque[Item] = deque()
        self._heap: list[tuple[float, int, Item]] = []
        self._count = 0
        self.width = 1 if field is None else LOOK_AHEAD

    @property
    def first(self) -> Item | None:
        """The one that was read first of those that wait."""
        if self._queue:
            return self._queue[0]
        return min(self._heap, key=lambda entry: entry[1])[2] if self._heap else None

    def __len__(self) -> int:
        return len(self._queue) + len(self._heap)

    def extend(self, items: list[Item]) -> None:
        """More of them."""
        if self._field is None:
            self._queue.extend(items)
            return
        for item in items:
            urgency = 0.0 if isinstance(item, BadTask) else priority_of(item, self._field)
            self._count += 1
            if isinstance(urgency, BadTask):
                heapq.heappush(self._heap, (0.0, self._count, urgency))
            else:
                heapq.heappush(self._heap, (-urgency, self._count, item))

    def pop(self) -> Item:
        """The next one."""
        return self._queue.popleft() if self._field is None else heapq.heappop(self._heap)[2]


def open_source(tasks: Tasks) -> TaskSource:
    """A source for whatever ``Fleet.run`` accepts: a path, ``"-"``, a :class:`TaskInput`, a Ray Data dataset, an iterable.

    Raises:
        ConfigurationError: an unknown kind of file or value. Whether the file is there, ``check`` finds out.
    """
    if isinstance(tasks, str | os.PathLike):
        return _open_input(TaskInput(path=os.fspath(tasks)))
    if isinstance(tasks, TaskInput):
        return _open_input(tasks)
    if is_dataset(tasks):
        return _open_dataset(lambda: tasks, "dataset", Columns())
    if isinstance(tasks, AsyncIterable):
        return TaskSource(_AsyncFeed(aiter(tasks)), "tasks")
    values: object = tasks  # callers without a type checker pass anything
    if isinstance(values, Iterable) and not isinstance(values, bytes | Mapping):
        sized = values if isinstance(values, Sized) else None
        count = None if sized is None else sized.__len__
        return TaskSource(_IterableFeed(iter(values)), "tasks", count=count, at_once=sized is not None)
    raise ConfigurationError(f"tasks: expected a path, '-' or an iterable of tasks, found {kind_of(tasks)}")


def _open_input(given: TaskInput) -> TaskSource:
    if given.ray is not None:
        name = given.ray
        return _open_dataset(_maker(given.ray), name, given.columns)
    if given.path == "-":
        lines = read_jsonl(_standard_input(), "stdin", given.columns)
        return TaskSource(_ThreadFeed(lines, batch=1), "stdin")
    path = Path(given.path or "")
    if path.is_dir():
        if given.format not in (None, "text"):
            raise ConfigurationError(f"{path} is a folder, format {given.format!r} reads a file; name the file")
        files = read_folder(path, given.glob, given.max_bytes)
        count: Callable[[], int | None] = lambda: count_files(path, given.glob)  # noqa: E731 - as short as its twin below
    else:
        files = read_file(path, given.columns, given.format)
        count = lambda: count_tasks(path, given.format)  # noqa: E731
    return TaskSource(_ThreadFeed(files, batch=_FILE_BATCH), str(path), path=path, count=count, at_once=True)


def _maker(name: str) -> Callable[[], Any]:
    def make() -> Any:
        return load_function(name, "tasks.ray")()

    return make


def _open_dataset(make: Callable[[], Any], name: str, columns: Columns) -> TaskSource:
    return TaskSource(_ThreadFeed(read_dataset(make, name, columns), batch=_FILE_BATCH), name, needs_ray=True)


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
