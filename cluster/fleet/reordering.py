"""Tasks in a random order, and random samples: the same ones for the same seed, so that a fleet can be resumed."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from array import array
from collections.abc import Awaitable, Callable
from typing import IO

from ...protocol.errors import ConfigurationError
from .formats import Item
from .tasks import BadTask, Task

_BATCH = 64
_TOGETHER = 256


class Shuffled:
    """All items of a feed in a random order.

    They are read once, before the first is given out, into a temporary file, and then from there by their offsets. Costs: that
    pass, disk space for the tasks (in ``TMPDIR``), 8 bytes of memory a task.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._offsets = array("Q")
        self._next = 0
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="umbel-fleet-")  # noqa: SIM115 - closed by close()

    def take(self, items: list[Item]) -> None:
        """Keep them."""
        for item in items:
            self._offsets.append(self._file.tell())
            self._file.write(_pack(item))

    def ready(self) -> int:
        """All were taken: how many there are."""
        random.Random(self._seed).shuffle(self._offsets)
        return len(self._offsets)

    def give(self) -> list[Item]:
        """The next ones; none at the end."""
        chosen = self._offsets[self._next : self._next + _BATCH]
        self._next += len(chosen)
        return [self._read(offset) for offset in chosen]

    def close(self) -> None:
        """The temporary file is deleted."""
        self._file.close()

    def _read(self, offset: int) -> Item:
        self._file.seek(offset)
        return _unpack(self._file.readline())


class Sampled:
    """A random sample of a feed's items, every item with the same chance, in their order or shuffled. The sample is in memory.

    Source: Vitter, "Random Sampling with a Reservoir", ACM TOMS 11(1), 1985, algorithm R.
    """

    def __init__(self, size: int, seed: int | None) -> None:
        self._size = size
        self._random = random.Random(seed or 0)
        self._shuffle = seed is not None
        self._seen = 0
        self._chosen: list[tuple[int, Item]] = []

    def take(self, items: list[Item]) -> None:
        """Perhaps keep some of them."""
        for item in items:
            self._seen += 1
            if len(self._chosen) < self._size:
                self._chosen.append((self._seen, item))
            elif (slot := self._random.randrange(self._seen)) < self._size:
                self._chosen[slot] = (self._seen, item)

    def ready(self) -> int:
        """All were taken: how many the sample has."""
        self._chosen.sort(key=lambda entry: -entry[0])  # given out from the end
        if self._shuffle:
            self._random.shuffle(self._chosen)
        return len(self._chosen)

    def give(self) -> list[Item]:
        """The next ones; none at the end."""
        return [self._chosen.pop()[1] for _ in range(min(_BATCH, len(self._chosen)))]

    def close(self) -> None:
        """Nothing is left of it."""
        self._chosen.clear()


class ReorderedFeed:
    """A feed whose items are all read, then given out by ``order``.

    Attributes:
        size: how many it gives out, once known.
    """

    def __init__(
        self, batch: Callable[[], Awaitable[list[Item]]], close: Callable[[], Awaitable[None]], order: Shuffled | Sampled
    ) -> None:
        self._batch = batch
        self._close = close
        self._order = order
        self.size: int | None = None

    async def batch(self) -> list[Item]:
        if self.size is None:
            await self._drain()
        return await asyncio.to_thread(self._order.give)

    async def close(self) -> None:
        self._order.close()
        await self._close()

    async def _drain(self) -> None:
        """Read everything; if the first is no task, probably none is."""
        waiting: list[Item] = []
        first = True
        while batch := await self._batch():
            if first and isinstance(batch[0], BadTask):
                raise ConfigurationError(str(batch[0]))
            first = False
            waiting += batch
            if len(waiting) >= _TOGETHER:
                await asyncio.to_thread(self._order.take, waiting)
                waiting = []
        self._order.take(waiting)
        self.size = self._order.ready()


def _pack(item: Item) -> bytes:
    fields = (
        [item.id, item.where, item.problem] if isinstance(item, BadTask) else [item.id, item.where, item.prompt, item.metadata]
    )
    return json.dumps(fields, ensure_ascii=True).encode() + b"\n"


def _unpack(line: bytes) -> Item:
    fields = json.loads(line)
    if len(fields) == 3:
        return BadTask(id=fields[0], where=fields[1], problem=fields[2])
    return Task(id=fields[0], where=fields[1], prompt=fields[2], metadata=fields[3])
