"""What is stored at every point of a turn, and what can be made of it: crashes, errors, ends. Inline and on Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, AgentState, Hook, Message, ModelResponse, Runtime, ToolCall, ToolContext, tool
from umbel.actors.checkpoints import build_save, restore
from umbel.actors.checkpoints.registry import open_store
from umbel.errors import ModelError, NotPaused, RunFailed
from umbel.events import InterruptEvent, ToolCompleteEvent
from umbel.protocol.commands import CheckpointLoaded
from umbel.protocol.state import ReasoningStep, ToolExecution
from umbel.protocol.storage import JournalEntry
from umbel.testing import ScriptedModel, error, text, tool_call, tool_calls, validate_history


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool
async def book(hotel: str, ctx: ToolContext) -> str:
    """Book a hotel, once a person has agreed."""
    return f"booked {hotel}: {ctx.interrupt(f'Book {hotel}?')}"


def write(path: Path, line: str) -> None:
    with path.open("a") as log:
        log.write(line + "\n")


async def stored(url: str, thread_id: str = "t") -> AgentState | None:
    """What a process that begins now would find."""
    store = open_store(url)
    await store.open()
    try:
        found = restore(await store.load(thread_id))
    finally:
        await store.close()
    return found.state if found is not None else None


async def history(url: str, thread_id: str = "t") -> list[CheckpointLoaded]:
    store = open_store(url)
    await store.open()
    try:
        return await store.history(thread_id, 100)
    finally:
        await store.close()


async def leave(url: str, state: AgentState, thread_id: str = "t", *, begun: tuple[str, ...] = ()) -> None:
    """Store ``state`` as a process that was killed would have left it; ``begun`` are the calls whose bodies ran."""
    store = open_store(url)
    await store.open()
    try:
        save, _ = build_save(state, store=url, thread_id=thread_id, checkpoint_id="c1", created_at=1.0)
        entries = tuple(JournalEntry(run_id="r-1", call_id=call, phase="begun") for call in begun)
        await store.save([save.evolve(entries=entries)])
    finally:
        await store.close()


def peeking(url: str) -> Any:
    @tool(idempotent=True)
    async def peek(n: int) -> str:
        """Say what is stored while this batch runs."""
        state = await stored(url)
        return "nothing" if state is None else f"{state.iteration} {state.messages[-1].role}"

    return peek


@pytest.mark.spec("LOOP-98", "LOOP-109", "OURS-22")
@pytest.mark.parametrize(
    ("every", "seen"),
    [
        (None, ["nothing", "1 tool", "2 tool", "3 tool"]),
        (2, ["nothing", "nothing", "2 tool", "2 tool"]),
        (0, ["nothing", "nothing", "nothing", "nothing"]),
    ],
)
async def test_a_crash_within_a_batch_leaves_the_iteration_before_it(
    runtime: Runtime, tmp_path: Path, every: int | None, seen: list[str]
) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    model = ScriptedModel([*(tool_call("peek", n=n) for n in range(4)), text("ok")])
    agent = Agent(model, [peeking(url)], checkpointer=url, checkpoint_every_n_iterations=every)
    result = await agent.arun("go", thread_id="t")
    assert [done.result for done in result.tool_executions] == seen
    final = await stored(url)
    assert final is not None and final.messages == result.messages and final.turn.stop_reason == "complete"


@pytest.mark.spec("LOOP-100", "LOOP-72")
async def test_replies_that_are_sent_back_have_no_save_of_their_own(runtime: Runtime, tmp_path: Path) -> None:
    async def polite(answer: Any) -> str | None:
        return None if "please" in answer.text else "Say please."

    url = f"sqlite:///{tmp_path}/t.db"
    model = ScriptedModel([tool_call("add", a=1, b=1), text("No."), text("No, please.")])
    agent = Agent(model, [add], final_answer_verifier=polite, checkpointer=url, keep_iteration_checkpoints=True)
    result = await agent.arun("go", thread_id="t")
    assert result.metrics.iterations == 3
    final = await stored(url)
    assert final is not None and "No." not in [message.content for message in final.messages]
    saves = [found.metadata for found in await history(url)]
    assert [save["finished"] for save in saves] == [True, False, False], "before the call, after it, and the end"


@pytest.mark.spec("LOOP-109", "LOOP-123", "LOOP-106", "LOOP-105", "EVT-27")
async def test_a_hook_that_breaks_after_a_batch_loses_nothing_of_it(runtime: Runtime, tmp_path: Path) -> None:
    log, url = tmp_path / "log", f"sqlite:///{tmp_path}/t.db"
    calls = tool_calls(("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2}))
    agent = Agent(ScriptedModel([calls, text("four")]), [add], hooks=[Breaks(log)], checkpointer=url)
    events: list[Any] = []
    with pytest.raises(RunFailed, match="hook broke"):
        await agent.with_settings(callback_handler=events.append).arun("go", thread_id="t")
    assert [event.result for event in events if isinstance(event, ToolCompleteEvent)] == ["2", "4"]
    state = await stored(url)
    assert state is not None
    assert [done.result for done in state.tool_executions] == ["2", "4"]
    validate_history(state.messages)
    assert log.read_text().splitlines() == ["end 0", "after False"]
    result = await agent.with_settings(hooks=[]).continue_turn("t")
    assert (result.message, result.metrics.iterations, len(result.tool_executions)) == ("four", 2, 2)


class Breaks(Hook):
    def __init__(self, path: Path) -> None:
        self.path = path

    async def on_after_tool_call(self, event: Any) -> None:
        raise LookupError("hook broke")

    async def on_iteration_end(self, iteration: int, state: Any) -> None:
        write(self.path, f"end {iteration}")

    async def on_after_invocation(self, state: Any, success: bool) -> None:
        write(self.path, f"after {success}")


class Reads(Hook):
    """Writes down how the run went, and what is stored of it by then."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.url = url

    async def on_iteration_end(self, iteration: int, state: Any) -> None:
        write(self.path, f"end {iteration}")

    async def on_after_invocation(self, state: Any, success: bool) -> None:
        found = await stored(self.url)
        write(self.path, f"after {success} {found.turn.stop_reason if found is not None else 'nothing stored'}")


