"""What a fleet's name costs: its ledger in SQLite against a results file, and a ledger of a million results.

python benchmarks/perf/fleet_ledger.py [--tasks 20000] [--rounds 5] [--results 1000000] [--json]

The same fleet of an instant inline model, with a results file each time, runs without and with a name, alternating in one
process; what counts is the ratio of the least CPU time of each. Then that many results are put into a
ledger, and a fresh process resumes from it: seconds, and what of them stays in memory. Exit code 1 when a bound is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

MOST_RATIO = 1.05
MOST_RESUME_BYTES = 150  # a result: 8 for its hash, the rest is what the allocator keeps of reading


async def ratio(tasks: int, rounds: int, folder: Path) -> dict[str, Any]:
    """CPU time of one fleet with a name, by that of the same without."""
    from umbel import Agent, Fleet, Runtime
    from umbel.testing import ScriptedModel, text

    agent = Agent(ScriptedModel([text("done, with an answer of the usual length for a task like this one")]))
    spent: dict[bool, list[float]] = {False: [], True: []}
    async with Runtime(inline=True) as runtime:
        for number in range(-1, rounds):  # the first warms up
            for named in (False, True) if number % 2 else (True, False):
                place: dict[str, Any] = {"name": f"f{number}", "store": f"sqlite:///{folder}/fleets.sqlite"} if named else {}
                fleet = Fleet(agent, runtime=runtime, **place)
                count = tasks if number >= 0 else min(tasks, 1_000)
                gc.collect()
                began = time.process_time()
                prompts = ({"id": f"t{n}", "prompt": "go"} for n in range(count))
                report = await fleet.run(prompts, folder / f"{number}{named}.jsonl")
                used = time.process_time() - began
                assert report.ok == count
                if number >= 0:
                    spent[named].append(used / count * 1e6)
    least = {named: min(times) for named, times in spent.items()}  # what else runs can only add
    return {
        "tasks": tasks,
        "microseconds_a_task": {"file": round(least[False], 1), "name": round(least[True], 1)},
        "rounds": {"file": [round(one, 1) for one in spent[False]], "name": [round(one, 1) for one in spent[True]]},
        "ratio": round(least[True] / least[False], 3),
    }


async def fill(url: str, results: int) -> dict[str, Any]:
    """Put results into a new ledger; one in fifty is not ok."""
    from umbel.cluster.fleet import TaskResult
    from umbel.cluster.fleet.ledger import Ending
    from umbel.cluster.fleet.opening import open_ledger

    ledger = await open_ledger("million", url)
    before, began, cpu = rss(), time.perf_counter(), time.process_time()
    fields: dict[str, Any] = {"message": "an answer of the usual length for a task like this one", "tokens": 120, "attempts": 1}
    for number in range(results):
        ledger.put(TaskResult(id=f"t{number}", status="ok" if number % 50 else "failed", **fields))
        if number % 100 == 0:
            await ledger.room()
            await asyncio.sleep(0)
    await ledger.close(Ending(state="stopped", reason="limit"))
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "microseconds_of_cpu_a_result": round((time.process_time() - cpu) / results * 1e6, 2),
        "growth_mib": round((rss() - before) / 2**20, 1),
    }


async def resume(url: str, results: int) -> dict[str, Any]:
    """Open it again, as a fleet that is resumed does."""
    from umbel.cluster.fleet.ledger import Ending, id_hash
    from umbel.cluster.fleet.opening import open_ledger

    before, began = rss(), time.perf_counter()
    ledger = await open_ledger("million", url, resume=True)
    figures = {"seconds": round(time.perf_counter() - began, 1), "bytes_a_result": round((rss() - before) / results)}
    right = all(ledger.is_done(id_hash(f"t{number}")) == bool(number % 50) for number in range(0, results, 7))
    await ledger.close(Ending(state="stopped", reason="limit"))
    return {**figures, "right": right}


def rss() -> int:
    return int(psutil.Process().memory_info().rss)


def apart(part: str, url: str, results: int) -> dict[str, Any]:
    """The figures of a part, from a process of its own."""
    command = [sys.executable, __file__, "--part", part, "--url", url, "--results", str(results)]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", choices=["fill", "resume"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        part = fill if options.part == "fill" else resume
        print(json.dumps(asyncio.run(part(options.url, options.results))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, Any] = {"name": asyncio.run(ratio(options.tasks, options.rounds, Path(folder)))}
        url = f"sqlite:///{folder}/million.sqlite"
        figures |= {part: apart(part, url, options.results) for part in ("fill", "resume")}
    problems = []
    if figures["name"]["ratio"] > MOST_RATIO:
        problems.append(f"a name costs {figures['name']['ratio'] - 1:.1%}, the limit is {MOST_RATIO - 1:.0%}")
    if figures["resume"]["bytes_a_result"] > MOST_RESUME_BYTES or not figures["resume"]["right"]:
        problems.append(f"a resumed ledger: {figures['resume']}, the limit is {MOST_RESUME_BYTES} bytes a result")
    print(json.dumps({**figures, "problems": problems}, indent=None if options.json else 2))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
