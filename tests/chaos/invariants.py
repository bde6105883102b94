"""What must hold after any sequence of kills. Each rule raises ``AssertionError`` with what broke it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from umbel.events import Event, TerminateEvent, ToolCompleteEvent

from .effects import Call, Effects, Row

UNKNOWN = {"outcome_unknown", "tool_crashed"}  # the executor died; or only the worker process of the call


@dataclass
class Witness:
    """Everything that the runs said, as the caller received it.

    Attributes:
        events: by run, in the order of arrival.
        completed: calls whose end was heard of: nanoseconds of the monotonic clock, and the event.
        cut_off: runs with which another attempt went on: it does not tell what came of calls that were over before.
    """

    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    completed: dict[Call, tuple[int, ToolCompleteEvent]] = field(default_factory=dict)
    cut_off: set[str] = field(default_factory=set)

    def hear(self, event: Event, now: int) -> None:
        """Take in an event that arrived at ``now``."""
        if event.seq == 0 and self.events[event.run_id]:  # another attempt goes on with the turn, and is numbered anew
            self.cut_off.add(event.run_id)
            self.events[f"{event.run_id}, stream {len(self.events)}"] = self.events.pop(event.run_id)
        self.events[event.run_id].append(event)
        if isinstance(event, ToolCompleteEvent):
            self.completed.setdefault((event.run_id, event.tool_call_id), (now, event))

    @property
    def ended(self) -> set[str]:
        """Runs that came to their own end."""
        return {run for run, events in self.events.items() if isinstance(events[-1], TerminateEvent)}


def every_task_has_one_result(out: Path, tasks: Iterable[str]) -> None:
    """None is lost, none doubled, and all are well: kills are the only trouble, and there are attempts enough."""
    lines = [json.loads(line) for line in out.read_bytes().splitlines()]
    counts = Counter(line["id"] for line in lines)
    assert not [task for task, count in counts.items() if count > 1], f"doubled: {counts.most_common(3)}"
    assert counts.keys() == set(tasks), f"lost: {sorted(set(tasks) - counts.keys())[:5]}"
    bad = [line for line in lines if line["status"] != "ok"]
    assert not bad, f"{len(bad)} tasks did not succeed: {bad[:3]}"


def streams_are_gapless(witness: Witness) -> None:
    """The events of every run are numbered 0, 1, 2... as they come."""
    for run, events in witness.events.items():
        numbers = [event.seq for event in events]
        assert numbers == list(range(len(numbers))), f"run {run}: events {numbers}"


def no_run_is_lost(witness: Witness) -> None:
    """A durable run comes to its own end, whatever was killed meanwhile."""
    lost = witness.events.keys() - witness.ended
    assert not lost, f"{len(lost)} runs were lost, one of them after {witness.events[min(lost)][-1]}"


def nothing_final_happens_twice(effects: Effects) -> None:
    """A call that must not be repeated began at most once."""
    for call, rows in effects.by_call().items():
        begun = [row for row in rows if row.phase == "begun"]
        assert rows[0].idempotent or len(begun) == 1, f"call {call} was executed {len(begun)} times: {begun}"


def no_task_has_more_effects_than_it_asks_for(effects: Effects, asked: Mapping[str, int]) -> None:
    """Nor is a call that must not be repeated made anew by another run of its task.

    Args:
        effects: what happened.
        asked: how often a task asks for each tool.
    """
    begun = Counter((row.task, row.tool) for row in effects.rows if row.phase == "begun" and not row.idempotent)
    more = {effect: count for effect, count in begun.items() if count > asked[effect[1]]}
    assert not more, f"executed more often than asked for: {more}"


def nothing_happens_after_it_was_told(effects: Effects, witness: Witness) -> None:
    """No effect begins again once the end of its call was told, not even one that may be repeated."""
    for row in effects.rows:
        at, _ = witness.completed.get((row.run, row.call), (None, None))
        late = row.phase == "begun" and at is not None and row.at > at
        assert not late, f"{row} began after its result was told: {at}"


def unknown_outcomes_are_reported(effects: Effects, witness: Witness) -> None:
    """A call that must not be repeated and did not end says that nobody knows; one that reports success did end.

    Nor does one that began say that it merely failed: whoever reads that would do it again.
    """
    calls = effects.by_call()
    for call, rows in calls.items():
        if rows[0].idempotent or call[0] not in witness.ended:
            continue
        if call not in witness.completed and call[0] in witness.cut_off:
            continue
        assert call in witness.completed, f"nobody heard of the end of {rows}"
        event = witness.completed[call][1]
        if event.error is not None or not _done(rows):
            assert event.code in UNKNOWN, f"{rows} began, and its event is {event}"
    for call, (_, event) in witness.completed.items():
        if event.error is None:
            assert _done(calls.get(call, [])), f"{event} reports a success that never was"


def nothing_told_is_taken_back(witness: Witness) -> None:
    """A call whose end is told again, because its run was recovered, has ended the same way."""
    for run, events in witness.events.items():
        ends: dict[str, ToolCompleteEvent] = {}
        for event in events:
            if isinstance(event, ToolCompleteEvent):
                first = ends.setdefault(event.tool_call_id, event)
                same = (first.result, first.error) == (event.result, event.error)
                assert same, f"run {run} told {first}, and later {event}"


def _done(rows: list[Row]) -> bool:
    return any(row.phase == "done" for row in rows)