@pytest.mark.spec("OURS-7", "LOOP-105", "LOOP-106")
@pytest.mark.parametrize(
    ("turns", "settings", "told"),
    [
        ([text("hi")], {}, "after True complete"),
        ([tool_call("add", a=1, b=1), text("sum")], {"max_iterations": 1}, "after True max_iterations"),
        ([tool_call("book", hotel="Ritz")], {}, "after False None"),
        ([error(ModelError("down"))], {}, "after False None"),
    ],
)
async def test_hooks_are_told_how_it_ended_when_it_is_stored(
    runtime: Runtime, tmp_path: Path, turns: list[Any], settings: dict[str, Any], told: str
) -> None:
    log, url = tmp_path / "log", f"sqlite:///{tmp_path}/t.db"
    agent = Agent(ScriptedModel(turns), [add, book], hooks=[Reads(log, url)], checkpointer=url, **settings)
    try:
        await agent.arun("go", thread_id="t")
    except ModelError:
        assert told == "after False None"
    lines = log.read_text().splitlines()
    assert lines[0] == "end 0" and lines[-1] == told and sum(line.startswith("after") for line in lines) == 1


@pytest.mark.spec("LOOP-105", "LOOP-106", "LOOP-102", "LOOP-14", "API-35")
@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_hooks_are_told_of_a_run_that_was_stopped(runtime: Runtime, tmp_path: Path, how: str) -> None:
    log, url = tmp_path / "log", f"sqlite:///{tmp_path}/t.db"

    @tool
    async def wait() -> str:
        """Wait for a minute."""
        await asyncio.sleep(60)
        return "waited"

    agent = Agent(ScriptedModel([tool_call("wait")]), [wait], hooks=[Reads(log, url)], checkpointer=url)
    stream = agent.run("go", thread_id="t")
    async for event in stream:
        if event.event_type == "tool_start":
            if how == "close":
                break
            agent.cancel("t")
    await stream.aclose()
    assert log.read_text().splitlines() == ["end 0", "after False None"]
    state = await stored(url)
    assert state is not None and [done.code for done in state.tool_executions] == ["cancelled"]
    validate_history(state.messages)
    went_on = await agent.with_settings(model=ScriptedModel([text("never"), text("on we go")]), hooks=[]).continue_turn("t")
    assert went_on.message == "on we go" and len(went_on.tool_executions) == 1


