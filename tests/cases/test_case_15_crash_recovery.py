"""Case 15: a durable run whose supervisor is killed goes on from its checkpoint; its caller sees the result, not the crash."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest

from umbel import Agent, Hook, Message, ModelResponse, Runtime, tool
from umbel.errors import RunLost
from umbel.events import CustomEvent, Event, ThinkEvent, ToolCompleteEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls, validate_history

from .killing import kill, until

pytestmark = [pytest.mark.ray, pytest.mark.case(15)]


def lines(path: Path) -> list[str]:
    """What the processes of a test have written so far."""
    return path.read_text().split() if path.exists() else []


def mark(path: Path, line: str) -> None:
    """Add a line."""
    with path.open("a") as file:
        file.write(line + "\n")


async def events_of(agent: Agent, runtime: Runtime, thread: str) -> list[Event]:
    return [event async for event in agent.run("go", thread_id=thread, runtime=runtime)]


def recoveries(events: list[Event]) -> list[Any]:
    return [event.data["from"] for event in events if isinstance(event, CustomEvent) and event.name == "recovered"]


def hanging(log: Path) -> tuple[Any, Any, Any]:
    """A tool that was done, one that may not run twice and one that may; these two hang the first time."""

    @tool
    async def paid(amount: int) -> str:
        """A side effect that is soon over."""
        mark(log, "paid")
        return f"paid {amount}"

    @tool
    async def pays(amount: int) -> str:
        """A side effect that hangs."""
        mark(log, "pays")
        await asyncio.sleep(600)
        return "never"

    @tool(idempotent=True)
    async def reads() -> str:
        """Safe to repeat."""
        mark(log, "reads")
        await asyncio.sleep(600 if lines(log).count("reads") == 1 else 0)
        return "read"

    return paid, pays, reads


@pytest.mark.case(25)
@pytest.mark.spec("OURS-1", "OURS-15", "OURS-18")
async def test_killed_while_tools_run(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = [
        tool_call("paid", amount=1),
        tool_calls(("paid", {"amount": 2}), ("pays", {"amount": 3}), ("reads", {})),
        text("done"),
    ]
    agent = Agent(ScriptedModel(script), list(hanging(log)), checkpointer=f"sqlite:///{tmp_path}/t.db")
    run = asyncio.ensure_future(events_of(agent, fragile_runtime, "execute"))
    await until(lambda: Counter(lines(log)) == {"paid": 2, "pays": 1, "reads": 1})
    kill(fragile_runtime, "supervisor")
    async with asyncio.timeout(60):
        events = await run
    assert Counter(lines(log)) == {"paid": 2, "pays": 1, "reads": 2}, "only what is safe to repeat ran again"
    assert [event.seq for event in events] == list(range(len(events))) and recoveries(events) == ["checkpoint"]
    assert len({event.run_id for event in events}) == 1
    recovered = next(index for index, event in enumerate(events) if isinstance(event, CustomEvent))
    told = [(event.result, event.error) for event in events[recovered:] if isinstance(event, ToolCompleteEvent)]
    assert [result for result, _ in told] == ["paid 2", None, "read"] and "outcome unknown" in str(told[1][1])
    assert events[-1].final_message == "done"  # type: ignore[attr-defined]
    after = agent.with_settings(model=ScriptedModel([text("fine")]))
    result = await after.arun("and now?", thread_id="execute", runtime=fragile_runtime)
    validate_history(result.messages)


@pytest.mark.spec("OURS-1")
async def test_killed_while_the_model_thinks(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Slow(ScriptedModel):
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            mark(log, "asked")
            if len(lines(log)) == 3:  # of the second iteration: one call of this model, one mark of the tool
                await asyncio.sleep(600)
            return await super().complete(messages, tools, **settings)

    @tool
    async def pays() -> str:
        """A side effect."""
        mark(log, "paid")
        return "paid"

    agent = Agent(Slow([tool_call("pays"), text("done")]), [pays], checkpointer=f"sqlite:///{tmp_path}/t.db")
    run = asyncio.ensure_future(agent.arun("go", thread_id="think", runtime=fragile_runtime))
    await until(lambda: len(lines(log)) == 3)
    kill(fragile_runtime, "supervisor")
    async with asyncio.timeout(60):
        result = await run
    assert (result.message, result.stop_reason, result.metrics.iterations) == ("done", "complete", 2)
    assert lines(log).count("paid") == 1 and [done.result for done in result.tool_executions] == ["paid"]
    assert result.metrics.model_calls == 2
    validate_history(result.messages)


@pytest.mark.spec("OURS-1")
async def test_killed_before_anything_is_stored(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Hangs(ScriptedModel):
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            mark(log, "asked")
            await asyncio.sleep(600 if len(lines(log)) == 1 else 0)
            return await super().complete(messages, tools, **settings)

    agent = Agent(Hangs([text("done")]), checkpointer=f"sqlite:///{tmp_path}/t.db")
    run = asyncio.ensure_future(events_of(agent, fragile_runtime, "first"))
    await until(lambda: len(lines(log)) == 1)
    kill(fragile_runtime, "supervisor")
    async with asyncio.timeout(60):
        events = await run
    assert recoveries(events) == ["start"] and [event.seq for event in events] == list(range(len(events)))
    assert sum(isinstance(event, ThinkEvent) for event in events) == 1


class Phases(ScriptedModel):
    """A model that says when it is asked, and hangs at one of its calls, the first time."""

    def __init__(self, log: Path, hang_at: int) -> None:
        super().__init__([tool_call("pay"), text("done")])
        self.log = log
        self.hang_at = hang_at

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        mark(self.log, "asked")
        if lines(self.log).count("asked") == self.hang_at:
            await asyncio.sleep(600)
        return await super().complete(messages, tools, **settings)


def paying(log: Path, *, hangs: bool = False) -> Any:
    @tool
    async def pay() -> str:
        """A side effect."""
        mark(log, "paid")
        await asyncio.sleep(600 if hangs else 0)
        return "paid"

    return pay


@pytest.mark.spec("OURS-1", "OURS-18")
@pytest.mark.parametrize("actor", ["agent", "tools"])
async def test_killed_with_another_actor(fragile_runtime: Runtime, tmp_path: Path, actor: str) -> None:
    log = tmp_path / "log"
    thinks = actor == "agent"
    agent = Agent(Phases(log, 2 if thinks else 0), [paying(log, hangs=not thinks)], checkpointer=f"sqlite:///{tmp_path}/t.db")
    run = asyncio.ensure_future(events_of(agent, fragile_runtime, actor))
    await until(lambda: lines(log) == ["asked", "paid", "asked"][: 3 if thinks else 2])
    kill(fragile_runtime, actor)
    async with asyncio.timeout(60):
        events = await run
    assert [event.seq for event in events] == list(range(len(events))) and recoveries(events) == []
    assert lines(log).count("paid") == 1 and events[-1].final_message == "done"  # type: ignore[attr-defined]
    [told] = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert told.result == "paid" if thinks else "outcome unknown" in str(told.error)


@pytest.mark.spec("OURS-1")
async def test_killed_while_it_reflects(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Reflects(Hook):
        async def on_after_tool_call(self, event: Any) -> None:
            mark(log, "reflects")
            await asyncio.sleep(600 if lines(log).count("reflects") == 1 else 0)

    agent = Agent(Phases(log, 0), [paying(log)], hooks=[Reflects()], checkpointer=f"sqlite:///{tmp_path}/t.db")
    run = asyncio.ensure_future(events_of(agent, fragile_runtime, "reflect"))
    await until(lambda: "reflects" in lines(log))
    kill(fragile_runtime, "supervisor")
    async with asyncio.timeout(60):
        events = await run
    assert [event.seq for event in events] == list(range(len(events))) and recoveries(events) == ["checkpoint"]
    assert Counter(lines(log)) == {"asked": 2, "paid": 1, "reflects": 2}
    assert events[-1].final_message == "done"  # type: ignore[attr-defined]


@pytest.mark.spec("OURS-1", "OURS-15")
@pytest.mark.parametrize("actor", ["supervisor", "checkpointer"])
@pytest.mark.parametrize("write", ["before the call", "of the end"])
async def test_killed_while_a_checkpoint_is_written(fragile_runtime: Runtime, tmp_path: Path, actor: str, write: str) -> None:
    """The database is locked, so that the write is under way while the process dies."""
    log, database = tmp_path / "log", tmp_path / "t.db"
    lock_at = 1 if write == "before the call" else 2

    class Locks(Phases):
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            response = await super().complete(messages, tools, **settings)
            if lines(self.log).count("asked") == lock_at:
                mark(self.log, "lock")
                while "locked" not in lines(self.log):
                    await asyncio.sleep(0.01)
            return response

    agent = Agent(Locks(log, 0), [paying(log)], checkpointer=f"sqlite:///{database}?timeout=60")
    run = asyncio.ensure_future(agent.arun("go", thread_id=f"{actor} {write}", runtime=fragile_runtime))
    await until(lambda: "lock" in lines(log))
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    mark(log, "locked")
    await asyncio.sleep(0.2)  # the write may be on its way, or not yet: both must end well
    kill(fragile_runtime, actor)
    connection.execute("ROLLBACK")
    connection.close()
    async with asyncio.timeout(60):
        result = await run
    [done] = result.tool_executions
    if lines(log).count("paid"):
        assert done.result == "paid" and lines(log).count("paid") == 1
    else:  # the intent was stored after its writer had died: whether the body was started, nobody knows
        assert done.code == "outcome_unknown" and (actor, write) == ("supervisor", "before the call")
    assert result.message == "done"
    validate_history(result.messages)


@pytest.mark.spec("OURS-1", "OURS-3")
async def test_an_end_that_was_stored_is_told_and_nothing_runs_again(fragile_runtime: Runtime, tmp_path: Path) -> None:
    """The supervisor dies between the last save and the answer."""
    log = tmp_path / "log"

    class Late(Hook):
        async def on_after_invocation(self, state: Any, success: bool) -> None:
            mark(log, "over")
            await asyncio.sleep(600)

    agent = Agent(Phases(log, 0), [paying(log)], hooks=[Late()], output_key="answer", checkpointer=f"sqlite:///{tmp_path}/t.db")
    run = asyncio.ensure_future(events_of(agent, fragile_runtime, "streamed"))
    whole = asyncio.ensure_future(agent.arun("go", thread_id="whole", runtime=fragile_runtime))
    await until(lambda: lines(log).count("over") == 2)
    kill(fragile_runtime, "supervisor")
    async with asyncio.timeout(60):
        events, result = await run, await whole
    assert [event.seq for event in events] == list(range(len(events))) and recoveries(events) == ["end"]
    assert events[-1].final_message == "done"  # type: ignore[attr-defined]
    assert (result.message, result.stop_reason, result.metrics.iterations) == ("done", "complete", 2)
    assert result.state.metadata["answer"] == "done" and result.metrics.model_calls == 2
    assert Counter(lines(log)) == {"asked": 4, "paid": 2, "over": 2}


@pytest.mark.spec("OURS-5")
async def test_a_cancel_while_the_supervisor_is_away_is_not_lost(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    agent = Agent(Phases(log, 2), [paying(log)], checkpointer=f"sqlite:///{tmp_path}/t.db")
    run = asyncio.ensure_future(agent.arun("go", thread_id="cancelled", runtime=fragile_runtime))
    await until(lambda: lines(log).count("asked") == 2)
    kill(fragile_runtime, "supervisor")
    assert agent.cancel("cancelled") == 1
    async with asyncio.timeout(60):
        result = await run
    assert result.stop_reason == "cancelled" and [done.result for done in result.tool_executions] == ["paid"]
    assert lines(log).count("asked") == 2


@pytest.mark.spec("OURS-1")
async def test_a_run_that_kills_its_supervisor_is_given_up(
    fragile_runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"

    class Kills(Hook):
        async def on_iteration_start(self, iteration: int, state: Any) -> None:
            mark(log, "died")
            os._exit(1)

    actors: Any = fragile_runtime.backend._actors  # type: ignore[attr-defined]
    monkeypatch.setattr(actors, "shape", actors.shape.model_copy(update={"max_recoveries": 1}))
    agent = Agent(ScriptedModel([text("never")]), hooks=[Kills()], checkpointer=f"sqlite:///{tmp_path}/t.db")
    async with asyncio.timeout(60):
        with pytest.raises(RunLost, match="continue_turn"):
            await agent.arun("go", thread_id="poison", runtime=fragile_runtime)
    assert lines(log) == ["died", "died"]


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_killed_while_its_steps_are_not_stored_yet(
    fragile_runtime: Runtime, tmp_path: Path, durability: Literal["async", "exit"]
) -> None:
    """What was done since the last checkpoint is done again only where that is safe; nobody is told that it did not happen."""
    log = tmp_path / "log"
    paid, pays, reads = hanging(log)
    script = [
        tool_call("paid", amount=1),
        tool_calls(("paid", {"amount": 2}), ("pays", {"amount": 3}), ("reads", {})),
        text("ok"),
    ]
    url = f"sqlite:///{tmp_path}/t.db"
    agent = Agent(ScriptedModel(script), [paid, pays, reads], checkpointer=url, durability=durability)
    run = asyncio.ensure_future(events_of(agent, fragile_runtime, durability))
    await until(lambda: Counter(lines(log)) == {"paid": 2, "pays": 1, "reads": 1})
    kill(fragile_runtime, "supervisor")
    async with asyncio.timeout(60):
        events = await run
    assert Counter(lines(log)) == {"paid": 2, "pays": 1, "reads": 2}, "side effects once"
    assert [event.seq for event in events] == list(range(len(events)))
    last = {event.tool_call_id: event for event in events if isinstance(event, ToolCompleteEvent)}
    codes = Counter(event.code for event in last.values())
    assert codes["outcome_unknown"] >= 1 and set(codes) <= {None, "outcome_unknown"}
    assert events[-1].final_message == "ok"  # type: ignore[attr-defined]
