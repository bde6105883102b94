"""What a death costs: every kind of process, and a whole node, killed at every phase of a durable run.

python benchmarks/perf/recovery.py [--repeat 5] [--victims agent,supervisor] [--phases think,execute] [--json] [--check]

A run is held at a phase (a model call, a tool's body, the end of an iteration, the write of a checkpoint), one process is
killed with SIGKILL, and the run goes on. Measured, median of the repetitions: seconds from the kill to the run's next event
(``recovery``) and to its end (``end``); model calls and tokens beyond those of an undisturbed run; side effects that were
repeated although they must not be; events that the caller lost or got twice; how runs ended.

The victim ``node`` is a Ray node with all four actors on it. It is lost with the health-check settings that the README gives
for clusters; another node has room for the actors, and the checkpoints are on a disk that survives.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from _faults import MODEL_CALLS, POLL_SECONDS, make_agent, marks
from _nodes import RESOURCE, Nodes, cluster
from _report import Bar, circumstances, console, one_line, plain_table, say, verdict

VICTIMS = ("none", "agent", "tools", "worker", "checkpointer", "supervisor", "node")
PHASES = ("think", "execute", "reflect", "checkpoint")
PATIENCE = 120.0
# Median seconds to the next event. Of the checkpointer nobody waits for most of the time, of a node the loss must be noticed.
BARS = {"agent": 3.0, "tools": 3.0, "worker": 3.0, "checkpointer": 3.0, "supervisor": 3.0, "node": 10.0}
Figures = dict[str, Any]


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a fact about other processes."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {PATIENCE:g} s")
        await asyncio.sleep(POLL_SECONDS)


class Repetition:
    """One run, one death.

    Args:
        runtime: where it runs.
        victim: whose process is killed; ``none`` only holds the run, for comparison.
        phase: when.
        folder: for marks and the store.
        nodes: among which ``node`` is, where it is the victim.
    """

    def __init__(self, runtime: Any, victim: str, phase: str, folder: Path, nodes: Nodes | None) -> None:
        self.runtime = runtime
        self.nodes = nodes
        self.victim = victim
        self.phase = phase
        self.folder = folder
        self.arrivals: list[tuple[float, Any]] = []
        self.killed_at = 0.0
        self.error: str | None = None
        self.lock: sqlite3.Connection | None = None

    async def measure(self) -> Figures:
        """Run, kill, and say what it cost."""
        spot = "worker" if self.victim == "worker" else self.phase
        if self.phase != "checkpoint":
            (self.folder / f"hold-{spot}").touch()
        agent = make_agent(self.folder)
        pids = {name: report["pid"] for name, report in (await asyncio.to_thread(self._reports)).items()}
        async with self._held_store():
            run = asyncio.ensure_future(self._consume(agent))
            await until(lambda: run.done() or self._held(), f"{self.phase}")
            while self.phase == "checkpoint" and not await asyncio.to_thread(self._saves):  # noqa: ASYNC110 - another process
                await asyncio.sleep(POLL_SECONDS)
            self._kill(pids)
        await run
        return self._figures(time.monotonic())

    async def _consume(self, agent: Any) -> None:
        from umbel.errors import UmbelError

        options = {"thread_id": "t", "metadata": {"folder": str(self.folder)}, "runtime": self.runtime}
        try:
            async for event in agent.run("go", **options):
                self.arrivals.append((time.monotonic(), event))
        except UmbelError as error:
            self.error = error.code

    @contextlib.asynccontextmanager
    async def _held_store(self) -> AsyncIterator[None]:
        """At the phase ``checkpoint`` the database is locked from the run's first tools until the kill."""
        try:
            yield
        finally:
            if self.lock is not None:
                self.lock.rollback()
                self.lock.close()

    def _held(self) -> bool:
        if self.phase != "checkpoint":
            return bool(marks(self.folder, "held"))
        if self.lock is None:
            if len(marks(self.folder, "begun")) < 3:
                return False
            self.lock = sqlite3.connect(self.folder / "threads.db", isolation_level=None)
            self.lock.execute("BEGIN IMMEDIATE")
        return True

    def _reports(self) -> dict[str, Any]:
        found: dict[str, Any] = self.runtime.backend.reports()
        return found

    def _saves(self) -> bool:
        """Whether the checkpointer is at work on something."""
        return bool(self._reports()["checkpointer/default/0"]["busy"])

    def _kill(self, pids: dict[str, int]) -> None:
        self.killed_at = time.monotonic()
        if self.victim == "worker":
            os.kill(marks(self.folder, "held")[0]["pid"], signal.SIGKILL)
        elif self.nodes is not None:
            self.nodes.lose(pids["supervisor/default/0"])
        elif self.victim != "none":
            os.kill(pids[f"{self.victim}/default/0"], signal.SIGKILL)
        (self.folder / "killed").touch()

    def _figures(self, ended_at: float) -> Figures:
        events = [event for _, event in self.arrivals]
        later = [at for at, event in self.arrivals if at > self.killed_at and event.event_type != "custom"]
        asked = marks(self.folder, "model")
        return {
            "recovery_s": later[0] - self.killed_at if later else None,
            "end_s": ended_at - self.killed_at,
            "model_calls": len(asked) - MODEL_CALLS,
            "tokens": sum(entry["tokens"] for entry in asked),
            "repeated": self._repeated(),
            "events_wrong": sum(event.seq != number for number, event in enumerate(events)),
            "ended": self.error or str(getattr(events[-1], "reason", events[-1].event_type) if events else "nothing"),
        }

    def _repeated(self) -> int:
        """Bodies of ``pay`` that were begun for a step that had begun before."""
        begun = Counter(entry["step"] for entry in marks(self.folder, "begun") if entry["tool"] == "pay")
        return sum(count - 1 for count in begun.values())


