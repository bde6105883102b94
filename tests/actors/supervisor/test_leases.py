"""One thread, one writer: the lease that a durable run holds, within a process and between processes. Source: OURS-15."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Runtime, tool
from umbel.actors.checkpoints import MemoryStore, SaveOutcome, registry, restore
from umbel.actors.checkpoints.registry import open_store
from umbel.errors import ConfigurationError, StaleWriter, ThreadBusy
from umbel.protocol.commands import SaveCheckpoint
from umbel.protocol.storage import LeaseTaken, TakeLease
from umbel.testing import ScriptedModel, text, tool_call

pytestmark = pytest.mark.spec("OURS-15")
DRIVER = Path(__file__).with_name("killed_driver.py")


class Gate:
    """Bodies that wait until they are let go."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tool(self) -> Any:
        path = self.path

        @tool
        async def wait(name: str) -> str:
            """Wait until the gate is open."""
            (path / f"{name}-reached").touch()
            while not (path / f"{name}-open").exists():
                await asyncio.sleep(0.01)
            return name

        return wait

    async def reached(self, name: str) -> None:
        async with asyncio.timeout(30):
            while not (self.path / f"{name}-reached").exists():
                await asyncio.sleep(0.01)

    def open(self, name: str) -> None:
        (self.path / f"{name}-open").touch()


def waiting(gate: Gate, url: str, name: str = "a", **settings: Any) -> Agent:
    return Agent(ScriptedModel([tool_call("wait", name=name), text("done")]), [gate.tool()], checkpointer=url, **settings)


def short(url: str) -> Agent:
    return Agent(ScriptedModel([text("short")]), checkpointer=url)


async def lease_of(url: str, owner: str = "test", seconds: float = 60.0, *, steal: bool = False) -> int:
    store = open_store(url)
    await store.open()
    try:
        return (await store.lease(TakeLease(store=url, thread_id="t", owner=owner, seconds=seconds, steal=steal))).token
    finally:
        await store.close()


async def test_a_second_run_is_refused_and_told_who_has_the_thread(runtime: Runtime, tmp_path: Path) -> None:
    gate, url = Gate(tmp_path), f"sqlite:///{tmp_path}/t.db"
    first = asyncio.ensure_future(waiting(gate, url).arun("go", thread_id="t"))
    await gate.reached("a")
    with pytest.raises(ThreadBusy, match="held by") as refused:
        await short(url).arun("me, too", thread_id="t", on_busy="reject")
    gate.open("a")
    result = await first
    assert refused.value.details["owner"] == result.run_id
    assert (await short(url).arun("now?", thread_id="t", on_busy="reject")).message == "short"


async def test_a_second_run_cancels_the_first_and_those_that_wait(runtime: Runtime, tmp_path: Path) -> None:
    gate, url = Gate(tmp_path), f"sqlite:///{tmp_path}/t.db"
    first = asyncio.ensure_future(waiting(gate, url).arun("go", thread_id="t"))
    await gate.reached("a")
    second = asyncio.ensure_future(short(url).arun("in the queue", thread_id="t"))
    await asyncio.sleep(0)
    third = await short(url).arun("now", thread_id="t", on_busy="interrupt")
    assert third.message == "short" and third.success
    assert (await first).stop_reason == "cancelled"
    assert (await second).stop_reason in {"cancelled", "complete"}, "it was in the queue, or came after"
    assert [message.content for message in third.messages if message.role == "user"][:2] == ["go", "now"]


async def test_a_word_that_says_nothing_is_refused(runtime: Runtime) -> None:
    with pytest.raises(ConfigurationError, match="'queue', 'reject', 'interrupt'"):
        await short("memory://").arun("go", thread_id="t", on_busy="wait")  # type: ignore[arg-type]


