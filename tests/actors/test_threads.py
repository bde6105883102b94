"""The thread API: states and their history, updates, forks, deletion, lists and searches. Inline and on Ray."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, AgentState, Message, Runtime, ToolContext, tool
from umbel.actors.checkpoints import CheckpointerActor
from umbel.actors.checkpoints.facts import amended, of_a_fork, searchable
from umbel.actors.threads import LEASE_SECONDS, Threads, read_messages
from umbel.errors import (
    CheckpointConflict,
    CheckpointNotFound,
    ConfigurationError,
    NoCheckpointer,
    NotPaused,
    NotStorable,
    PeerLost,
    ThreadBusy,
)
from umbel.protocol.commands import LoadCheckpoint
from umbel.protocol.messages import Frozen
from umbel.protocol.storage import JournalEntry, ReleaseLease, TakeLease
from umbel.testing import ScriptedModel, text, tool_call


@tool
async def pay(amount: int, ctx: ToolContext) -> str:
    """Pay, once a person has agreed."""
    return f"paid {amount}" if ctx.interrupt(f"Pay {amount}?") == "yes" else f"kept {amount}"


@tool(idempotent=True)
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


numbers = itertools.count()


def adding(**settings: Any) -> Agent:
    """Adds once in every turn; its store is a memory of its own actors."""
    model = ScriptedModel([tool_call("add", a=1, b=2), text("It is 3.")])
    settings = {"checkpointer": f"memory://{next(numbers)}", "keep_iteration_checkpoints": True, **settings}
    return Agent(model, [add, pay], system_prompt="Add.", **settings)


def said(state: AgentState) -> list[str | None]:
    return [message.content for message in state.messages]


async def settled(agent: Agent, thread: str, runtime: Runtime) -> TakeLease:
    """A lease of the thread by somebody else."""
    lease = TakeLease(store=agent.checkpointer or "", thread_id=thread, owner="another run", seconds=60)
    await runtime.ask_checkpointer(lease)
    return lease


# states


@pytest.mark.spec("MEM-43", "API-36")
async def test_a_state_is_read_from_the_newest_checkpoint_or_a_given_one(runtime: Runtime) -> None:
    agent = adding()
    result = await agent.arun("1 + 2?", thread_id="t")
    state = await agent.get_state("t")
    assert state.evolve(turn=result.state.turn) == result.state and said(state) == ["Add.", "1 + 2?", None, "3", "It is 3."]
    newest, *earlier = await agent.get_state_history("t")
    assert earlier and newest.metadata["reason"] == "complete" and newest.parent_id == earlier[0].checkpoint_id
    assert await agent.get_state("t", newest.checkpoint_id) == state
    assert said(await agent.get_state("t", earlier[-1].checkpoint_id)) == ["Add.", "1 + 2?", None, "3"]


@pytest.mark.spec("MEM-43", "API-36")
async def test_what_is_missing_is_an_error_of_its_own(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("1 + 2?", thread_id="t")
    for call in (agent.get_state("none"), agent.get_state_history("none"), agent.fork("none"), agent.update_state("none")):
        with pytest.raises(CheckpointNotFound, match="no thread 'none' in memory://"):
            await call
    for call in (agent.get_state("t", "c9"), agent.fork("t", checkpoint_id="c9"), agent.update_state("t", checkpoint_id="c9")):
        with pytest.raises(LookupError, match="'t' has no checkpoint 'c9'"):
            await call
    bare = Agent(ScriptedModel([text("hi")]))
    for request in (bare.get_state("t"), bare.list_threads(), bare.fork("t"), bare.delete_thread("t")):
        with pytest.raises(RuntimeError, match="has no checkpointer: give it one") as raised:
            await request
        assert isinstance(raised.value, NoCheckpointer)


@pytest.mark.spec("MEM-43")
async def test_a_history_is_newest_first_and_ten_long_unless_said_otherwise(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("1 + 2?", thread_id="t")
    added = [await agent.update_state("t", messages=f"note {number}") for number in range(12)]
    ids = [checkpoint.checkpoint_id for checkpoint in await agent.get_state_history("t")]
    assert ids == added[::-1][:10]
    everything = await agent.get_state_history("t", 100)
    assert [c.checkpoint_id for c in everything][:12] == added[::-1] and len(everything) == 14
    assert [c.parent_id for c in everything] == [*(c.checkpoint_id for c in everything[1:]), None]
    for limit in (0, -1):
        with pytest.raises(ConfigurationError, match="limit must be 1 or more"):
            await agent.get_state_history("t", limit)


# updates


@pytest.mark.spec("MEM-44", "API-36")
async def test_an_update_is_a_new_checkpoint_and_leaves_its_source_alone(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("1 + 2?", thread_id="t", metadata={"user": "ann"})
    before = await agent.get_state("t")
    [source, *_] = await agent.get_state_history("t")
    notes: list[Any] = ["short", Message.assistant("noted"), {"role": "user", "content": "dict"}]
    new = await agent.update_state("t", messages=notes, metadata={"plan": {"tier": 2}, "colour": "red"})
    state = await agent.get_state("t")
    assert said(state)[-3:] == ["short", "noted", "dict"] and state.messages[:-3] == before.messages
    assert state.metadata == {"user": "ann", "plan": {"tier": 2}, "colour": "red"}
    [newest, *_] = await agent.get_state_history("t")
    assert (newest.checkpoint_id, newest.parent_id) == (new, source.checkpoint_id) and newest.metadata["colour"] == "red"
    assert "plan" not in newest.metadata, "only what can be searched for"
    assert newest.metadata["updated_from"] == source.checkpoint_id
    assert await agent.get_state("t", source.checkpoint_id) == before
    result = await agent.arun("again?", thread_id="t")
    assert [m.content for m in result.messages][5:9] == ["short", "noted", "dict", "again?"], "the next turn goes on from it"


@pytest.mark.spec("MEM-44")
async def test_an_update_from_an_earlier_checkpoint_winds_the_conversation_back(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("1 + 2?", thread_id="t")
    first = await agent.get_state("t")
    [source, *_] = await agent.get_state_history("t")
    await agent.arun("a mistake", thread_id="t")
    await agent.update_state("t", messages="better", checkpoint_id=source.checkpoint_id)
    assert said(await agent.get_state("t")) == [*said(first), "better"]
    contents = [said(await agent.get_state("t", c.checkpoint_id)) for c in await agent.get_state_history("t")]
    assert any("a mistake" in content for content in contents), "what came after it stays in the history"


@pytest.mark.spec("MEM-44", "OURS-15")
async def test_a_thread_in_use_is_not_updated(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("1 + 2?", thread_id="t")
    lease = await settled(agent, "t", runtime)
    with pytest.raises(ThreadBusy, match="another run") as raised:
        await agent.update_state("t", messages="too early")
    assert raised.value.details["owner"] == "another run"
    assert "too early" not in said(await agent.get_state("t")), "reading needs no lease"
    release = ReleaseLease(store=lease.store, thread_id="t", owner=lease.owner, token=10**6)
    await runtime.ask_checkpointer(release)
    with pytest.raises(ThreadBusy):
        await agent.update_state("t", messages="another token")


@pytest.mark.spec("OURS-15")
async def test_the_lease_is_given_back_whatever_comes_of_the_update(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("1 + 2?", thread_id="t")
    with pytest.raises(NotStorable, match=r"state\.metadata\.bad"):
        await agent.update_state("t", metadata={"bad": {1, 2}})
    await settled(agent, "t", runtime)  # nobody has it


async def test_updates_at_once_are_all_in_or_refused(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("1 + 2?", thread_id="t")
    calls = [agent.update_state("t", messages=f"note {number}") for number in range(8)]
    done = await asyncio.gather(*calls, return_exceptions=True)
    refused = [error for error in done if isinstance(error, BaseException)]
    assert all(isinstance(error, ThreadBusy) for error in refused) and len(refused) < 8
    notes = [content for content in said(await agent.get_state("t")) if content and content.startswith("note")]
    assert sorted(notes) == sorted(f"note {number}" for number, each in enumerate(done) if isinstance(each, str))


@pytest.mark.spec("MEM-44", "API-36")
async def test_a_paused_thread_keeps_its_question_and_takes_no_messages_before_the_answer(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([tool_call("pay", amount=5), text("Done.")]), [pay], checkpointer=f"memory://{id(runtime)}p")
    await agent.arun("pay", thread_id="t")
    with pytest.raises(NotPaused, match="waits for answers"):
        await agent.update_state("t", messages="by the way")
    await agent.update_state("t", metadata={"seen": True})
    branch = await agent.fork("t")
    assert [each["question"] for each in await agent.pending_interrupts_of("t")] == ["Pay 5?"]
    assert (await agent.aresume("yes", thread_id="t")).tool_executions[-1].result == "paid 5"
    assert (await agent.aresume("no", thread_id=branch)).tool_executions[-1].result == "kept 5", "the fork asks for itself"
    assert (await agent.get_state(branch)).metadata["seen"] is True


def test_what_is_no_message_is_refused_by_its_place() -> None:
    assert read_messages("x") == (Message.user("x"),) and read_messages({"role": "user", "content": "x"}) == read_messages("x")
    assert read_messages([]) == ()
    with pytest.raises(ConfigurationError, match=r"messages\.1\.role: .*write for example Message\.user"):
        read_messages(["fine", {"role": "robot", "content": "x"}])
    with pytest.raises(ConfigurationError, match=r"messages\.0"):
        read_messages([3])  # type: ignore[list-item]


@pytest.mark.spec("OURS-15", "MEM-44")
async def test_a_running_turn_is_not_overwritten(runtime: Runtime, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @tool
    async def wait(gate: str) -> str:
        """Wait for a file."""
        await asyncio.to_thread(Path(f"{gate}.begun").touch)
        while not await asyncio.to_thread(Path(gate).exists):
            await asyncio.sleep(0.01)
        return "opened"

    model = ScriptedModel([tool_call("wait", gate=str(gate)), text("done")])
    agent = Agent(model, [wait], checkpointer=f"sqlite:///{tmp_path}/t.db")
    await agent.threads.write("other", AgentState())
    running = asyncio.ensure_future(agent.arun("go", thread_id="t"))
    while not await asyncio.to_thread(Path(f"{gate}.begun").exists):
        await asyncio.sleep(0.01)
    for change in (agent.update_state("t", messages="no"), agent.fork("other", "t"), agent.threads.write("t", AgentState())):
        with pytest.raises(ThreadBusy):
            await change
    await asyncio.to_thread(gate.touch)
    assert (await running).message == "done"
    await agent.update_state("t", messages="now")
    assert said(await agent.get_state("t"))[-2:] == ["done", "now"]


# forks


@pytest.mark.spec("MEM-45", "API-36")
async def test_a_fork_copies_one_checkpoint_and_goes_its_own_way(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("1 + 2?", thread_id="t", metadata={"user": "ann"})
    source = await agent.get_state("t")
    branch = await agent.fork("t")
    assert re.fullmatch(r"t-fork-[0-9a-f]{8}", branch)
    assert await agent.get_state(branch) == source
    [copied] = await agent.get_state_history(branch)
    [newest, *_] = await agent.get_state_history("t")
    assert copied.parent_id is None and copied.metadata["forked_from"] == "t"
    assert copied.metadata["forked_checkpoint"] == newest.checkpoint_id
    await agent.arun("more", thread_id=branch)
    assert await agent.get_state("t") == source and "more" in said(await agent.get_state(branch))


@pytest.mark.spec("MEM-45")
async def test_running_on_from_an_earlier_checkpoint_is_a_fork_of_it(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("first", thread_id="t")
    [first, *_] = await agent.get_state_history("t")
    await agent.arun("second", thread_id="t")
    assert await agent.fork("t", "branch", checkpoint_id=first.checkpoint_id) == "branch"
    result = await agent.arun("other", thread_id="branch")
    assert [m.content for m in result.messages if m.role == "user"] == ["first", "other"]


@pytest.mark.spec("MEM-44", "MEM-45", "OURS-15")
@pytest.mark.parametrize("way", ["fork", "update"])
async def test_going_back_does_not_do_again_what_was_begun(way: str) -> None:
    """The checkpoint before a side effect holds the open call, and the journal of then was emptied since."""
    charged: list[int] = []

    @tool
    async def charge(amount: int) -> str:
        """Charge a card."""
        charged.append(amount)
        return "charged"

    with Runtime(inline=True):
        model = ScriptedModel([tool_call("charge", amount=5), text("Done.")])
        agent = Agent(model, [charge], checkpointer=f"memory://{way}", keep_iteration_checkpoints=True)
        await agent.arun("charge", thread_id="t")
        earlier = (await agent.get_state_history("t"))[-1].checkpoint_id
        assert (await agent.get_state("t", earlier)).messages[-1].tool_calls, "it stands before the call"
        if way == "fork":
            await agent.fork("t", "again", checkpoint_id=earlier)
        else:
            await agent.update_state("t", checkpoint_id=earlier)
        result = await agent.continue_turn("again" if way == "fork" else "t")
    assert charged == [5]
    assert "outcome unknown" in str(result.tool_executions[-1].error) and result.message == "Done."


@pytest.mark.spec("MEM-45", "OURS-15")
async def test_a_fork_of_the_newest_checkpoint_keeps_its_journal_however_it_is_named() -> None:
    checkpointer = CheckpointerActor()
    threads = Threads("memory://", checkpointer.answer)
    begun = JournalEntry(run_id="run", call_id="call-1", phase="begun", at=1.5)
    newest = await threads.write("t", AgentState(messages=(Message.user("hi"),)), journal=(begun,))
    for named in (None, newest):
        assert (await threads.load(await threads.fork("t", checkpoint_id=named))).journal == (begun,)
    await checkpointer.close()


@pytest.mark.spec("MEM-45")
async def test_a_fork_needs_a_name_that_is_free(runtime: Runtime) -> None:
    agent = adding()
    for thread in ("t", "u"):
        await agent.arun("1 + 2?", thread_id=thread)
    with pytest.raises(ValueError, match="another name"):
        await agent.fork("t", "t")
    before = await agent.get_state("u")
    with pytest.raises(CheckpointConflict, match="'u' exists"):
        await agent.fork("t", "u")
    assert await agent.get_state("u") == before
    assert await agent.delete_thread("u")
    await agent.fork("t", "u")  # a deleted one is free, OURS-23: with a lease of its own
    assert await agent.get_state("u") == await agent.get_state("t")


# deletion


@pytest.mark.spec("OURS-23")
async def test_a_deleted_thread_is_gone_and_may_begin_anew(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("first", thread_id="t")
    assert await agent.delete_thread("t") and not await agent.delete_thread("t")
    with pytest.raises(CheckpointNotFound):
        await agent.get_state("t")
    assert await agent.list_threads() == []
    await agent.threads.write("t", AgentState(messages=(Message.user("anew"),)))
    assert said(await agent.get_state("t")) == ["anew"] and await agent.delete_thread("t")
    result = await agent.arun("second", thread_id="t")
    assert [m.content for m in result.messages if m.role == "user"] == ["second"]
    assert len(await agent.get_state_history("t")) == 2


# lists


async def test_threads_are_listed_in_pages_and_searched_by_metadata(runtime: Runtime) -> None:
    agent = adding()
    for number in range(5):
        await agent.arun("1 + 2?", thread_id=f"a/{number}")
    await agent.arun("1 + 2?", thread_id="b")
    await agent.update_state("a/1", metadata={"customer": 7, "colour": "red"})
    await agent.update_state("b", metadata={"customer": 8})
    await agent.update_state("b", metadata={"customer": 7})
    ids = [thread.thread_id for thread in await agent.list_threads()]
    assert ids == [*(f"a/{number}" for number in range(5)), "b"]
    first = await agent.list_threads("a/", limit=3)
    rest = await agent.list_threads("a/", limit=3, after=first[-1].thread_id)
    assert [t.thread_id for t in (*first, *rest)] == ids[:5]
    assert [t.thread_id async for t in agent.threads.every("a/")] == ids[:5]
    assert [t.thread_id for t in await agent.search_threads({"customer": 7})] == ["a/1", "b"]
    assert [t.thread_id for t in await agent.search_threads({"customer": 7, "colour": "red"})] == ["a/1"]
    assert await agent.search_threads({"customer": "7"}) == []
    [thread] = await agent.search_threads({"customer": 7}, prefix="b")
    assert (thread.checkpoint_id, thread.checkpoints) == ((await agent.get_state_history("b"))[0].checkpoint_id, 4)
    assert await agent.search_threads({"customer": 8}) == []
    await agent.arun("1 + 2?", thread_id="c", metadata={"customer": 9, "finished": "no", "long": "x" * 300, "list": [1]})
    [thread] = await agent.search_threads({"customer": 9, "finished": True})
    assert thread.thread_id == "c" and not {"long", "list"} & {*thread.metadata}
    with pytest.raises(ConfigurationError, match="limit"):
        await agent.list_threads(limit=0)


async def test_old_checkpoints_are_folded_away_on_request(runtime: Runtime) -> None:
    agent = adding()
    await agent.arun("1 + 2?", thread_id="t")
    for number in range(5):
        await agent.update_state("t", messages=f"note {number}")
    state = await agent.get_state("t")
    freed = await agent.threads.collect(keep=2)
    assert freed.checkpoints == 5 and len(await agent.get_state_history("t")) == 2
    assert await agent.get_state("t") == state
    with pytest.raises(ConfigurationError, match="keep must be 1 or more"):
        await agent.threads.collect(keep=0)


def test_the_facts_of_a_checkpoint_follow_its_metadata() -> None:
    assert searchable({"a": 1, "b": None, "c": "x" * 256, "d": "x" * 257, "e": {}, "ephemeral": 1, "mcp_headers": "x"}) == {
        "a": 1, "b": None, "c": "x" * 256,
    }  # fmt: skip
    before = {"run_id": "r", "finished": True, "segment": "s", "customer": 7, "colour": "red"}
    assert amended(before, {"customer": "x" * 300, "finished": "no", "new": 1}) == {
        "run_id": "r", "finished": True, "segment": "s", "colour": "red", "new": 1,
    }  # fmt: skip
    assert of_a_fork(before, "t", "c") == {
        "run_id": "r", "finished": True, "customer": 7, "colour": "red", "forked_from": "t", "forked_checkpoint": "c",
    }  # fmt: skip


# where it works


async def test_synchronous_forms_do_the_same(runtime: Runtime, tmp_path: Path) -> None:
    agent = adding(checkpointer=f"sqlite:///{tmp_path}/threads.db")

    def job() -> None:
        agent.run_sync("1 + 2?", thread_id="t")
        new = agent.update_state_sync("t", messages="note", metadata={"customer": 7})
        assert agent.get_state_history_sync("t", 1)[0].checkpoint_id == new
        assert said(agent.get_state_sync("t"))[-1] == "note"
        assert agent.fork_sync("t", "u") == "u"
        assert [thread.thread_id for thread in agent.list_threads_sync()] == ["t", "u"]
        assert [thread.thread_id for thread in agent.search_threads_sync({"customer": 7}, prefix="u")] == ["u"]
        assert agent.delete_thread_sync("t")
        with pytest.raises(CheckpointNotFound):
            agent.get_state_sync("t")

    await asyncio.to_thread(job)


@tool
async def peek(thread: str) -> str:
    """Look into a thread."""
    await adding().get_state(thread)
    return "never"


async def test_a_tools_body_is_told_where_to_do_that() -> None:
    with Runtime(inline=True):
        result = await Agent(ScriptedModel([tool_call("peek", thread="t"), text("ok")]), [peek]).arun("x")
    [done] = result.tool_executions
    assert "cannot look into threads" in str(done.error)


class Restarting:
    """A checkpointer that dies over its first requests."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths
        self.asked = 0

    async def ask(self, message: Frozen) -> Any:
        self.asked += 1
        if self.asked <= self.deaths:
            raise PeerLost("it died", peer="checkpointer")
        assert isinstance(message, LoadCheckpoint)
        raise CheckpointNotFound("it is back")


