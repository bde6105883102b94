"""One workload on one runtime, in a fresh process; prints one JSON line.

python benchmarks/perf/_measure.py inline|ray|colocated WORKLOAD
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from umbel import Agent, AgentResult, Runtime

WARM, TIMED = 50, 500
BLOCK = 50  # sequential runs between two series of bare Ray calls
HOLD_SECONDS = 5.0  # of a model call while 10,000 runs are in flight
DURABLE_SECONDS = 5.0
FAN = 100
FRAME = b"x" * 500
Figures = dict[str, Any]
now = time.perf_counter


class WrongAnswer(Exception):
    """A run did not give the right answer, or a tool did not run as often as it should."""


# the machine


class Meter:
    """CPU seconds of the whole process tree (Ray's own processes are in it), memory of the driver and the actors."""

    def __init__(self, runtime: Runtime) -> None:
        self._me = psutil.Process()
        self._inline = runtime.inline
        backend: Any = runtime.backend
        actors = [] if runtime.inline else [report["pid"] for report in backend.reports().values()]
        self._folders = [Path(f"/proc/{pid}") for pid in {self._me.pid, *actors}]
        self._before = 0

    def cpu(self) -> float:
        if self._inline:
            return time.process_time()
        return sum(seconds(process) for process in (self._me, *self._me.children(recursive=True)))

    def mark(self) -> None:
        """Growth counts from here; the peak so far is forgotten."""
        gc.collect()
        self._before = self._sum("VmRSS")
        for folder in self._folders:
            if folder.exists():
                (folder / "clear_refs").write_text("5")

    def growth(self) -> int | None:
        """KiB by which the peaks of all processes together exceed what was there before; None where only Linux can tell."""
        return self._sum("VmHWM") - self._before if self._folders[0].exists() else None

    def _sum(self, field: str) -> int:
        return sum(kib(folder / "status", field) for folder in self._folders if folder.exists())


def seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def kib(status: Path, field: str) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field))


class BareRay:
    """The yardstick: one call at a time on an async Ray actor that returns what it gets."""

    def __init__(self) -> None:
        import ray

        class Echo:
            async def echo(self, frame: bytes) -> bytes:
                return frame

        self._echo: Any = ray.remote(num_cpus=0)(Echo).remote()
        self.seconds: list[float] = []

    async def ping(self, times: int) -> None:
        for _ in range(times):
            start = now()
            await self._echo.echo.remote(FRAME)
            self.seconds.append(now() - start)


# what is measured


