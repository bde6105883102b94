"""Children at the executor: who is asked, what comes back, and the places that waiting bodies give up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from umbel import Agent, ToolContext, tool
from umbel.actors.tools.executor import ToolExecutorActor
from umbel.errors import RunError, UnknownTool
from umbel.protocol.commands import CancelRun, ExecuteCall, SubagentAnswer, SubagentHeard, SubagentRequest
from umbel.protocol.events import CustomEvent
from umbel.protocol.messages import ToolCall
from umbel.protocol.results import RunOutcome
from umbel.testing import ScriptedModel, text

pytestmark = pytest.mark.timeout(60)


@tool(max_concurrency=1)
async def alone(n: int, ctx: ToolContext) -> str:
    """Run one, in a tool of which one call runs at a time."""
    if n == 0:
        return "leaf"
    INSIDE.append("before")
    done = await ctx.run_subagent(child(), f"{n}")
    INSIDE.append("after")
    await asyncio.sleep(0)
    INSIDE.append("end")
    return done.text


@tool(isolation="process")
def apart(n: int, ctx: ToolContext) -> str:
    """Run one from a worker process."""
    return "leaf" if n == 0 else ctx.run_subagent_sync(child(), f"{n}").text


@tool
async def listens(n: int, ctx: ToolContext) -> str:
    """Say what it hears."""
    names: list[str] = []
    done = await ctx.run_subagent(child(), "speak", on_event=lambda event: names.append(event.name))
    return f"{names} {done.text}"


@tool
async def gives_up(n: int, ctx: ToolContext) -> str:
    """Wait for a child for no time at all."""
    waiting = asyncio.ensure_future(ctx.run_subagent(child(), "never"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    KEPT.append(ctx)
    return "gave up"


TOOLS = {each.name: each for each in (alone, apart, listens, gives_up)}
INSIDE: list[str] = []
KEPT: list[ToolContext] = []


def child() -> Agent:
    return Agent(ScriptedModel([text("unused")]), name="child")


def find(definition: str, name: str) -> Any:
    if name not in TOOLS:
        raise UnknownTool(name)
    return TOOLS[name]


class Supervisor:
    """Answers requests as the supervisor would: by a further call at the same executor, or as told."""

    def __init__(self, executor: ToolExecutorActor, name: str) -> None:
        self.executor, self.name = executor, name
        self.stopped: list[str | None] = []
        self.asked: list[SubagentRequest] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def send(self, message: Any) -> None:
        if isinstance(message, CancelRun):
            self.stopped.append(message.run_id)
        elif isinstance(message, SubagentRequest):
            self.asked.append(message)
            task = asyncio.ensure_future(self.serve(message))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def serve(self, message: SubagentRequest) -> None:
        run_id, prompt = message.start.run_id, message.start.prompt
        if prompt == "never":
            return
        said = prompt
        if prompt == "speak":
            for name in ("one", "two"):
                await self.executor.heard(SubagentHeard(run_id=run_id, event=CustomEvent(name=name, data={})), None)
        else:
            said = await self.call(int(prompt) - 1)
        await self.executor.answered(SubagentAnswer(run_id=run_id, outcome=RunOutcome(run_id=run_id, message=said)), None)

    async def call(self, n: int) -> str:
        call = ToolCall(id=f"call_{n}", name=self.name, arguments={"n": n})
        reply = await self.executor.execute(ExecuteCall(run_id="r", definition="d", call=call), self)
        assert reply.result.error is None, reply.result.error
        return reply.result.content


@pytest.fixture(params=["own process", "inline"])
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[ToolExecutorActor]:
    """With a single worker process."""
    made = ToolExecutorActor(find, own_process=request.param == "own process", max_workers=1)
    yield made
    await made.close()


@pytest.mark.parametrize("name", ["alone", "apart"])
async def test_a_waiting_body_gives_its_place_up(executor: ToolExecutorActor, name: str) -> None:
    assert await Supervisor(executor, name).call(3) == "leaf"


async def test_it_has_its_place_again_when_it_goes_on(executor: ToolExecutorActor) -> None:
    INSIDE.clear()
    supervisor = Supervisor(executor, "alone")
    await asyncio.gather(*(supervisor.call(1) for _ in range(5)))
    # all five wait at once, and then no two of them are between "after" and "end" at once
    assert INSIDE[:2] == ["before", "before"] and INSIDE.count("end") == 5
    going_on = [step for step in INSIDE if step != "before"]
    assert going_on == ["after", "end"] * 5


async def test_events_come_in_order_and_before_the_answer(executor: ToolExecutorActor) -> None:
    assert await Supervisor(executor, "listens").call(1) == "['one', 'two'] speak"


async def test_giving_up_stops_the_child_and_the_end_closes_the_way(executor: ToolExecutorActor) -> None:
    supervisor = Supervisor(executor, "gives_up")
    assert await supervisor.call(1) == "gave up"
    [asked] = supervisor.asked
    assert supervisor.stopped == [asked.start.run_id]
    with pytest.raises(RunError, match="is over"):
        await KEPT.pop().run_subagent(child(), "too late")
    assert len(supervisor.asked) == 1
    # an answer that comes after all is nobody's
    late = SubagentAnswer(run_id=asked.start.run_id, outcome=RunOutcome(run_id=asked.start.run_id))
    await executor.answered(late, None)
