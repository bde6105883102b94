"""What an actor does when its node is drained; without a cluster."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from umbel import Agent, Runtime, tool
from umbel.cluster import node_drain
from umbel.cluster.cell import Cell
from umbel.cluster.node_drain import NO_DEADLINE, SHARE, leave_in_time
from umbel.testing import ScriptedModel, text, tool_call

gate: asyncio.Event
begun: asyncio.Event


@tool
async def work() -> str:
    """Takes as long as the test says."""
    begun.set()
    await gate.wait()
    return "done"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of this test's own; and nobody waits between two looks."""
    global gate, begun
    gate, begun = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(node_drain, "LOOK_SECONDS", 0.0)


def agent(**settings: Any) -> Agent:
    return Agent(ScriptedModel([tool_call("work"), text("ready")]), [work], **settings)


def cell_of(runtime: Runtime) -> Cell:
    backend: Any = runtime.backend
    cell: Cell = backend._cells[asyncio.get_running_loop()]
    return cell


async def test_a_durable_run_is_stored_at_its_next_boundary_and_waits_there() -> None:
    async with Runtime(inline=True) as runtime:
        durable = agent(checkpointer="memory://")
        run = asyncio.ensure_future(durable.arun("go", thread_id="t", runtime=runtime))
        await begun.wait()
        handed_over = asyncio.ensure_future(cell_of(runtime).hand_over(60))
        await asyncio.sleep(0.1)
        assert not handed_over.done(), "a call is under way"
        gate.set()
        assert await handed_over, "nothing was broken off"
        assert not run.done()
        state = await durable.get_state("t", runtime=runtime)
        assert [done.result for done in state.tool_executions] == ["done"] and state.turn.stop_reason is None
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run


async def test_a_run_that_waits_can_be_suspended() -> None:
    async with Runtime(inline=True) as runtime:
        run = asyncio.ensure_future(agent(checkpointer="memory://").arun("go", thread_id="t", runtime=runtime))
        await begun.wait()
        gate.set()
        assert await cell_of(runtime).hand_over(60)
        (request,) = [known.request for known in cell_of(runtime)._supervisor._runs.values()]  # type: ignore[union-attr]
        runtime.backend.cancel(request.run_id, request, suspend=True)
        assert (await run).stop_reason == "suspended"


async def test_a_run_without_a_thread_has_the_time_that_there_is() -> None:
    async with Runtime(inline=True) as runtime:
        run = asyncio.ensure_future(agent().arun("go", runtime=runtime))
        await begun.wait()
        assert not await cell_of(runtime).hand_over(0.1), "it would be broken off"
        gate.set()
        assert (await run).message == "ready"


class Leaver:
    """A cell that notes what it is told."""

    def __init__(self, ready: bool) -> None:
        self.mailbox = SimpleNamespace(name="tools/default/0")
        self.ready = ready
        self.seconds: float | None = None
        self.restarted = False

    async def hand_over(self, seconds: float) -> bool:
        self.seconds = seconds
        return self.ready

    async def restart(self) -> None:
        assert self.seconds is not None, "first it hands over"
        self.restarted = True


@pytest.mark.parametrize(
    ("deadline", "seconds"), [(1_100.0, 100 * SHARE), (0.0, NO_DEADLINE), (900.0, 0.0)], ids=["in time", "none", "passed"]
)
async def test_it_hands_over_within_its_share_of_the_time_and_starts_elsewhere(deadline: float, seconds: float) -> None:
    said: list[Any] = [None, None, OSError("the head is away"), deadline]

    def ask() -> float | None:
        answer = said.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer  # type: ignore[no-any-return]

    cell: Any = Leaver(ready=True)
    await leave_in_time(cell, ask, cell.restart, lambda: 1_000.0)
    assert (cell.seconds, cell.restarted, said) == (seconds, True, [])


async def test_what_is_broken_off_is_said(caplog: pytest.LogCaptureFixture) -> None:
    cell: Any = Leaver(ready=False)
    with caplog.at_level(logging.WARNING):
        await leave_in_time(cell, lambda: 1.0, cell.restart, lambda: 0.0)
    assert cell.restarted and "work under way" in caplog.text
