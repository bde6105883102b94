"""Case 25: an actor process is killed in the middle. Nobody waits for ever, and what can go on goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Message, ModelChunk, ModelResponse, Runtime, tool
from umbel.errors import PeerLost, RunLost
from umbel.events import Event, ModelChunkEvent, RunLostEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls, validate_history

pytestmark = [pytest.mark.ray, pytest.mark.case(25)]


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def mark(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait for a fact about the outside world (a file of another process), failing loudly when it does not come."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def kill(runtime: Runtime, actor: str) -> int:
    """SIGKILL the process of an actor."""
    pid: int = runtime.backend.reports()[f"{actor}/default/0"]["pid"]  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGKILL)
    return pid


@tool(idempotent=True)
async def step(number: int) -> int:
    """One step."""
    return number


def steps(messages: list[Message]) -> ModelResponse:
    """A model that goes on stepping, slowly enough to be killed meanwhile."""
    time.sleep(0.02)
    return tool_call("step", number=len(messages))


def endless() -> Agent:
    return Agent(ScriptedModel([steps], loop=True), [step], max_iterations=500, tool_loop_threshold=499)


@pytest.mark.spec("OURS-1")
async def test_a_stream_ends_when_its_supervisor_is_killed(fragile_runtime: Runtime) -> None:
    seen: list[Event] = []

    async def consume() -> None:
        async for event in endless().run("go", runtime=fragile_runtime):
            seen.append(event)
            if len(seen) == 3:
                kill(fragile_runtime, "supervisor")

    async with asyncio.timeout(60):
        with pytest.raises(RunLost, match="was lost") as raised:
            await consume()
    last = seen[-1]
    assert isinstance(last, RunLostEvent) and last.run_id == seen[0].run_id == raised.value.details["run_id"]
    assert [event.seq for event in seen] == list(range(len(seen))), "what was seen is known, without a hole"
    assert len(seen) > 3 and not any(isinstance(event, RunLostEvent) for event in seen[:-1])

    again = Agent(ScriptedModel([tool_call("step", number=1), text("works again")]), [step])
    events = [event async for event in again.run("go", runtime=fragile_runtime)]
    assert events[-1].event_type == "terminate"
    assert (await again.arun("go", runtime=fragile_runtime)).message == "works again"


async def test_every_caller_learns_that_its_supervisor_was_killed(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Waits:
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            mark(log, "asked")
            await asyncio.sleep(600)
            return text("never")

    agent = Agent(Waits())
    runs = [asyncio.ensure_future(agent.arun(str(number), runtime=fragile_runtime)) for number in range(20)]
    await until(lambda: len(lines(log)) == 20)
    kill(fragile_runtime, "supervisor")
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
    assert all(isinstance(outcome, RunLost) and outcome.retryable for outcome in outcomes)
    assert (await Agent(ScriptedModel([text("fine")])).arun("go", runtime=fragile_runtime)).message == "fine"


async def test_a_model_call_is_made_again_when_the_agent_actor_is_killed(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Slow(ScriptedModel):
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            mark(log, str(os.getpid()))
            if len(lines(log)) == 2:
                await asyncio.sleep(600)
            return await super().complete(messages, tools, **settings)

    agent = Agent(Slow([tool_call("step", number=4), lambda messages: text(f"got {messages[-1].content}")]), [step])
    async with asyncio.timeout(100):
        stream = asyncio.ensure_future(events_of(agent, fragile_runtime))
        await until(lambda: len(lines(log)) == 2)  # the second call, on a conversation that the actor holds
        killed = kill(fragile_runtime, "agent")
        events = await stream
    assert events[-1].final_message == "got 4"  # type: ignore[attr-defined]
    assert [event.seq for event in events] == list(range(len(events)))
    assert [event.event_type for event in events].count("think") == 2
    first, second, third = map(int, lines(log))
    assert first == second == killed != third


async def events_of(agent: Agent, runtime: Runtime) -> list[Event]:
    return [event async for event in agent.run("go", runtime=runtime)]


@pytest.mark.spec("OURS-18")
async def test_a_killed_tool_executor(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @tool
    async def pays(seconds: float) -> str:
        """A side effect, not safe to repeat."""
        mark(log, "pays")
        await asyncio.sleep(seconds)
        mark(log, "paid")
        return "paid"

    @tool(idempotent=True)
    async def reads() -> str:
        """Safe to repeat."""
        mark(log, "reads")
        await asyncio.sleep(600 if lines(log).count("reads") == 1 else 0)
        return "read"

    @tool(idempotent=True)
    def reads_apart() -> str:
        """Safe to repeat, in a worker process."""
        mark(log, "apart")
        time.sleep(600 if lines(log).count("apart") == 1 else 0)
        return "read apart"

    script = [
        tool_calls(("pays", {"seconds": 600}), ("reads", {}), ("reads_apart", {})),
        tool_call("pays", seconds=0),
        text("ok"),
    ]
    run = asyncio.ensure_future(Agent(ScriptedModel(script), [pays, reads, reads_apart]).arun("go", runtime=fragile_runtime))
    await until(lambda: {"pays", "reads", "apart"} <= set(lines(log)))
    kill(fragile_runtime, "tools")
    async with asyncio.timeout(100):
        result = await run
    assert result.success and result.message == "ok"
    validate_history(result.messages)
    lost, read, apart, paid = result.tool_executions
    assert lost.code == "outcome_unknown" and "outcome unknown" in (lost.error or "") and "pays" in (lost.error or "")
    assert (read.result, apart.result, paid.result) == ("read", "read apart", "paid")
    assert Counter(lines(log)) == {"pays": 2, "paid": 1, "reads": 2, "apart": 2}, "the lost call was not run again"


async def test_the_next_turn_works_after_the_checkpointer_was_killed(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log, database = tmp_path / "log", tmp_path / "threads.db"

    @tool
    async def gate(name: str) -> str:
        """Wait until the gate opens."""
        mark(log, f"{name}-reached")
        while f"{name}-open" not in lines(log):
            await asyncio.sleep(0.02)
        return name

    def recall(messages: list[Message]) -> ModelResponse:
        return text(" ".join(message.content or "" for message in messages if message.role == "user"))

    agent = Agent(ScriptedModel([recall]), checkpointer=f"sqlite:///{database}")
    assert (await agent.arun("one", thread_id="t", runtime=fragile_runtime)).message == "one"
    kill(fragile_runtime, "checkpointer")
    async with asyncio.timeout(100):
        assert (await agent.arun("two", thread_id="t", runtime=fragile_runtime)).message == "one two"

    # In the middle of a turn: what was saved is there, and saving goes on.
    waits = Agent(ScriptedModel([tool_call("gate", name="g"), recall]), [gate], checkpointer=f"sqlite:///{database}")
    run = asyncio.ensure_future(waits.arun("three", thread_id="t", runtime=fragile_runtime))
    await until(lambda: "g-reached" in lines(log))
    kill(fragile_runtime, "checkpointer")
    mark(log, "g-open")
    async with asyncio.timeout(100):
        assert (await run).message == "one two three"
        result = await agent.arun("four", thread_id="t", runtime=fragile_runtime)
    assert result.message == "one two three four"
    validate_history(result.messages)
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        positions = [row[0] for row in connection.execute("SELECT position FROM umbel_checkpoints ORDER BY position")]
    connection.close()
    assert positions == list(range(positions[0], positions[0] + len(positions)))


async def test_a_reply_that_breaks_off_while_it_streams_is_an_error_and_the_turn_can_go_on(
    fragile_runtime: Runtime, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    class Trickles(ScriptedModel):
        async def stream(self, messages: list[Message], tools: Any = None, **settings: Any) -> AsyncIterator[ModelChunk]:
            mark(log, "asked")
            for word in ("one ", "two ", "three "):
                yield ModelChunk(content=word)
            if lines(log).count("asked") == 1:
                await asyncio.sleep(600)
            yield ModelChunk(done=True, stop_reason="stop")

    agent = Agent(Trickles([text("one two three four")]), checkpointer=f"sqlite:///{tmp_path}/t.db")
    seen: list[Event] = []

    async def consume() -> None:
        async for event in agent.run("go", thread_id="t", stream_tokens=True, runtime=fragile_runtime):
            seen.append(event)
            if sum(isinstance(each, ModelChunkEvent) for each in seen) == 3 and len(lines(log)) == 1:
                kill(fragile_runtime, "agent")
                mark(log, "killed")

    async with asyncio.timeout(60):
        with pytest.raises(PeerLost):
            await consume()
    assert [event.seq for event in seen] == list(range(len(seen))), "what was seen is known, without a hole"
    assert "".join(event.content or "" for event in seen if isinstance(event, ModelChunkEvent)) == "one two three "
    async with asyncio.timeout(60):
        result = await agent.continue_turn("t", runtime=fragile_runtime)
    assert result.success and result.message == "one two three four"
    validate_history(result.messages)
