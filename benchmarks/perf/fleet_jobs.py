"""100,000 tasks as a Ray job that is stopped three times and resumed: is any lost, is any run twice, is it as fast as W3?

python benchmarks/perf/fleet_jobs.py [--tasks 100000] [--stops 3] [--concurrency 1000] [--json] [--check]

On a Ray head of its own. A task is a tool turn with an instant model, on the default topology. ``ray job submit`` starts
``umbel fleet run fleet.yaml``; ``ray job stop`` ends it each time another 8 % of the tasks are done, and the same job is
submitted again under another id. Between the sessions W3 (10,000 such turns at once, no fleet) is measured on the same head.
The model writes down every call, apart from everything that the runtime says of itself.

``--check``: exit code 1 unless every task has one result, the right one; the model was called exactly twice for each; the
median rate of the sessions is at least 80 % of W3's; and no process grew by more than 300 bytes a task over the last half.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from _ports import free_port
from _report import Bar, circumstances, console, one_line, plain_table, say, verdict
from _witness import FOLDER, LINE_BYTES, answer, prompt

HERE = Path(__file__).resolve()
STOP_EVERY = 0.08  # of the tasks
SAMPLE_SECONDS = 0.25
SESSION_SECONDS = 1_200
BURST = 10_000
SHARE_BAR, GROWTH_BAR = 0.8, 300.0
ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
Figures = dict[str, Any]


class Head:
    """A Ray head on loopback with its job server.

    Attributes:
        process: of the head; everything on the cluster is below it.
    """

    def __init__(self, folder: Path) -> None:
        self._port, self._dashboard = free_port(), free_port()
        self._ray = [sys.executable, "-m", "ray.scripts.scripts"]
        settings = {
            "RAY_AUTH_MODE": "disabled",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            "RAY_worker_niceness": "0",
            "RAY_DEDUP_LOGS": "0",
            "UMBEL_HOME": str(folder / "home"),
            FOLDER: str(folder / "witness"),
        }
        self.environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | settings
        command = [*self._ray, "start", "--head", "--block", f"--port={self._port}", "--num-cpus=2", "--include-dashboard=true"]
        command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={self._dashboard}"]
        command += [f"--dashboard-agent-listen-port={free_port()}", "--temp-dir", str(folder / "r")]
        log = (folder / "head.log").open("w")
        self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    @property
    def address(self) -> str:
        """Of the cluster, for drivers."""
        return f"127.0.0.1:{self._port}"

    def job(self, *command: str, check: bool = True) -> str:
        """``ray job ...``; what it prints."""
        address = ["--address", f"http://127.0.0.1:{self._dashboard}"]
        done = subprocess.run(
            [*self._ray, "job", command[0], *address, *command[1:]],
            check=False,
            capture_output=True,
            text=True,
            env=self.environment,
        )
        if check and done.returncode:
            raise RuntimeError(f"ray job {' '.join(command)}: {done.stderr.strip()[-1_500:] or done.stdout[-1_500:]}")
        return done.stdout if not done.returncode else ""

    def client(self) -> Any:
        """Ray's own client, for what is asked often."""
        os.environ["RAY_AUTH_MODE"] = "disabled"
        from ray.job_submission import JobSubmissionClient

        end = time.monotonic() + 60
        while True:
            try:
                client = JobSubmissionClient(f"http://127.0.0.1:{self._dashboard}")
                client.list_jobs()
                return client
            except (ConnectionError, RuntimeError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextlib.contextmanager
def ray_head(folder: Path) -> Iterator[Head]:
    head = Head(folder)
    try:
        yield head
    finally:
        head.close()


class Memory:
    """RSS of a session's driver and actors, over the tasks that were done."""

    def __init__(self, head: Head) -> None:
        self._head = psutil.Process(head.process.pid)
        self.samples: list[tuple[int, dict[str, int]]] = []
        self._names: dict[int, str] = {}

    def take(self, done: int) -> None:
        found = {}
        for process in self._head.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                name = self._names.get(process.pid) or self._named(process)
                if name:
                    self._names[process.pid] = name
                    found[name] = process.memory_info().rss
        self.samples.append((done, found))

    def _named(self, process: psutil.Process) -> str:
        """``driver``, or that it is an actor; empty for everything else."""
        command = process.cmdline()
        line = " ".join(command)
        if line.startswith("ray::") and "Host" in line:  # its name or its class, and what it does
            return f"actor {process.pid}"
        return "driver" if "fleet" in command and "run" in command and "sh" not in command[0] else ""

    def growth(self) -> dict[str, float]:
        """Bytes a task over the last half of the session, by least squares."""
        last = self.samples[-1][0]
        late = [sample for sample in self.samples if sample[0] >= (self.samples[0][0] + last) / 2]
        names = set.intersection(*(set(found) for _, found in late))
        return {name: slope([(done, found[name]) for done, found in late]) for name in sorted(names, reverse=True)}


def slope(points: list[tuple[int, int]]) -> float:
    if len({x for x, _ in points}) < 3:
        return 0.0
    return round(statistics.linear_regression(*zip(*points, strict=True)).slope, 1)


class Trial:
    """The fleet's sessions, and W3 between them."""

    def __init__(self, head: Head, folder: Path, options: argparse.Namespace) -> None:
        self._head, self._folder, self._options = head, folder, options
        self._client = head.client()
        self._work = folder / "work"
        self._witness = folder / "witness/fleet"
        self.sessions: list[Figures] = []
        self.bursts: list[float] = []
        self.memory = Memory(head)

    def run(self) -> None:
        count, stops = self._options.tasks, self._options.stops
        for number in range(stops + 1):
            self.bursts.append(self._burst())
            self._session(number, None if number == stops else round(count * STOP_EVERY))
        self.bursts.append(self._burst())

    def _burst(self) -> float:
        say("W3")
        environment = self._head.environment | {"RAY_ADDRESS": self._head.address}
        command = [sys.executable, str(HERE.with_name("_witness.py")), str(self._options.burst)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return float(json.loads(done.stdout.splitlines()[-1])["runs_per_s"])

    def _done(self) -> int:
        """Answers that the model has given so far."""
        return sum(path.stat().st_size for path in self._witness.iterdir()) // LINE_BYTES // 2

    def _session(self, number: int, stop_after: int | None) -> None:
        say(f"session {number + 1}")
        name, before = f"fleet-{number}-{os.getpid()}", self._done()
        stop_at = None if stop_after is None else before + stop_after
        goal = stop_at or self._options.tasks
        entrypoint = ["exec", sys.executable, "-m", "umbel.cluster.cli.main", "fleet", "run", "fleet.yaml"]
        begun = time.perf_counter()
        self._head.job("submit", "--no-wait", "--submission-id", name, "--working-dir", str(self._work), "--", *entrypoint)
        self.memory = Memory(self._head)
        points: list[tuple[float, int]] = []
        stopped_after = None
        while (status := str(self._client.get_job_status(name).value)) not in ENDED:
            now, done = time.perf_counter(), self._done()
            if before < done < goal:
                points.append((now, done))
                self.memory.take(done)
            if stop_at is not None and done >= stop_at and stopped_after is None:
                start = time.perf_counter()
                self._head.job("stop", name)
                stopped_after = time.perf_counter() - start
            if now - begun > SESSION_SECONDS:
                raise RuntimeError(f"session {number + 1} does not end: {self._client.get_job_logs(name)[-1_500:]}")
            time.sleep(SAMPLE_SECONDS)
        done = self._done()
        if status != ("SUCCEEDED" if stop_at is None else "STOPPED"):
            raise RuntimeError(f"session {number + 1} ended as {status}: {self._client.get_job_logs(name)[-3_000:]}")
        self.sessions.append(
            {
                "status": status,
                "tasks": done - before,
                "seconds": round(time.perf_counter() - begun, 1),
                "stop_seconds": None if stopped_after is None else round(stopped_after, 1),
                "runs_per_s": rate(points),
                "last_line": last_line(self._client.get_job_logs(name)),
            }
        )


def rate(points: list[tuple[float, int]]) -> float | None:
    """Tasks a second from the first look at which some were done to the last one."""
    if len(points) < 3:
        return None
    (start, first), (end, last) = points[0], points[-1]
    return (last - first) / (end - start)


def last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def verify(folder: Path, count: int) -> Figures:
    """What the results and the witness say, task by task."""
    results: Counter[int] = Counter()
    wrong = 0
    for line in (folder / "results.jsonl").open():
        record = json.loads(line)
        number = int(record["id"].removeprefix("task-"))
        results[number] += 1
        wrong += record["status"] != "ok" or record["message"] != answer(number)
    calls: dict[str, Counter[int]] = {"B": Counter(), "E": Counter()}
    for path in (folder / "witness/fleet").iterdir():
        for line in path.open():
            calls[line[0]][int(line[2:])] += 1
    everyone = range(count)
    return {
        "results": sum(results.values()),
        "missing": sum(number not in results for number in everyone),
        "doubled": sum(times > 1 for times in results.values()),
        "wrong": wrong,
        "begun_twice": sum(times > 1 for times in calls["B"].values()),
        "run_twice": sum(times > 1 for times in calls["E"].values()),
        "never_run": sum(calls["E"][number] == 0 for number in everyone),
    }


def prepare(folder: Path, options: argparse.Namespace) -> None:
    work = folder / "work"
    for each in (work, folder / "witness/fleet", folder / "witness/w3"):
        each.mkdir(parents=True)
    shutil.copy(HERE.with_name("_witness.py"), work)
    with (folder / "tasks.jsonl").open("w") as lines:
        for number in range(options.tasks):
            lines.write(json.dumps({"id": f"task-{number:06d}", "prompt": prompt(number)}) + "\n")
    spec = {
        "name": "hundred-thousand",
        "agent": "_witness:agent",
        "tasks": str(folder / "tasks.jsonl"),
        "out": str(folder / "results.jsonl"),
        "concurrency": options.concurrency,
    }
    (work / "fleet.yaml").write_text(json.dumps(spec))  # JSON is YAML


def bars(found: Figures) -> Iterator[Bar]:
    for name, value in found["verified"].items():
        if name != "results":
            yield Bar(f"tasks {name.replace('_', ' ')}", float(value), 0.0, at_least=False)
    yield Bar("results", float(found["verified"]["results"]), float(found["tasks"]), at_least=True)
    yield Bar("runs/s of the fleet / of W3", found["share"], SHARE_BAR, at_least=True)
    for name, growth in found["growth_bytes_per_task"].items():
        yield Bar(f"{name}: bytes a task, last half", growth, GROWTH_BAR, at_least=False)


def measure(options: argparse.Namespace) -> Figures:
    with tempfile.TemporaryDirectory(prefix="ufj", ignore_cleanup_errors=True) as name:  # Ray's sockets need short paths
        folder = Path(name)
        prepare(folder, options)
        with ray_head(folder) as head:
            trial = Trial(head, folder, options)
            trial.run()
        say("")
        rates = [session["runs_per_s"] for session in trial.sessions if session["runs_per_s"]]
        # Each session beside the W3 before and after it: what else the machine does changes over minutes.
        shares = [
            session["runs_per_s"] / statistics.fmean(trial.bursts[number : number + 2])
            for number, session in enumerate(trial.sessions)
            if session["runs_per_s"]
        ]
        return {
            "tasks": options.tasks,
            "concurrency": options.concurrency,
            "sessions": trial.sessions,
            "w3_runs_per_s": [round(each) for each in trial.bursts],
            "runs_per_s": round(statistics.median(rates)) if rates else None,
            "share": round(statistics.median(shares), 3) if shares else None,
            "last_session_share": round(shares[-1], 3) if shares else None,
            "verified": verify(folder, options.tasks),
            "growth_bytes_per_task": trial.memory.growth(),
            "store_mib": round(sum(each.stat().st_size for each in (folder / "home").rglob("*") if each.is_file()) / 2**20, 1),
        }


def show(found: Figures, held: list[Bar]) -> None:
    table = plain_table(f"{found['tasks']:,} tasks, {found['concurrency']:,} at once", "session", "status", left=2)
    for name in ("tasks", "seconds", "to stop", "runs/s"):
        table.add_column(name, justify="right")
    for number, session in enumerate(found["sessions"], 1):
        figures = (session["tasks"], session["seconds"], session["stop_seconds"], session["runs_per_s"])
        table.add_row(str(number), session["status"], *("-" if each is None else f"{each:,.0f}" for each in figures))
    out = console().print
    out(table)
    out(f"W3 before, between and after: {', '.join(f'{each:,}' for each in found['w3_runs_per_s'])} runs/s")
    out(one_line({name.replace("_", " "): value for name, value in found["verified"].items()}))
    if held:
        out(verdict(held))
    out(one_line(circumstances(share=found["share"], store_mib=found["store_mib"])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--stops", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=1_000)
    parser.add_argument("--burst", type=int, default=BURST, help="runs of W3")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every bar holds")
    options = parser.parse_args()
    found = measure(options)
    held = list(bars(found)) if options.check else []
    if options.json:
        print(json.dumps(found | {"bars": [bar.to_dict() for bar in held]}, indent=1))
    else:
        show(found, held)
    return 1 if any(bar.holds is False for bar in held) else 0


if __name__ == "__main__":
    sys.exit(main())
