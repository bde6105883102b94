"""The newest events of a run, for those who read them later: bounded in number and in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice


@dataclass(slots=True)
class Space:
    """What everything that a supervisor keeps may take together, and takes now; in bytes.

    Attributes:
        relieve: drops something that is needed less than what is being told; False when there is nothing.
    """

    limit: int
    relieve: Callable[[], bool] = lambda: False
    used: int = 0

    @property
    def exceeded(self) -> bool:
        """Something has to go."""
        return self.used > self.limit


class EventLog:
    """Events as lines of JSON; the oldest go when there are too many.

    Args:
        first: number of the first event that it will hold.
        most: events.
        most_bytes: of events; one is kept in any case.
        space: shared with other logs.
        lines: events that it begins with.

    Attributes:
        oldest: number of the oldest event that is kept.
    """

    __slots__ = ("_bytes", "_lines", "_most", "_most_bytes", "_space", "oldest")

    def __init__(self, first: int, most: int, most_bytes: int, space: Space, lines: Iterable[bytes] = ()) -> None:
        self.oldest = first
        self._most = most
        self._most_bytes = most_bytes
        self._space = space
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        for line in lines:
            self.append(line)

    @property
    def next(self) -> int:
        """Number of the event that comes next."""
        return self.oldest + len(self._lines)

    def append(self, line: bytes) -> None:
        """Keep one more event."""
        self._lines.append(line)
        self._grow(len(line))
        while len(self._lines) > self._most or (self._bytes > self._most_bytes and len(self._lines) > 1):
            self.drop_oldest()
        while self._space.exceeded and self._space.relieve():
            pass
        while self._space.exceeded and len(self._lines) > 1:
            self.drop_oldest()

    def drop_oldest(self) -> None:
        """Keep one event less."""
        self._grow(-len(self._lines.popleft()))
        self.oldest += 1

    def read(self, first: int, most_bytes: int) -> list[bytes]:
        """Events from a number on, worth at most so many bytes, but one if there is one.

        Args:
            first: number of the first; it must not be older than ``oldest``.
            most_bytes: of all together.
        """
        lines: list[bytes] = []
        size = 0
        for line in islice(self._lines, first - self.oldest, None):
            size += len(line)
            if lines and size > most_bytes:
                break
            lines.append(line)
        return lines

    def before(self, first: int, most_bytes: int) -> list[bytes]:
        """The events right before a number, worth at most so many bytes."""
        lines: deque[bytes] = deque()
        size = 0
        for line in islice(reversed(self._lines), self.next - first, None):
            size += len(line)
            if size > most_bytes:
                break
            lines.appendleft(line)
        return list(lines)

    def clear(self) -> None:
        """Keep nothing any more."""
        while self._lines:
            self.drop_oldest()

    def _grow(self, size: int) -> None:
        self._bytes += size
        self._space.used += size
