"""The tool executor: where bodies run, limits, progress, unknown tools, and a mailbox that never waits for a tool."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from umbel.actors.tools.context import ToolContext
from umbel.actors.tools.decorator import Tool, tool
from umbel.actors.tools.executor import ToolExecutorActor, unknown_tool_text
from umbel.protocol.codec import to_json
from umbel.protocol.commands import ExecuteCall, ToolProgress
from umbel.protocol.errors import UnknownTool
from umbel.protocol.messages import Frozen, Message, ToolCall, ToolResult
from umbel.protocol.state import AgentState

Open = Callable[..., "Bench"]


class Bench:
    """An executor with tools, and its caller."""

    def __init__(self, tools: tuple[Tool, ...], **options: Any) -> None:
        self.tools = {each.name: each for each in tools}
        self.actor = ToolExecutorActor(self.find, **options)
        self.sent: list[Frozen] = []
        self.arrived = asyncio.Event()

    def find(self, definition: str, name: str) -> Tool:
        if name not in self.tools:
            raise UnknownTool(unknown_tool_text(name, self.tools))
        return self.tools[name]

    def send(self, message: Frozen) -> None:
        self.sent.append(message)
        self.arrived.set()

    async def run(self, name: str, **arguments: Any) -> ToolResult:
        call = ToolCall(id=f"call_{name}", name=name, arguments=arguments)
        message = ExecuteCall(
            run_id="r", definition="d", call=call, iteration=2, metadata={"m": 1}, ephemeral={"e": 2}, agent_name="a"
        )
        return (await self.actor.execute(message, self)).result


@pytest.fixture
async def bench() -> AsyncIterator[Open]:
    """``bench(*tools, own_process=...)``."""
    opened: list[Bench] = []

    def make(*tools: Tool, own_process: bool = False, **options: Any) -> Bench:
        opened.append(Bench(tools, own_process=own_process, **options))
        return opened[-1]

    yield make
    for each in opened:
        await each.actor.close()


@tool
def sync_place() -> str:
    return f"{os.getpid()} {threading.get_ident()}"


@tool
async def async_place() -> str:
    return f"{os.getpid()} {threading.get_ident()}"


@tool(isolation="process")
async def far_place() -> str:
    return f"{os.getpid()} {threading.get_ident()}"


@tool(isolation="thread")
def near_place() -> str:
    return f"{os.getpid()} {threading.get_ident()}"


@pytest.mark.spec("OURS-17", "TOOL-16")
@pytest.mark.parametrize(
    ("name", "own_process", "same_process", "same_thread"),
    [
        ("sync_place", False, True, False),
        ("async_place", False, True, True),
        ("far_place", False, False, False),
        ("sync_place", True, False, False),
        ("near_place", True, True, False),
        ("async_place", True, True, False),
        ("far_place", True, False, False),
    ],
)
async def test_where_bodies_run(bench: Open, name: str, own_process: bool, same_process: bool, same_thread: bool) -> None:
    opened = bench(sync_place, async_place, far_place, near_place, own_process=own_process)
    pid, thread = (await opened.run(name)).content.split()
    assert (int(pid) == os.getpid()) is same_process
    assert (int(pid) == os.getpid() and int(thread) == threading.get_ident()) is same_thread


@pytest.mark.spec("TOOL-12")
@pytest.mark.parametrize("own_process", [False, True])
async def test_the_context_arrives(bench: Open, own_process: bool) -> None:
    @tool
    def look(ctx: ToolContext) -> list[Any]:
        return [ctx.tool_call_id, ctx.tool_name, ctx.agent_id, ctx.run_id, ctx.iteration, ctx.metadata, ctx.ephemeral_metadata]

    result = await bench(look, own_process=own_process).run("look")
    assert result.content.split() == [
        "[",
        '"call_look",',
        '"look",',
        '"a",',
        '"r",',
        "2,",
        "{",
        '"m":',
        "1",
        "},",
        "{",
        '"e":',
        "2",
        "}",
        "]",
    ]


@pytest.mark.spec("TOOL-12")
@pytest.mark.parametrize("own_process", [False, True])
async def test_the_state_of_the_run_arrives(bench: Open, own_process: bool) -> None:
    @tool
    def look(ctx: ToolContext) -> list[Any]:
        return [ctx.confidence, [message.content for message in ctx.messages]]

    state = to_json(AgentState(run_id="r", confidence=0.5, messages=(Message.user("do it"),)))
    opened = bench(look, own_process=own_process)
    for sent, seen in ((state, [0.5, ["do it"]]), (None, [None, []])):
        message = ExecuteCall(run_id="r", definition="d", call=ToolCall(id="c", name="look"), state=sent)
        assert json.loads((await opened.actor.execute(message, opened)).result.content) == seen


@pytest.mark.spec("TOOL-22", "OURS-10")
@pytest.mark.case(7)
async def test_unknown_tools_are_results_with_the_choices(bench: Open) -> None:
    opened = bench(sync_place, async_place)
    result = await opened.run("sync_plase")
    assert result.code == "unknown_tool"
    assert result.error == ("Unknown tool: 'sync_plase'. Did you mean 'sync_place'? Available tools: async_place, sync_place.")
    assert "'search'?" in unknown_tool_text("search<|junk|>", ["search", "other"])
    assert len(unknown_tool_text("x" * 100_000, [f"tool_{n}" * 10 for n in range(5_000)])) < 2_000
    assert "no tools" in unknown_tool_text("x", [])


async def test_a_definition_that_cannot_be_loaded_is_a_result(bench: Open) -> None:
    opened = bench()

    def broken(definition: str, name: str) -> Tool:
        raise ImportError("no module named x")

    opened.actor._find_tool = broken
    assert (await opened.run("any")).error == "ImportError: no module named x"


@pytest.mark.spec("OURS-17", "TOOL-5")
async def test_max_concurrency(bench: Open) -> None:
    running: list[int] = [0, 0]

    @tool(max_concurrency=2)
    async def limited() -> None:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0)
        running[0] -= 1

    opened = bench(limited)
    await asyncio.gather(*(opened.run("limited") for _ in range(10)))
    assert running == [0, 2]
    assert opened.actor.calls == 10
    assert opened.actor.running == 0


@pytest.mark.spec("TOOL-27")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("own_process", [False, True])
async def test_progress(bench: Open, kind: str, own_process: bool) -> None:
    def synchronous(ctx: ToolContext) -> list[bool]:
        return [ctx.report_progress(1, 2, "half"), ctx.report_progress(2)]

    async def asynchronous(ctx: ToolContext) -> list[bool]:
        return synchronous(ctx)

    function = asynchronous if kind == "async" else synchronous
    opened = bench(tool(name="loud", emits_progress=True)(function), tool(name="quiet")(function), own_process=own_process)
    assert (await opened.run("loud")).content.split() == ["[", "true,", "true", "]"]
    assert (await opened.run("quiet")).content.split() == ["[", "false,", "false", "]"]
    assert opened.sent == [
        ToolProgress(tool_call_id="call_loud", progress=1, total=2, message="half"),
        ToolProgress(tool_call_id="call_loud", progress=2),
    ]


@pytest.mark.spec("TOOL-27")
async def test_a_captured_reporter_works_from_other_threads_until_the_call_ends(bench: Open) -> None:
    captured: list[ToolContext] = []

    @tool(emits_progress=True)
    async def task(ctx: ToolContext) -> bool:
        captured.append(ctx)
        return await asyncio.to_thread(ctx.report_progress, 1)

    opened = bench(task)
    assert (await opened.run("task")).content == "True"
    assert len(opened.sent) == 1
    assert captured[0].report_progress(2) is False


@pytest.mark.case(28)
@pytest.mark.parametrize("own_process", [False, True])
async def test_a_sync_tool_leaves_heartbeats_and_siblings_alone(bench: Open, own_process: bool) -> None:
    beats: list[float] = []
    over = asyncio.Event()

    @tool
    def sleep() -> str:
        time.sleep(2)
        return "slept"

    @tool
    async def wait() -> str:
        await asyncio.sleep(1)
        return "waited"

    async def heartbeat() -> None:
        while not over.is_set():
            beats.append(time.monotonic())
            await asyncio.sleep(0.05)

    opened = bench(sleep, wait, own_process=own_process)
    order: list[str] = []

    async def run(name: str) -> None:
        order.append((await opened.run(name)).content)

    heart = asyncio.ensure_future(heartbeat())
    await asyncio.gather(run("sleep"), run("wait"))
    over.set()
    await heart
    assert order == ["waited", "slept"]
    # About 40 beats fit. A blocked loop gives one or two; a busy machine still gives most of them.
    assert len(beats) >= 20


@pytest.mark.case(28)
async def test_an_async_tool_that_blocks_is_moved_to_a_process(bench: Open) -> None:
    @tool
    async def rude(seconds: float) -> int:
        time.sleep(seconds)  # noqa: ASYNC251 - the mistake under test
        return os.getpid()

    opened = bench(rude, async_place, own_process=True, stuck_after=0.05)
    first, place = await asyncio.gather(opened.run("rude", seconds=1), opened.run("async_place"))
    assert first.content == str(os.getpid())
    assert place.success
    assert (await opened.run("rude", seconds=0)).content != str(os.getpid())


@pytest.mark.spec("OURS-5")
@pytest.mark.parametrize("own_process", [False, True])
async def test_cancelling_the_request_reaches_the_body(bench: Open, own_process: bool) -> None:
    begun, ended = threading.Event(), threading.Event()

    @tool
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    opened = bench(wait, own_process=own_process)
    task = asyncio.ensure_future(opened.run("wait"))
    assert await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 10)
    assert opened.actor.running == 0


@pytest.mark.spec("TOOL-25", "OURS-17")
@pytest.mark.case(5)
async def test_hostile_siblings_in_one_executor(bench: Open) -> None:
    @tool
    def crash() -> None:
        os._exit(1)

    @tool
    def fail() -> None:
        raise ValueError("bad")

    @tool(timeout=0.3)
    def late() -> None:
        time.sleep(60)

    @tool
    async def block() -> str:
        time.sleep(0.5)  # noqa: ASYNC251 - the mistake under test
        return "done"

    @tool
    def fine(n: int) -> int:
        return n

    opened = bench(crash, fail, late, block, fine, own_process=True, stuck_after=0.05)
    names = ["fine", "crash", "fine", "fail", "late", "block", "fine"]
    results = await asyncio.gather(*(opened.run(name, **({"n": 7} if name == "fine" else {})) for name in names))
    assert [result.code for result in results] == [None, "tool_crashed", None, "tool", "tool_timeout", None, None]
    assert [result.content for result in results if result.name == "fine"] == ["7", "7", "7"]
    assert opened.actor.worker_pids


async def test_an_agent_tool_is_not_run_here(bench: Open) -> None:
    opened = bench(Tool(name="expert", agent=object()), own_process=True)
    result = await opened.run("expert", prompt="x")
    assert "supervisor" in (result.error or "")


def test_an_executor_serves_whichever_loop_it_runs_on() -> None:
    for _ in range(2):

        async def main() -> ToolResult:
            opened = Bench((sync_place,), own_process=False)
            try:
                return await opened.run("sync_place")
            finally:
                await opened.actor.close()

        assert asyncio.run(main()).success
