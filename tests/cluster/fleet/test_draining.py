"""Draining a fleet: nothing begins, what runs may end, durable runs are suspended, what is left is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Fleet, Message, ModelResponse, Runtime, tool
from umbel.cluster.fleet import Backoff, load_fleet
from umbel.errors import RateLimited
from umbel.protocol.messages import Usage
from umbel.testing import ScriptedModel, text, tool_call

pytestmark = pytest.mark.case(24)


class Held:
    """Runs that end when the test says so."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        self.begun: list[str] = []
        self.gate = asyncio.Event()

    async def arun(self, prompt: str, **options: Any) -> Any:
        self.begun.append(prompt)
        await self.gate.wait()
        return self.outcome(message=prompt)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_runs_in_flight_end_and_nothing_begins(outcome: Any, out: Path, read_results: Any) -> None:
    agent = Held(outcome)
    fleet = Fleet(agent, concurrency=3, grace=60)
    running = asyncio.create_task(fleet.run([f"p{number}" for number in range(10)], out))
    await until(lambda: len(agent.begun) == 3)
    fleet.drain("enough")
    await asyncio.sleep(0.02)
    agent.gate.set()
    report = await running
    assert (report.ok, report.total, report.stopped, len(agent.begun)) == (3, 3, "enough", 3)
    assert len(read_results(out)) == 3


async def test_what_is_left_when_the_grace_ends_is_cancelled(outcome: Any, out: Path) -> None:
    agent = Held(outcome)
    fleet = Fleet(agent, concurrency=3)
    running = asyncio.create_task(fleet.run(["a", "b", "c", "d"], out))
    await until(lambda: len(agent.begun) == 3)
    fleet.drain("SIGTERM", grace=0.3)
    report = await running
    assert (report.cancelled, report.total, report.exit_code) == (3, 3, 143)


async def test_a_task_that_waits_for_another_attempt_gets_none(make_agent: Any, out: Path) -> None:
    def busy(prompt: str, attempt: int) -> Any:
        raise RateLimited("later")

    agent = make_agent(busy)
    fleet = Fleet(agent, concurrency=2, retries=5, backoff=Backoff(first=60, cap=60), grace=60)
    running = asyncio.create_task(fleet.run(["a", "b", "c"], out))
    await until(lambda: len(agent.calls) == 2)
    await asyncio.sleep(0.02)
    fleet.drain("enough")
    report = await running
    assert (report.cancelled, len(agent.calls)) == (2, 2)


async def test_a_worker_that_waits_for_a_task_does_not_hold_the_drain(make_agent: Any, out: Path) -> None:
    async def endless() -> Any:
        yield "a"
        await asyncio.Event().wait()

    agent = make_agent()
    fleet = Fleet(agent, concurrency=2, grace=60)
    running = asyncio.create_task(fleet.run(endless(), out))
    await until(lambda: len(agent.calls) == 1)
    fleet.drain("enough")
    report = await running
    assert (report.ok, report.total) == (1, 1)


class Counted(ScriptedModel):
    """Counts its calls, and answers none before the gate is open. Known in the test's process only."""

    def __init__(self, *turns: Any) -> None:
        super().__init__(turns)
        self.calls: list[str] = []
        self.gate = asyncio.Event()

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        prompt = next(message.content for message in messages if message.role == "user")
        self.calls.append(f"{prompt}.{sum(message.role == 'assistant' for message in messages)}")
        await self.gate.wait()
        return await super().complete(messages, tools, **settings)


@tool(idempotent=True)
async def look() -> str:
    """Look."""
    return "seen"


async def test_durable_runs_are_suspended_and_go_on_in_the_next_session(tmp_path: Path) -> None:
    model = Counted(tool_call("look"), tool_call("look"), text("done"))
    url = f"sqlite:///{tmp_path}/f.sqlite"
    async with Runtime(inline=True) as runtime:
        agent = Agent(model, [look], checkpointer=f"sqlite:///{tmp_path}/t.sqlite")
        fleet = Fleet(agent, name="f", store=url, concurrency=4, runtime=runtime, grace=60)
        running = asyncio.create_task(fleet.run(["a", "b", "c", "d", "e"]))
        await until(lambda: len(model.calls) == 4)
        fleet.drain("moving")
        await asyncio.sleep(0.02)
        model.gate.set()
        report = await running
        assert (report.cancelled, report.ok, report.stopped) == (4, 0, "moving")
        assert {failure.stop_reason for failure in report.failures} == {"suspended"}
        assert len(model.calls) == 4
        report = await fleet.run(["a", "b", "c", "d", "e"], resume=True)
    assert report.ok == 5
    assert len(model.calls) == len(set(model.calls)) == 15
    assert (await load_fleet(url, "f")).counts == {"ok": 5}


async def test_an_outcome_that_was_never_recorded_is_taken_from_its_thread(tmp_path: Path) -> None:
    model = Counted(tool_call("look"), text("done"))
    model.gate.set()
    url, threads = f"sqlite:///{tmp_path}/f.sqlite", f"sqlite:///{tmp_path}/t.sqlite"
    async with Runtime(inline=True) as runtime:
        agent = Agent(model, [look], checkpointer=threads)
        fleet = Fleet(agent, name="f", store=url, runtime=runtime)
        await fleet.run(["x"], limit=1)
        await agent.arun("a", thread_id="f/task-2", runtime=runtime)  # the end of it is not recorded: the driver was killed
        before = list(model.calls)
        report = await fleet.run(["x", "a"], resume=True)
        assert (report.ok, report.skipped) == (1, 1)
        assert model.calls == before


async def test_spend_of_a_run_that_goes_on_counts_once(tmp_path: Path) -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=5)
    model = Counted(tool_call("look").evolve(usage=usage), text("done").evolve(usage=usage))
    url = f"sqlite:///{tmp_path}/f.sqlite"
    async with Runtime(inline=True) as runtime:
        agent = Agent(model, [look], checkpointer=f"sqlite:///{tmp_path}/t.sqlite")
        fleet = Fleet(agent, name="f", store=url, runtime=runtime, grace=60)
        running = asyncio.create_task(fleet.run(["a"]))
        await until(lambda: model.calls)
        fleet.drain("moving")
        await asyncio.sleep(0.02)
        model.gate.set()
        await running
        assert (await load_fleet(url, "f")).tokens == 15
        await fleet.run(["a"], resume=True)
    assert (await load_fleet(url, "f")).tokens == 30
