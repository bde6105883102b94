"""Memory of driver and actors while a fleet runs 50,000 tasks; and is any result lost or doubled?

python benchmarks/perf/fleet_memory.py [--tasks 50000] [--concurrency 500] [--runtime ray|inline] [--json]

Tasks are streamed from a JSONL file, each calls an instant model once, results go to a JSONL file. Once a second the RSS
(for the actors USS, which leaves shared pages out) of the driver and of every Umbel actor is taken. Flat means: from 20 %
of the tasks to the end no process grew by more than 300 bytes a task. Exit code 1 when it did, or a result is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

LIMIT_BYTES_PER_TASK = 300
SAMPLE_SECONDS = 1.0
WARM_SHARE = 0.2


class Sampler:
    """Memory over time, taken from the fleet's progress reports."""

    def __init__(self) -> None:
        self.samples: list[dict[str, Any]] = []
        self._next = 0.0
        self._names: dict[int, str] = {}

    def __call__(self, snapshot: Any) -> None:
        last = snapshot.done > 0 and snapshot.running == 0
        if last or snapshot.elapsed_s >= self._next:
            self._next = snapshot.elapsed_s + SAMPLE_SECONDS
            memory = {name: round(used / 2**20, 1) for name, used in self._memory()}
            self.samples.append({"seconds": round(snapshot.elapsed_s, 1), "tasks": snapshot.done, "mib": memory})

    def _memory(self) -> Iterator[tuple[str, int]]:
        driver = psutil.Process()
        yield "driver", driver.memory_info().rss
        for process in driver.children(recursive=True):
            try:
                name = self._name(process)
                if name:
                    yield name, process.memory_full_info().uss
            except psutil.NoSuchProcess:
                continue

    def _name(self, process: psutil.Process) -> str:
        """``actor <pid>`` for Ray workers that host an actor, empty for everything else."""
        if self._names.get(process.pid) is None:
            command = " ".join(process.cmdline())
            self._names[process.pid] = f"actor {process.pid}" if command.startswith("ray::") and "IDLE" not in command else ""
        return self._names[process.pid]

    def growth(self) -> dict[str, float]:
        """Bytes a task, per process, from the warm share of the tasks to the end."""
        last = self.samples[-1]
        start = next(sample for sample in self.samples if sample["tasks"] >= WARM_SHARE * last["tasks"])
        tasks = max(1, last["tasks"] - start["tasks"])
        both = start["mib"].keys() & last["mib"].keys()
        return {name: round((last["mib"][name] - start["mib"][name]) * 2**20 / tasks, 1) for name in sorted(both, reverse=True)}


def measure(tasks: int, concurrency: int, kind: str, folder: Path) -> dict[str, Any]:
    from umbel import Agent, Fleet, Runtime
    from umbel.testing import ScriptedModel, text

    source, results = folder / "tasks.jsonl", folder / "results.jsonl"
    with source.open("w") as lines:
        for number in range(tasks):
            lines.write(json.dumps({"id": f"task-{number:06d}", "prompt": f"Task {number}: " + "lorem ipsum " * 20}) + "\n")
    agent = Agent(model=ScriptedModel([text("done, " + "lorem ipsum " * 20)]))
    sampler = Sampler()
    with Runtime(inline=True) if kind == "inline" else Runtime(address="local") as runtime:
        runtime.start()
        started = time.perf_counter()
        report = Fleet(agent, concurrency=concurrency, runtime=runtime).run_sync(source, results, progress=sampler)
        seconds = time.perf_counter() - started
    counts = Counter(json.loads(line)["id"] for line in results.open())
    return {
        "tasks": tasks,
        "concurrency": concurrency,
        "runtime": kind,
        "ok": report.ok,
        "seconds": round(seconds, 1),
        "tasks_per_second": round(tasks / seconds),
        "missing": sum(f"task-{number:06d}" not in counts for number in range(tasks)),
        "doubled": sum(count > 1 for count in counts.values()),
        "growth_bytes_per_task": sampler.growth(),
        "limit_bytes_per_task": LIMIT_BYTES_PER_TASK,
        "samples": sampler.samples,
    }


def judge(figures: dict[str, Any]) -> list[str]:
    """What is wrong, if anything."""
    problems = []
    if figures["ok"] != figures["tasks"] or figures["missing"] or figures["doubled"]:
        problems.append(f"{figures['ok']} ok, {figures['missing']} missing, {figures['doubled']} doubled of {figures['tasks']}")
    for name, growth in figures["growth_bytes_per_task"].items():
        if growth > LIMIT_BYTES_PER_TASK:
            problems.append(f"{name} grew by {growth} bytes a task, the limit is {LIMIT_BYTES_PER_TASK}")
    return problems


def show(figures: dict[str, Any]) -> None:
    samples = figures["samples"]
    names = sorted({name for sample in samples for name in sample["mib"]}, reverse=True)
    print(
        f"{figures['tasks']:,} tasks, {figures['concurrency']} in flight, "
        f"{figures['runtime']}: {figures['tasks_per_second']:,} tasks/s"
    )
    print("  ".join(["seconds", "  tasks", *(f"{name + ' MiB':>16}" for name in names)]))
    for sample in samples[:: max(1, len(samples) // 20)] + samples[-1:]:
        memory = (f"{sample['mib'].get(name, 0):16.1f}" for name in names)
        print("  ".join([f"{sample['seconds']:7.1f}", f"{sample['tasks']:7,}", *memory]))
    print("growth, bytes a task:", ", ".join(f"{name} {growth:g}" for name, growth in figures["growth_bytes_per_task"].items()))
    print(f"missing {figures['missing']}, doubled {figures['doubled']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--concurrency", type=int, default=500)
    parser.add_argument("--runtime", choices=["ray", "inline"], default="ray")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options.tasks, options.concurrency, options.runtime, Path(folder))
    problems = judge(figures)
    if options.json:
        print(json.dumps({**figures, "problems": problems}))
    else:
        show(figures)
        for problem in problems:
            print(f"NOT FLAT OR NOT COMPLETE: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
