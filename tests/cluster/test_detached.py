"""Runtimes that outlive their drivers, on a Ray cluster of their own: begun, joined, listed and ended from other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from umbel import Runtime, Topology
from umbel.cluster import ray_actors
from umbel.cluster.ray_backend import RayBackend
from umbel.cluster.services import end_service, find_services
from umbel.errors import ConfigurationError

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

DRIVER = """
import asyncio, sys
from pathlib import Path
from umbel import Agent, Runtime
from umbel.testing import ScriptedModel, text

address, store, prompt, ready = sys.argv[1:]

class Waiting(ScriptedModel):
    async def complete(self, messages, tools=None, **settings):
        if messages[-1].content == "wait":
            Path(ready).touch()
            await asyncio.Event().wait()
        return await super().complete(messages, tools, **settings)

with Runtime(address=address, namespace="svc", detached=True):
    result = Agent(Waiting([text("done")]), checkpointer=store).run_sync(prompt, thread_id="t")
    print("PROMPTS", [message.content for message in result.messages if message.role == "user"])
"""
Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def run(cluster: tuple[str, str], tmp_path: Path) -> Iterator[Run]:
    """Start a driver, or with a first argument ``umbel`` the command, in a process of its own."""
    (tmp_path / "driver.py").write_text(DRIVER)
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(tmp_path / "driver.py"), f"127.0.0.1:{cluster[0]}", f"sqlite:///{tmp_path}/t.db"]
        if arguments[0] == "umbel":
            command = [sys.executable, "-m", "umbel.cluster.cli.main", *arguments[1:], "--address", f"127.0.0.1:{cluster[0]}"]
            arguments = ()
        path = os.pathsep.join(place for place in sys.path if place)
        environment = {**os.environ, "PYTHONPATH": path, "RAY_AUTH_MODE": "disabled"}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([*command, *arguments], env=environment, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def listed(run: Run) -> list[dict[str, Any]]:
    code, out, err = finished(run("umbel", "ps", "--json"))
    assert code == 0, err
    runtimes: list[dict[str, Any]] = json.loads(out)["runtimes"]
    return runtimes


def test_a_detached_runtime_outlives_its_driver_and_serves_the_next(run: Run, tmp_path: Path) -> None:
    code, out, err = finished(run("one", "-"))
    assert code == 0 and "PROMPTS ['one']" in out, err
    [service] = listed(run)
    assert (service["namespace"], service["detached"], service["runs"]) == ("svc", True, 0)
    actors = {actor["name"]: actor for actor in service["actors"]}
    assert {*actors} == {f"{role}/default/0" for role in ("supervisor", "agent", "tools", "checkpointer")}
    assert all(actor["answers"] and psutil.pid_exists(actor["pid"]) for actor in actors.values())

    waiting = run("wait", str(tmp_path / "ready"))
    while not (tmp_path / "ready").exists():
        assert waiting.poll() is None, waiting.communicate()
    [service] = listed(run)
    assert service["runs"] == 1
    assert {actor["name"]: actor["pid"] for actor in service["actors"]} == {name: one["pid"] for name, one in actors.items()}
    code, _, err = finished(run("umbel", "down", "svc"))
    assert code == 1 and "'svc' has runs in progress (1); --force ends them" in err

    code, out, err = finished(run("umbel", "down", "svc", "--force", "--json"))
    assert code == 0 and json.loads(out) == {"namespace": "svc", "ended": sorted(actors), "runs": 1}, err
    code, _, err = finished(waiting)
    assert code == 1 and "lost" in err, "its driver hears of it at once"
    code, out, err = finished(run("two", "-"))  # what was kept is there for the next runtime of that name
    assert code == 0 and out.startswith("PROMPTS ['one', ") and "'two']" in out, err
    assert finished(run("umbel", "down", "svc"))[:2] == (0, "ended 4 actors of svc\n")


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
    for settings in ({"inline": True, "namespace": "x"}, {}):
        with pytest.raises(ConfigurationError, match="on a Ray cluster and has a name"):
            Runtime(detached=True, **settings)
    with pytest.raises(ConfigurationError, match="outlives this process"):
        Runtime(namespace="x", detached=True).start()
    assert find_services("x") == []
