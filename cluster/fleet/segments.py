"""Results as a store keeps them: batches, each a checkpoint of the fleet's thread, small ones merged while they are written.

A new batch takes the place of the newest ones before it as long as those are not more than twice its size, so a batch is
rewritten a number of times that grows with the logarithm of the segment's size, and a million results end in a few hundred
segments. Only what may still be merged is kept in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic_core import from_json

from ...protocol.errors import CheckpointError

SEGMENT_BYTES = 512 * 1024
_HEAD, _BETWEEN, _TAIL = b'{"results":[\n', b",\n", b"\n]}"


def pack(lines: Iterable[bytes]) -> bytes:
    """Result lines, without their line ends, as a segment: a JSON object with one result a line."""
    return _HEAD + _BETWEEN.join(lines) + _TAIL


def unpack(state: bytes, where: str) -> list[bytes]:
    """The lines of a segment.

    Raises:
        CheckpointError: it is none.
    """
    if not (state.startswith(_HEAD) and state.endswith(_TAIL)):
        raise CheckpointError(f"{where} is damaged: a checkpoint of it holds no results")
    body = state[len(_HEAD) : -len(_TAIL)]
    return body.split(_BETWEEN) if body else []


class Line(NamedTuple):
    """What a ledger has to know of a result line."""

    id: str
    status: str
    tokens: int
    cost_usd: float


def read_line(line: bytes, where: str) -> Line:
    """What a result line says.

    Raises:
        CheckpointError: it is none.
    """
    try:
        record = from_json(line)
        return Line(str(record["id"]), sys.intern(str(record["status"])), int(record["tokens"]), record["cost_usd"] or 0.0)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{where} is damaged: a line of it is no result ({error})") from None


@dataclass(slots=True)
class Segment:
    """A stored batch.

    Attributes:
        checkpoint_id: of it.
        lines: what it holds, as long as it may be merged; None afterwards.
        size: of those lines in bytes.
    """

    checkpoint_id: str
    lines: list[bytes] | None
    size: int


@dataclass(slots=True)
class Merge:
    """A batch together with the segments that it takes the place of.

    Attributes:
        lines: all of them, oldest first.
        size: their bytes.
        supersedes: how many of the newest segments.
        onto: the segment below those, None when there is none.
        parent: the newest segment as it is now.
    """

    lines: list[bytes]
    size: int
    supersedes: int
    onto: str | None
    parent: str | None


@dataclass(slots=True)
class Segments:
    """The segments of a fleet, oldest first, as the one process that writes them knows them."""

    stack: list[Segment] = field(default_factory=list)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.stack)

    def merge(self, lines: list[bytes]) -> Merge:
        """What to store for ``lines``. Nothing has changed until :meth:`stored` is told."""
        size, count = sum(map(len, lines)), 0
        chosen = [lines]
        for segment in reversed(self.stack):
            if segment.lines is None or segment.size > 2 * size or segment.size + size > SEGMENT_BYTES:
                break
            chosen.append(segment.lines)
            size += segment.size
            count += 1
        below = len(self.stack) - count
        return Merge(
            lines=[line for part in reversed(chosen) for line in part],
            size=size,
            supersedes=count,
            onto=self.stack[below - 1].checkpoint_id if below else None,
            parent=self.stack[-1].checkpoint_id if self.stack else None,
        )

    def stored(self, merge: Merge, checkpoint_id: str) -> None:
        """A merge is in the store."""
        del self.stack[len(self.stack) - merge.supersedes :]
        self.stack.append(Segment(checkpoint_id, merge.lines, merge.size))
        held = 0
        for segment in reversed(self.stack):
            if segment.lines is None:
                break
            held += segment.size
            if held > 2 * SEGMENT_BYTES or segment.size > SEGMENT_BYTES // 2:
                segment.lines = None
