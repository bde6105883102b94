"""Case 29: thousands of runs in one process leave nothing behind, however they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psutil
import pytest

from umbel import Agent, Message, ModelChunk, Runtime, tool
from umbel.errors import ModelError
from umbel.testing import ScriptedModel, error, text, tool_call

pytestmark = pytest.mark.case(29)

# Of each kind, so 2,000 and more; both times two are multiples of the batch in which agent actors learn what to forget.
RUNS = 512
WARM_UP = 512  # longer than a cycle of the relaxed collector, so that memory has reached its high-water mark
BYTES_PER_RUN = 1_024


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def wait() -> str:
    """Wait to be cancelled."""
    await asyncio.Event().wait()
    return "never"


class Trickles(ScriptedModel):
    """Streams one chunk, then waits to be cancelled."""

    async def stream(self, messages: list[Message], tools: Any = None, **settings: Any) -> AsyncIterator[ModelChunk]:
        yield ModelChunk(content="begun")
        await asyncio.Event().wait()


def adds() -> Agent:
    return Agent(ScriptedModel([tool_call("add", a=1, b=2), text("three")]), [add])


async def plain(agent: Agent) -> None:
    assert (await agent.arun("add " * 250)).success


async def streamed(agent: Agent) -> None:
    assert [event.event_type async for event in agent.run("add", stream_tokens=True)][-1] == "terminate"


async def cancelled(agent: Agent) -> None:
    run = asyncio.ensure_future(agent.arun("wait"))
    await asyncio.sleep(0)
    while not agent.cancel():
        await asyncio.sleep(0)
    assert (await run).stop_reason == "cancelled"


async def abandoned(agent: Agent) -> None:
    run = asyncio.ensure_future(agent.arun("wait"))
    for _ in range(5):
        await asyncio.sleep(0)
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run


async def closed_early(agent: Agent) -> None:
    stream = agent.run("tell", stream_tokens=True)
    async for _ in stream:
        break
    await stream.aclose()


async def failed(agent: Agent) -> None:
    with pytest.raises(ModelError):
        await agent.arun("fail")


KINDS: list[tuple[Callable[[Agent], Awaitable[None]], Callable[[], Agent]]] = [
    (plain, adds),
    (streamed, adds),
    (cancelled, lambda: Agent(ScriptedModel([tool_call("wait"), text("never")]), [wait])),
    (abandoned, lambda: Agent(ScriptedModel([tool_call("wait"), text("never")]), [wait])),
    (closed_early, lambda: Agent(Trickles([]))),
    (failed, lambda: Agent(ScriptedModel([error("no")]), model_retry=False)),
]


def census() -> Counter[str]:
    """Live objects by type: ours one by one, and those of the event loop."""
    gc.collect()
    kinds = Counter(type(thing) for thing in gc.get_objects())
    names = ((f"{kind.__dict__.get('__module__')}.{kind.__qualname__}", count) for kind, count in kinds.items())
    return Counter({name: count for name, count in names if name.startswith(("umbel.", "asyncio.", "_asyncio."))})


def everything() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize(("one", "agent"), KINDS, ids=[kind[0].__name__ for kind in KINDS])
async def test_runs_leave_nothing_behind(one: Callable[[Agent], Awaitable[None]], agent: Callable[[], Agent]) -> None:
    async with Runtime(inline=True):
        shared = agent()
        for _ in range(WARM_UP):
            await one(shared)
            await one(agent())
        before, objects, memory = census(), everything(), psutil.Process().memory_info().rss
        for _ in range(RUNS // 2):
            await one(shared)
            await one(agent())
        grown = census() - before
        assert sum(grown.values()) < 10, f"of {RUNS} runs there remain {grown.most_common(10)}"
        assert everything() - objects < RUNS // 10
        assert psutil.Process().memory_info().rss - memory < RUNS * BYTES_PER_RUN + 1_000_000


@pytest.mark.parametrize(("one", "agent"), KINDS, ids=[kind[0].__name__ for kind in KINDS])
async def test_dropped_agents_are_collected(one: Callable[[Agent], Awaitable[None]], agent: Callable[[], Agent]) -> None:
    async with Runtime(inline=True):
        made = agent()
        await one(made)
        gone = weakref.ref(made)
        del made
        for _ in range(10):  # generators that were closed early are finalised by the loop
            gc.collect()
            await asyncio.sleep(0)
        assert gone() is None, gc.get_referrers(gone())


async def test_results_hold_no_agent_and_no_runtime(runtime: Runtime) -> None:
    made = adds()
    result = await made.arun("add")
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert result.message == "three"
    if runtime.inline:  # on Ray the runtime keeps the definition's bytes, not the object
        assert gone() is None


def test_many_event_loops_leave_nothing_behind() -> None:
    agent = adds()

    async def once(runtime: Runtime) -> None:
        assert (await agent.arun("add", runtime=runtime)).success

    runtime = Runtime(inline=True)
    for _ in range(10):
        asyncio.run(once(runtime))
    before = census()
    for _ in range(50):
        asyncio.run(once(runtime))
    grown = census() - before
    runtime.close()
    assert sum(grown.values()) < 10, grown.most_common(10)