def sweep(victims: list[str], phases: list[str], repeat: int) -> dict[tuple[str, str], list[Figures]]:
    """Every victim at every phase, in turns, so that a busy moment of the machine spoils no figure alone."""
    from umbel import Runtime, Topology

    found: dict[tuple[str, str], list[Figures]] = {}
    shape = Topology(max_restarts=1_000_000)
    if processes := [victim for victim in victims if victim != "node"]:
        with Runtime(topology=shape).start() as runtime:
            found |= rounds(runtime, processes, phases, repeat, None)
    if "node" in victims:
        beside = shape.model_copy(update={"resources": {RESOURCE: 1}})
        with cluster() as (address, nodes), Runtime(address=address, topology=beside).start() as runtime:
            found |= rounds(runtime, ["node"], phases, repeat, nodes)
    say("")
    return found


def rounds(
    runtime: Any, victims: list[str], phases: list[str], repeat: int, nodes: Nodes | None
) -> dict[tuple[str, str], list[Figures]]:
    """The sweep on one runtime."""
    cells = [(victim, phase) for victim in victims for phase in phases if victim != "worker" or phase == "execute"]
    found: dict[tuple[str, str], list[Figures]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(repeat):
            for victim, phase in cells:
                say(f"{victim} at {phase}, {number + 1} of {repeat}")
                place = Path(folder) / f"{victim}-{phase}-{number}"
                place.mkdir()
                found[victim, phase].append(runtime.run_sync(one(runtime, victim, phase, place, nodes)))
                if nodes is not None:
                    nodes.join()
    return found


async def one(runtime: Any, victim: str, phase: str, folder: Path, nodes: Nodes | None) -> Figures:
    """One repetition on a runtime whose actors are all there."""
    await runtime.ready(PATIENCE)
    async with asyncio.timeout(PATIENCE):
        return await Repetition(runtime, victim, phase, folder, nodes).measure()


def median(figures: list[Figures], name: str) -> float | None:
    values = [each[name] for each in figures if each[name] is not None]
    return statistics.median(values) if values else None


def summarise(found: dict[tuple[str, str], list[Figures]]) -> list[Figures]:
    """One record a cell: medians of times, the worst of what must not be."""
    undisturbed = {phase: median(each, "tokens") or 0 for (victim, phase), each in found.items() if victim == "none"}
    return [
        {
            "victim": victim,
            "phase": phase,
            "recovery_s": median(each, "recovery_s"),
            "end_s": median(each, "end_s"),
            "extra_model_calls": median(each, "model_calls"),
            "extra_tokens": (median(each, "tokens") or 0) - undisturbed.get(phase, 0) if undisturbed else None,
            "repeated_effects": max(one["repeated"] for one in each),
            "wrong_events": max(one["events_wrong"] for one in each),
            "ended": dict(Counter(one["ended"] for one in each)),
        }
        for (victim, phase), each in found.items()
    ]


def bars(records: list[Figures]) -> Iterator[Bar]:
    """Median recovery of what is restarted or replaced; nothing repeated, nothing lost, every run complete."""
    for victim, limit in BARS.items():
        times = [each["recovery_s"] for each in records if each["victim"] == victim and each["recovery_s"] is not None]
        value = statistics.median(times) if times else None
        yield Bar(f"{victim}: median seconds from the kill to the next event", value, limit, at_least=False)
    killed = [each for each in records if each["victim"] != "none"]
    yield Bar("side effects repeated", max((each["repeated_effects"] for each in killed), default=None), 0, at_least=False)
    yield Bar("events lost or doubled", max((each["wrong_events"] for each in killed), default=None), 0, at_least=False)
    incomplete = sum(count for each in killed for ended, count in each["ended"].items() if ended != "complete")
    yield Bar("runs that did not complete", incomplete if killed else None, 0, at_least=False)


def table(records: list[Figures]) -> Any:
    columns = ("killed", "at", "recovery s", "end s", "model calls", "tokens", "repeated", "events", "ended")
    title = "A process is killed while a durable run is at a phase (medians; + is beyond an undisturbed run)"
    shown = plain_table(title, *columns, left=2)
    for each in records:
        times = ["-" if each[name] is None else f"{each[name]:.2f}" for name in ("recovery_s", "end_s")]
        extra = ["-" if each[name] is None else f"{each[name]:+g}" for name in ("extra_model_calls", "extra_tokens")]
        ended = ", ".join(f"{name} {count}" for name, count in each["ended"].items())
        wrong = [str(each["repeated_effects"]), str(each["wrong_events"])]
        shown.add_row(each["victim"], each["phase"], *times, *extra, *wrong, ended)
    return shown


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="What the death of a process or a node costs a durable run: every kind, at every phase.",
        epilog="example: recovery.py --victims supervisor --phases think,execute --repeat 3",
    )
    parser.add_argument("--repeat", type=int, default=5, help="repetitions, of which the median counts (%(default)s)")
    parser.add_argument("--victims", default=",".join(VICTIMS), help="%(default)s")
    parser.add_argument("--phases", default=",".join(PHASES), help="%(default)s")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of tables")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every bar that could be measured holds")
    chosen = parser.parse_args()
    for name, known in (("victims", VICTIMS), ("phases", PHASES)):
        wanted = [each.strip() for each in getattr(chosen, name).split(",") if each.strip()]
        wrong = sorted(set(wanted) - set(known))
        if wrong or not wanted:
            parser.error(f"--{name}: unknown {', '.join(wrong) or 'nothing'}; there are {', '.join(known)}")
        setattr(chosen, name, wanted)
    if chosen.repeat < 1:
        parser.error("--repeat must be at least 1")
    return chosen


def main() -> int:
    chosen = options()
    with contextlib.redirect_stdout(sys.stderr):  # Ray says there which processes died
        records = summarise(sweep(chosen.victims, chosen.phases, chosen.repeat))
    found = list(bars(records)) if chosen.check else []
    told = circumstances(repeat=chosen.repeat)
    if chosen.json:
        print(json.dumps({"circumstances": told, "bars": [bar.to_dict() for bar in found], "records": records}, indent=1))
    else:
        show = console().print
        show(table(records))
        if found:
            show(verdict(found))
        show(one_line(told))
    return 1 if any(bar.holds is False for bar in found) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
