"""The bars that ``overhead.py --check`` holds the figures against."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from _report import Bar

REFERENCE = "tulip_agents"  # the SDK whose behaviour ours follows
RAY_SYSTEM = 166.0  # tasks/s of the one comparable system on Ray (fair-matrix 0.2.6)
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
    """Every bar, in the order of the table."""
    needs = None if peers else "--compare"
    for workload in ("w1", "w2"):
        against = ratio(records, "inline", workload, "median_ms", peers)
        yield Bar(f"inline {workload}: time / best peer's", against, 1.0, at_least=False, needs=needs)
    yield Bar(
        "inline w3_1000: runs/s / best peer's", _rate(records, "inline", "w3_1000", peers), 1.0, at_least=True, needs=needs
    )
    reference = [peer for peer in peers if peer == REFERENCE]
    for workload in ("w3_1000", "w3_10000"):
        yield Bar(
            f"ray {workload}: runs/s / best peer's", _rate(records, "ray", workload, peers), 1.5, at_least=True, needs=needs
        )
        against = _rate(records, "ray", workload, reference)
        yield Bar(f"ray {workload}: runs/s / {REFERENCE}'s", against, 2.5, at_least=True, needs=needs)
        rate = median(records, "ray", workload, "runs_per_s")
        against = None if rate is None else rate / RAY_SYSTEM
        yield Bar(f"ray {workload}: runs/s / {RAY_SYSTEM:g} of a system on Ray", against, 25.0, at_least=True)
    for workload in ("w3_1000", "w3_10000"):
        against = _rate(records, "colocated", workload, peers)
        yield Bar(f"colocated {workload}: runs/s / best peer's", against, 2.5, at_least=True, needs=needs)
    yield Bar("ray w2: bare round trips", median(records, "ray", "w2", "round_trips"), 6.0, at_least=False)
    yield Bar("colocated w2: bare round trips", median(records, "colocated", "w2", "round_trips"), 4.0, at_least=False)
    for kind in KINDS:
        wall, ideal = median(records, kind, "w4", "wall_s"), median(records, kind, "w4", "ideal_s")
        yield Bar(f"{kind} w4: time / ideal", wall / ideal if wall and ideal else None, 1.4, at_least=False)
    for kind in KINDS:
        yield Bar(
            f"{kind} w4_10000: runs in flight at once", median(records, kind, "w4_10000", "in_flight"), 10_000, at_least=True
        )
        yield Bar(f"{kind} w4_10000: KiB per run", median(records, kind, "w4_10000", "kib_per_run"), 20.0, at_least=False)
    for kind in KINDS:
        against = ratio(records, kind, "w5", "median_ms", peers)
        yield Bar(f"{kind} w5: time / best peer's", against, 1.0, at_least=False, needs=needs)


def _rate(records: Records, subject: str, workload: str, peers: list[str]) -> float | None:
    return ratio(records, subject, workload, "runs_per_s", peers)
