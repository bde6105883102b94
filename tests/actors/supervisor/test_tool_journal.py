"""What is written down of calls with side effects, and what becomes of them after a crash. Source: OURS-15, OURS-18."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, AgentState, Hook, Message, Runtime, ToolCall, ToolContext, tool
from umbel.actors.checkpoints import build_save
from umbel.actors.checkpoints.registry import open_store
from umbel.errors import StoreUnavailable
from umbel.events import Event, ToolCompleteEvent
from umbel.protocol.commands import StartRun
from umbel.protocol.messages import ToolResult
from umbel.protocol.state import ReasoningStep
from umbel.protocol.storage import JournalEntry
from umbel.testing import ScriptedModel, text, tool_call, tool_calls, validate_history

pytestmark = pytest.mark.spec("OURS-18")
DRIVER = Path(__file__).with_name("killed_driver.py")


async def journal_of(url: str) -> list[str]:
    """What the journal says now, as ``call phase result``."""
    store = open_store(url)
    try:
        loaded = await store.load("t")
    finally:
        await store.close()
    return [f"{entry.phase} {entry.result.content}" if entry.result else entry.phase for entry in loaded.journal]


def peeking(url: str, *, idempotent: bool = False) -> Any:
    @tool(idempotent=idempotent)
    async def peek(n: int) -> str:
        """Say what the journal holds while this runs."""
        return ", ".join(await journal_of(url)) or "nothing"

    return peek


async def results(calls: list[int], url: str, *, idempotent: bool = False, **settings: Any) -> list[str | None]:
    """The results of a batch of peeks."""
    batch = tool_calls(*(("peek", {"n": n}) for n in calls))
    agent = Agent(ScriptedModel([batch, text("ok")]), [peeking(url, idempotent=idempotent)], checkpointer=url, **settings)
    result = await agent.arun("go", thread_id="t")
    assert await journal_of(url) == [], "the save of the iteration settles it"
    return [done.result for done in result.tool_executions]


async def test_a_call_is_written_down_before_it_starts(runtime: Runtime, tmp_path: Path) -> None:
    assert await results([1], f"sqlite:///{tmp_path}/t.db") == ["begun"]


async def test_a_call_that_may_be_repeated_is_not_written_down(runtime: Runtime, tmp_path: Path) -> None:
    assert await results([1], f"sqlite:///{tmp_path}/t.db", idempotent=True) == ["nothing"]


@pytest.mark.parametrize("order", ["sequential", "completion"])
@pytest.mark.parametrize("idempotent", [True, False])
async def test_nobody_is_told_of_a_result_before_it_is_stored(
    runtime: Runtime, tmp_path: Path, order: str, idempotent: bool
) -> None:
    path = tmp_path / "t.db"
    told: list[bool] = []

    def is_stored(call_id: str) -> bool:
        connection = sqlite3.connect(path)
        entries = connection.execute("SELECT 1 FROM umbel_journal WHERE phase = 'done' AND call_id = ?", (call_id,)).fetchall()
        states = connection.execute("SELECT state FROM umbel_checkpoints").fetchall()
        connection.close()
        return bool(entries) or any('"role":"tool"' in text and call_id in text for text in (s.decode() for (s,) in states))

    def hear(event: Event) -> None:
        if isinstance(event, ToolCompleteEvent):
            told.append(is_stored(event.tool_call_id))

    @tool(idempotent=idempotent)
    async def wait(n: int) -> str:
        """Take a while."""
        await asyncio.sleep(n / 50)
        return f"waited {n}"

    script = [tool_call("wait", n=0), tool_calls(("wait", {"n": 3}), ("wait", {"n": 1}), ("wait", {"n": 2})), text("ok")]
    agent = Agent(
        ScriptedModel(script), [wait], checkpointer=f"sqlite:///{path}", callback_handler=hear, tool_event_order=order
    )
    await agent.arun("go", thread_id="t")
    assert told == [True] * 4


async def test_results_of_idempotent_calls_outlive_a_crash_before_their_batch_ends(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"

    @tool(idempotent=True)
    async def peek(n: int) -> str:
        """Say what the journal holds, a while after the call before."""
        await asyncio.sleep(n / 10)
        return ", ".join(await journal_of(url)) or "nothing"

    batch = tool_calls(*(("peek", {"n": n}) for n in range(3)))
    result = await Agent(ScriptedModel([batch, text("ok")]), [peek], checkpointer=url).arun("go", thread_id="t")
    first, second, third = (done.result for done in result.tool_executions)
    assert (first, second) == ("nothing", "done nothing")
    assert third == "done nothing, done done nothing"
    assert await journal_of(url) == []


async def test_calls_one_by_one_are_written_down_as_they_come(runtime: Runtime, tmp_path: Path) -> None:
    first, second, third = await results([1, 2, 3], f"sqlite:///{tmp_path}/t.db", tool_execution="sequential")
    assert (first, second) == ("begun", "begun, done begun, begun")
    assert third == "begun, done begun, begun, done begun, done begun, begun, begun"


async def test_calls_that_wait_for_room_are_written_down_when_they_start(runtime: Runtime, tmp_path: Path) -> None:
    found = await results([1, 2], f"sqlite:///{tmp_path}/t.db", max_concurrency=1)
    assert found == ["begun", "begun, done begun, begun"]


@pytest.mark.parametrize("every", [0, 2])
async def test_a_result_is_written_down_when_no_save_follows(runtime: Runtime, tmp_path: Path, every: int) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    log = tmp_path / "log"

    class Notes(Hook):
        async def on_iteration_end(self, iteration: int, state: Any) -> None:
            with log.open("a") as file:
                file.write(", ".join(await journal_of(url)) + "\n")

    @tool
    async def pay() -> str:
        """A side effect."""
        return "paid"

    agent = Agent(
        ScriptedModel([tool_call("pay"), text("ok")]),
        [pay],
        hooks=[Notes()],
        checkpointer=url,
        checkpoint_every_n_iterations=every,
    )
    await agent.arun("go", thread_id="t")
    assert log.read_text().splitlines()[0] == "begun, done paid"


def begun(call_id: str) -> JournalEntry:
    return JournalEntry(run_id="r-1", call_id=call_id, phase="begun")


def done(call_id: str, content: str | None) -> JournalEntry:
    result = None if content is None else ToolResult(tool_call_id=call_id, name="pay", content=content)
    return JournalEntry(run_id="r-1", call_id=call_id, phase="done", result=result)


async def leave(url: str, names: list[str], entries: tuple[JournalEntry, ...]) -> None:
    """What a process leaves that was killed while these calls ran."""
    calls = tuple(ToolCall(id=f"call_{n}", name=name, arguments={"n": n}) for n, name in enumerate(names))
    state = AgentState(
        run_id="r-1",
        iteration=1,
        messages=(Message.system("You are."), Message.user("go"), Message.assistant("I pay.", calls)),
    )
    store = open_store(url)
    save, _ = build_save(state, store=url, thread_id="t", checkpoint_id="c1", created_at=1.0)
    await store.save([save.evolve(entries=entries)])
    await store.close()


@pytest.mark.spec("OURS-1", "OURS-15")
async def test_what_becomes_of_the_calls_of_a_turn_that_goes_on(runtime: Runtime, tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path}/t.db", tmp_path / "log"

    @tool
    async def pay(n: int) -> str:
        """A side effect."""
        with log.open("a") as file:
            file.write(f"{n}\n")
        return f"paid {n}"

    @tool(idempotent=True)
    async def read(n: int) -> str:
        """Safe to repeat."""
        with log.open("a") as file:
            file.write(f"{n}\n")
        return f"read {n}"

    await leave(
        url,
        ["pay", "pay", "pay", "read", "pay"],
        (begun("call_0"), begun("call_1"), done("call_1", "paid then"), begun("call_3"), begun("call_4"), done("call_4", None)),
    )
    agent = Agent(ScriptedModel([text("never"), text("over")]), [pay, read], checkpointer=url)
    result = await agent.continue_turn("t")
    assert (result.message, result.run_id, result.metrics.iterations) == ("over", "r-1", 2)
    unknown, *known = result.tool_executions
    assert unknown.code == "outcome_unknown" and "Verify" in (unknown.error or "")
    assert [call.result for call in known] == ["paid then", "paid 2", "read 3", "paid 4"]
    assert sorted(log.read_text().split()) == ["2", "3", "4"]
    assert [step.thought for step in result.reasoning_steps] == ["I pay."]
    validate_history(result.messages)


@pytest.mark.spec("LOOP-8")
async def test_a_new_turn_gets_the_results_that_are_known(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    await leave(url, ["pay", "pay"], (begun("call_0"), begun("call_1"), done("call_1", "paid then")))
    result = await Agent(ScriptedModel([text("hello")]), checkpointer=url).arun("again", thread_id="t")
    first, second = (message.content for message in result.messages if message.role == "tool")
    assert "outcome unknown" in (first or "") and second == "paid then"
    validate_history(result.messages)


@pytest.mark.parametrize("order", ["sequential", "completion"])
async def test_hooks_see_results_that_come_from_the_journal(runtime: Runtime, tmp_path: Path, order: str) -> None:
    class Redacts(Hook):
        async def on_after_tool_call(self, event: Any) -> None:
            event.result = (event.result or "").replace("secret", "***")

    @tool
    async def pay(n: int) -> str:
        """A side effect."""
        return "never"

    url = f"sqlite:///{tmp_path}/t.db"
    await leave(url, ["pay"], (begun("call_0"), done("call_0", "a secret")))
    model = ScriptedModel([text("never"), text("over")])
    agent = Agent(model, [pay], hooks=[Redacts()], tool_event_order=order, checkpointer=url)
    result = await agent.continue_turn("t")
    assert [call.result for call in result.tool_executions] == ["a ***"]


@pytest.mark.spec("OURS-21")
@pytest.mark.parametrize("execution", ["concurrent", "sequential"])
async def test_no_body_runs_while_the_store_is_away(tmp_path: Path, execution: str) -> None:
    ran: list[int] = []
    connection = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    url = f"sqlite:///{tmp_path}/t.db?timeout=0.1"

    @tool
    async def pay(n: int) -> str:
        """A side effect; the first one takes the store away."""
        ran.append(n)
        if execution == "sequential":
            connection.execute("BEGIN IMMEDIATE")
        return "paid"

    class Locks(Hook):
        async def on_after_model_call(self, event: Any) -> None:
            if execution == "concurrent":
                connection.execute("BEGIN IMMEDIATE")

    model = ScriptedModel([tool_calls(("pay", {"n": 1}), ("pay", {"n": 2})), text("never")])
    agent = Agent(model, [pay], hooks=[Locks()], tool_execution=execution, checkpointer=url)
    async with Runtime(inline=True) as runtime:
        events: list[Any] = []
        with pytest.raises(StoreUnavailable):
            await agent.with_settings(callback_handler=events.append).arun("go", thread_id="t", runtime=runtime)
    connection.execute("ROLLBACK")
    connection.close()
    assert ran == ([] if execution == "concurrent" else [1])
    errors = [event.error for event in events if event.event_type == "tool_complete" and event.error]
    assert errors and all("not run" in error for error in errors)


@pytest.mark.case(15)
@pytest.mark.spec("OURS-1", "OURS-15")
async def test_a_turn_goes_on_in_another_process_when_its_driver_was_killed(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    driver = await asyncio.create_subprocess_exec(sys.executable, str(DRIVER), str(tmp_path))
    before = {"pay-1": 1, "read-1": 1, "pay-2": 1, "pay-3": 1, "read-2": 1}
    async with asyncio.timeout(60):
        while not log.exists() or Counter(log.read_text().split()) != before:
            await asyncio.sleep(0.02)
        while "paid 2" not in " ".join(await journal_of(f"sqlite:///{tmp_path}/t.db")):
            await asyncio.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    await driver.wait()
    result = await loaded(DRIVER).agent_in(tmp_path).continue_turn("t")
    assert (result.message, result.metrics.iterations, result.metrics.model_calls) == ("done", 3, 3)
    assert Counter(log.read_text().split()) == {**before, "read-2": 2}, "only what is safe to repeat ran again"
    assert [call.result for call in result.tool_executions] == ["paid 1", "page 1", "paid 2", None, "page 2"]
    assert result.tool_executions[3].code == "outcome_unknown"
    validate_history(result.messages)


def loaded(path: Path) -> Any:
    """The module in a file, as one that actors get with the definitions in it."""
    spec = importlib.util.spec_from_file_location("killed_driver", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.spec("OURS-2")
async def test_what_an_answer_sets_off_is_not_done_twice(runtime: Runtime, tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path}/t.db", tmp_path / "log"

    @tool
    async def book(ctx: ToolContext) -> str:
        """Book once a person has agreed, and see what the journal says by then."""
        agreed = ctx.interrupt("Book?")
        with log.open("a") as file:
            file.write(f"{agreed}\n")
        return ", ".join(await journal_of(url))

    agent = Agent(ScriptedModel([tool_call("book"), text("ok")]), [book], checkpointer=url)
    assert (await agent.arun("go", thread_id="t")).stop_reason == "interrupted"
    result = await agent.aresume("yes", thread_id="t")
    assert [call.result for call in result.tool_executions] == ["begun"] and log.read_text() == "yes\n"


@pytest.mark.spec("OURS-24")
async def test_an_agent_that_a_call_runs_is_not_run_twice(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    child = Agent(ScriptedModel([text("child's answer")]), name="pay").as_tool()
    await leave(url, ["pay", "pay"], (begun("call_0"),))
    agent = Agent(ScriptedModel([text("never"), text("over")]), [child], checkpointer=url)
    first, second = (await agent.continue_turn("t")).tool_executions
    assert first.code == "outcome_unknown" and "one argument: prompt" in (second.error or ""), "only the second was run"


@pytest.mark.parametrize(("heard", "told_again"), [(4, ["call_1", "call_2"]), (5, ["call_2"]), (6, [])])
async def test_ends_that_were_stored_and_had_not_left_the_supervisor_are_told(
    runtime: Runtime, tmp_path: Path, heard: int, told_again: list[str]
) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    agent = Agent(ScriptedModel([tool_calls(("pay", {"n": 1}), ("pay", {"n": 2})), text("ok")]), [paying()], checkpointer=url)
    call = [ToolCall(id=f"call_{n}", name="pay", arguments={"n": n}) for n in (1, 2)]
    done = [ToolResult(tool_call_id=each.id, name="pay", content=f"paid {each.arguments['n']}") for each in call]
    state = AgentState(
        run_id="r-1",
        iteration=1,
        messages=(Message.user("go"), Message.assistant("I pay.", tuple(call)), *map(Message.tool, done)),
        reasoning_steps=(ReasoningStep(iteration=1, tool_calls=tuple(call), tool_results=tuple(done)),),
    )
    facts = {"segment": "r-1", "ends": [[5, "call_1"], [6, "call_2"]]}
    store = open_store(url)
    save, _ = build_save(state, store=url, thread_id="t", checkpoint_id="c1", created_at=1.0, metadata=facts)
    await store.save([save])
    await store.close()

    events: list[Event] = []
    request = StartRun(
        run_id="r-1", definition=runtime.register(agent), prompt="", thread_id="t", recover=True, after_seq=heard, events=True
    )
    await runtime.execute(agent, request, events.append)
    assert [event.seq for event in events] == list(range(heard + 1, heard + 1 + len(events)))
    ended = [event.tool_call_id for event in events if isinstance(event, ToolCompleteEvent)]
    assert ended == told_again
    assert [type(event) for event in events[: len(ended)]] == [ToolCompleteEvent] * len(ended), "before anything else"
    assert len(events) > len(ended), "and the turn goes on"


def paying() -> Any:
    @tool
    async def pay(n: int) -> str:
        """A side effect."""
        raise AssertionError("it was done already")

    return pay


async def test_a_continued_turn_that_is_recovered_before_its_first_save_has_one_id(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    await leave(url, ["read"], ())

    @tool(idempotent=True)
    async def read(n: int) -> str:
        """Safe to repeat."""
        return f"read {n}"

    agent = Agent(ScriptedModel([tool_call("never"), text("ok")]), [read], checkpointer=url)
    events: list[Event] = []
    request = StartRun(
        run_id="r-2", definition=runtime.register(agent), prompt="", thread_id="t", mode="continue", recover=True, events=True
    )
    outcome = await runtime.execute(agent, request, events.append)
    assert outcome.stop_reason == "complete"
    assert {event.run_id for event in events} == {"r-1"}
    assert [event.seq for event in events] == list(range(len(events)))
