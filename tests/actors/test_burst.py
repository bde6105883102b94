from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from umbel.actors.burst import Burst, begun

from .faulty_transport import ticks

name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


class Steps:
    """Coroutines that say when they begin, wait or end."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.tasks: dict[str, asyncio.Task[Any] | None] = {}

    async def quick(self, key: str) -> None:
        self.tasks[key] = asyncio.current_task()
        self.seen.append(key)

    async def waiting(self, key: str, gate: Callable[[], Any]) -> None:
        await self.quick(key)
        try:
            value = await gate()
        except BaseException as error:
            self.seen.append(f"{key} {type(error).__name__}")
            raise
        finally:
            self.seen.append(f"{key} ends")
        self.seen.append(f"{key} {value}")


def start(*jobs: Any) -> Burst:
    burst = Burst()
    burst.jobs.extend(jobs)
    burst.start()
    return burst


async def test_all_begin_in_their_order_whether_they_wait_or_not(clean_loop: None) -> None:
    steps, gate = Steps(), asyncio.Event()
    burst = start(steps.quick("a"), steps.waiting("b", gate.wait), steps.quick("c"), steps.waiting("d", gate.wait))
    burst.jobs.append(steps.quick("e"))
    burst.start()
    assert steps.seen == []
    await begun()
    assert steps.seen == ["a", "b", "c", "d", "e"]
    gate.set()
    await ticks(3)
    assert steps.seen[5:] == ["b ends", "b True", "d ends", "d True"]


async def test_those_that_do_not_wait_share_a_task_and_each_that_waits_has_its_own(clean_loop: None) -> None:
    steps, gate = Steps(), asyncio.Event()
    start(*(steps.quick(key) for key in "abc"), *(steps.waiting(key, gate.wait) for key in "def"))
    await begun()
    assert steps.tasks["a"] is steps.tasks["b"] is steps.tasks["c"] is steps.tasks["d"]
    assert len({id(steps.tasks[key]) for key in "def"}) == 3
    gate.set()
    await ticks(3)


async def test_what_is_started_later_begins_later(clean_loop: None) -> None:
    steps, gate = Steps(), asyncio.Event()
    burst = start(steps.waiting("a", gate.wait), steps.quick("b"))
    await asyncio.sleep(0)  # a has begun, b has a task of its own that has not
    burst.jobs.append(steps.quick("c"))
    burst.start()
    await begun()
    assert steps.seen == ["a", "b", "c"]
    gate.set()
    await ticks(3)


async def test_one_that_ends_late_does_not_disturb_those_that_are_about_to_begin(clean_loop: None) -> None:
    steps, gate = Steps(), asyncio.Event()
    burst = start(steps.waiting("a", gate.wait))
    await begun()
    gate.set()
    burst.jobs.append(steps.quick("b"))
    asyncio.get_running_loop().call_soon(burst.jobs.append, steps.quick("c"))  # between the end of a and the start of b
    burst.start()
    await ticks(3)
    assert [step for step in steps.seen if step in "abc"] == ["a", "b", "c"]


async def test_cancelling_reaches_only_the_one_that_waits(clean_loop: None) -> None:
    steps, gate = Steps(), asyncio.Event()
    start(steps.quick("a"), steps.waiting("b", gate.wait), steps.waiting("c", gate.wait))
    await begun()
    task = steps.tasks["b"]
    assert task is not None
    task.cancel()
    await ticks(3)
    assert steps.seen[3:] == ["b CancelledError", "b ends"]
    gate.set()
    await ticks(3)
    assert steps.seen[-1] == "c True"


async def test_one_that_cancels_its_own_task_harms_no_other(clean_loop: None) -> None:
    steps, gate = Steps(), asyncio.Event()

    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    gate.set()
    start(cancels_itself(), steps.quick("a"), steps.waiting("b", lambda: asyncio.sleep(0, "slept")))
    await ticks(5)
    assert steps.seen == ["a", "b", "b ends", "b slept"]


async def test_results_exceptions_and_timeouts_reach_what_waits(clean_loop: None) -> None:
    steps, loop = Steps(), asyncio.get_running_loop()
    result, error = loop.create_future(), loop.create_future()
    caught: list[str] = []

    async def fails() -> None:
        try:
            await error
        except ValueError as problem:
            caught.append(str(problem))

    async def times_out() -> None:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            caught.append("late")

    async def groups() -> None:
        async with asyncio.TaskGroup() as group:
            for key in "xy":
                group.create_task(steps.quick(key))
        caught.append("group")

    start(steps.waiting("a", lambda: result), fails(), times_out(), groups())
    await begun()
    result.set_result(5)
    error.set_exception(ValueError("wrong"))
    while len(caught) < 3:
        await ticks(1)
    assert steps.seen[-2:] == ["a ends", "a 5"] or "a 5" in steps.seen
    assert sorted(caught) == ["group", "late", "wrong"]


async def test_a_context_variable_of_one_that_waits_is_not_seen_by_others(clean_loop: None) -> None:
    gate, seen = asyncio.Event(), []

    async def job(key: str) -> None:
        seen.append((key, name.get()))
        token = name.set(key)
        await gate.wait()
        seen.append((key, name.get()))
        name.reset(token)

    start(job("a"), job("b"))
    await begun()
    gate.set()
    await ticks(3)
    assert seen == [("a", "nobody"), ("b", "nobody"), ("a", "a"), ("b", "b")]
