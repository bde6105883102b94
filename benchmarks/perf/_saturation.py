"""The model of ``scale.py``: what a run costs each role, and what is used up first when there are more nodes.

Cost: the processor time of a role is ``a`` a run plus ``b`` a frame that it sends or receives, by least squares through the
origin over the measurements on one node. Messages travel in frames, and the more runs are in progress between two processes,
the more messages share one; ``a`` holds what does not depend on that.

Saturation: every role is one or more processes, and each uses one core at most (an event loop). Runs per second are then
bounded by every role's processes (a store's server is one), by the cores of all nodes, and by the network of the nodes that the
drivers are on. The smallest bound is the prediction; its name says what to add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]
STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # by degrees of freedom, from 1
ROLES = ("driver", "supervisor", "agent", "tools", "checkpointer", "store")


@dataclass(frozen=True)
class Cost:
    """Microseconds of processor time, with half the width of their 95 % intervals.

    Attributes:
        run, frame: for each of them.
        run_margin, frame_margin: their uncertainty; None where there are too few measurements.
        residual: root mean square of (measured - fitted) / measured.
    """

    run: float
    frame: float
    run_margin: float | None
    frame_margin: float | None
    residual: float

    def a_run(self, frames: float) -> float:
        """Microseconds for one run that takes so many frames."""
        return self.run + self.frame * frames


def frames_of(record: Figures, role: str) -> float:
    """Frames a run that a role sends or receives; a long poll is one, too."""
    edges = [figures for edge, figures in record["links"].items() if role in edge.split(">")]
    return float(sum(edge["frames"] + edge["polls"] for edge in edges)) / float(record["runs"])


def measured(record: Figures, role: str) -> float:
    """Microseconds of processor time a run."""
    return float(record["cpu"].get(role, 0.0)) / float(record["runs"]) * 1e6


def fit(records: list[Figures], role: str) -> Cost:
    """Least squares of ``cost = run + frame * frames``, per run, over the measurements."""
    xs = [frames_of(record, role) for record in records]
    ys = [measured(record, role) for record in records]
    count, mean_x, mean_y = len(xs), sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = 0.0 if not spread else sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    slope = max(0.0, slope)  # a frame is no gain: where noise says so, all of it is the run's
    base = mean_y - slope * mean_x
    errors = [y - base - slope * x for x, y in zip(xs, ys, strict=True)]
    free = count - 2
    margins: tuple[float | None, float | None] = (None, None)
    if free > 0 and spread:
        deviation = math.sqrt(sum(error**2 for error in errors) / free)
        quantile = STUDENT_95[min(free, len(STUDENT_95)) - 1]
        margins = (quantile * deviation * math.sqrt(1 / count + mean_x**2 / spread), quantile * deviation / math.sqrt(spread))
    relative = [error / y for error, y in zip(errors, ys, strict=True) if y > 0]
    return Cost(base, slope, *margins, math.sqrt(sum(each**2 for each in relative) / max(1, len(relative))))


@dataclass(frozen=True)
class Hardware:
    """What the prediction takes a node and the network to be.

    Attributes:
        cores: of a node, as fast as one here.
        gigabits: of a node's network, each way.
    """

    cores: int = 8
    gigabits: float = 10.0


@dataclass(frozen=True)
class Plan:
    """A topology on so many nodes.

    Attributes:
        name: what to call it.
        processes: how many processes of each role there are. ``store`` is a server's; SQLite's is the checkpointer.
        store: which store's costs apply; None stores nothing.
    """

    name: str
    processes: dict[str, int]
    store: str | None = None


@dataclass(frozen=True)
class Load:
    """What a run takes of everything.

    Attributes:
        cost: microseconds, by role.
        driver_bytes: between it and the supervisors.
    """

    cost: dict[str, float]
    driver_bytes: float


def bounds(plan: Plan, nodes: int, load: Load, hardware: Hardware) -> dict[str, float]:
    """Runs per second that each resource allows."""
    found = {
        f"{count} {role} process{'es' if count > 1 else ''}": count * 1e6 / load.cost[role]
        for role, count in plan.processes.items()
        if load.cost.get(role, 0.0) > 0
    }
    found["the cores of all nodes"] = nodes * hardware.cores * 1e6 / sum(load.cost.values())
    found["the drivers' network"] = plan.processes["driver"] * hardware.gigabits * 1e9 / 8 / load.driver_bytes
    return found


def predict(plan: Plan, nodes: int, load: Load, hardware: Hardware) -> tuple[float, str]:
    """Runs per second, and what keeps them from being more."""
    every = bounds(plan, nodes, load, hardware)
    name = min(every, key=every.__getitem__)
    return every[name], name
