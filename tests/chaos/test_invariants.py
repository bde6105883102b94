"""The rules of the chaos runs notice what they are there for: each is broken here, and complains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from umbel.events import Event, TerminateEvent, ThinkEvent, ToolCompleteEvent

from . import invariants
from .effects import Effects, Row
from .invariants import Witness

RUN = "r"


def row(phase: Literal["begun", "done"], call: str, at: int, *, idempotent: bool = False) -> Row:
    return Row(phase=phase, run=RUN, call=call, task="t", tool="x", idempotent=idempotent, pid=1, at=at)


def end(call: str, **outcome: Any) -> ToolCompleteEvent:
    return ToolCompleteEvent(run_id=RUN, tool_name="x", tool_call_id=call, **outcome)


LOST = {"error": "outcome unknown: ...", "code": "outcome_unknown"}


class World:
    """A run of three calls: one that may not be repeated, one whose executor died, and one that ran twice, as it may."""

    def __init__(self, folder: Path) -> None:
        self.effects = Effects(folder / "effects.jsonl")
        self.effects.rows += [row("begun", "pay", 1), row("done", "pay", 2), row("begun", "lost", 1)]
        self.effects.rows += [row("begun", "read", at, idempotent=True) for at in (1, 3)]
        self.effects.rows += [row("done", "read", 4, idempotent=True)]
        self.events: list[tuple[int, Event]] = [
            (0, ThinkEvent(run_id=RUN, iteration=0)),
            (5, end("pay", result="paid")),
            (5, end("lost", **LOST)),
            (5, end("read", result="read")),
            (9, TerminateEvent(run_id=RUN, reason="complete")),
        ]
        self.results = [{"id": "t", "status": "ok"}, {"id": "u", "status": "ok"}]
        self.out = folder / "results.jsonl"

    def check(self, rule: str) -> None:
        """Hold the rule against it."""
        witness = Witness()
        for seq, (now, event) in enumerate(self.events):
            witness.hear(event if event.seq else event.model_copy(update={"seq": seq}), now)
        self.out.write_text("".join(json.dumps(line) + "\n" for line in self.results))
        rules: dict[str, Callable[[], None]] = {
            "results": lambda: invariants.every_task_has_one_result(self.out, ["t", "u"]),
            "streams": lambda: invariants.streams_are_gapless(witness),
            "lost": lambda: invariants.no_run_is_lost(witness),
            "twice": lambda: invariants.nothing_final_happens_twice(self.effects),
            "asked": lambda: invariants.no_task_has_more_effects_than_it_asks_for(self.effects, {"x": 2}),
            "told": lambda: invariants.nothing_happens_after_it_was_told(self.effects, witness),
            "unknown": lambda: invariants.unknown_outcomes_are_reported(self.effects, witness),
            "taken back": lambda: invariants.nothing_told_is_taken_back(witness),
        }
        rules[rule]()

    def retell(self, at: int, event: Event, index: int = -1) -> None:
        """Put an event in the place of another."""
        self.events[index] = (at, event)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("rule", ["results", "streams", "lost", "twice", "asked", "told", "unknown", "taken back"])
def test_a_world_in_order_passes(world: World, rule: str) -> None:
    world.check(rule)


BROKEN: list[tuple[str, str, Callable[[World], object]]] = [
    ("results", "lost: ['u']", lambda world: world.results.pop()),
    ("results", "lost: ['u']", lambda world: world.results.__setitem__(1, {"id": "another", "status": "ok"})),
    ("results", "doubled", lambda world: world.results.append(world.results[0])),
    ("results", "1 tasks did not succeed", lambda world: world.results[0].update(status="error")),
    ("streams", "events [0, 1, 2, 9, 4]", lambda world: world.retell(5, end("read", result="read").evolve(seq=9), 3)),
    ("streams", "events [0, 1, 1, 3, 4]", lambda world: world.retell(5, end("lost", **LOST).evolve(seq=1), 2)),
    ("lost", "1 runs were lost", lambda world: world.events.pop()),
    ("twice", "executed 2 times", lambda world: world.effects.rows.append(row("begun", "pay", 9))),
    ("twice", "executed 2 times", lambda world: world.effects.rows.append(row("begun", "lost", 9))),
    ("asked", "more often", lambda world: world.effects.rows.append(row("begun", "another run's", 9))),
    ("told", "told: 5", lambda world: world.effects.rows.append(row("begun", "read", 6, idempotent=True))),
    ("unknown", "nobody heard", lambda world: world.events.pop(2)),
    ("unknown", "its event is", lambda world: world.retell(5, end("lost", result="fine"), 2)),
    ("unknown", "its event is", lambda world: world.retell(5, end("lost", error="no", code="tool_failed"), 2)),
    ("unknown", "its event is", lambda world: world.retell(5, end("pay", error="no", code="tool_failed"), 1)),
    ("unknown", "never was", lambda world: world.events.insert(1, (5, end("made up", result="fine")))),
    ("unknown", "never was", lambda world: world.effects.rows.__delitem__(-1)),
    ("taken back", "and later", lambda world: world.events.insert(4, (6, end("pay", **LOST)))),
    ("taken back", "and later", lambda world: world.events.insert(4, (6, end("read", result="something else")))),
]


@pytest.mark.parametrize(("rule", "complaint", "spoil"), BROKEN, ids=[f"{rule} {n}" for n, (rule, _, _) in enumerate(BROKEN)])
def test_a_broken_world_is_noticed(world: World, rule: str, complaint: str, spoil: Callable[[World], object]) -> None:
    spoil(world)
    with pytest.raises(AssertionError) as raised:
        world.check(rule)
    assert complaint in str(raised.value)


def test_an_attempt_that_goes_on_with_a_turn_is_a_stream_of_its_own() -> None:
    def told(*numbers: int) -> Witness:
        witness = Witness()
        for number in numbers:
            kind = {"reason": "complete"} if number == 2 else {"iteration": number}
            witness.hear(
                (TerminateEvent if number == 2 else ThinkEvent).model_validate({"run_id": RUN, "seq": number} | kind), 0
            )
        return witness

    invariants.streams_are_gapless(told(0, 1, 2, 0, 1, 2))
    invariants.no_run_is_lost(told(0, 1, 2, 0, 1, 2))
    with pytest.raises(AssertionError, match="1 runs were lost"):
        invariants.no_run_is_lost(told(0, 0, 1, 2))
    with pytest.raises(AssertionError, match=r"events \[0, 2\]"):
        invariants.streams_are_gapless(told(0, 1, 2, 0, 2))


def test_rows_that_are_half_written_are_read_when_they_are_whole(tmp_path: Path) -> None:
    effects = Effects(tmp_path / "effects.jsonl")
    line = json.dumps(vars(row("begun", "pay", 1))).encode() + b"\n"
    effects.path.write_bytes(line + line[:20])
    assert effects.refresh() == 1
    effects.path.write_bytes(line + line)
    assert effects.refresh() == 2
