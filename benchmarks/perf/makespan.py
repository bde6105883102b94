"""Wall time of every pattern with a model that takes 200 ms per call, against its ideal: the critical path of model calls.

python benchmarks/perf/makespan.py [--runtime ray|inline|both] [--repeat 3] [--delay 0.2] [--only TEXT] [--check] [--json]

Each pattern is run once to warm up, and then --repeat times; the median counts. With --check the exit code is 1 unless every
pattern is within 1.3 times its ideal. Source: design of the lab, "makespan ratio".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any

from _casts import CASES, Case

from umbel import Runtime

LIMIT = 1.3


async def measure(case: Case, delay: float, repeat: int) -> dict[str, Any]:
    """The times of one pattern on the current runtime."""
    pattern = case.make(delay)
    seconds = []
    for number in range(repeat + 1):
        start = time.perf_counter()
        result = await pattern.arun("The task.", full=False)
        took = time.perf_counter() - start
        if not case.check(result):
            raise SystemExit(f"{case.name}: the result is wrong: {result.stop_reason}, {result.error}, {result.outputs}")
        if number:
            seconds.append(took)
    ideal = case.critical_path * delay
    return {
        "pattern": case.name,
        "ideal_s": round(ideal, 2),
        "seconds": round(statistics.median(seconds), 3),
        "ratio": round(statistics.median(seconds) / ideal, 3),
        "model_calls": result.metrics.model_calls,
    }


async def all_on(kind: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every pattern on one kind of runtime."""
    chosen = [case for case in CASES if options.only in case.name]
    async with Runtime(inline=True) if kind == "inline" else Runtime(address="local"):
        return [{"runtime": kind, **await measure(case, options.delay, options.repeat)} for case in chosen]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=["ray", "inline", "both"], default="both")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.2, help="seconds per model call")
    parser.add_argument("--only", default="", help="patterns whose name has this text")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = ["inline", "ray"] if options.runtime == "both" else [options.runtime]
    rows = [row for kind in kinds for row in asyncio.run(all_on(kind, options))]
    slow = [row for row in rows if row["ratio"] > LIMIT]
    if options.json:
        print(json.dumps({"limit": LIMIT, "rows": rows}))
    else:
        print(f"{'runtime':8} {'pattern':36} {'ideal s':>8} {'wall s':>8} {'ratio':>6} {'calls':>6}")
        for row in rows:
            marks = " FAILS" if row in slow else ""
            columns = f"{row['runtime']:8} {row['pattern']:36} {row['ideal_s']:8.2f} {row['seconds']:8.3f} {row['ratio']:6.2f}"
            print(f"{columns} {row['model_calls']:6}{marks}")
    return 1 if options.check and slow else 0


if __name__ == "__main__":
    sys.exit(main())
