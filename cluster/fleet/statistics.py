"""What the results of a fleet say as a whole, and what changed from one fleet to another."""

from __future__ import annotations

import heapq
import re
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from .results import TaskResult

EXAMPLES = 3
SLOWEST = 10
_GROUPS = 1_000  # kinds of errors that are told apart
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Results that are not ok for the same reason.

    Attributes:
        status: how they ended.
        error: their error, with numbers and ids as ``N``.
        count: how many.
        examples: ids of the first ones.
    """

    status: str
    error: str
    count: int
    examples: tuple[str, ...]


@dataclass(slots=True)
class Statistics:
    """Counts, spend, durations, kinds of failures of results that are added one by one; eight bytes are kept of each."""

    counts: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    stop_reasons: Counter[str] = field(default_factory=Counter)
    _durations: array[float] = field(default_factory=lambda: array("d"))
    _errors: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    _slowest: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    async def of(cls, results: AsyncIterator[TaskResult]) -> Statistics:
        """Of all ``results``."""
        statistics = cls()
        async for result in results:
            statistics.add(result)
        return statistics

    def add(self, result: TaskResult) -> None:
        """Count one more."""
        self.counts[result.status] += 1
        self.attempts += result.attempts
        self.tokens += result.tokens
        if result.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + result.cost_usd
        if result.stop_reason:
            self.stop_reasons[result.stop_reason] += 1
        if result.attempts:
            self._durations.append(result.duration_s)
            heapq.heappush(self._slowest, (result.duration_s, result.id))
            if len(self._slowest) > SLOWEST:
                heapq.heappop(self._slowest)
        if result.status != "ok":
            self._add_error(result)

    def _add_error(self, result: TaskResult) -> None:
        key = (str(result.status), generalise(result.error or result.stop_reason or "no reason given"))
        if key not in self._errors and len(self._errors) >= _GROUPS:
            key = (str(result.status), "other errors")
        count_and_ids = self._errors.setdefault(key, [0])
        count_and_ids[0] += 1
        if len(count_and_ids) <= EXAMPLES:
            count_and_ids.append(result.id)

    @property
    def total(self) -> int:
        """Results."""
        return sum(self.counts.values())

    def percentiles(self) -> dict[str, float]:
        """Seconds that tasks took (nearest rank): ``p50``, ``p95``, ``p99``, ``max``; empty without any."""
        ordered = sorted(self._durations)
        if not ordered:
            return {}
        ranks = {f"p{share}": ordered[max(0, -(-len(ordered) * share // 100) - 1)] for share in (50, 95, 99)}
        return {**ranks, "max": ordered[-1]}

    def errors(self) -> list[ErrorGroup]:
        """Kinds of failures, the most frequent first."""
        groups = [ErrorGroup(status, error, found[0], tuple(found[1:])) for (status, error), found in self._errors.items()]
        return sorted(groups, key=lambda group: (-group.count, group.error))

    def slowest(self) -> list[tuple[str, float]]:
        """The tasks that took longest, with their seconds."""
        return [(task_id, seconds) for seconds, task_id in sorted(self._slowest, reverse=True)]

    def facts(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "total": self.total,
            "counts": dict(self.counts),
            "attempts": self.attempts,
            "tokens": self.tokens,
            "cost_usd": self.cost_usd,
            "duration_s": self.percentiles(),
            "stop_reasons": dict(self.stop_reasons.most_common()),
            "errors": [
                {"status": group.status, "error": group.error, "count": group.count, "examples": list(group.examples)}
                for group in self.errors()
            ],
            "slowest": [{"id": task_id, "duration_s": seconds} for task_id, seconds in self.slowest()],
        }


def generalise(error: str) -> str:
    """An error without what differs from one occurrence to the next: numbers, addresses and ids become ``N``."""
    return _VARYING.sub("N", error)


@dataclass(frozen=True, slots=True)
class Change:
    """A task that ended otherwise in the second fleet.

    Attributes:
        id: the task's.
        kind: ``status``, ``answer``, ``added`` or ``removed``.
        before, after: its status there; None where it is not.
    """

    id: str
    kind: str
    before: str | None
    after: str | None


@dataclass(slots=True)
class Difference:
    """Two sets of results, task by task.

    Attributes:
        changes: tasks that ended otherwise.
        same: tasks with the same status and answer.
        cost_usd: dollars, before and after; likewise the next two.
        tokens: prompt and completion tokens.
        seconds: that tasks took, summed up.
    """

    changes: list[Change] = field(default_factory=list)
    same: int = 0
    cost_usd: tuple[float, float] = (0.0, 0.0)
    tokens: tuple[int, int] = (0, 0)
    seconds: tuple[float, float] = (0.0, 0.0)

    @classmethod
    async def between(cls, before: AsyncIterator[TaskResult], after: AsyncIterator[TaskResult]) -> Difference:
        """Compare them; of ``before`` an id, a status and 16 bytes of its answer are kept."""
        first, second = Statistics(), Statistics()
        known: dict[str, tuple[str, bytes]] = {}
        async for result in before:
            first.add(result)
            known[result.id] = (result.status, _answer(result))
        difference = cls()
        async for result in after:
            second.add(result)
            difference._compare(result, known.pop(result.id, None))
        difference.changes += [Change(task_id, "removed", status, None) for task_id, (status, _) in known.items()]
        difference.cost_usd = (first.cost_usd or 0.0, second.cost_usd or 0.0)
        difference.tokens = (first.tokens, second.tokens)
        difference.seconds = (sum(first._durations), sum(second._durations))
        return difference

    def _compare(self, result: TaskResult, was: tuple[str, bytes] | None) -> None:
        if was is None:
            self.changes.append(Change(result.id, "added", None, result.status))
        elif was[0] != result.status:
            self.changes.append(Change(result.id, "status", was[0], result.status))
        elif was[1] != _answer(result):
            self.changes.append(Change(result.id, "answer", was[0], result.status))
        else:
            self.same += 1

    def of_kind(self, kind: str) -> Iterator[Change]:
        """The changes of one kind."""
        return (change for change in self.changes if change.kind == kind)

    def facts(self) -> dict[str, Any]:
        """Everything as JSON values."""
        before_after = ("cost_usd", "tokens", "seconds")
        return {
            "same": self.same,
            "changes": [
                {"id": each.id, "kind": each.kind, "before": each.before, "after": each.after} for each in self.changes
            ],
            **{name: {"before": getattr(self, name)[0], "after": getattr(self, name)[1]} for name in before_after},
        }


def _answer(result: TaskResult) -> bytes:
    return blake2b((result.message or "").encode("utf-8", "surrogatepass"), digest_size=16).digest()
