"""Restart intensity: an actor that cannot live is given up with a reason, and nobody waits for it for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime, Topology
from umbel.cluster import ray_actors, restarts
from umbel.cluster.fleet import Backoff, Fleet
from umbel.cluster.restarts import Intensity, RestartWatch, too_often
from umbel.cluster.services import end_service, find_services
from umbel.errors import RestartsExceeded, RunLost, UmbelError
from umbel.testing import ScriptedModel, text


def test_only_restarts_within_the_window_count() -> None:
    intensity = Intensity(most=2, seconds=10.0)
    assert not intensity.exceeded("a", 0, now=0.0)
    assert not intensity.exceeded("a", 1, now=1.0)
    assert not intensity.exceeded("a", 1, now=2.0), "the same restart is not counted twice"
    assert not intensity.exceeded("a", 2, now=3.0)
    assert not intensity.exceeded("a", 3, now=11.5), "the first is forgotten"
    assert not intensity.exceeded("b", 1, now=11.5), "every actor for itself"
    assert intensity.exceeded("a", 4, now=11.6)


def test_several_restarts_between_two_looks_all_count() -> None:
    assert Intensity(most=2, seconds=10.0).exceeded("a", 3, now=5.0)
    assert Intensity(most=0, seconds=10.0).exceeded("a", 1, now=5.0)


def test_the_error_says_which_why_and_what_to_do() -> None:
    error = too_often("tools/default/0", Intensity(3, 60.0), "killed by signal 9")
    assert not error.retryable
    assert all(part in error.message for part in ("tools/default/0", "3 times", "60 s", "killed by signal 9", "max_restarts"))
    assert error.details["peer"] == "tools/default/0"


def test_the_watch_goes_on_after_a_head_that_was_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restarts, "LOOK_SECONDS", 0.001)
    looks, looked = [], threading.Event()

    def actors() -> dict[str, Any]:
        looks.append(1)
        if len(looks) < 4:
            raise ConnectionError("no head")
        looked.set()
        return {}

    watch = RestartWatch(actors, Intensity(2, 10.0), clock=lambda: 0.0, give_up=lambda *_: None)
    assert looked.wait(10)
    watch.close()
    assert caplog.text.count("no head") == 1, "said once"


class Deadly(ScriptedModel):
    """Its calls end the process that makes them, when the prompt says so."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        if messages[-1].content == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().complete(messages, tools, **settings)


@pytest.mark.ray
@pytest.mark.case(25)
async def test_a_runtime_gives_up_an_actor_that_cannot_live(ray_cluster: Any) -> None:
    agent = Agent(Deadly([text("fine")]))
    async with asyncio.timeout(100), Runtime(topology=Topology(max_restarts=1)) as runtime:
        assert (await agent.arun("hello", runtime=runtime)).message == "fine"
        with pytest.raises(RestartsExceeded, match=r"agent/default/0 was given up: it died more than 1 times") as raised:
            await agent.arun("die", runtime=runtime)
        assert "process" in raised.value.details["reason"], "how it ended"
        with pytest.raises(RestartsExceeded, match="agent/default/0"):
            await agent.arun("hello", runtime=runtime)
        with pytest.raises(RestartsExceeded):
            await runtime.ready()


@pytest.mark.ray
@pytest.mark.case(25)
async def test_a_fleet_puts_the_task_aside_that_kills_its_supervisor(fragile_runtime: Runtime, tmp_path: Path) -> None:
    """A hook runs in the supervisor: the whole process dies with it, and with the process every run."""

    def deadly_prompt(given: dict[str, Any]) -> str:
        if given["prompt"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return "You answer."

    agent = Agent(ScriptedModel([text("fine")], delay=0.05), system_prompt=deadly_prompt)
    out = tmp_path / "out.jsonl"
    async with asyncio.timeout(100):
        fleet = Fleet(agent, runtime=fragile_runtime, concurrency=4, quarantine_after=2, backoff=Backoff(first=0.01))
        report = await fleet.run([{"id": str(number), "prompt": "die" if number == 3 else "live"} for number in range(12)], out)
        assert (report.ok, report.quarantined, report.total) == (11, 1, 12)
        [bad] = report.failures
        assert (bad.id, bad.status) == ("3", "quarantined")


@pytest.mark.ray
async def test_ready_waits_for_an_actor_that_is_restarted(fragile_runtime: Runtime) -> None:
    runtime = fragile_runtime
    async with asyncio.timeout(100):
        backend: Any = runtime.backend
        before = backend.reports()["supervisor/default/0"]["pid"]
        run = asyncio.ensure_future(Agent(ScriptedModel([text("x")], delay=600)).arun("x", runtime=runtime))
        while not backend.reports()["agent/default/0"]["busy"]:
            await asyncio.sleep(0.02)
        os.kill(before, signal.SIGKILL)
        with pytest.raises(RunLost):
            await run
        await runtime.ready()
        assert backend.reports()["supervisor/default/0"]["pid"] != before


@pytest.mark.ray
async def test_ready_says_who_does_not_answer(fragile_runtime: Runtime) -> None:
    runtime = fragile_runtime
    backend: Any = runtime.backend
    pid = backend.reports()["tools/default/0"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(UmbelError, match=r"tools/default/0 did not answer within 0\.2 s"):
            await runtime.ready(0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    await runtime.ready()


@pytest.mark.ray
def test_a_detached_runtime_counts_restarts_though_no_driver_is_connected(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_actors, "is_joined", lambda: True)
    shape = Topology(colocate_agents=True, supervisors=1, max_restarts=1)

    def alive() -> dict[str, int | None]:
        [service] = find_services("alone")
        return {actor.name: actor.pid for actor in service.actors}

    Runtime(namespace="alone", detached=True, topology=shape).start().close()
    try:
        killed: set[int] = set()
        while "tools/default/0" in (actors := alive()):
            pid = actors["tools/default/0"]
            if pid is not None and pid not in killed:
                assert len(killed) < 4, "it is restarted for ever"
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            time.sleep(0.05)
        assert len(killed) in {2, 3} and {"supervisor/default/0", "checkpointer/default/0"} == {*actors}
    finally:
        end_service("alone")
