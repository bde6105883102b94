"""Being stopped: cancel, deadlines, abandoned streams, and replies that lead nowhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime, ToolCall, tool
from umbel.events import Event, TerminateEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls, validate_history


async def until(condition: Any, seconds: float = 20.0) -> None:
    """Wait for a fact about the outside world (a file of another process), failing loudly when it does not come."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def mark(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.spec("API-23", "API-24", "LOOP-18", "LOOP-117")
async def test_cancel_closes_the_model_call_in_flight(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Waits:
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            mark(log, "asked")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                mark(log, "closed")
                raise
            return text("too late")

    agent = Agent(Waits())
    run = asyncio.ensure_future(agent.arun("wait"))
    await until(lambda: "asked" in lines(log))
    assert agent.cancel() == 1
    result = await run
    assert (result.stop_reason, result.success) == ("cancelled", False)
    assert "cancelled" in result.message
    await until(lambda: "closed" in lines(log))
    assert agent.cancel("no-such-thread") == 0


@pytest.mark.spec("API-24", "BUG-31")
async def test_cancel_reaches_async_tools_and_keeps_the_history_valid(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @tool
    async def wait(name: str) -> str:
        """Wait for a minute."""
        mark(log, f"start-{name}")
        try:
            await asyncio.sleep(60 if name != "quick" else 0)
        except asyncio.CancelledError:
            mark(log, f"cancelled-{name}")
            raise
        mark(log, f"end-{name}")
        return name

    calls = tool_calls(*(("wait", {"name": name}) for name in ("quick", "a", "b")))
    agent = Agent(ScriptedModel([calls, text("never")]), [wait])
    run = asyncio.ensure_future(agent.arun("wait"))
    await until(lambda: {"start-a", "start-b", "end-quick"} <= set(lines(log)))
    await asyncio.sleep(0.5)  # the quick one's result is on its way
    agent.cancel()
    result = await run
    assert result.stop_reason == "cancelled"
    await until(lambda: {"cancelled-a", "cancelled-b"} <= set(lines(log)))
    validate_history(result.messages)
    assert [execution.success for execution in result.tool_executions] == [True, False, False]


@pytest.mark.spec("API-23")
async def test_a_sync_tool_is_killed_after_the_grace(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @tool(isolation="process")
    def stubborn() -> str:
        """Sleep, then act."""
        import time

        mark(log, "start")
        time.sleep(3)
        mark(log, "acted")
        return "done"

    agent = Agent(ScriptedModel([tool_call("stubborn"), text("never")]), [stubborn], cancel_grace_seconds=0.2)
    run = asyncio.ensure_future(agent.arun("go"))
    await until(lambda: "start" in lines(log))
    agent.cancel()
    assert (await run).stop_reason == "cancelled"
    await asyncio.sleep(3.5)  # longer than the body would have needed
    assert lines(log) == ["start"]


@pytest.mark.spec("API-25", "API-26", "BUG-57")
async def test_an_idle_cancel_arms_the_next_run_only(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([text("hi")]))
    assert (agent.cancel(), agent.is_cancelled) == (0, True)
    assert (await agent.arun("first")).stop_reason == "cancelled"
    assert not agent.is_cancelled
    assert (await agent.arun("second")).stop_reason == "complete"


@pytest.mark.spec("API-23", "BUG-57")
async def test_cancel_by_thread_leaves_the_others_running(runtime: Runtime, tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"

    class Waits:
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            mark(log, "asked")
            while not gate.exists():
                await asyncio.sleep(0.01)
            return text("done")

    agent = Agent(Waits(), checkpointer="memory://")
    runs = {name: asyncio.ensure_future(agent.arun("wait", thread_id=name)) for name in ("a", "b")}
    await until(lambda: len(lines(log)) == 2)
    assert agent.cancel("a") == 1
    assert (await runs["a"]).stop_reason == "cancelled"
    gate.touch()
    assert (await runs["b"]).stop_reason == "complete"


@pytest.mark.spec("API-15", "LOOP-14", "LOOP-102")
async def test_closing_the_stream_early_stops_the_run(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @tool
    async def step(n: int) -> int:
        """Count."""
        mark(log, str(n))
        await asyncio.sleep(0.05)
        return n

    def reply(messages: list[Message]) -> ModelResponse:
        return tool_call("step", n=len(messages))

    agent = Agent(ScriptedModel([reply], loop=True), [step], max_iterations=500, tool_loop_threshold=400)
    stream = agent.run("count")
    async for event in stream:
        if event.event_type == "tool_complete":
            break
    await stream.aclose()
    await asyncio.sleep(0.3)
    count = len(lines(log))
    await asyncio.sleep(0.3)
    assert len(lines(log)) == count <= 4
    assert agent.cancel() == 0


@pytest.mark.spec("LOOP-17")
async def test_the_time_budget_is_a_deadline(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([text("late")], delay=30), time_budget_seconds=0.3)
    result = await agent.arun("wait")
    assert (result.stop_reason, result.success) == ("time_budget", False)
    result = await Agent(ScriptedModel([text("late")], delay=30)).arun("wait", timeout=0.3)
    assert result.stop_reason == "time_budget"


async def test_partial_text_is_kept_and_marked(runtime: Runtime) -> None:
    class Trickles(ScriptedModel):
        async def stream(self, messages: list[Message], tools: Any = None, **settings: Any) -> Any:
            from umbel import ModelChunk

            yield ModelChunk(content="half an ")
            yield ModelChunk(content="answer")
            await asyncio.sleep(60)

    agent = Agent(Trickles([]), checkpointer="memory://")
    events: list[Event] = []
    async for event in agent.run("tell", thread_id="t", stream_tokens=True):
        events.append(event)
        if getattr(event, "content", "") == "answer":
            agent.cancel()
    assert isinstance(events[-1], TerminateEvent) and events[-1].reason == "cancelled"
    follow = Agent(
        ScriptedModel([lambda messages: text(repr([m.content for m in messages if m.role == "assistant"]))]),
        checkpointer="memory://",
    )
    if runtime.inline:  # the store lives in the checkpointer of this loop
        assert "half an answer" in (await follow.arun("and?", thread_id="t")).message


@pytest.mark.case(8)
@pytest.mark.spec("BUG-21", "BUG-22", "OURS-9")
@pytest.mark.parametrize("reply", [text(""), text("   "), text("", stop_reason="unknown"), text("", stop_reason="length")])
async def test_empty_replies_are_bounded(runtime: Runtime, reply: ModelResponse) -> None:
    result = await Agent(ScriptedModel([reply], loop=True)).arun("say something")
    assert (result.stop_reason, result.success) == ("empty_reply", False)
    assert result.metrics.model_calls == 4 and result.metrics.total_tokens > 0


@pytest.mark.case(9)
@pytest.mark.spec("OURS-9")
async def test_a_tool_calls_finish_without_calls_is_an_empty_reply(runtime: Runtime) -> None:
    reply = ModelResponse(message=Message.assistant(None), stop_reason="tool_calls")
    result = await Agent(ScriptedModel([reply], loop=True)).arun("go")
    assert result.stop_reason == "empty_reply" and result.metrics.model_calls == 4
    recovers = await Agent(ScriptedModel([reply, text("here")])).arun("go")
    assert recovers.success and recovers.message == "here"


@pytest.mark.case(10)
@pytest.mark.spec("OURS-9")
async def test_a_call_cut_by_the_token_limit_never_runs(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @tool
    async def delete(path: str) -> str:
        """Delete a path."""
        mark(log, path)
        return "deleted"

    cut = tool_call("delete", path="/data/a").evolve(stop_reason="length")
    result = await Agent(ScriptedModel([cut, tool_call("delete", path="/data/archive"), text("ok")]), [delete]).arun("delete")
    assert lines(log) == ["/data/archive"]
    assert "cut off" in (result.tool_executions[0].error or "")
    spin = await Agent(ScriptedModel([cut], loop=True), [delete]).arun("delete")
    assert spin.stop_reason in ("tool_errors", "tool_loop") and lines(log) == ["/data/archive"]


@pytest.mark.case(7)
@pytest.mark.spec("TOOL-22")
async def test_an_unknown_tool_is_an_error_result_and_bounded(runtime: Runtime) -> None:
    @tool
    async def search(query: str) -> str:
        """Search."""
        return f"found {query}"

    script = [tool_call("serch", query="x"), tool_call("search<|end|>", query="x"), tool_call("search", query="x"), text("ok")]
    result = await Agent(ScriptedModel(script), [search]).arun("find")
    assert result.success
    errors = [execution.error or "" for execution in result.tool_executions]
    assert "search" in errors[0] and "search" in errors[1] and errors[2] == ""

    def wander(messages: list[Message]) -> ModelResponse:
        return tool_call(f"nothing_{len(messages)}")

    spin = await Agent(ScriptedModel([wander], loop=True), [search]).arun("find")
    assert spin.stop_reason == "tool_errors" and spin.metrics.iterations == 5


@pytest.mark.case(1)
async def test_broken_arguments_are_that_calls_error(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @tool
    async def search(q: str = "default") -> str:
        """Search."""
        mark(log, q)
        return f"found {q}"

    broken = ToolCall(id="c1", name="search", malformed_arguments='{"q": "x')
    script = [
        tool_calls(broken, ToolCall(id="c2", name="search", arguments={"q": "sibling"})),
        tool_call("search", q="fixed"),
        text("ok"),
    ]
    result = await Agent(ScriptedModel(script), [search]).arun("find")
    assert lines(log) == ["sibling", "fixed"], "never invoked with {}"
    assert result.tool_executions[0].error and '{"q": "x' in result.tool_executions[0].error
    assert result.success


@pytest.mark.case(2)
async def test_lone_surrogates_do_no_harm_anywhere(runtime: Runtime, tmp_path: Path) -> None:
    @tool
    async def decode() -> str:
        """Return badly decoded text."""
        return "ok \ud83d"

    @tool
    async def echo(what: str) -> str:
        """Echo."""
        return what

    pair = "\ud83d\ude00"  # an emoji as two escapes that were decoded one by one
    script = [tool_call("decode"), tool_call("echo", what=pair), text("end \udc00")]
    agent = Agent(ScriptedModel(script), [decode, echo], checkpointer=f"sqlite:///{tmp_path}/t.db")
    events = [event async for event in agent.run("bad \ud800 prompt", thread_id="t", metadata={"note": "x\ud800"})]
    result = await agent.arun("again \ud800", thread_id="t")
    everything = result.outcome.model_dump_json() + "".join(event.model_dump_json() for event in events)
    everything.encode()
    assert "ok \ufffd" in everything and "\U0001f600" in everything and result.message == "end \ufffd"


@pytest.mark.case(14)
async def test_cancel_ends_a_stream_with_a_full_buffer(runtime: Runtime) -> None:
    class Floods(ScriptedModel):
        async def stream(self, messages: list[Message], tools: Any = None, **settings: Any) -> Any:
            from umbel import ModelChunk

            for number in range(10_000):
                yield ModelChunk(content=f"{number} ")
            await asyncio.sleep(60)

    agent = Agent(Floods([]))
    seen: list[Event] = []
    loop = asyncio.get_running_loop()
    cancelled_at = 0.0
    async for event in agent.run("flood", stream_tokens=True):
        seen.append(event)
        if len(seen) == 10:
            await asyncio.sleep(0.5)  # let the buffer fill
            cancelled_at = loop.time()
            agent.cancel()
    assert loop.time() - cancelled_at < 10, "the stream ends; how soon is measured by the benchmarks"
    assert len(seen) == 11 and isinstance(seen[-1], TerminateEvent) and seen[-1].reason == "cancelled"


@pytest.mark.case(13)
async def test_the_scripted_model_refuses_histories_that_providers_refuse() -> None:
    from umbel.testing import InvalidHistory

    call = ToolCall(id="c1", name="f")
    answer = Message(role="tool", content="x", tool_call_id="c1", name="f")
    good = [Message.user("q"), Message.assistant(None, (call,)), answer, Message.assistant("a")]
    validate_history(good)
    for bad in (
        [*good[:2]],
        [*good[:3], answer],
        [good[0], good[1], Message.user("in between"), answer],
        [good[0], answer],
        [*good, good[1], answer],
    ):
        with pytest.raises(InvalidHistory):
            validate_history(bad)
