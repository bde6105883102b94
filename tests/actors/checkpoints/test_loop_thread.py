"""The thread that a store's connections live in: calls and results go over together, none is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from umbel.actors.checkpoints.loop_thread import LoopThread
from umbel.errors import StoreUnavailable


async def nothing() -> None:
    """What a store without connections gives up."""


@pytest.fixture
async def thread() -> AsyncIterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    await thread.close(nothing())


async def tick() -> int:
    """Which tick of the thread's loop it is: the same for everything that was taken together."""
    loop: Any = asyncio.get_running_loop()
    ticks: dict[str, int] = loop.__dict__.setdefault("ticks", {"now": 0, "due": 0})
    if not ticks["due"]:
        ticks["due"] = 1
        ticks["now"] += 1
        loop.call_soon(ticks.__setitem__, "due", 0)
    return ticks["now"]


async def test_calls_that_come_while_the_thread_is_busy_are_taken_together(thread: LoopThread) -> None:
    free = threading.Event()

    async def busy() -> None:
        free.wait(10)

    first = asyncio.ensure_future(thread.run(busy()))
    await asyncio.sleep(0)
    calls = [asyncio.ensure_future(thread.run(tick())) for _ in range(50)]
    await asyncio.sleep(0)
    free.set()
    await first
    assert len(set(await asyncio.gather(*calls))) == 1


async def test_each_caller_gets_its_own_result_or_error(thread: LoopThread) -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        if number % 3 == 0:
            raise ValueError(number)
        return number

    found = await asyncio.gather(*(thread.run(work(number)) for number in range(30)), return_exceptions=True)
    assert [each if isinstance(each, int) else each.args[0] for each in found] == list(range(30))
    assert [isinstance(each, ValueError) for each in found] == [number % 3 == 0 for number in range(30)]


async def test_a_caller_that_is_cancelled_cancels_its_work_alone(thread: LoopThread) -> None:
    begun, stopped = threading.Event(), threading.Event()

    async def long() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    call = asyncio.ensure_future(thread.run(long()))
    await asyncio.to_thread(begun.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(stopped.wait, 10)
    assert await thread.run(asyncio.sleep(0, "on")) == "on"


async def test_callers_in_several_loops_get_their_answers(thread: LoopThread) -> None:
    def elsewhere(number: int) -> int:
        return asyncio.run(thread.run(asyncio.sleep(0, number)))

    assert await asyncio.gather(*(asyncio.to_thread(elsewhere, number) for number in range(8))) == list(range(8))


async def test_closing_waits_for_what_was_asked_and_refuses_what_comes_later() -> None:
    thread = LoopThread("test")
    go = threading.Event()

    async def work() -> str:
        await asyncio.to_thread(go.wait, 10)
        return "done"

    call = asyncio.ensure_future(thread.run(work()))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(thread.close(nothing()))
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="closed"):
        await thread.run(nothing())
    go.set()
    await closing
    assert await call == "done"
    await thread.close(nothing())
