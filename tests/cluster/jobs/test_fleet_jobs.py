"""Fleets as jobs of a real Ray: submitted, stopped, submitted again, killed; with secrets, and with much to log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from typer.testing import CliRunner, Result

from umbel.cluster.fleet import FleetRecord, list_fleets

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

TASKS = 300
CANARY = "plain-canary-4711-zebra"
AGENTS = '''
import asyncio, logging, os
from pathlib import Path
from umbel import Agent, ToolContext, tool
from umbel.testing import ScriptedModel, text, tool_call

log = logging.getLogger("my_app")
gate = Path(os.environ["FOLDER"], "gate")


@tool
async def work(ctx: ToolContext) -> str:
    """Note that it ran, and wait behind the gate if there is one."""
    with open(os.environ["FOLDER"] + "/notes", "a") as notes:
        notes.write(ctx.run_id + "\\n")
    log.warning("the same warning as everybody")
    log.error("unique-%s-end %s", ctx.run_id, os.environ["CANARY_KEY"])
    while gate.exists():
        await asyncio.sleep(0.02)
    return "noted"


script = [tool_call("work"), tool_call("work"), text("done")]
durable = Agent(ScriptedModel(script), [work], name="durable", checkpointer="sqlite:///" + os.environ["FOLDER"] + "/threads.db")
volatile = Agent(ScriptedModel(script), [work], name="volatile")


class Waiting:
    """Needs no actors."""

    async def arun(self, prompt, **options):
        await asyncio.Event().wait()


waiting = Waiting()
'''


class Place:
    """A folder with two fleets, and the command, which speaks to the session's cluster."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder, self.server = folder, server
        (folder / "secret").write_text(CANARY)
        (folder / "agents.py").write_text(AGENTS)
        (folder / "tasks.jsonl").write_text("".join(json.dumps({"id": f"t{n}", "prompt": "go"}) + "\n" for n in range(TASKS)))
        for name in ("durable", "volatile"):
            spec = {
                "agent": f"agents:{name}",
                "tasks": "tasks.jsonl",
                "out": f"{name}.jsonl",
                "concurrency": 20,
                "secrets": {"CANARY_KEY": f"file:{folder}/secret"},
                "job": {"env_vars": {"FOLDER": str(folder)}},
            }
            (folder / f"{name}.yaml").write_text(json.dumps(spec))

    def umbel(self, *arguments: str) -> Result:
        from umbel.cluster.cli.main import app

        return CliRunner().invoke(app, list(arguments), prog_name="umbel")

    def on_cluster(self, *arguments: str) -> dict[str, Any]:
        done = self.umbel(*arguments, "--address", self.server, "--json")
        assert done.exit_code == 0, (done.stdout, done.stderr, done.exception)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def notes(self) -> list[str]:
        file = self.folder / "notes"
        return file.read_text().split() if file.exists() else []


