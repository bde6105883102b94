"""The calls that pick a turn up again: resume in all its forms, continue_turn, what is pending. Inline and on Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Hook, Message, ModelResponse, ReflexionConfig, Runtime, ToolContext, ask_user, tool
from umbel.errors import ConfigurationError, ModelError, NotPaused
from umbel.events import ReflectEvent, ToolCompleteEvent
from umbel.termination import ToolCalled
from umbel.testing import ScriptedModel, text, tool_call, tool_calls, validate_history


@tool
async def pay(amount: int, ctx: ToolContext) -> str:
    """Pay, once a person has agreed."""
    return f"paid {amount}" if ctx.interrupt(f"Pay {amount}?") == "yes" else f"kept {amount}"


@tool(idempotent=True)
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def store(folder: Path) -> str:
    return f"sqlite:///{folder}/threads.db"


def paying(*amounts: int, **settings: Any) -> Agent:
    calls = tool_calls(*(("pay", {"amount": amount}) for amount in amounts or (5,)))
    return Agent(ScriptedModel([calls, text("Done.")]), [pay, add], **settings)


def results(result: Any) -> list[str | None]:
    return [done.result for done in result.tool_executions]


# what is pending


@pytest.mark.spec("API-28")
async def test_any_object_can_ask_the_store_what_a_thread_waits_for(runtime: Runtime, tmp_path: Path) -> None:
    saw, other = paying(checkpointer=store(tmp_path)), paying(checkpointer=store(tmp_path))
    assert await other.pending_interrupts_of("t") == []
    paused = await saw.arun("pay", thread_id="t")
    [mine] = saw.pending_interrupts()
    assert other.pending_interrupts() == [] and await other.pending_interrupts_of("t") == [mine]
    assert mine["question"] == "Pay 5?" and (mine["thread_id"], mine["run_id"]) == ("t", paused.run_id)
    await other.aresume("yes", thread_id="t")
    assert await saw.pending_interrupts_of("t") == [] and saw.pending_interrupts() == []
    with pytest.raises(ConfigurationError, match="checkpointer"):
        await paying().pending_interrupts_of("t")


# resume


@pytest.mark.spec("API-29", "API-30", "BUG-12", "BUG-9")
async def test_without_a_thread_id_exactly_one_pause_must_be_known(runtime: Runtime, tmp_path: Path) -> None:
    agent = paying(checkpointer=store(tmp_path))
    with pytest.raises(NotPaused, match="saw 0 pause"):
        await agent.aresume("yes")
    await agent.arun("pay", thread_id="one")
    await agent.arun("pay", thread_id="two")
    with pytest.raises(NotPaused, match=r"saw 2 pause \(one, two\)"):
        await agent.aresume("yes")
    assert (await agent.aresume("yes", thread_id="one")).success
    last = await agent.aresume("no")
    assert last.thread_id == "two" and results(last) == ["kept 5"]
    for thread in ("one", "never"):  # finished, and unknown: a bare answer is no new turn
        with pytest.raises(NotPaused):
            await agent.aresume("yes", thread_id=thread)
    finished = await agent.arun("again", thread_id="two")
    assert [message.content for message in finished.messages if message.role == "user"] == ["pay", "again"]


@pytest.mark.spec("API-29")
async def test_a_paused_result_is_enough_to_resume_it_elsewhere(runtime: Runtime) -> None:
    first, second = await paying().arun("pay"), await paying().arun("pay")
    other = paying()
    assert results(await other.aresume("no", result=second)) == ["kept 5"]
    assert results(await other.aresume("yes", result=first)) == ["paid 5"]


@pytest.mark.spec("API-29", "API-17", "API-18")
async def test_synchronous_code_runs_resumes_and_runs_again(runtime: Runtime, tmp_path: Path) -> None:
    agent = paying(checkpointer=store(tmp_path))

    def job() -> list[Any]:
        paused = agent.run_sync("pay", thread_id="t")
        done = agent.resume_sync("yes", thread_id="t")
        return [paused.stop_reason, done.message, agent.invoke("pay", thread_id="u").stop_reason]

    assert await asyncio.to_thread(job) == ["interrupted", "Done.", "interrupted"], "in a thread without an event loop"
    assert agent.run_sync("pay", thread_id="v").stop_reason == "interrupted", "and where one is running"


class Connected:
    """A model with a connection."""

    def __init__(self, log: Path) -> None:
        self.log = log

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        return text("hello")

    async def aclose(self) -> None:
        self.log.touch()


@pytest.mark.spec("API-17")
async def test_run_sync_leaves_no_connection_open(tmp_path: Path) -> None:
    with Runtime(inline=True):
        assert Agent(Connected(tmp_path / "closed")).run_sync("hi").message == "hello"
        assert (tmp_path / "closed").exists()


@tool
async def who(ctx: ToolContext) -> str:
    """Say whose run it is."""
    agreed = ctx.interrupt("Tell?")
    return f"{agreed} {ctx.metadata['user']} {sorted(ctx.ephemeral_metadata)}"


@pytest.mark.spec("API-29", "API-20")
async def test_metadata_is_the_paused_runs_without_its_ephemeral_part(runtime: Runtime, tmp_path: Path) -> None:
    model = ScriptedModel([tool_call("who"), text("ok")])
    agent = Agent(model, [who], checkpointer=store(tmp_path))
    for thread in ("a", "b"):
        await agent.arun("x", thread_id=thread, metadata={"user": "ann"}, ephemeral={"token": "1"})
    assert results(await agent.aresume("yes", thread_id="a")) == ["yes ann []"]
    again = await agent.aresume("yes", thread_id="b", metadata={"user": "bob"}, ephemeral={"key": "2"})
    assert results(again) == ["yes bob ['key']"]


@pytest.mark.spec("API-31", "TOOL-39", "OURS-2", "EVT-26")
async def test_several_answers_at_once_each_find_their_call(runtime: Runtime, tmp_path: Path) -> None:
    agent = paying(1, 2, 3, checkpointer=store(tmp_path))
    paused = await agent.arun("pay", thread_id="t")
    one, two, three = (asked["interrupt_id"] for asked in paused.interrupts)
    partly = await agent.aresume(thread_id="t", answers={three: "yes", one: "no"})
    assert partly.stop_reason == "interrupted" and results(partly) == ["kept 1", "paid 3"]
    events = [event async for event in agent.resume(thread_id="t", answers={two: "yes"})]
    assert [event.result for event in events if isinstance(event, ToolCompleteEvent)] == ["paid 2"]
    assert events[-1].event_type == "terminate" and agent.pending_interrupts() == []


@pytest.mark.spec("API-33", "BUG-13")
async def test_an_answer_that_fits_nothing_loses_nothing(runtime: Runtime, tmp_path: Path) -> None:
    agent = paying(checkpointer=store(tmp_path))
    await agent.arun("pay", thread_id="t")
    with pytest.raises(NotPaused, match="does not wait for nobody"):
        await agent.aresume("yes", thread_id="t", interrupt_id="nobody")
    assert len(agent.pending_interrupts()) == 1 == len(await agent.pending_interrupts_of("t"))
    assert results(await agent.aresume("yes")) == ["paid 5"]


class Stamp(Hook):
    async def on_before_tool_call(self, event: Any) -> None:
        if event.tool_name == "launch":
            event.arguments = {**event.arguments, "stamped": True}

    async def on_after_tool_call(self, event: Any) -> None:
        if event.tool_name == "launch":
            event.retry = event.result == "1 True"


@pytest.mark.spec("API-32", "TOOL-38", "TOOL-40", "HOOK-16", "BUG-1", "BUG-2", "BUG-4", "BUG-7")
async def test_perform_dangling_runs_the_call_with_hooks_and_their_retry(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    gate = tmp_path / "gate"

    @tool
    async def launch(ctx: ToolContext, stamped: bool = False) -> str:
        """Launch, once the gate is open."""
        if not gate.exists():
            ctx.interrupt("Open the gate?")
        with log.open("a") as file:
            file.write(".")
        return f"{len(log.read_text())} {stamped}"

    model = ScriptedModel([tool_call("launch"), text("Launched.")])
    agent = Agent(model, [launch], hooks=[Stamp()], checkpointer=store(tmp_path))
    await agent.arun("go", thread_id="t")
    again = await agent.aresume(thread_id="t", perform_dangling=True)
    assert again.stop_reason == "interrupted" and not log.exists(), "it asks again: paused as before"
    assert again.interrupts[0]["question"] == "Open the gate?"
    gate.touch()
    result = await agent.aresume(thread_id="t", perform_dangling=True)
    assert result.message == "Launched." and results(result) == ["2 True"], "performed, and once more for the hook"


@pytest.mark.spec("TOOL-38", "TOOL-37")
async def test_a_call_that_only_asks_is_never_performed(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([tool_call("ask_user", question="Which?"), text("ok")]), [ask_user])
    await agent.arun("go")
    still = await agent.aresume(perform_dangling=True)
    assert still.stop_reason == "interrupted" and still.interrupts[0]["question"] == "Which?"
    assert results(await agent.aresume("blue")) == ["blue"]


@pytest.mark.spec("OURS-1", "API-34", "BUG-5")
async def test_a_resumed_segment_has_every_feature_of_the_first(runtime: Runtime, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"

    class Watch(Hook):
        async def on_before_invocation(self, prompt: str, state: Any) -> Any:
            with ledger.open("a") as file:
                file.write("before ")

        async def on_after_invocation(self, state: Any, success: bool) -> None:
            with ledger.open("a") as file:
                file.write("after ")

    @tool
    async def dump() -> str:
        """Return much text."""
        return "x" * 5_000

    script = [
        tool_calls(("add", {"a": 1, "b": 1}), ("pay", {"amount": 5})),
        tool_calls(("add", {"a": 1, "b": 1}), ("dump", {})),
        text("Done."),
    ]
    agent = Agent(
        ScriptedModel(script),
        [pay, add, dump],
        hooks=[Watch()],
        reflexion=ReflexionConfig(),
        max_tool_result_length=100,
        checkpointer=store(tmp_path),
    )
    paused = await agent.arun("go", thread_id="t")
    events = [event async for event in agent.resume("yes", thread_id="t")]
    result = await agent.arun("next", thread_id="t")
    assert paused.metrics.iterations == 1 and events[-1].iterations_used == 3  # type: ignore[attr-defined]
    assert [event.iteration for event in events if isinstance(event, ReflectEvent)] == [1, 2]
    told = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert told[0].result == "paid 5" and told[1].result == "2" and len(told[2].result or "") < 400
    assert ledger.read_text().split()[:4] == ["before", "after", "before", "after"]
    assert [message.role for message in result.messages].count("user") == 2


@pytest.mark.spec("OURS-1", "TOOL-26")
async def test_an_idempotent_result_from_before_the_pause_is_reused(runtime: Runtime) -> None:
    script = [tool_calls(("add", {"a": 1, "b": 1}), ("pay", {"amount": 5})), tool_call("add", a=1, b=1), text("Done.")]
    agent = Agent(ScriptedModel(script), [pay, add])
    await agent.arun("go")
    result = await agent.aresume("yes")
    assert [(done.tool_name, done.idempotent_cache_hit) for done in result.tool_executions] == [
        ("add", False),
        ("pay", False),
        ("add", True),
    ]


@pytest.mark.spec("OURS-1", "OURS-6")
async def test_time_that_earlier_segments_took_counts_and_waiting_does_not(runtime: Runtime) -> None:
    @tool
    async def nap(ctx: ToolContext) -> str:
        """Rest until the budget's end is near, then ask."""
        await asyncio.sleep(0.6)
        return str(ctx.interrupt("Go on?"))

    class Sleepy:
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            if messages[-1].role == "tool":
                await asyncio.sleep(60)
            return tool_call("nap")

    agent = Agent(Sleepy(), [nap], time_budget_seconds=1.5)
    paused = await agent.arun("go")
    assert paused.stop_reason == "interrupted" and paused.state.turn.elapsed_seconds >= 0.6
    result = await agent.aresume("yes")
    assert result.stop_reason == "time_budget" and result.metrics.duration_ms >= 1_499  # timers count in ms