async def test_a_restarted_checkpointer_is_asked_again() -> None:
    for deaths, error in ((2, CheckpointNotFound), (3, PeerLost)):
        checkpointer = Restarting(deaths)
        with pytest.raises(error):
            await Threads("memory://", checkpointer.ask).get_state("t")
        assert checkpointer.asked == 3


async def test_a_lease_that_cannot_be_given_back_ends_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    actor = CheckpointerActor()

    async def ask(message: Frozen) -> Any:
        if isinstance(message, ReleaseLease):
            raise PeerLost("it died", peer="checkpointer")
        return await actor.answer(message)

    threads = Threads("memory://", ask, clock=lambda: 1_000.0)
    checkpoint = await threads.write("t", AgentState(), metadata={"a": 1})
    [stored] = await threads.history("t")
    assert (stored.checkpoint_id, stored.created_at, stored.metadata) == (checkpoint, 1_000.0, {"a": 1})
    assert f"ends by itself in {LEASE_SECONDS:g} s" in caplog.text
    await actor.close()


@pytest.mark.ray
@pytest.mark.spec("MEM-44", "OURS-15")
async def test_updates_survive_the_death_of_the_checkpointer(fragile_runtime: Runtime, tmp_path: Path) -> None:
    agent = adding(checkpointer=f"sqlite:///{tmp_path}/t.db")
    threads = agent.threads_in(fragile_runtime)
    await threads.write("t", AgentState())
    backend: Any = fragile_runtime.backend
    reports = await asyncio.to_thread(backend.reports)
    for number in range(20):  # a thread has one writer at a time, so one after the other
        if number == 10:
            os.kill(reports["checkpointer/default/0"]["pid"], signal.SIGKILL)
        await threads.update("t", messages=f"note {number}")
    assert said(await threads.get_state("t")) == [f"note {number}" for number in range(20)]
    assert len(await threads.history("t", 100)) == 21, "none twice"
    await backend.close_here()
