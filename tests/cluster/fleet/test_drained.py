"""Real signals to real processes: a fleet with a name is drained, killed, and gone on with; what was paid is not paid again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from umbel.cluster.fleet import FleetRecord, load_fleet, open_results, results_of

from .driven import CONCURRENCY

Drive = Callable[..., "subprocess.Popen[bytes]"]
CALLS = 3  # of each task


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    """Run the driver as a process of its own; whatever still runs at the end of the test is killed."""
    begun: list[subprocess.Popen[bytes]] = []

    def drive(kind: str, tasks: int, seconds: float, grace: float = 10.0) -> subprocess.Popen[bytes]:
        (tmp_path / "ready").unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "tests.cluster.fleet.driven",
            str(tmp_path),
            kind,
            str(tasks),
            str(seconds),
            str(grace),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        begun.append(subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[3]))
        return begun[-1]

    yield drive
    for process in begun:
        process.kill()
        process.wait()


async def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def calls_in(folder: Path) -> Counter[str]:
    """How often each model call was begun."""
    log = folder / "calls"
    return Counter(log.read_text().split() if log.exists() else [])


async def record_in(folder: Path) -> FleetRecord:
    return await load_fleet(f"sqlite:///{folder}/fleets.sqlite", "f")


async def check_whole(folder: Path, tasks: int) -> None:
    """Every task has exactly one result, it is right, and the files and the record say the same."""
    results = [result async for result in results_of(f"sqlite:///{folder}/fleets.sqlite", "f")]
    assert sorted(result.id for result in results) == sorted(f"t{number}" for number in range(tasks))
    assert {(result.status, result.message) for result in results} == {("ok", "done")}
    lines = [json.loads(line)["id"] for line in (folder / "results.jsonl").read_text().splitlines()]
    assert sorted(lines) == sorted(result.id for result in results)
    assert [result.id async for result in open_results(str(folder / "results.parquet"))] == [result.id for result in results]
    record = await record_in(folder)
    assert (record.state, record.counts, record.exit_code) == ("finished", {"ok": tasks}, 0)


@pytest.mark.case(24)
async def test_after_a_drain_nothing_is_paid_twice(tmp_path: Path, drive: Drive) -> None:
    process = drive("durable", 30, 0.1)
    await wait_for(lambda: sum(calls_in(tmp_path).values()) > 40)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    record = await record_in(tmp_path)
    assert (record.state, record.reason, record.exit_code, record.owner) == ("stopped", "SIGTERM", 143, None)
    assert 0 < record.counts["ok"] < 30
    assert 0 < record.counts["cancelled"] <= CONCURRENCY
    assert drive("durable", 30, 0.01).wait(60) == 0
    await check_whole(tmp_path, 30)
    calls = calls_in(tmp_path)
    assert set(calls.values()) == {1}
    assert len(calls) == 30 * CALLS
    assert (await record_in(tmp_path)).sessions == 2


@pytest.mark.chaos
@pytest.mark.case(24)
async def test_runs_that_cannot_be_suspended_may_end_within_the_grace(tmp_path: Path, drive: Drive) -> None:
    process = drive("volatile", 20, 0.1)
    await wait_for(lambda: sum(calls_in(tmp_path).values()) > 20)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    record = await record_in(tmp_path)
    begun = {call.partition(".")[0] for call in calls_in(tmp_path)}
    assert record.counts == {"ok": len(begun)}
    assert drive("volatile", 20, 0.01).wait(60) == 0
    await check_whole(tmp_path, 20)
    assert set(calls_in(tmp_path).values()) == {1}


@pytest.mark.chaos
@pytest.mark.case(24)
async def test_what_does_not_end_within_the_grace_is_cancelled_and_a_second_signal_stops_at_once(
    tmp_path: Path, drive: Drive
) -> None:
    process = drive("durable", 8, 60, 1.5)
    await wait_for(lambda: sum(calls_in(tmp_path).values()) == 8)
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert time.monotonic() - sent < 30
    assert (await record_in(tmp_path)).counts == {"cancelled": 8}
    process = drive("durable", 8, 60, 600)
    await wait_for(lambda: sum(calls_in(tmp_path).values()) == 16)
    process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert drive("durable", 8, 0.01).wait(60) == 0
    await check_whole(tmp_path, 8)


async def killed_and_resumed(folder: Path, drive: Drive, kills: int, tasks: int) -> None:
    """A driver that is killed at random moments, and in the end is not."""
    chance = random.Random(kills)
    for _ in range(kills):
        process = drive("durable", tasks, 0.03)
        await wait_for((folder / "ready").exists)
        await asyncio.sleep(chance.uniform(0.0, 0.6))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert drive("durable", tasks, 0.01).wait(60) == 0
    await check_whole(folder, tasks)
    extra = {call: count - 1 for call, count in calls_in(folder).items() if count > 1}
    assert sum(extra.values()) <= kills * CONCURRENCY, extra
    of_task = Counter[str]()
    for call, count in extra.items():
        of_task[call.partition(".")[0]] += count
    assert all(count <= kills for count in of_task.values()), extra


@pytest.mark.case(24)
@pytest.mark.case(32)
async def test_a_killed_driver_loses_and_doubles_no_result(tmp_path: Path, drive: Drive) -> None:
    await killed_and_resumed(tmp_path, drive, kills=1, tasks=40)


@pytest.mark.chaos
async def test_a_driver_killed_many_times_loses_and_doubles_no_result(tmp_path: Path, drive: Drive) -> None:
    await killed_and_resumed(tmp_path, drive, kills=40, tasks=600)
