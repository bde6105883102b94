"""What jobs and local runs leave behind: processes and zombies, beside those of jobs that only say hi (case 27).

    python benchmarks/perf/job_residue.py --check

It starts a Ray head of its own. Every orphan below it comes to this process (Linux: a "child subreaper"), and none is reaped,
as under a PID 1 that does not, so that what anybody forgot is seen.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
from _ports import free_port

PR_SET_CHILD_SUBREAPER = 36
SETTLE_SECONDS = 20.0
AGENT = """
import asyncio, os
from umbel import Agent, tool
from umbel.testing import ScriptedModel, text, tool_call

@tool
async def wait() -> str:
    'Wait.'
    await asyncio.sleep(float(os.environ.get("DELAY", "0")))
    return "waited"

agent = Agent(ScriptedModel([tool_call("wait"), text("done")]), [wait], name="short")
"""


def adopt_orphans() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def below() -> Counter[str]:
    """Processes below this one by kind: ``zombie NAME``, or what runs."""
    kinds: Counter[str] = Counter()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            zombie = process.status() == psutil.STATUS_ZOMBIE
            command = "" if zombie else " ".join(process.cmdline())
            kinds[
                f"zombie {process.name()}"
                if zombie
                else command.split(" ")[0][:60]
                if command.startswith("ray::")
                else process.name()
            ] += 1
    return kinds


def settled(before: Counter[str]) -> Counter[str]:
    """What is there more than before, once it gets no less; what Ray keeps idle on purpose is not counted."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        growth = below() - before
        for idle in [kind for kind in growth if kind.startswith("ray::IDLE")]:
            del growth[idle]
        if not growth or time.monotonic() > end:
            return growth
        time.sleep(0.5)


def zombies(found: Counter[str]) -> int:
    return sum(count for kind, count in found.items() if kind.startswith("zombie"))


@contextlib.contextmanager
def head(folder: Path) -> Iterator[str]:
    dashboard = free_port()
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        "--num-cpus=4",
        "--include-dashboard=true",
    ]
    command += [f"--port={free_port()}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
    command += [f"--dashboard-agent-listen-port={free_port()}", "--ray-client-server-port", str(free_port())]
    temp = f"/tmp/residue-{os.getpid()}"
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
    with (folder / "ray.log").open("w") as log:
        process = subprocess.Popen([*command, "--temp-dir", temp], env=environment, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        shutil.rmtree(temp, ignore_errors=True)


BARE = """
import ray, sys, time
ray.init(address="local", include_dashboard=False, log_to_driver=False)
ray.get(ray.remote(lambda: None).remote())
time.sleep(float(sys.argv[1]))
"""


def bare(folder: Path, seconds: str) -> subprocess.Popen[bytes]:
    """The same without Umbel: a script that starts a local Ray, as a yardstick."""
    nowhere = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-c", BARE, seconds], cwd=folder, stdout=nowhere, stderr=nowhere)


def umbel(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    variables = {**os.environ, "RAY_AUTH_MODE": "disabled", "UMBEL_HOME": str(folder / "home"), **environment}
    return subprocess.Popen(
        [sys.executable, "-m", "umbel", *arguments],
        cwd=folder,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run_jobs(address: str, count: int, entrypoint: str, folder: Path) -> int:
    """Submit them in a row, each when the one before has ended; how many succeeded."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    from ray.job_submission import JobSubmissionClient

    end = time.monotonic() + 60
    while True:
        try:
            client = JobSubmissionClient(address)
            client.submit_job(entrypoint="true")
            break
        except (RuntimeError, ConnectionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
    environment = {"working_dir": str(folder), "excludes": ["home", "ray.log", "*.jsonl.*"]}
    succeeded = 0
    for number in range(count):
        job = client.submit_job(entrypoint=entrypoint.format(number), runtime_env=environment)
        while (state := str(client.get_job_status(job).value)) not in ("SUCCEEDED", "FAILED", "STOPPED"):
            time.sleep(0.2)
        succeeded += state == "SUCCEEDED"
    return succeeded


def run_locally(count: int, folder: Path, *, ours: bool) -> None:
    """Every second one gets Ctrl-C in its midst."""
    for number in range(count):
        interrupted = number % 2 == 1
        name = f"local-{number}"
        arguments = ["fleet", "run", "tasks.jsonl", "--agent", "short:agent", "--out", f"{name}.jsonl", "--runtime", "local"]
        delay = "60" if interrupted else "0"
        process = umbel(folder, *arguments, DELAY=delay) if ours else bare(folder, delay)
        if interrupted:
            time.sleep(8)
            process.send_signal(signal.SIGINT)
        process.wait(120)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--check", action="store_true", help="exit with 1 if anything of ours is left")
    options = parser.parse_args()
    adopt_orphans()
    found: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory(prefix="residue-") as name:
        folder = Path(name)
        (folder / "short.py").write_text(AGENT)
        (folder / "tasks.jsonl").write_text("".join(json.dumps({"id": str(n), "prompt": "go"}) + "\n" for n in range(10)))
        before = below()
        run_locally(options.runs, folder, ours=False)
        found["scripts that start a local Ray, half of them interrupted: Ray's own"] = dict(settled(before))
        before = below()
        run_locally(options.runs, folder, ours=True)
        found["umbel fleet run on a local Ray, half of them interrupted"] = dict(settled(before))
        out = folder / "out"
        out.mkdir()
        fleet = (
            f"exec {sys.executable} -m umbel fleet run tasks.jsonl --agent short:agent --out {out}/{{}}.jsonl --concurrency 4"
        )
        with head(folder) as address:
            run_jobs(address, 1, "echo hi", folder)
            before = below()
            said = run_jobs(address, options.jobs, "echo hi {}", folder)
            found[f"{said} jobs that say hi: Ray's own"] = dict(settled(before))
            before = below()
            done = run_jobs(address, options.jobs, fleet, folder)
            found[f"{done} jobs that run a fleet"] = dict(settled(before))
        lines = sum(len(file.read_text().splitlines()) for file in out.glob("*.jsonl"))
    print(json.dumps({"results": lines, "left behind": found}, indent=2))
    scripts, local, ray_only, fleets = map(Counter, found.values())
    problems = [f"running: {kind}" for kind in (local - scripts) + (fleets - ray_only) if not kind.startswith("zombie")]
    problems += [
        f"{zombies(ours)} zombies where Ray alone leaves {zombies(rays)}"
        for ours, rays in ((local, scripts), (fleets, ray_only))
        if zombies(ours) > zombies(rays) + max(2, zombies(rays) // 10)  # which of Ray's own are in time varies
    ]
    if lines != 10 * options.jobs or done != options.jobs:
        problems.append(f"{done} of {options.jobs} jobs succeeded, with {lines} results")
    if options.check:
        print("; ".join(problems) or "nothing of ours is left")
        sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
