"""Reading what a store holds of a fleet, a segment at a time, also while the fleet runs.

The lines of a fleet are a sequence that only grows: merging segments changes how it is cut, never a line or the order. So a
reader counts lines, and when a segment is merged away under it, it lists the segments again and goes on after what it had.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from ...actors.checkpoints.store import Store
from .ledger import id_hash
from .record import thread_of
from .segments import Line, Segment, Segments, read_line, unpack

_ALL = 1_000_000  # segments


@dataclass(slots=True)
class Stored:
    """What a store holds of a fleet, without the results themselves.

    Attributes:
        segments: what it is stored as.
        done: :func:`id_hash` of tasks that are ok: 8 bytes each, in order once :meth:`close` was called.
        others: the other tasks that have a result.
    """

    segments: Segments = field(default_factory=Segments)
    done: array[int] = field(default_factory=lambda: array("Q"))
    others: dict[int, Line] = field(default_factory=dict)

    def add(self, line: bytes, where: str) -> None:
        """The next line."""
        read = read_line(line, where)
        key = id_hash(read.id)
        if read.status == "ok":
            self.done.append(key)
            self.others.pop(key, None)
        else:
            self.others[key] = read._replace(id="")

    def close(self) -> None:
        """There are no more lines."""
        self.done = array("Q", sorted(self.done))

    def is_done(self, key: int) -> bool:
        """Whether the task of that :func:`id_hash` is ok."""
        at = bisect_left(self.done, key)
        return at < len(self.done) and self.done[at] == key

    def counts(self) -> dict[str, int]:
        """Tasks by the status of their newest result."""
        counts = Counter(line.status for line in self.others.values())
        if self.done:
            counts["ok"] = len(self.done)
        return dict(counts)


async def read_stored(store: Store, name: str) -> Stored:
    """Everything but the results. Nobody else may write the fleet meanwhile.

    Raises:
        CheckpointError: what is stored is damaged.
    """
    stored, where = Stored(), f"fleet {name!r}"
    for checkpoint_id in await _segments(store, name):
        loaded = await store.load(thread_of(name), checkpoint_id)
        lines = unpack(loaded.state or b"", where)
        for line in lines:
            stored.add(line, where)
        stored.segments.stack.append(Segment(checkpoint_id, None, sum(map(len, lines))))
    stored.close()
    return stored


async def every_line(store: Store, name: str) -> AsyncIterator[bytes]:
    """The lines of a fleet in the order in which they were stored."""
    passed = 0
    again = True
    while again:
        again, at = False, 0
        for checkpoint_id in await _segments(store, name):
            loaded = await store.load(thread_of(name), checkpoint_id)
            if loaded.checkpoint_id is None:
                again = True  # merged with its neighbours meanwhile, or the fleet was deleted
                break
            for line in unpack(loaded.state or b"", f"fleet {name!r}"):
                at += 1
                if at > passed:
                    passed = at
                    yield line


async def newest_lines(store: Store, name: str) -> AsyncIterator[bytes]:
    """The newest line of each task. Memory does not grow but for tasks that had a result which is not ok.

    Raises:
        CheckpointError: what is stored is damaged.
    """
    newest: dict[int, int] = {}
    count = 0
    async for line in every_line(store, name):
        read = read_line(line, f"fleet {name!r}")
        key = id_hash(read.id)
        if read.status != "ok" or key in newest:  # only a task that is not ok is ever run again
            newest[key] = count
        count += 1
    at = 0
    async for line in every_line(store, name):
        if at == count:
            return
        if not newest or newest.get(id_hash(read_line(line, "").id), at) == at:
            yield line
        at += 1


async def _segments(store: Store, name: str) -> list[str]:
    found = await store.history(thread_of(name), _ALL)
    return [checkpoint.checkpoint_id for checkpoint in reversed(found) if checkpoint.checkpoint_id is not None]