async def test_a_thread_that_another_process_has(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    token = await lease_of(url, "another:1", 600.0)
    with pytest.raises(ThreadBusy, match="another:1"):
        await short(url).arun("go", thread_id="t", on_busy="reject")
    result = await short(url).arun("go", thread_id="t", on_busy="interrupt")
    assert result.message == "short"
    assert await lease_of(url) > token + 1, "it was given back"


async def test_a_dead_owner_is_waited_for_until_its_lease_ends(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    await lease_of(url, "dead:1", 0.3)
    assert (await short(url).arun("go", thread_id="t")).message == "short"


async def test_a_run_that_waits_for_a_thread_can_be_cancelled(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    await lease_of(url, "another:1", 600.0)
    agent = short(url)
    assert (await agent.arun("go", thread_id="t", timeout=0.3)).stop_reason == "time_budget"


async def test_a_lease_is_prolonged_while_the_run_goes_on(runtime: Runtime, tmp_path: Path) -> None:
    gate, url = Gate(tmp_path), f"sqlite:///{tmp_path}/t.db"
    run = asyncio.ensure_future(waiting(gate, url, lease_seconds=0.6).arun("go", thread_id="t"))
    await gate.reached("a")
    with pytest.raises(ThreadBusy) as first:
        await lease_of(url)
    async with asyncio.timeout(30):
        while True:
            with pytest.raises(ThreadBusy) as later:
                await lease_of(url)
            if later.value.details["expires_at"] > first.value.details["expires_at"] + 0.6:
                break
            await asyncio.sleep(0.05)
    gate.open("a")
    assert (await run).message == "done"
    assert await lease_of(url) > 1


@pytest.mark.case(16)
async def test_a_run_that_lost_its_thread_stops_and_writes_nothing_more(runtime: Runtime, tmp_path: Path) -> None:
    gate, url = Gate(tmp_path), f"sqlite:///{tmp_path}/t.db"
    run = asyncio.ensure_future(waiting(gate, url).arun("go", thread_id="t"))
    await gate.reached("a")
    newer = await short(url).with_settings(checkpointer=url).arun("newer", thread_id="t2")
    await lease_of(url, "thief", 600.0, steal=True)
    store = open_store(url)
    before = await store.load("t")
    gate.open("a")
    with pytest.raises(StaleWriter, match="not this"):
        await run
    assert (await store.load("t")).checkpoint_id == before.checkpoint_id and newer.success
    await store.close()


@pytest.mark.case(16)
async def test_a_run_does_not_bring_a_deleted_thread_back(runtime: Runtime, tmp_path: Path) -> None:
    gate, url = Gate(tmp_path), f"sqlite:///{tmp_path}/t.db"
    run = asyncio.ensure_future(waiting(gate, url, lease_seconds=0.6).arun("go", thread_id="t"))
    await gate.reached("a")
    store = open_store(url)
    assert (await store.delete("t")).existed
    with pytest.raises(StaleWriter, match="not this"):  # it finds out as it prolongs its lease, without being let go
        await run
    assert (await store.load("t")).checkpoint_id is None
    await store.close()
    assert (await short(url).arun("anew", thread_id="t", on_busy="reject")).message == "short"


async def freeze(process: asyncio.subprocess.Process, database: Path) -> None:
    """Stop a process, but not in the middle of a transaction: nobody else could write then."""
    async with asyncio.timeout(60):
        while True:
            process.send_signal(signal.SIGSTOP)
            connection = sqlite3.connect(database, isolation_level=None, timeout=0.2)
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
                return
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
                await asyncio.sleep(0.01)
            finally:
                connection.close()


@pytest.mark.case(16)
async def test_a_process_that_was_frozen_cannot_write_over_its_successor(tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path}/t.db", tmp_path / "log"
    driver = await asyncio.create_subprocess_exec(sys.executable, str(DRIVER), str(tmp_path), stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        while not log.exists() or "pay-3" not in log.read_text() or "read-2" not in log.read_text():
            await asyncio.sleep(0.02)
    await freeze(driver, tmp_path / "t.db")
    async with Runtime(inline=True) as runtime:
        successor = Agent(ScriptedModel([text("mine now")], loop=True), checkpointer=url)
        assert (await successor.arun("go on", thread_id="t", runtime=runtime)).message == "mine now"
        store = open_store(url)
        newest = (await store.load("t")).checkpoint_id
        driver.send_signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            _, errors = await driver.communicate()
        assert driver.returncode and b"StaleWriter" in errors
        assert (await store.load("t")).checkpoint_id == newest
        await store.close()


@pytest.mark.case(16)
async def test_a_cancelled_run_whose_write_was_delayed(runtime: Runtime, tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    url = f"sqlite:///{database}?timeout=60"
    assert (await short(url).arun("begin", thread_id="t")).success
    gate = Gate(tmp_path)
    agent = waiting(gate, url)
    first = asyncio.ensure_future(agent.arun("first", thread_id="t"))
    await gate.reached("a")
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    gate.open("a")
    agent.cancel("t")  # its last write waits for the database
    second = asyncio.ensure_future(short(url).arun("second", thread_id="t"))
    await asyncio.sleep(0.1)  # both are under way, in whatever order
    connection.execute("ROLLBACK")
    connection.close()
    ended, result = await first, await second
    assert ended.stop_reason in {"cancelled", "complete"} and result.message == "short"
    store = open_store(url)
    newest = restore(await store.load("t"))
    await store.close()
    assert newest is not None and newest.state.messages == result.messages
    assert [message.content for message in result.messages if message.role == "user"] == ["begin", "first", "second"]


class Slow(MemoryStore):
    """A lease is prolonged late: where it can, once the run's end is stored. The answer is late, too."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.ended = asyncio.Event()

    async def lease(self, request: TakeLease) -> LeaseTaken:
        self.asked += 1
        if self.asked != 2:
            return await super().lease(request)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), 0.3)
        taken = await super().lease(request)
        await asyncio.sleep(0.3)
        return taken

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        outcomes = await super().save(saves)
        if any(save.release for save in saves):
            self.ended.set()
            await asyncio.sleep(0.1)
        return outcomes


async def test_a_lease_that_is_prolonged_as_the_run_ends_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Slow()
    monkeypatch.setattr(registry, "_FACTORIES", {**registry._FACTORIES, "slow": lambda _: store})
    with Runtime(inline=True):
        agent = Agent(ScriptedModel([text("done")], delay=0.15), checkpointer="slow://", lease_seconds=0.3)
        assert (await agent.arun("go", thread_id="t")).message == "done"
        assert store.asked == 2, "it was prolonged"
        await store.lease(TakeLease(store="", thread_id="t", owner="next", seconds=60))


class Late(MemoryStore):
    """It grants the first lease at once, and says so late."""

    def __init__(self) -> None:
        super().__init__()
        self.granted = asyncio.Event()

    async def lease(self, request: TakeLease) -> LeaseTaken:
        taken = await super().lease(request)
        if not self.granted.is_set():
            self.granted.set()
            await asyncio.sleep(60)
        return taken


@pytest.mark.parametrize("who", ["run", "update"])
async def test_who_is_cancelled_while_it_asks_for_a_lease_does_not_keep_it(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    store = Late()
    monkeypatch.setattr(registry, "_FACTORIES", {**registry._FACTORIES, "late": lambda _: store})
    with Runtime(inline=True):
        agent = Agent(ScriptedModel([text("done")]), checkpointer="late://")
        asking = agent.arun("go", thread_id="t") if who == "run" else agent.update_state("t", messages="hi")
        task = asyncio.ensure_future(asking)
        await asyncio.wait_for(store.granted.wait(), 10)
        if who == "run":
            agent.cancel("t")
        else:
            task.cancel()
        await asyncio.wait([task], timeout=10)
        await store.lease(TakeLease(store="", thread_id="t", owner="next", seconds=60))


async def test_a_run_without_an_end_gives_the_lease_back(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    await short(url).arun("go", thread_id="t")
    with pytest.raises(LookupError, match="finished"):
        await short(url).continue_turn("t")
    assert (await short(url).arun("go", thread_id="t", on_busy="reject")).success
