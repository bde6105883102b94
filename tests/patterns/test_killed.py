"""A supervisor dies under a pattern: the pattern's own, or a member's; with a thread, and without. On Ray.

Every kind of pattern under kills of every kind of process is in ``tests/chaos/test_patterns_survive.py``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, RunHandle, Runtime, tool
from umbel.cluster.cell import shard_of
from umbel.errors import RunLost
from umbel.events import CustomEvent, MemberEvent, StepCompleteEvent, TerminateEvent
from umbel.patterns.pattern import Pattern
from umbel.patterns.pipeline import Parallel, Sequential
from umbel.testing import ScriptedModel, text, tool_call

from ..cases.killing import until

pytestmark = [pytest.mark.ray, pytest.mark.case(25)]
MEMBERS = 6


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def waiting(folder: Path, **settings: Any) -> Pattern:
    """Members that say that they work, and go on once there is a file; each pays once before."""

    @tool
    async def pay(who: str) -> str:
        """Pay: must not happen twice."""
        with (folder / "log").open("a") as log:
            log.write(f"paid-{who}\n")
        return who

    @tool(idempotent=True)
    async def wait(who: str) -> str:
        """Wait for the file."""
        with (folder / "log").open("a") as log:
            log.write(f"waits-{who}\n")
        while not (folder / "go").exists():
            await asyncio.sleep(0.02)
        return who

    def member(name: str) -> Agent:
        script = [tool_call("pay", who=name), tool_call("wait", who=name), text(f"{name} is done")]
        return Agent(ScriptedModel(script), [pay, wait], name=name)

    members = Parallel({f"m{n}": member(f"m{n}") for n in range(MEMBERS)}, name="members", on_error="continue", merge="list")
    return members if not settings else Sequential([members], **settings)


def kill_shard(runtime: Runtime, shard: int) -> None:
    """SIGKILL one supervisor."""
    os.kill(runtime.backend.reports()[f"supervisor/default/{shard}"]["pid"], signal.SIGKILL)  # type: ignore[attr-defined]


def numbered(events: list[Any]) -> dict[str, list[int]]:
    """The numbers of the events of every run in the tree, as they came."""
    found: dict[str, list[int]] = {}
    for event in events:
        while isinstance(event, MemberEvent):
            event = event.event  # noqa: PLW2901 - down to the innermost
            found.setdefault(event.run_id, []).append(event.seq)
    return found


async def read(handle: RunHandle, events: list[Any]) -> Any:
    """All events of a run, then its result."""
    events += [event async for event in handle.events()]
    return await handle.result()


async def all_wait(folder: Path) -> None:
    await until(lambda: sum(line.startswith("waits-") for line in lines(folder / "log")) >= MEMBERS)


@pytest.mark.spec("OURS-1", "OURS-24", "OURS-25")
async def test_without_a_thread_only_what_the_dead_supervisor_had_is_lost(sharded_runtime: Runtime, tmp_path: Path) -> None:
    handle = await waiting(tmp_path).start("go", runtime=sharded_runtime)
    await all_wait(tmp_path)
    own = shard_of(handle.run_id, 2)
    there = {f"m{n}" for n in range(MEMBERS) if shard_of(f"{handle.run_id}.{n}.m{n}", 2) != own}
    kill_shard(sharded_runtime, 1 - own)
    (tmp_path / "go").touch()
    async with asyncio.timeout(60):
        result: Any = await handle.result()
    assert {step.member for step in result.members if not step.success} == there
    assert all("RunLost" in step.problem for step in result.members if not step.success)
    assert result.success is (len(there) < MEMBERS)


@pytest.mark.spec("OURS-1", "OURS-24")
async def test_without_a_thread_a_pattern_dies_with_its_own_supervisor(sharded_runtime: Runtime, tmp_path: Path) -> None:
    handle = await waiting(tmp_path).start("go", runtime=sharded_runtime)
    await all_wait(tmp_path)
    kill_shard(sharded_runtime, shard_of(handle.run_id, 2))
    with pytest.raises(RunLost):
        async with asyncio.timeout(60):
            await handle.result()
    (tmp_path / "go").touch()


@pytest.mark.case(15)
@pytest.mark.spec("OURS-1", "OURS-15", "OURS-18", "OURS-24")
@pytest.mark.parametrize("whose", ["pattern", "pattern, read by a handle", "members"])
async def test_with_a_thread_everything_goes_on(sharded_runtime: Runtime, tmp_path: Path, whose: str) -> None:
    store = f"sqlite:///{tmp_path}/threads.db"
    pattern = waiting(tmp_path, checkpointer=store)
    events: list[Any] = []
    pattern.callback_handler = events.append
    if "handle" in whose:
        run = asyncio.ensure_future(read(await pattern.start("go", thread_id="t", runtime=sharded_runtime), events))
    else:
        run = asyncio.ensure_future(pattern.arun("go", thread_id="t", runtime=sharded_runtime))
    await all_wait(tmp_path)
    own, members = shard_of("t", 2), shard_of("t#1.0.members", 2)
    kill_shard(sharded_runtime, members if whose == "members" else own)
    (tmp_path / "go").touch()
    async with asyncio.timeout(90):
        result = await run
    assert result.success and result.members[0].value == [f"m{n} is done" for n in range(MEMBERS)]
    paid = Counter(line for line in lines(tmp_path / "log") if line.startswith("paid-"))
    assert paid == {f"paid-m{n}": 1 for n in range(MEMBERS)}
    assert [event.seq for event in events] == list(range(len(events)))
    assert [isinstance(event, TerminateEvent) for event in events].count(True) == 1
    assert [event.status for event in events if isinstance(event, StepCompleteEvent)] == ["completed"]
    assert all(numbers == list(range(len(numbers))) for numbers in numbered(events).values()), numbered(events)
    recovered = [event for event in events if isinstance(event, CustomEvent) and event.name == "recovered"]
    inner = [event.innermost for event in events if isinstance(event, MemberEvent)]
    inside = [event for event in inner if isinstance(event, CustomEvent) and event.name == "recovered"]
    assert recovered if own == members or whose != "members" else inside
    held = await pattern.threads_in(sharded_runtime).page("t", members=True)
    assert len(held) == 2 + MEMBERS and not [thread.owner for thread in held if thread.owner is not None]
