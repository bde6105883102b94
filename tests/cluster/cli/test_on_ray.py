"""The commands on a real local Ray: work, and leave no process behind however they end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

AGENTS = """
import asyncio

from umbel import Agent
from umbel.testing import ScriptedModel, text


class Waiting(ScriptedModel):
    async def complete(self, messages, tools=None, **settings):
        if "wait" in messages[-1].content:
            await asyncio.Event().wait()
        return await super().complete(messages, tools, **settings)


agent = Agent(model=Waiting([text("done")]))
"""
RAY_AGENTS = {"ray::Dashboard", "ray::RuntimeEn"}
RUN = ("fleet", "run", "tasks.jsonl", "--agent", "cli_real:agent", "--out", "results.jsonl", "--runtime", "local", "--json")


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # pytest's timeout ends it
        time.sleep(0.05)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()[:14]
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.chaos), (signal.SIGKILL, -9)],
)
def test_a_killed_fleet_leaves_no_process_behind(start: Any, workplace: Path, number: signal.Signals, code: int) -> None:
    (workplace / "cli_real.py").write_text(AGENTS)
    prompts = ["go"] * 20 + ["wait"] * 5
    (workplace / "tasks.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    command = start(*RUN)
    results = workplace / "results.jsonl"
    wait_until(lambda: command.process.poll() is not None or (results.exists() and results.read_bytes().count(b"\n") >= 20))
    family = psutil.Process(command.process.pid).children(recursive=True)
    assert any("raylet" in process.name() for process in family)
    command.signal(number)
    returned, out, err = command.finish()
    assert returned == code, err
    assert "Traceback" not in err
    if number != signal.SIGKILL:
        report = json.loads(out)
        assert (report["ok"], report["cancelled"], report["exit_code"]) == (20, 5, code)
    # Two of Ray's own agents look for a killed raylet only once in a while: they go within a minute, too long to wait here.
    ours = [process for process in family if number != signal.SIGKILL or name_of(process) not in RAY_AGENTS]
    wait_until(lambda: not any(is_alive(process) for process in ours))


def test_the_demo(start: Any, workplace: Path) -> None:
    command = start("demo", "--limit", 25, "--runtime", "local", "--out", "review", "--json")
    returned, out, err = command.finish()
    assert returned == 0, err
    report = json.loads(out)
    assert (report["ok"], report["summary"]["modules"]) == (25, 25)
    assert report["summary"]["totals"]["functions"] > 100
    assert report["summary"]["longest"][0]["amount"] > 100
    assert (workplace / "review" / "results.jsonl").read_bytes().count(b"\n") == 25
    assert Path(report["database"]).stat().st_size > 0