class Bench:
    """The workloads, against one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        import _workloads

        self._make = _workloads
        self._runtime = runtime
        self._clerk = _workloads.bookkeeper()
        self._meter = Meter(runtime)

    async def executions(self) -> int:
        """How often the tool ran so far."""
        return int((await self._clerk.arun("How often?")).message)

    async def answer(self, agent: Agent, **options: Any) -> AgentResult:
        result = await agent.arun(self._make.PROMPT, **options)
        if result.message != self._make.ANSWER:
            raise WrongAnswer(f"{result.message!r} ({result.stop_reason})")
        return result

    async def check_tools(self, before: int, expected: int) -> None:
        ran = await self.executions() - before
        if ran != expected:
            raise WrongAnswer(f"the tool ran {ran} times, expected {expected}")

    async def sequential(self, agent: Agent, tool_calls: int) -> Figures:
        """W1, W2: one after the other. On Ray, bare calls are timed in between, for the ratio."""
        bare = None if self._runtime.inline else BareRay()
        before = await self.executions()
        for _ in range(WARM):
            await self.answer(agent)
        if bare is not None:
            await bare.ping(WARM)
            bare.seconds.clear()
        times: list[float] = []
        cpu = 0.0
        for _ in range(TIMED // BLOCK):
            used = self._meter.cpu()
            for _ in range(BLOCK):
                start = now()
                await self.answer(agent)
                times.append(now() - start)
            cpu += self._meter.cpu() - used
            if bare is not None:
                await bare.ping(BLOCK)
        await self.check_tools(before, tool_calls * (WARM + TIMED))
        return {**summary(times, cpu), **({} if bare is None else round_trips(times, bare.seconds))}

    async def burst(self, count: int, delay: float = 0.0) -> Figures:
        """W3, W4: ``count`` runs of one agent at once."""
        agent = self._make.tool_turn(delay)
        await asyncio.gather(*(self.answer(agent) for _ in range(20)))
        before = await self.executions()

        async def run() -> tuple[float, float]:
            result = await self.answer(agent)
            assert result.started_at is not None
            assert result.completed_at is not None
            return result.started_at.timestamp(), result.completed_at.timestamp()

        self._meter.mark()
        start, used = now(), self._meter.cpu()
        spans = await asyncio.gather(*(run() for _ in range(count)))
        wall, cpu = now() - start, self._meter.cpu() - used
        growth = self._meter.growth()
        await self.check_tools(before, count)
        return {
            "n": count,
            "wall_s": wall,
            "cpu_s": cpu,
            "cpu_ms": cpu / count * 1e3,
            "runs_per_s": count / wall,
            **({} if growth is None else {"kib_per_run": growth / count}),
            "in_flight": overlap(spans),
            **({"ideal_s": 2 * delay} if delay else {}),
        }

    async def fan_out(self, make: Callable[[int], Any], repetitions: int = 10, warm: int = 2, cap: float = 8.0) -> Figures:
        """W5: a pattern, or an agent that asks, with 100 agents side by side."""
        start = now()
        parent = make(FAN)
        build = now() - start
        times: list[float] = []
        cpu = 0.0
        for repetition in range(warm + repetitions):
            before = await self.executions()
            used, start = self._meter.cpu(), now()
            result = await parent.arun(self._make.PROMPT)
            took, used = now() - start, self._meter.cpu() - used
            answers = getattr(result, "outputs", None) or result.message.split("\n")
            if answers != [self._make.ANSWER] * FAN:
                raise WrongAnswer(f"{len(answers)} answers, among them {sorted(set(answers))[:3]}")
            await self.check_tools(before, FAN)
            if repetition >= warm:
                times.append(took)
                cpu += used
            if len(times) > 2 and sum(times) > cap:
                break
        return {**summary(times, cpu), "build_ms": build * 1e3, "fan": FAN}

    async def durable(self, at_once: int) -> Figures:
        """W6: with the embedded store, a new thread per run; one after the other, or many at once."""
        with tempfile.TemporaryDirectory(prefix="umbel-bench-") as folder:
            agent = self._make.tool_turn(checkpointer=f"sqlite:///{folder}/checkpoints.sqlite")
            before = await self.executions()
            if at_once:
                for number in range(5):
                    await self.answer(agent, thread_id=f"warm-{number}")
                start = now()
                await asyncio.gather(*(self.answer(agent, thread_id=f"thread-{number}") for number in range(at_once)))
                wall, done = now() - start, 5 + at_once
                figures: Figures = {"n": at_once, "wall_s": wall, "runs_per_s": at_once / wall}
            else:
                times, cpu, done = await self._durable_sequence(agent)
                figures = summary(times, cpu)
            await self.check_tools(before, done)
            return {**figures, "disk_kib_per_run": size_kib(Path(folder)) / done}

    async def durable_share(self, at_once: int, rounds: int = 5) -> Figures:
        """A volatile fleet and a durable one of the same size, in turns: what durability leaves of the rate."""
        with tempfile.TemporaryDirectory(prefix="umbel-bench-") as folder:
            volatile = self._make.tool_turn()
            durable = self._make.tool_turn(checkpointer=f"sqlite:///{folder}/checkpoints.sqlite")
            rates: dict[str, list[float]] = {"volatile": [], "durable": []}
            for number in range(1 + rounds):  # the first warms up
                for name, agent in (("volatile", volatile), ("durable", durable)):
                    threads = [{"thread_id": f"{number}-{run}"} if name == "durable" else {} for run in range(at_once)]
                    start = now()
                    await asyncio.gather(*(self.answer(agent, **options) for options in threads))
                    rates[name].append(at_once / (now() - start))
            kept = {name: statistics.median(values[1:]) for name, values in rates.items()}
            share = statistics.median(d / v for d, v in zip(rates["durable"][1:], rates["volatile"][1:], strict=True))
            return {"n": at_once, "runs_per_s": kept["durable"], "volatile_runs_per_s": kept["volatile"], "share": share}

    async def _durable_sequence(self, agent: Agent, warm: int = 20) -> tuple[list[float], float, int]:
        times: list[float] = []
        used = 0.0
        for number in range(warm + TIMED):
            if number == warm:
                used = self._meter.cpu()
            start = now()
            await self.answer(agent, thread_id=f"thread-{number}")
            if number >= warm:
                times.append(now() - start)
            if sum(times) > DURABLE_SECONDS:
                break
        return times, self._meter.cpu() - used, warm + len(times)


WORKLOADS: dict[str, Callable[[Bench], Awaitable[Figures]]] = {
    "w1": lambda bench: bench.sequential(bench._make.one_turn(), 0),
    "w2": lambda bench: bench.sequential(bench._make.tool_turn(), 1),
    "w3_1000": lambda bench: bench.burst(1_000),
    "w3_10000": lambda bench: bench.burst(10_000),
    "w4": lambda bench: bench.burst(1_000, 0.2),
    "w4_10000": lambda bench: bench.burst(10_000, HOLD_SECONDS),
    "w5": lambda bench: bench.fan_out(bench._make.fan_out),
    "w5_tools": lambda bench: bench.fan_out(bench._make.asking_all),
    "w6": lambda bench: bench.durable(0),
    "w6_200": lambda bench: bench.durable(200),
    "w6_1000": lambda bench: bench.durable_share(1_000),
}


def summary(times: list[float], cpu: float) -> Figures:
    ordered = sorted(times)
    return {
        "n": len(times),
        "median_ms": statistics.median(times) * 1e3,
        "p95_ms": ordered[max(0, int(len(times) * 0.95) - 1)] * 1e3,
        "min_ms": ordered[0] * 1e3,
        "cpu_ms": cpu / len(times) * 1e3,
    }


def size_kib(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1024


def round_trips(times: list[float], bare: list[float]) -> Figures:
    yardstick = statistics.median(bare)
    return {"bare_ms": yardstick * 1e3, "round_trips": statistics.median(times) / yardstick}


def overlap(spans: list[tuple[float, float]]) -> int:
    """The largest number of runs that were in progress at one moment."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    most = current = 0
    for _, change in changes:
        current += change
        most = max(most, current)
    return most