@pytest.fixture(scope="module")
def patch() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def place(cluster: tuple[str, str], tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Place:
    folder = tmp_path_factory.mktemp("jobs")
    patch.chdir(folder)
    patch.setenv("UMBEL_HOME", str(folder / "home"))
    patch.setenv("RAY_AUTH_MODE", "disabled")
    patch.setenv("FOLDER", str(folder))  # the module of agents reads it when it is imported here, for the check
    patch.setattr(sys, "path", list(sys.path))
    until(lambda: answers(cluster[1]), "the job server answers")
    return Place(folder, cluster[1])


def answers(server: str) -> bool:
    try:
        return httpx.get(f"{server}/api/version", trust_env=False).is_success
    except httpx.HTTPError:
        return False


def until(condition: Callable[[], Any], what: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def record(name: str) -> FleetRecord | None:
    try:
        return next((found for found in asyncio.run(list_fleets()) if found.name == name), None)
    except ValueError:  # there is no store yet
        return None


def of_ours() -> Counter[str]:
    """Processes below this one that belong to jobs of ours; zombies by the name that they had."""
    found: Counter[str] = Counter()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                found[f"zombie {process.name()}"] += 1
            elif any("Host" in part or "umbel" in part.split("/")[-1] for part in process.cmdline()[:4]):
                found[process.cmdline()[0]] += 1
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.case(27)
@pytest.mark.case(32)
@pytest.mark.parametrize("name", ["durable", pytest.param("volatile", marks=pytest.mark.chaos)])
def test_stopped_and_submitted_again_every_task_runs_once(place: Place, name: str) -> None:
    before = of_ours()
    (place.folder / "notes").unlink(missing_ok=True)
    (place.folder / "gate").touch()
    first = place.on_cluster("submit", f"{name}.yaml", "--grace", "20")
    assert first == {"job_id": f"{name}-1", "new": True, "fleet": name, "address": place.server}
    assert place.on_cluster("submit", f"{name}.yaml", "--grace", "20") == {**first, "new": False}
    until(lambda: len(place.notes()) >= 20, "20 runs have begun")
    command = [sys.executable, "-m", "umbel", "jobs", "stop", first["job_id"], "--address", place.server]
    stopping = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    until(lambda: (found := record(name)) and found.state == "draining", "it drains")
    (place.folder / "gate").unlink()
    said, _ = stopping.communicate(timeout=60)
    assert (stopping.returncode, said.split(":")[1].strip()) == (0, "stopped (SIGTERM)")
    told = place.umbel("jobs", "status", first["job_id"], "--address", place.server, "--json")
    stopped = json.loads(told.stdout)
    assert (told.exit_code, stopped["state"], stopped["exit_code"]) == (1, "stopped", 143)
    assert sum(stopped["fleet"]["counts"].values()) == 20
    assert place.on_cluster("submit", f"{name}.yaml")["job_id"] == f"{name}-2"
    until(lambda: (found := record(name)) and found.state == "finished", "it finishes")
    lines = [json.loads(line) for line in (place.folder / f"{name}.jsonl").read_text().splitlines()]
    assert {(line["status"], line["message"]) for line in lines} == {("ok", "done")}
    assert sorted(line["id"] for line in lines) == sorted(f"t{n}" for n in range(TASKS))
    assert Counter(Counter(place.notes()).values()) == {2: TASKS}  # two calls a run, none of them twice
    check_log(place, f"{name}-2", Counter(place.notes()))
    check_secret(place)
    until(lambda: not of_ours() - before, "nothing of ours is left", 30)


def logged(place: Place) -> list[str]:
    files = [file for file in (place.folder / "home" / "logs").rglob("*.log*") if file.is_file()]
    return [line for file in files for line in file.read_text().splitlines()]


def check_log(place: Place, job: str, calls: Counter[str]) -> None:
    """The driver's log is short; the lines that nobody else logged are in files."""
    logs: list[str] = []

    def has_ended() -> bool:
        logs.append(place.umbel("jobs", "logs", job, "--address", place.server).stdout)
        return "actors logged" in logs[-1]

    until(has_ended, "its last line is there")
    assert len(logs[-1]) < 5_000
    assert "unique-" not in logs[-1]
    said = Counter(json.loads(line)["message"].split("-")[1] for line in logged(place) if "unique-" in line)
    assert {run: said[run] for run in calls} == calls


def check_secret(place: Place) -> None:
    """Agents had it: they logged it, and it is masked. It is in no file of ours and of Ray, and in nothing that Ray shows."""
    from ray.job_submission import JobSubmissionClient

    assert sum("[REDACTED]" in line for line in logged(place)) >= 2 * TASKS
    shown = repr(JobSubmissionClient(place.server).list_jobs())
    assert "CANARY_KEY" in shown  # the reference is there
    assert CANARY not in shown
    session = Path(f"/tmp/umbel-{os.getpid()}")
    files = [file for root in (place.folder, session) for file in root.rglob("*") if file.is_file() and not file.is_symlink()]
    leaks = [str(file) for file in files if file.name != "secret" and CANARY.encode() in file.read_bytes()]
    assert leaks == []


def test_a_driver_that_was_killed_is_lost_and_the_store_answers_without_a_cluster(place: Place) -> None:
    (place.folder / "killed.yaml").write_text("agent: agents:waiting\ntasks: tasks.jsonl\n")
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(place.server)
    environment = {
        "working_dir": str(place.folder),
        "env_vars": {"FOLDER": str(place.folder), "UMBEL_HOME": os.environ["UMBEL_HOME"]},
        "excludes": ["home", "*.jsonl.*"],
    }
    job = client.submit_job(entrypoint=f"{sys.executable} -m umbel fleet run killed.yaml", runtime_env=environment)
    until(lambda: (found := record("killed")) is not None and found.job_id == job, "its record is there")
    running = record("killed")
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    until(lambda: client.get_job_status(job).is_terminal(), "Ray has seen it")
    for server in (place.server, "http://127.0.0.1:1"):
        done = place.umbel("jobs", "status", job, "--address", server, "--json")
        assert (done.exit_code, json.loads(done.stdout)["state"]) == (1, "lost")
    listed = place.on_cluster("jobs", "list")["jobs"]
    assert next(each for each in listed if each["job_id"] == job)["state"] == "lost"
    waiting = client.submit_job(entrypoint="true", entrypoint_num_cpus=99)
    held = place.umbel("jobs", "stop", waiting, "--address", place.server)
    assert (held.exit_code, "is PENDING" in held.stderr, "Ray cannot stop a job before it starts" in held.stderr) == (
        1,
        True,
        True,
    )
    assert place.umbel("jobs", "status", "killed-9", "--address", place.server).exit_code == 2
