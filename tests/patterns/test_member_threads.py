"""The threads of a pattern's members: found with the pattern's, deleted, forked and kept with it, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from umbel import Agent, Runtime
from umbel.actors.checkpoints.memory import MemoryStore
from umbel.actors.threads import Threads
from umbel.cluster.cli.main import app
from umbel.errors import CheckpointNotFound, NotPaused
from umbel.patterns.pattern import Pattern
from umbel.patterns.pipeline import Parallel, Sequential
from umbel.protocol.storage import CollectGarbage
from umbel.testing import text

from .programs import Gate, asks, new_runtime, says

pytestmark = pytest.mark.usefixtures("inline")


def nested(store: str) -> Pattern:
    """Two deep, with a question at the bottom."""
    inner = Parallel([says("a"), asks("b")], name="inner", merge="list")
    return Sequential([says("first"), inner], checkpointer=store)


ALL = ["t", "t#1.0.first", "t#1.1.inner", "t#1.1.inner#1.0.a", "t#1.1.inner#1.1.b"]


async def every(pattern: Pattern) -> list[str]:
    return [thread.thread_id async for thread in pattern.threads.every()]


@pytest.mark.spec("OURS-24")
async def test_lists_show_the_patterns_thread_and_not_those_of_its_members(store: str) -> None:
    pattern = nested(store)
    for name in ("t", "u", "zz"):
        await pattern.arun("go", thread_id=name)
    assert [thread.thread_id for thread in await pattern.list_threads()] == ["t", "u", "zz"]
    assert [thread.thread_id for thread in await pattern.list_threads(limit=2, after="t")] == ["u", "zz"]
    assert [thread.thread_id for thread in await pattern.list_threads(limit=1)] == ["t"]
    assert [thread.thread_id for thread in await pattern.list_threads("t", members=True)] == ALL
    found = await pattern.search_threads({"finished": True}, members=True, prefix="t")
    assert [thread.thread_id for thread in found] == ["t#1.0.first", "t#1.1.inner#1.0.a"]
    assert await pattern.search_threads({"finished": True}, prefix="t") == []


@pytest.mark.spec("OURS-23", "OURS-24")
async def test_deleting_a_pattern_deletes_its_members(store: str) -> None:
    pattern = nested(store)
    await pattern.arun("go", thread_id="t")
    await pattern.arun("go", thread_id="t2")
    assert await every(pattern) == [*ALL, *(name.replace("t", "t2", 1) for name in ALL)]
    assert await pattern.delete_thread("t") and not await pattern.delete_thread("t")
    assert await every(pattern) == [name.replace("t", "t2", 1) for name in ALL]
    with pytest.raises(CheckpointNotFound):
        await pattern.get_state("t#1.1.inner")
    again = await pattern.arun("go", thread_id="t")
    assert again.stop_reason == "interrupted" and [step.text for step in again.members] == ["first said"]
    state = await pattern.get_state("t#1.0.first")
    assert [message.role for message in state.messages] == ["system", "user", "assistant"], "it began anew"


@pytest.mark.spec("OURS-23", "OURS-24")
async def test_members_at_work_cannot_write_into_what_was_deleted(store: str) -> None:
    gate = Gate(text("late"))
    pattern = Sequential([Agent(gate, name="slow")], checkpointer=store, lease_seconds=0.3)
    run = asyncio.ensure_future(pattern.arun("go", thread_id="t"))
    await gate.came.wait()
    await pattern.delete_thread("t")
    gate.open.set()
    with pytest.raises(Exception, match="thread"):
        await run
    assert await every(pattern) == []


@pytest.mark.spec("OURS-24")
async def test_a_step_is_a_conversation_of_its_own_whatever_its_thread_held(store: str) -> None:
    pattern = Sequential([says("a", "one", "two")], checkpointer=store)
    await pattern.arun("first", thread_id="t")
    checkpoint = (await pattern.get_state_history("t"))[0].checkpoint_id
    await pattern.arun("second", thread_id="t")
    await pattern.update_state("t", checkpoint_id=checkpoint, metadata={"again": True})  # the second turn never was
    result = await pattern.arun("third", thread_id="t")
    assert result.outputs == ["one"]
    state = await pattern.get_state("t#2.0.a")
    assert [message.content for message in state.messages[1:]] == ["third", "one"]


@pytest.mark.spec("OURS-24")
async def test_a_thread_of_somebody_else_is_neither_hidden_nor_deleted_nor_written_over(store: str) -> None:
    agent = says("mine", checkpointer=store)
    for name in ("t#1.0.first", "t#note", "t#1"):
        await agent.arun("hello", thread_id=name)
    pattern = nested(store)
    result = await pattern.arun("go", thread_id="t")
    assert not result.success and "rename or delete it" in str(result.error)
    assert [thread.thread_id for thread in await pattern.list_threads()] == ["t", "t#1", "t#1.0.first", "t#note"]
    await pattern.delete_thread("t")
    assert [thread.thread_id for thread in await pattern.list_threads()] == ["t#1", "t#1.0.first", "t#note"]
    assert (await agent.get_state("t#1.0.first")).messages[-1].content == "mine said"
    await agent.arun("hello", thread_id="u", metadata={"member_of": "t"})
    assert "u" in [thread.thread_id for thread in await pattern.list_threads()]
    other = await nested(store).arun("go", thread_id="x#y")
    assert other.stop_reason == "interrupted", "a pattern's own thread may have such a name, too"
    assert (await nested(store).aresume("yes", thread_id="x#y")).success


@pytest.mark.spec("OURS-24", "MEM-45")
async def test_members_of_a_fork_are_its_own(store: str) -> None:
    pattern = nested(store)
    await pattern.arun("go", thread_id="t")
    await pattern.fork("t", "u")
    assert (await pattern.aresume("for u", thread_id="u")).value is None
    listed = {thread.thread_id: thread.metadata["member_of"] for thread in await pattern.list_threads("u#", members=True)}
    assert listed == {"u#1.1.inner": "u", "u#1.1.inner#1.1.b": "u"}
    await pattern.delete_thread("t")
    assert [thread.thread_id for thread in await pattern.list_threads(members=True)] == ["u", *sorted(listed)]
    own = await pattern.fork("u#1.1.inner", "copy")
    assert own in [thread.thread_id for thread in await pattern.list_threads()], "a copy that a person makes is theirs"


@pytest.mark.case(29)
@pytest.mark.spec("OURS-23", "OURS-24")
async def test_retention_keeps_a_paused_member_as_long_as_its_pattern() -> None:
    now = [1_000_000.0]
    store = MemoryStore(clock=lambda: now[0])
    await _fill(store, now)
    threads = Threads("memory://", _asking(store), clock=lambda: now[0])
    now[0] += 100.0
    freed = await threads.collect(older_than=150.0)
    assert freed.threads == 2, "an old pattern and its member"
    left = [thread.thread_id async for thread in threads.every()]
    assert left == ["live", "live#1.a"], "an old member of a pattern that was written since"
    now[0] += 1_000.0
    assert (await threads.collect(older_than=150.0)).threads == 2


async def _fill(store: MemoryStore, now: list[float]) -> None:
    from umbel.actors.checkpoints import build_save
    from umbel.protocol.state import AgentState

    for name, member_of, at in (("old", None, 0), ("old#1.a", "old", 0), ("live#1.a", "live", 0), ("live", None, 100)):
        facts = {} if member_of is None else {"member_of": member_of}
        now[0] = 1_000_000.0 + at
        save, _ = build_save(
            AgentState(), store="memory://", thread_id=name, checkpoint_id=f"c-{name}", created_at=now[0], metadata=facts
        )
        await store.save([save])


def _asking(store: MemoryStore) -> Any:
    async def ask(message: Any) -> Any:
        return await (store.collect(message) if isinstance(message, CollectGarbage) else store.threads(message))

    return ask


@pytest.mark.spec("OURS-24")
async def test_nothing_is_left_in_leases(store: str, tmp_path: Path) -> None:
    gate = Gate()
    pattern = nested(store)
    await pattern.arun("go", thread_id="paused")
    stopped = Sequential([Agent(gate, name="slow")], checkpointer=store)
    run = asyncio.ensure_future(stopped.arun("go", thread_id="cancelled"))
    await gate.came.wait()
    stopped.cancel("cancelled")
    await run
    with pytest.raises(NotPaused):
        await pattern.continue_turn("paused")
    with sqlite3.connect(tmp_path / "threads.db") as database:
        held = database.execute("SELECT thread_id, owner FROM umbel_threads WHERE owner IS NOT NULL").fetchall()
    database.close()
    assert held == []


def test_the_command_hides_members_unless_asked(store: str) -> None:
    async def fill() -> None:
        async with new_runtime():
            await nested(store).arun("go", thread_id="t")

    asyncio.run(fill())

    def listed(*options: str) -> list[str]:
        done = CliRunner().invoke(app, ["threads", "list", "--store", store, "--json", *options])
        assert done.exit_code == 0, done.output
        return [thread["thread_id"] for thread in json.loads(done.stdout)["threads"]]

    assert listed() == ["t"] and listed("--members") == ALL
    assert CliRunner().invoke(app, ["threads", "rm", "t", "--yes", "--store", store]).exit_code == 0
    assert listed("--members") == []


async def test_an_exported_pattern_can_be_answered_elsewhere(store: str, tmp_path: Path, inline: Runtime) -> None:
    await nested(store).arun("go", thread_id="t")
    file, target = tmp_path / "out.jsonl", f"sqlite:///{tmp_path}/other.db"
    for command in (["export", "--store", store, "--out", str(file)], ["import", str(file), "--store", target]):
        done = await asyncio.to_thread(CliRunner().invoke, app, ["threads", *command])
        assert done.exit_code == 0, done.output
    assert (await nested(target).aresume("yes", thread_id="t")).outputs[-1] == '["a said", "b: yes"]'
