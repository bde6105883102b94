"""What a long conversation costs in a store, and what a slow store costs a long run.

python benchmarks/perf/durability.py [--turns 500] [--steps 20000] [--store URL] [--json] [--check]

Turns: 4 KB each on one thread. Bytes of all checkpoints by those of the new text; milliseconds of the turn after them, in a
runtime that has not seen the thread (``resume``), beside the first turn of a new thread (``first``).

Steps: with ``durability="async"``, on threads of 2,000 and less, in a store that takes 50 ms over every commit, and in one that
does not. What waits to be stored must not pile up: there are never more than a few states, and peak memory grows by as much
with both stores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _report import Bar, circumstances, console, one_line, plain_table, say, verdict
from overhead import measure

WORKLOADS = Path(__file__).with_name("_durable.py")
SLOW_MILLISECONDS = 50
BYTES_BAR, RESUME_BAR, MEMORY_BAR = 2.0, 100.0, 1.2
STATES_BAR = 60.0  # of the 250 steps of a turn: what runs hold anyway, and what the garbage collector has not seen yet
Figures = dict[str, Any]
TURNS = {
    "checkpoints": "checkpoints",
    "written_kib": "written KiB",
    "x_new": "x new bytes",
    "x_new_later": "x, 2nd half",
    "disk_kib": "disk KiB",
    "first_ms": "first ms",
    "resume_ms": "resume ms",
    "resume_worst_ms": "worst ms",
    "load_ms": "load ms",
}
STEPS = {
    "commit_ms": "ms a commit",
    "seconds": "s",
    "saves": "saves",
    "written_kib": "written KiB",
    "states": "states held",
    "peak_kib": "peak KiB",
}


def sweep(turns: int, steps: int, store: str | None) -> dict[str, Figures]:
    """Every workload, each in a process of its own."""
    commands = {
        "turns": ["turns", str(turns), *([] if store is None else [store])],
        "fast": ["steps", str(steps), "0"],
        "slow": ["steps", str(steps), str(SLOW_MILLISECONDS)],
    }
    found: dict[str, Figures] = {}
    for name, command in commands.items():
        say(f"{name}: {command[0]}")
        found[name] = measure([sys.executable, str(WORKLOADS), *command])
    say("")
    return found


def bars(found: dict[str, Figures]) -> Iterator[Bar]:
    """Linear bytes, a bounded resume, and no backlog that grows."""
    turns, fast, slow = found["turns"], found["fast"].get("peak_kib"), found["slow"].get("peak_kib")
    yield Bar("bytes written / new bytes, second half", turns.get("x_new_later"), BYTES_BAR, at_least=False)
    yield Bar("ms of the turn that resumes the thread", turns.get("resume_ms"), RESUME_BAR, at_least=False)
    yield Bar("states held with a slow store", found["slow"].get("states"), STATES_BAR, at_least=False)
    ratio = slow / fast if slow and fast else None
    yield Bar("peak memory with a slow store / with a fast one", ratio, MEMORY_BAR, at_least=False)


def tables(found: dict[str, Figures]) -> Iterator[Any]:
    turns = found["turns"]
    made = plain_table(f"{turns.get('turns', 0):,} turns of 4 KB on one thread", "store", *TURNS.values())
    made.add_row(str(turns.get("store", "")).split("://")[0], *(shown(turns.get(name)) for name in TURNS))
    yield made
    made = plain_table(f'{found["fast"].get("steps", 0):,} steps, durability="async"', "", *STEPS.values())
    for name in ("fast", "slow"):
        made.add_row(f"{name} store", *(shown(found[name].get(figure)) for figure in STEPS))
    yield made


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="What a long conversation costs in a store, and what a slow store costs a long run.",
        epilog="example: durability.py --store redis://127.0.0.1:6379 --check",
    )
    parser.add_argument("--turns", type=int, default=500, help="turns on one thread (%(default)s)")
    parser.add_argument("--steps", type=int, default=20_000, help="steps, a multiple of 250 (%(default)s)")
    parser.add_argument("--store", help="URL of the store for the turns; default: a new SQLite file")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of tables")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every bar that could be measured holds")
    chosen = parser.parse_args()
    if chosen.turns < 2:
        parser.error("--turns must be at least 2")
    if chosen.steps < 250 or chosen.steps % 250:
        parser.error("--steps must be a multiple of 250, the steps of one turn")
    return chosen


def main() -> int:
    chosen = options()
    found = sweep(chosen.turns, chosen.steps, chosen.store)
    failed = {name: figures["error"] for name, figures in found.items() if "error" in figures}
    held = list(bars(found)) if chosen.check else []
    told = circumstances()
    if chosen.json:
        print(json.dumps({"circumstances": told, "bars": [bar.to_dict() for bar in held], "records": found}, indent=1))
    else:
        show = console().print
        for table in tables(found):
            show(table)
        if held:
            show(verdict(held))
        show(one_line(told))
    for name, problem in failed.items():
        print(f"{name} failed: {problem.strip().splitlines()[-1]}", file=sys.stderr)
    return 1 if failed or any(bar.holds is False for bar in held) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
