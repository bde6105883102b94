"""Async bodies beside the mailbox's loop: one that blocks delays nobody who has not begun on the same loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from umbel.actors.tools.decorator import Tool, tool
from umbel.actors.tools.toolloop import ToolLoop

Make = Callable[..., Any]


@tool
async def add(a: int, b: int) -> int:
    return a + b


@tool
async def thread_name() -> str:
    return f"{threading.current_thread().name} {threading.get_ident()}"


@pytest.fixture
def blocked() -> list[Tool]:
    return []


@pytest.fixture
async def loop(blocked: list[Tool]) -> AsyncIterator[ToolLoop]:
    tool_loop = ToolLoop(stuck_after=0.05, on_blocked=blocked.append)
    yield tool_loop
    tool_loop.close()


async def test_bodies_run_in_a_thread_of_their_own(loop: ToolLoop, request_for: Make) -> None:
    results = await asyncio.gather(*(loop.run(*request_for(add, a=n, b=1)) for n in range(500)))
    assert [result.content for result in results] == [str(n + 1) for n in range(500)]
    assert (await loop.run(*request_for(thread_name))).content.startswith("umbel-tool-loop")
    assert (await loop.run(*request_for(add, a="x"))).code == "invalid_arguments"


@pytest.mark.case(28)
@pytest.mark.spec("TOOL-16")
async def test_a_blocking_body_is_named_and_outlived(
    loop: ToolLoop, blocked: list[Tool], request_for: Make, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    @tool
    async def blocker() -> str:
        release.wait(30)  # the mistake: a blocking call in an async body
        return "late"

    before = (await loop.run(*request_for(thread_name))).content
    with caplog.at_level(logging.WARNING, "umbel.tools"):
        stuck = asyncio.ensure_future(loop.run(*request_for(blocker)))
        siblings = [asyncio.ensure_future(loop.run(*request_for(add, a=n, b=0))) for n in range(5)]
        assert [(await sibling).content for sibling in siblings] == ["0", "1", "2", "3", "4"]
    assert not stuck.done()
    assert blocked == [blocker]
    (record,) = caplog.records
    assert "'blocker'" in record.getMessage()
    assert "threading.py" in record.getMessage()  # the line that it is at: inside Event.wait
    assert (await loop.run(*request_for(thread_name))).content != before
    release.set()
    assert (await stuck).content == "late"


@pytest.mark.spec("OURS-17")
async def test_a_deadline_holds_while_the_loop_is_stuck(loop: ToolLoop, request_for: Make) -> None:
    release = threading.Event()

    @tool(timeout=0.3)
    async def blocker() -> None:
        release.wait(30)

    assert (await loop.run(*request_for(blocker))).code == "tool_timeout"
    release.set()


@pytest.mark.spec("OURS-17")
async def test_a_spinning_body_is_broken_into_at_its_deadline(loop: ToolLoop, request_for: Make) -> None:
    begun = threading.Event()

    @tool
    async def sibling() -> str:
        begun.set()
        await asyncio.sleep(0.1)
        return "went on"

    @tool(timeout=0.3)
    async def spins() -> None:
        while True:
            pass

    beside = asyncio.ensure_future(loop.run(*request_for(sibling)))
    assert await asyncio.to_thread(begun.wait, 10)
    assert (await loop.run(*request_for(spins))).code == "tool_timeout"
    assert (await beside).content == "went on", "its loop is free again"


@pytest.mark.spec("OURS-17")
async def test_calls_beside_a_body_that_never_gives_way_are_given_up(request_for: Make) -> None:
    loop = ToolLoop(stuck_after=0.05, lost_after=0.1)
    begun, release = threading.Event(), threading.Event()
    acted = []

    @tool
    async def sibling() -> None:
        begun.set()
        await asyncio.sleep(0.01)
        acted.append("late")

    @tool
    async def blocker() -> str:
        release.wait(30)
        return "at last"

    beside = asyncio.ensure_future(loop.run(*request_for(sibling)))
    assert await asyncio.to_thread(begun.wait, 10)
    stuck = asyncio.ensure_future(loop.run(*request_for(blocker)))
    result = await beside
    assert result.code == "outcome_unknown" and "blocked by another tool, 'blocker'" in (result.error or "")
    release.set()
    assert (await stuck).content == "at last"
    assert not acted, "what was given up does not act later"
    loop.close()


@pytest.mark.spec("TOOL-25")
async def test_a_body_cannot_end_its_loop(loop: ToolLoop, request_for: Make) -> None:
    @tool
    async def interrupts() -> None:
        raise KeyboardInterrupt("not from a keyboard")

    @tool
    async def stops() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return "still here"

    @tool
    async def throws_later() -> str:
        def throw() -> None:
            raise KeyboardInterrupt

        asyncio.get_running_loop().call_soon(throw)
        await asyncio.sleep(0.01)
        return "still here"

    result = await loop.run(*request_for(interrupts))
    assert (result.code, result.error) == ("tool", "KeyboardInterrupt: not from a keyboard")
    for body in (stops, throws_later):
        assert (await loop.run(*request_for(body))).content == "still here"


@pytest.mark.spec("OURS-5", "TOOL-24")
async def test_cancellation_reaches_the_body_or_keeps_it_from_starting(loop: ToolLoop, request_for: Make) -> None:
    begun, ended, ran = threading.Event(), threading.Event(), threading.Event()

    @tool
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @tool
    async def never() -> None:
        ran.set()

    task = asyncio.ensure_future(loop.run(*request_for(wait)))
    assert await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 10)

    release = threading.Event()

    @tool
    async def blocker() -> None:
        release.wait(30)

    stuck = asyncio.ensure_future(loop.run(*request_for(blocker)))
    behind = asyncio.ensure_future(loop.run(*request_for(never)))
    await asyncio.sleep(0)
    behind.cancel()
    await asyncio.wait({behind})  # the cancellation has arrived before the loop is free
    release.set()
    await stuck
    await loop.run(*request_for(add, a=1, b=1))
    assert not ran.is_set()


async def test_closing_answers_what_still_runs(request_for: Make) -> None:
    loop = ToolLoop()
    begun = threading.Event()

    @tool
    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(loop.run(*request_for(wait)))
    assert await asyncio.to_thread(begun.wait, 10)
    loop.close()
    result = await task
    assert not result.success
