"""Case 15: a durable run whose supervisor is killed goes on from its checkpoint; its caller sees the result, not the crash."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime, tool
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
