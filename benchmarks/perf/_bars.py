"""The bars that ``overhead.py --check`` holds the figures against."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from _report import Bar

REFERENCE = "tulip_agents"  # the SDK whose behaviour ours follows
# The one comparable system on Ray (fair-matrix 0.2.6): 166 tasks/s on a machine where the best peer did 2,780 runs/s of W3. It
# is not run here; what it would do on this machine, now, is taken to be that share of what the best peer does in this run.
RAY_SYSTEM = 166.0 / 2_780.0
KINDS = ("inline", "ray", "colocated")
Figures = dict[str, Any]
Records = dict[tuple[str, str], list[Figures]]  # (subject, workload) -> one per repetition


def median(records: Records, subject: str, workload: str, figure: str) -> float | None:
    """The median over the repetitions."""
    values = [figures[figure] for figures in records.get((subject, workload), []) if figure in figures]
    return statistics.median(values) if values else None


def ratio(records: Records, subject: str, workload: str, figure: str, peers: list[str]) -> float | None:
    """Ours divided by the best peer's of the same repetition; the median over the repetitions.

    Of a rate the best is the largest, of a time the smallest.
    """
    best: Callable[..., float] = max if figure == "runs_per_s" else min
    pairs = []
    for number, figures in enumerate(records.get((subject, workload), [])):
        theirs = [
            record[figure]
            for peer in peers
            for record in records.get((peer, workload), [])[number : number + 1]
            if figure in record
        ]
        if theirs and figure in figures:
            pairs.append(figures[figure] / best(theirs))
    return statistics.median(pairs) if pairs else None


def bars(records: Records, peers: list[str]) -> Iterator[Bar]:
    """Every bar, in the order of the issue: inline, Ray, Ray with colocated agents, then what holds for all of them."""
    yield from inline_bars(records, peers)
    yield from ray_bars(records, peers)
    for kind in KINDS:
        wall, ideal = median(records, kind, "w4", "wall_s"), median(records, kind, "w4", "ideal_s")
        yield Bar(f"{kind} w4: time / ideal", wall / ideal if wall and ideal else None, 1.4, at_least=False)
    for kind in KINDS:
        together = median(records, kind, "w4_10000", "in_flight")
        yield Bar(f"{kind} w4_10000: runs in flight at once", together, 10_000, at_least=True)
        yield Bar(f"{kind} w4_10000: KiB per run", median(records, kind, "w4_10000", "kib_per_run"), 20.0, at_least=False)
    for kind in KINDS:
        yield against(records, kind, "w5", peers, 1.0)
    yield against(records, "inline", "w6", peers, 1.0)
    for kind in KINDS:
        yield Bar(f"{kind} w6_1000: durable / volatile runs/s", median(records, kind, "w6_1000", "share"), 0.5, at_least=True)


def inline_bars(records: Records, peers: list[str]) -> Iterator[Bar]:
    for workload in ("w1", "w2", "w3_1000"):
        yield against(records, "inline", workload, peers, 1.0)


def ray_bars(records: Records, peers: list[str]) -> Iterator[Bar]:
    for workload in ("w3_1000", "w3_10000"):
        yield against(records, "ray", workload, peers, 1.5)
        yield against(records, "ray", workload, [peer for peer in peers if peer == REFERENCE], 2.5, f"{REFERENCE}'s")
        faster = ratio(records, "ray", workload, "runs_per_s", peers)
        scaled = None if faster is None else faster / RAY_SYSTEM
        needs = None if peers else "--compare"
        yield Bar(f"ray {workload}: runs/s / another system's on Ray (scaled)", scaled, 25.0, at_least=True, needs=needs)
    for workload in ("w3_1000", "w3_10000"):
        yield against(records, "colocated", workload, peers, 2.5)
    for kind, limit in (("ray", 6.0), ("colocated", 4.0)):
        yield Bar(f"{kind} w2: bare Ray calls", median(records, kind, "w2", "round_trips"), limit, at_least=False)


def against(records: Records, kind: str, workload: str, peers: list[str], limit: float, whose: str = "best peer's") -> Bar:
    """Ours against theirs: at least ``limit`` times the rate, or at most ``limit`` times the time."""
    rate = workload.startswith("w3")
    value = ratio(records, kind, workload, "runs_per_s" if rate else "median_ms", peers)
    name = f"{kind} {workload}: {'runs/s' if rate else 'time'} / {whose}"
    return Bar(name, value, limit, at_least=rate, needs=None if peers else "--compare")