@pytest.mark.spec("OURS-1", "OURS-2")
async def test_an_answered_call_is_an_execution_that_conditions_see(runtime: Runtime) -> None:
    agent = Agent(
        ScriptedModel([tool_call("ask_user", question="Which?"), text("never")]), [ask_user], termination=ToolCalled("ask_user")
    )
    await agent.arun("go")
    result = await agent.aresume("blue")
    assert result.stop_reason == "terminal_tool" and results(result) == ["blue"]


# turns that were cut off


class OnceBroken:
    """Calls a tool, fails while a file is missing, then answers."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        validate_history(messages)
        if messages[-1].role == "user":
            return tool_call("add", a=20, b=3)
        if not self.path.exists():
            raise ModelError("the provider is down")
        return text(f"it is {messages[-1].content} {sorted(settings)}")


@pytest.mark.spec("API-35", "BUG-42")
async def test_a_turn_that_failed_is_continued_without_a_new_message(runtime: Runtime, tmp_path: Path) -> None:
    agent = Agent(OnceBroken(tmp_path / "up"), [add], checkpointer=store(tmp_path))
    with pytest.raises(ModelError, match="down"):
        await agent.arun("20 + 3", thread_id="t")
    (tmp_path / "up").touch()
    other = Agent(OnceBroken(tmp_path / "up"), [add], checkpointer=store(tmp_path))
    result = await other.continue_turn("t", model_kwargs={"seed": 1}, metadata={"by": "ann"})
    assert (result.message, result.success, result.iterations) == ("it is 23 ['seed']", True, 3)
    assert [message.role for message in result.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert result.state.metadata["by"] == "ann" and len(result.tool_executions) == 1
    with pytest.raises(NotPaused, match="finished"):
        await other.continue_turn("t")


@pytest.mark.spec("API-35")
async def test_what_cannot_be_continued_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    agent = paying(checkpointer=store(tmp_path))
    with pytest.raises(NotPaused, match="new"):
        await agent.continue_turn("never")
    await agent.arun("pay", thread_id="t")
    with pytest.raises(NotPaused, match="waits for answers"):
        await agent.continue_turn("t")
    with pytest.raises(ConfigurationError, match="checkpointer"):
        await paying().continue_turn("t")


@tool
async def hang() -> str:
    """Never come back."""
    await asyncio.sleep(600)
    return "back"


@pytest.mark.spec("API-27", "API-35")
async def test_a_cancelled_task_saves_what_it_had(runtime: Runtime, tmp_path: Path) -> None:
    model = ScriptedModel([tool_call("add", a=1, b=1), tool_call("hang"), text("never")])
    agent = Agent(model, [add, hang], checkpointer=store(tmp_path))
    seen = asyncio.Event()

    def watch(event: Any) -> None:
        if event.event_type == "tool_start" and event.tool_name == "hang":
            seen.set()

    task = asyncio.ensure_future(agent.with_settings(callback_handler=watch).arun("go", thread_id="t"))
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await agent.with_settings(model=ScriptedModel([text("on")], loop=True)).continue_turn("t")
    assert (result.message, result.tool_executions[0].result) == ("on", "2")
    assert result.tool_executions[1].error and result.iterations == 3
    validate_history(result.messages)
