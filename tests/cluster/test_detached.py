"""Runtimes that outlive their drivers, on a Ray cluster of their own: begun, joined, listed and ended from other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from umbel import Runtime, Topology
from umbel.cluster import ray_actors
from umbel.cluster.ray_backend import RayBackend
from umbel.cluster.services import end_service, find_services
from umbel.errors import ConfigurationError

from .conftest import Run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

DRIVER = """
import asyncio, json, sys
from pathlib import Path
from umbel import Agent, Runtime
from umbel.testing import ScriptedModel, text

address, store, ready, *prompts = sys.argv[1:]

class Waiting(ScriptedModel):
    async def complete(self, messages, tools=None, **settings):
        if messages[-1].content == "wait":
            Path(ready).touch()
            await asyncio.Event().wait()
        return await super().complete(messages, tools, **settings)

with Runtime(address=address, namespace="svc", detached=True) as runtime:
    for prompt in prompts:
        result = Agent(Waiting([text("done")]), checkpointer=store).run_sync(prompt, thread_id="t")
        said = [message.content for message in result.messages if message.role == "user"]
        print(json.dumps([said, {name: report["pid"] for name, report in runtime.backend.reports().items()}]), flush=True)
"""
OPERATOR = """
import json, sys
from typer.testing import CliRunner
from umbel.cluster.cli.main import app

address, commands = sys.argv[1], json.loads(sys.argv[2])
results = [CliRunner().invoke(app, [*command, "--address", address]) for command in commands]
print(json.dumps([[result.exit_code, result.stdout, result.stderr] for result in results]))
"""


def finished(process: subprocess.Popen[str]) -> tuple[int, list[Any], str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def test_a_detached_runtime_outlives_its_driver_and_serves_the_next(run: Run, tmp_path: Path) -> None:
    store, ready = f"sqlite:///{tmp_path}/t.db", tmp_path / "ready"
    code, [[said, pids]], err = finished(run(DRIVER, store, str(ready), "one"))
    assert (code, said) == (0, ["one"]), err
    assert {*pids} == {f"{role}/default/0" for role in ("supervisor", "agent", "tools", "checkpointer")}
    assert all(map(psutil.pid_exists, pids.values())), "it goes on without its driver"
    os.kill(pids["tools/default/0"], signal.SIGKILL)  # and Ray restarts its actors, though nobody is connected

    second = run(DRIVER, store, str(ready), "two", "wait")
    while not ready.exists():
        assert second.poll() is None, second.communicate()
    commands = [
        ["ps", "--json"],
        ["ps"],
        ["down", "svc"],
        ["down", "svc", "--force", "--json"],
        ["ps", "--json"],
        ["down", "svc"],
    ]
    _, [[listed, shown, refused, ended, after, again]], err = finished(run(OPERATOR, json.dumps(commands)))
    assert listed[0] == 0, err
    [service] = json.loads(listed[1])["runtimes"]
    assert (service["namespace"], service["detached"], service["runs"]) == ("svc", True, 1)
    restarted = {actor["name"]: actor["pid"] for actor in service["actors"] if actor["answers"]}
    assert {*pids.items()} - {*restarted.items()} == {("tools/default/0", pids["tools/default/0"])} and {*restarted} == {*pids}
    assert all(f"{pid}" in shown[1] for pid in restarted.values()) and "detached" in shown[1]
    assert refused[0] == 1 and "'svc' has runs in progress (1); --force ends them" in refused[2]
    assert ended[0] == 0 and json.loads(ended[1]) == {"namespace": "svc", "ended": sorted(pids), "runs": 1}
    assert json.loads(after[1])["runtimes"] == [] and again[0] == 2 and "no runtime 'svc'" in again[2]
    code, [[said, second_pids]], err = finished(second)
    assert (said, second_pids) == (["one", "two"], restarted), "the same actors served another driver"
    assert code == 1 and "lost" in err, "which hears at once that they are gone"


# rules, on the session's own Ray


@pytest.fixture
def as_if_joined(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's Ray passes for one that was started elsewhere."""
    monkeypatch.setattr(ray_actors, "is_joined", lambda: True)


def test_the_one_who_joins_gets_secret_and_topology_from_the_actors(as_if_joined: None) -> None:
    first = RayBackend(Topology(tool_executors=2), None, "joined", {}, detached=True)
    second = RayBackend(None, None, "joined", {}, detached=True)
    try:
        assert second._actors.secret == first._actors.secret
        assert second._actors.shape == first._actors.shape
        [service] = find_services("joined")
        assert service.detached and len(service.actors) == 5
        with pytest.raises(ConfigurationError, match="'joined' was started with tool_executors=2: join it without a topology"):
            RayBackend(Topology(tool_executors=3), None, "joined", {}, detached=True)
        RayBackend(Topology(tool_executors=2), None, "joined", {}, detached=True).end()
        second.end()
        [left] = find_services("joined")
        assert [actor.pid for actor in left.actors] == [actor.pid for actor in service.actors], "leaving ends nothing"
    finally:
        ended = end_service("joined")
        first.end()
    assert len(ended) == 5 and find_services("joined") == []
    with pytest.raises(ConfigurationError, match="no runtime 'joined' is on this cluster"):
        end_service("joined")


def test_a_namespace_has_one_kind_of_runtime(as_if_joined: None) -> None:
    with Runtime(namespace="attached").start():
        assert [service.detached for service in find_services("attached")] == [False]
        with pytest.raises(ConfigurationError, match="'attached' is in use by a driver"):
            Runtime(namespace="attached", detached=True).start()
        with pytest.raises(ConfigurationError, match="'attached' is in use on this cluster"):
            Runtime(namespace="attached").start()
    assert find_services("attached") == []


def test_what_cannot_be_detached_is_refused(ray_cluster: Any) -> None:
    wrong: list[dict[str, Any]] = [{"inline": True, "namespace": "x"}, {}]
    for settings in wrong:
        with pytest.raises(ConfigurationError, match="on a Ray cluster and has a name"):
            Runtime(detached=True, **settings)
    with pytest.raises(ConfigurationError, match="outlives this process"):
        Runtime(namespace="x", detached=True).start()
    assert find_services("x") == []
