"""Who is next: fleets by weight, the requests of a fleet by priority, then in the order in which they came."""

from __future__ import annotations

import heapq
import itertools

from .turns import Turn


class _Fleet:
    __slots__ = ("finish", "heap")

    def __init__(self) -> None:
        self.finish = 0.0
        self.heap: list[tuple[int, bool, int, Turn]] = []


class FairQueue:
    """Start-time fair queueing over fleets.

    A fleet that was idle gains nothing by it: what it did not use has gone to the others.

    Source: Goyal, Vin, Cheng, "Start-time fair queuing", SIGCOMM 1996.
    """

    def __init__(self) -> None:
        self._fleets: dict[str, _Fleet] = {}
        self._now = 0.0
        self._order = itertools.count()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def push(self, turn: Turn) -> None:
        """Add a request."""
        fleet = self._fleets.setdefault(turn.share.fleet, _Fleet())
        if not fleet.heap:
            fleet.finish = max(fleet.finish, self._now)
        heapq.heappush(fleet.heap, (-turn.share.priority, not turn.again, next(self._order), turn))
        turn.waits = True
        self._waiting += 1

    def drop(self, turn: Turn) -> None:
        """It waits no longer."""
        if turn.waits:
            turn.waits = False
            self._waiting -= 1

    def first(self) -> Turn | None:
        """Who is next."""
        fleet = self._next()
        return fleet.heap[0][3] if fleet is not None else None

    def pop(self) -> Turn:
        """Let the next one go."""
        fleet = self._next()
        if fleet is None:
            raise IndexError("nobody waits")
        turn = heapq.heappop(fleet.heap)[3]
        self.drop(turn)
        self._now = fleet.finish
        fleet.finish += 1.0 / turn.share.weight
        return turn

    def _next(self) -> _Fleet | None:
        best: _Fleet | None = None
        for name, fleet in list(self._fleets.items()):
            while fleet.heap and not fleet.heap[0][3].waits:
                heapq.heappop(fleet.heap)
            if not fleet.heap:
                if fleet.finish <= self._now:
                    del self._fleets[name]  # it would begin anew anyway
            elif best is None or fleet.finish < best.finish:
                best = fleet
        return best