@pytest.mark.spec("LOOP-86", "OURS-3", "BUG-8")
async def test_a_pause_is_stored_before_it_is_told(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    agent = Agent(ScriptedModel([tool_call("book", hotel="Ritz"), text("ok")]), [book], checkpointer=url)
    found = [await stored(url) async for event in agent.run("go", thread_id="t") if isinstance(event, InterruptEvent)]
    assert [[waits.request.question for waits in state.interrupts] for state in found if state] == [["Book Ritz?"]]


class Peeks:
    """Its second reply is what is stored by then."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        if messages[-1].role == "user":
            return tool_call("book", hotel="Ritz")
        state = await stored(self.url)
        assert state is not None
        return text(f"{[done.result for done in state.tool_executions]} {len(state.interrupts)}")


@pytest.mark.spec("OURS-2", "OURS-22")
async def test_what_was_done_for_an_answer_is_stored_before_the_run_goes_on(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    agent = Agent(Peeks(url), [book], checkpointer=url)
    await agent.arun("go", thread_id="t")
    assert (await agent.aresume("yes", thread_id="t")).message == "['booked Ritz: yes'] 0"


@pytest.mark.spec("STATE-51", "OURS-22")
@pytest.mark.parametrize(
    ("turns", "reason"), [([tool_call("add", a=1, b=1), text("sum")], "max_iterations"), ([text("")] * 5, "empty_reply")]
)
async def test_a_turn_that_ended_without_an_answer_is_over(
    runtime: Runtime, tmp_path: Path, turns: list[Any], reason: str
) -> None:
    limit = 1 if reason == "max_iterations" else 20
    agent = Agent(ScriptedModel(turns), [add], max_iterations=limit, checkpointer=f"sqlite:///{tmp_path}/t.db")
    assert (await agent.arun("go", thread_id="t")).stop_reason == reason
    with pytest.raises(NotPaused, match=f"finished .{reason}"):
        await agent.continue_turn("t")


@pytest.mark.spec("STATE-51", "API-35", "OURS-1", "LOOP-101")
async def test_a_turn_that_an_error_cut_off_can_be_continued(runtime: Runtime, tmp_path: Path) -> None:
    agent = Agent(
        ScriptedModel([tool_call("add", a=1, b=1), error(ModelError("down"))]), [add], checkpointer=f"sqlite:///{tmp_path}/t.db"
    )
    with pytest.raises(ModelError, match="down"):
        await agent.arun("go", thread_id="t")
    state = await stored(f"sqlite:///{tmp_path}/t.db")
    assert state is not None and state.errors == ("ModelError: down",)
    recovered = agent.with_settings(model=ScriptedModel([tool_call("never"), text("two")]))
    result = await recovered.continue_turn("t")
    assert (result.message, [done.result for done in result.tool_executions]) == ("two", ["2"])
    assert [message.role for message in result.messages] == ["system", "user", "assistant", "tool", "assistant"]


def killed() -> AgentState:
    """A turn whose second batch was running: one of its calls had been recorded, the other not."""
    one, two, three = (ToolCall(id=f"call_{n}", name="add", arguments={"a": n, "b": n}) for n in (1, 2, 3))
    return AgentState(
        run_id="r-1",
        iteration=2,
        total_tokens_used=100,
        prompt_tokens_used=90,
        completion_tokens_used=10,
        messages=(
            Message.system("You are a helpful assistant."),
            Message.user("go"),
            Message.assistant(None, (one,)),
            Message(role="tool", content="2", tool_call_id="call_1", name="add"),
            Message.assistant(None, (two, three)),
            Message(role="tool", content="4", tool_call_id="call_2", name="add"),
        ),
        tool_executions=tuple(
            ToolExecution(tool_name="add", tool_call_id=call.id, arguments=call.arguments, result=str(2 * n))
            for n, call in ((1, one), (2, two))
        ),
        reasoning_steps=(ReasoningStep(iteration=1, tool_calls=(one,)),),
    )


@pytest.mark.spec("LOOP-8", "API-35", "OURS-1", "LOOP-111")
async def test_calls_that_a_crash_left_open_are_closed_and_not_repeated(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    await leave(url, killed(), begun=("call_3",))
    agent = Agent(ScriptedModel([text("never"), text("never"), text("I will check.")]), [add], checkpointer=url)
    result = await agent.continue_turn("t")
    assert (result.stop_reason, result.message, result.run_id) == ("complete", "I will check.", "r-1")
    assert result.metrics.iterations == 3 and result.metrics.total_tokens > 100
    validate_history(result.messages)
    [lost] = [message for message in result.messages if message.tool_call_id == "call_3"]
    assert "outcome unknown" in (lost.content or "")
    assert [done.result for done in result.tool_executions] == ["2", "4", None]
    assert result.tool_executions[-1].code == "outcome_unknown"


@pytest.mark.spec("LOOP-6", "LOOP-8")
async def test_a_new_turn_after_a_crash_closes_the_open_calls(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    await leave(url, killed().evolve(provider_state={"response": "r-7"}, confidence=0.7, errors=("lost",)))
    result = await Agent(ScriptedModel([text("hello")]), [add], checkpointer=url).arun("again", thread_id="t")
    validate_history(result.messages)
    assert "outcome unknown" in next(m.content or "" for m in result.messages if m.tool_call_id == "call_3")
    assert result.metrics.iterations == 1 and result.tool_executions == () and result.run_id != "r-1"
    assert (result.state.confidence, result.state.errors, result.reasoning_steps) == (0.0, (), ())
    assert result.state.provider_state == {"response": "r-7"}
