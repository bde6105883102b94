"""Runs that outlive their drivers: begun, left, taken up again from other processes, with supervisors that die in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import Run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

COMMON = """
import asyncio, json, sys
from pathlib import Path
import umbel
from umbel import Agent, Runtime, tool
from umbel.testing import ScriptedModel, text, tool_call

address, folder, *arguments = sys.argv[1:]
folder = Path(folder)

@tool
async def charge(name: str) -> str:
    "Charge once."
    with (folder / name).open("a") as file:
        file.write("charged;")
    return name

class Gated(ScriptedModel):
    "Charges for its prompt; answers once the gate of that name is open."
    async def complete(self, messages, tools=None, **settings):
        name = messages[1].content
        if messages[-1].role == "tool":
            while not (folder / f"{name}.gate").exists():
                await asyncio.sleep(0.02)
            (folder / f"{name}.answered").touch()
            return text(f"{name} is paid")
        return tool_call("charge", name=name)

agent = Agent(Gated([]), tools=[charge], checkpointer=f"sqlite:///{folder}/t.db")

def tell(*values):
    print(json.dumps(values), flush=True)

async def read(handle):
    return [[event.seq, event.event_type] async for event in handle.events()]

place = Runtime(address=address, namespace="handles", detached=True)
"""
BEGIN = (
    COMMON
    + """
with place:
    handles = [agent.start_sync("plain"), agent.start_sync("durable", thread_id="t"), agent.start_sync("lost")]
    tell(place.backend.reports()["supervisor/default/0"]["pid"], *(handle.run_id for handle in handles))
    for seen in zip(*(handle.events_sync() for handle in handles)):
        tell(*([event.seq, event.event_type] for event in seen))
"""
)
SECOND = (
    COMMON
    + """
from typer.testing import CliRunner
from umbel.cluster.cli.main import app
plain, durable, lost = arguments

async def main():
    handle, other = await umbel.attach(plain, after_seq=2), await place.attach(plain)
    reading = [asyncio.ensure_future(read(one)) for one in (handle, other)]
    await asyncio.sleep(0.05)
    (folder / "plain.gate").touch()
    seen = await asyncio.gather(*reading)
    late = await umbel.attach(plain, after_seq=1)
    tell(*seen, await read(late), (await late.result()).message)

with place:
    place.run_sync(main())
    for command in (["runs"], ["runs", "--json"], ["attach", plain], ["attach", plain, "--from", "3", "--json"],
                    ["cancel", plain], ["attach", "0" * 32]):
        done = CliRunner().invoke(app, [*command, "--address", address])
        tell(done.exit_code, done.stdout, done.stderr)
"""
)
THIRD = (
    COMMON
    + """
plain, durable, lost = arguments

async def main():
    for run in (plain, lost):
        try:
            await umbel.attach(run)
        except umbel.UmbelError as error:
            tell(error.code, error.message)
    handle = await umbel.attach(durable, after_seq=2)
    tell(await read(handle), (await handle.result()).message)

with place:
    place.run_sync(main())
"""
)


def line(process: subprocess.Popen[str]) -> list[Any]:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, process.communicate()[1]
    return list(json.loads(text))


def finished(process: subprocess.Popen[str]) -> list[Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return [json.loads(text) for text in out.splitlines()]


def test_runs_outlive_their_driver_and_the_durable_one_its_supervisor(run: Run, tmp_path: Path) -> None:
    driver = run(BEGIN, str(tmp_path))
    supervisor, *runs = line(driver)
    seen = [line(driver) for _ in range(3)]
    assert seen == [[[seq, kind]] * 3 for seq, kind in enumerate(["think", "tool_start", "tool_complete"])]
    driver.send_signal(signal.SIGKILL)
    driver.wait(30)

    first, *commands = finished(run(SECOND, str(tmp_path), *runs))
    every = [[0, "think"], [1, "tool_start"], [2, "tool_complete"], [3, "think"], [4, "terminate"]]
    assert first == [every[3:], every, every[2:], "plain is paid"], "each reader gets what is behind its cursor, once"
    listed, as_json, shown, rest, cancelled, unknown = commands
    assert listed[0] == 0 and all(name in listed[1] for name in (*runs, "handles", "running", "finished"))
    assert {entry["run_id"]: (entry["status"], entry["durable"]) for entry in json.loads(as_json[1])["runs"]} == dict(
        zip(runs, [("finished", False), ("running", True), ("running", False)], strict=True)
    )
    assert shown == [0, "plain is paid\n", "umbel: calling charge\n"]
    *events, result = [json.loads(text) for text in rest[1].splitlines()]
    assert [event["seq"] for event in events] == [3, 4] and result["message"] == "plain is paid" and rest[0] == 0
    assert cancelled[0] == 1 and "is over already" in cancelled[2]
    assert unknown[0] == 2 and "'umbel runs' lists" in unknown[2]

    os.kill(supervisor, signal.SIGKILL)  # nobody is connected
    (tmp_path / "durable.gate").touch()
    while not (tmp_path / "durable.answered").exists():
        time.sleep(0.05)
    plain, lost, [events, message] = finished(run(THIRD, str(tmp_path), *runs))
    assert [event[0] for event in events] == list(range(3, 3 + len(events))), "behind the last one that was read, no gap"
    assert [kind for _, kind in events] == ["custom", "think", "terminate"] and message == "durable is paid"
    assert plain[0] == "run_not_found" and lost[0] == "run_lost" and "it had no thread" in lost[1]
    for name in ("plain", "durable", "lost"):
        assert (tmp_path / name).read_text() == "charged;"
