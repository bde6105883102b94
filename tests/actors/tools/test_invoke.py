"""One call from arguments to result, on the loop and in threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from umbel.actors.tools.context import ToolContext, current_tool_context
from umbel.actors.tools.decorator import tool
from umbel.actors.tools.invoke import REPORTED, invoke
from umbel.actors.tools.output import ToolOutput
from umbel.actors.tools.threads import Threads
from umbel.protocol.messages import Message, ToolCall

Make = Callable[..., Any]


@pytest.mark.spec("TOOL-14", "TOOL-15", "BUG-37", "LOOP-95")
async def test_arguments_are_validated_and_coerced(request_for: Make) -> None:
    @tool
    async def add(a: int, b: int) -> int:
        return a + b

    assert (await invoke(*request_for(add, a="1", b=2))).content == "3"
    result = await invoke(*request_for(add, a="x"))
    assert (result.code, result.success, result.content) == ("invalid_arguments", False, "")
    assert "b: missing" in (result.error or "")
    assert (Message.tool(result).content or "").startswith("Error: Invalid arguments for tool 'add'")


@pytest.mark.spec("TOOL-22", "OURS-10")
@pytest.mark.case(1)
async def test_malformed_arguments_never_reach_the_body(request_for: Make) -> None:
    ran = []

    @tool
    async def search(q: str = "") -> None:
        ran.append(q)

    _, _, context = request_for(search)
    raw = '{"q": "x' + "y" * 1_000
    result = await invoke(search, ToolCall(id="c", name="search", malformed_arguments=raw), context)
    assert not ran
    assert result.code == "invalid_arguments"
    assert raw[:300] in (result.error or "")
    assert raw[:301] not in (result.error or "")
    assert "again" in (result.error or "")


@pytest.mark.spec("TOOL-12", "TOOL-13", "TOOL-16")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_each_call_sees_its_own_context(kind: str) -> None:
    together = threading.Barrier(2)

    def look(ctx: ToolContext) -> list[Any]:
        inner = current_tool_context()
        return [ctx.tool_call_id, inner is ctx]

    @tool(name="look")
    async def asynchronous(ctx: ToolContext) -> list[Any]:
        await asyncio.sleep(0)
        return look(ctx)

    @tool(name="look")
    def synchronous(ctx: ToolContext) -> list[Any]:
        together.wait(10)
        return look(ctx)

    chosen = asynchronous if kind == "async" else synchronous
    calls = [ToolCall(id=f"c{n}", name="look") for n in range(2)]
    results = await asyncio.gather(*(invoke(chosen, call, ToolContext(tool_call_id=call.id)) for call in calls))
    assert [result.content.split() for result in results] == [["[", '"c0",', "true", "]"], ["[", '"c1",', "true", "]"]]
    assert current_tool_context() is None


@pytest.mark.spec("TOOL-22", "TOOL-25", "TOOL-14", "BUG-37")
@pytest.mark.parametrize(
    "error", [ValueError("no\nmore"), TypeError("inside"), SystemExit(3), MemoryError(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_whatever_a_body_raises_is_a_result(request_for: Make, error: BaseException, kind: str) -> None:
    async def asynchronous() -> None:
        raise error

    def synchronous() -> None:
        raise error

    result = await invoke(*request_for(tool(asynchronous if kind == "async" else synchronous)))
    assert result.code == "tool"
    assert (result.error or "").startswith(type(error).__name__)
    assert "more" not in (result.error or "")


@pytest.mark.case(5)
async def test_a_failing_sibling_takes_nothing_along(request_for: Make) -> None:
    counts = {"a": 0, "b": 0, "c": 0}

    @tool
    async def step(name: str) -> str:
        counts[name] += 1
        await asyncio.sleep(0)
        if name == "b":
            raise RuntimeError("broken")
        return name

    results = await asyncio.gather(*(invoke(*request_for(step, name=name)) for name in "abc"))
    assert [result.content or result.error for result in results] == ["a", "RuntimeError: broken", "c"]
    assert counts == {"a": 1, "b": 1, "c": 1}


@pytest.mark.spec("TOOL-24")
async def test_cancellation_propagates_into_the_body(request_for: Make) -> None:
    seen = asyncio.Event()
    begun = asyncio.Event()

    @tool(name="wait")
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.set()
            raise

    task = asyncio.ensure_future(invoke(*request_for(wait)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen.is_set()


@pytest.mark.spec("TOOL-18")
async def test_rich_output(request_for: Make) -> None:
    @tool
    async def rich(bad: bool) -> ToolOutput:
        return ToolOutput("text", structured_content={"a": 1}, content_blocks=[{"b": 2}], is_error=bad)

    good, bad = [await invoke(*request_for(rich, bad=flag)) for flag in (False, True)]
    assert (good.content, good.structured_content, good.content_blocks) == ("text", {"a": 1}, ({"b": 2},))
    assert (bad.content, bad.error, bad.code) == ("", "text", REPORTED)


@pytest.mark.case(2)
async def test_results_are_valid_unicode(request_for: Make) -> None:
    @tool
    async def cut(kind: str) -> Any:
        class Item(BaseModel):
            text: str = "pair \ud83d\ude00"

        return {"text": "ok \ud83d", "dict": {"k": "ok \ud83d"}, "model": Item()}[kind]

    for kind, expected in (("text", "ok \ufffd"), ("dict", '{\n  "k": "ok \ufffd"\n}'), ("model", '"pair \U0001f600"')):
        content = (await invoke(*request_for(cut, kind=kind))).content
        assert expected in content
        content.encode()


async def test_unprintable_results_are_errors(request_for: Make) -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @tool
    async def bad() -> Any:
        return Bad()

    assert (await invoke(*request_for(bad))).error == "RuntimeError: no text"


@pytest.mark.spec("OURS-17", "TOOL-5")
async def test_retries_repeat_what_raised(request_for: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umbel.actors.tools.invoke._FIRST_PAUSE", 0.0)
    tries = []

    @tool(retries=2)
    async def flaky(need: int) -> str:
        tries.append(1)
        if len(tries) < need:
            raise ConnectionError("again")
        return "done"

    assert (await invoke(*request_for(flaky, need=3))).content == "done"
    assert len(tries) == 3
    tries.clear()
    assert (await invoke(*request_for(flaky, need=9))).error == "ConnectionError: again"
    assert len(tries) == 3
    tries.clear()
    assert (await invoke(*request_for(flaky, need="x"))).code == "invalid_arguments"
    assert not tries


@pytest.mark.spec("OURS-17")
@pytest.mark.parametrize(("idempotent", "begun"), [(False, 1), (True, 2)])
async def test_a_timeout_is_repeated_only_if_idempotent(request_for: Make, idempotent: bool, begun: int) -> None:
    tries = []

    @tool(retries=1, timeout=0.05, idempotent=idempotent)
    async def slow() -> None:
        tries.append(1)
        await asyncio.Event().wait()

    result = await invoke(*request_for(slow))
    assert result.code == "tool_timeout"
    assert "0.05 s" in (result.error or "")
    assert len(tries) == begun


async def test_a_body_that_ignores_its_cancellation_does_not_hold_the_deadline(request_for: Make) -> None:
    release = asyncio.Event()

    @tool(timeout=0.05)
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    assert (await invoke(*request_for(stubborn))).code == "tool_timeout"
    release.set()
    await asyncio.sleep(0)


async def test_a_sync_function_may_return_an_awaitable(request_for: Make) -> None:
    async def later(a: int) -> int:
        return a

    @tool(name="wrapped")
    def wrapped(a: int) -> Any:
        return later(a)

    assert (await invoke(*request_for(wrapped, a=5))).content == "5"


@pytest.mark.spec("TOOL-12")
def test_ephemeral_values_stay_out_of_repr() -> None:
    context = ToolContext(ephemeral_metadata={"key": "hunter2"}, metadata={"a": 1})
    assert "hunter2" not in repr(context)
    assert context.invocation_metadata == {"a": 1}
    assert context.report_progress(1) is False
    assert context.state is None
    with pytest.raises(AttributeError):
        context.unknown = "x"  # type: ignore[attr-defined]  # slots: a typo is not a new field


async def test_threads_overlap_and_a_lost_one_is_replaced(request_for: Make) -> None:
    threads = Threads(limit=1)
    release, begun = threading.Event(), threading.Event()

    @tool
    def hold() -> str:
        begun.set()
        release.wait(20)
        return "held"

    @tool
    def quick() -> str:
        return threading.current_thread().name

    task = asyncio.ensure_future(threads.run(*request_for(hold)))
    await asyncio.to_thread(begun.wait, 10)
    waiting = asyncio.ensure_future(threads.run(*request_for(quick)))
    dropped = asyncio.ensure_future(threads.run(*request_for(quick)))
    await asyncio.sleep(0)
    assert not waiting.done()
    dropped.cancel()
    task.cancel()
    last = asyncio.ensure_future(threads.run(*request_for(quick)))
    assert (await last).success
    assert (await waiting).success
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    threads.close()


@pytest.mark.skipif(sys.platform != "linux", reason="daemon threads are only promised here")
async def test_threads_carry_context_variables(request_for: Make) -> None:
    import contextvars

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    @tool
    def read() -> str:
        return variable.get()

    variable.set("mine")
    threads = Threads()
    assert (await threads.run(*request_for(read))).content == "mine"
    threads.close()