# one measurement


def new_runtime(kind: str) -> Runtime:
    from umbel import Runtime, Topology

    if kind == "inline":
        return Runtime(inline=True)
    return Runtime(address="local", topology=Topology(colocate_agents=kind == "colocated"))


async def first_answer(kind: str, start: float) -> Figures:
    """From nothing imported to the first answer of a tool turn, the start of Ray included."""
    memory = psutil.Process().memory_info().rss
    import umbel.testing  # noqa: F401  # what the fake model needs belongs to what is imported

    imported = now() - start
    async with new_runtime(kind):
        import _workloads

        result = await _workloads.tool_turn().arun(_workloads.PROMPT)
        took = now() - start
        if result.message != _workloads.ANSWER:
            raise WrongAnswer(result.message)
        grown = psutil.Process().memory_info().rss - memory
    return {"import_s": imported, "import_to_first_answer_s": took, "rss_growth_mib": grown / 2**20}


async def measure(kind: str, workload: str) -> Figures:
    async with new_runtime(kind) as runtime:
        runtime.start()
        bench = Bench(runtime)
        figures = await WORKLOADS[workload](bench)
        me = psutil.Process()
        return {**figures, "tree_cpu_s": sum(seconds(process) for process in (me, *me.children(recursive=True)))}


def main() -> None:
    kind, workload = sys.argv[1:]
    os.environ.pop("RAY_ADDRESS", None)  # a cluster of our own: a measurement starts from nothing
    job = first_answer(kind, now()) if workload == "import" else measure(kind, workload)
    print(json.dumps(asyncio.run(job)))


if __name__ == "__main__":
    main()
