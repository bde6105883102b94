"""A pattern's run as a whole: cancel, time, budgets, events, metrics, handles, results without the conversation."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

import pytest

from umbel import Agent, Prices, Runtime, tool
from umbel.errors import ModelError, RunError
from umbel.events import Event, MemberEvent, ModelChunkEvent, StepCompleteEvent, StepStartEvent, TerminateEvent
from umbel.patterns.pattern import Pattern
from umbel.patterns.pipeline import Loop, Parallel, Sequential
from umbel.protocol.messages import Usage
from umbel.testing import ScriptedModel, error, text, tool_call

from .programs import Gate, Program, new_runtime, says

pytestmark = pytest.mark.usefixtures("inline")


def costly(name: str, tokens: int, calls: int = 1, *, priced: bool = False, **settings: Any) -> Agent:
    """An agent whose every model call takes so many tokens, at 0.001 dollars each if it is priced."""
    usage = Usage(prompt_tokens=tokens, completion_tokens=0)
    steps = [tool_call("peek", n=n).evolve(usage=usage) for n in range(calls - 1)]
    model = ScriptedModel([*steps, text(f"{name} said", usage=usage)])
    if priced:
        model.prices = Prices(input_per_million=1_000.0, output_per_million=0.0)  # type: ignore[attr-defined]
    return Agent(model, [peek], name=name, **settings)


@tool(idempotent=True)
async def peek(n: int) -> str:
    """Look."""
    return str(n)


def nested(gate: Gate) -> Pattern:
    """Three deep, with a member that waits at the bottom."""
    inner = Sequential([says("a"), Agent(gate, name="slow"), says("never")], name="inner")
    return Sequential([Parallel([inner, says("b")], name="middle"), says("never")], name="outer")


def tree(events: list[Event]) -> dict[str, list[Event]]:
    """Every run's own events."""
    runs: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        inner = event
        runs[inner.run_id].append(inner)
        while isinstance(inner, MemberEvent):
            inner = inner.event
            runs[inner.run_id].append(inner)
    return dict(runs)


# being stopped


@pytest.mark.spec("OURS-5", "OURS-24", "PAT-16")
async def test_a_cancel_reaches_the_whole_tree_and_every_run_ends_once() -> None:
    gate = Gate()
    pattern = nested(gate)
    events: list[Event] = []
    pattern.callback_handler = events.append
    run = asyncio.ensure_future(pattern.arun("go"))
    await gate.came.wait()
    assert pattern.cancel() == 1
    await run
    assert gate.stopped == 1 and gate.waiting == 0
    last = events[-1]
    assert isinstance(last, TerminateEvent) and last.reason == "cancelled" and last.usage is not None
    for own in tree(events).values():
        ends = [event for event in own if isinstance(event, TerminateEvent)]
        assert len(ends) == 1 and ends[0] is own[-1]
    assert Counter(own[-1].reason for own in tree(events).values()) == {"cancelled": 4, "complete": 2}  # type: ignore[attr-defined]


@pytest.mark.spec("OURS-5", "OURS-25")
async def test_a_cancelled_pattern_says_what_its_members_did_and_counts_it(store: str) -> None:
    gate = Gate()
    pattern = nested(gate).stored_in(store)
    run = asyncio.ensure_future(pattern.arun("go", thread_id="t"))
    await gate.came.wait()
    pattern.cancel("t")
    result = await run
    assert (result.success, result.stop_reason) == (False, "cancelled") and result.metrics.total_tokens > 0
    assert result.members == (), "the first step was under way"
    gate.open.set()
    again = await pattern.continue_turn("t")
    assert again.success and again.metrics.model_calls == 5 and gate.calls == 2


@pytest.mark.case(14)
@pytest.mark.spec("OURS-5", "OURS-24")
async def test_a_cancel_does_not_wait_for_events_that_nobody_has_read() -> None:
    gate = Gate()
    talker = says("talker", " ".join(["word"] * 10_000))
    pattern = Sequential([Sequential([talker, Agent(gate, name="slow")], name="inner"), says("never")])
    seen: list[Event] = []
    async for event in pattern.run("go", stream_tokens=True):
        seen.append(event)
        if len(seen) == 10:
            await gate.came.wait()  # by now all of the words are buffered
            pattern.cancel()
    assert isinstance(seen[-1], TerminateEvent) and seen[-1].reason == "cancelled" and len(seen) == 11
    assert gate.stopped == 1


@pytest.mark.spec("OURS-5", "OURS-24")
async def test_closing_the_stream_early_stops_the_tree() -> None:
    gate = Gate()
    stream = nested(gate).run("go")
    async for event in stream:
        if isinstance(event, MemberEvent) and event.innermost.event_type == "step_start" and gate.waiting:
            break
        if gate.waiting:
            break
        await asyncio.sleep(0)
    await gate.came.wait()
    await stream.aclose()
    assert gate.stopped == 1 and gate.waiting == 0


@pytest.mark.spec("OURS-6", "OURS-24")
@pytest.mark.parametrize("where", ["pattern", "call", "inner", "run"])
async def test_time_is_a_deadline_for_the_whole_tree(where: str) -> None:
    gate = Gate()
    inner = Sequential([Agent(gate)], name="inner", time_budget_seconds=0.25 if where == "inner" else None)
    pattern = Sequential([inner, says("never")], time_budget_seconds=0.25 if where == "pattern" else None)

    async def play(stage: Any) -> Any:
        result = await stage.call("inner", "go", timeout=0.25)
        return [result.status, result.stop_reason]

    if where == "call":
        assert (await Program(play, [inner]).arun("go")).value == ["failed", "time_budget"]
    else:
        result = await pattern.arun("go", timeout=0.25 if where == "run" else None)
        assert (result.success, result.stop_reason) == (False, "time_budget")
    assert gate.stopped == 1


# budgets


@pytest.mark.spec("OURS-13", "OURS-24", "OURS-25")
async def test_one_after_another_each_gets_all_that_is_left() -> None:
    result = await Sequential([costly("a", 100, 3), costly("b", 100), costly("c", 100)], token_budget=450).arun("go")
    assert result.success and result.metrics.total_tokens == 500, "the last call may pass the limit"
    result = await Sequential([costly("a", 100, 3), costly("b", 100), costly("c", 100)], token_budget=350).arun("go")
    assert (result.success, result.stop_reason) == (False, "token_budget") and result.outputs == ["a said", "b said"]
    assert [step.stop_reason for step in result.members] == ["complete", "complete", "token_budget"]
    assert result.metrics.total_tokens == 400


@pytest.mark.spec("OURS-13", "OURS-24", "OURS-25")
@pytest.mark.parametrize("levels", [1, 2])
async def test_side_by_side_each_gets_a_share(levels: int) -> None:
    members: Any = {f"m{n}": costly(f"m{n}", 100, 10) for n in range(4)}
    for level in range(levels - 1):
        members = {"one": Parallel(members, name=f"p{level}"), "two": Parallel(dict(members), name=f"q{level}")}
    result = await Parallel(members, token_budget=1_600).arun("go")
    assert (result.success, result.stop_reason) == (False, "token_budget")
    assert result.metrics.total_tokens == 1_600
    leaves = result.members if levels == 1 else [leaf for step in result.members for leaf in step.members]
    assert {leaf.metrics.total_tokens for leaf in leaves} == {1_600 // len(leaves)}


@pytest.mark.spec("OURS-13", "OURS-24")
async def test_what_the_first_of_two_at_a_time_leave_over_is_for_those_after_them() -> None:
    usage = Usage(prompt_tokens=100, completion_tokens=0)
    gate = Gate(tool_call("peek", n=0).evolve(usage=usage))

    def last(seen: Any) -> Any:
        gate.open.set()
        return text("more said", usage=usage)

    steps = [tool_call("peek", n=n).evolve(usage=usage) for n in range(3)]
    more = Agent(ScriptedModel([*steps, last]), [peek], name="more")
    large = Agent(gate, [peek], name="large", max_consecutive_tool_errors=100, tool_loop_threshold=100)
    members = {"small": costly("small", 100), "large": large, "more": more}
    result = await Parallel(members, token_budget=1_000, max_concurrency=2, on_error="continue").arun("go")
    used = {step.member: (step.metrics.total_tokens, step.stop_reason) for step in result.members}
    assert used == {"small": (100, "complete"), "more": (400, "complete"), "large": (500, "token_budget")} and result.success


@pytest.mark.spec("OURS-13", "OURS-24", "OURS-25")
async def test_money_is_shared_and_counted_at_the_members_prices() -> None:
    pattern = Parallel({name: costly(name, 100, 10, priced=True) for name in "ab"}, max_cost_usd=1.0)
    result = await pattern.arun("go")
    assert (result.success, result.stop_reason) == (False, "cost_budget")
    assert result.metrics.cost_usd == pytest.approx(1.0)
    assert [step.metrics.cost_usd for step in result.members] == [pytest.approx(0.5)] * 2


@pytest.mark.spec("OURS-24")
async def test_metrics_are_those_of_the_tree() -> None:
    inner = Parallel([costly("a", 10, 3), costly("b", 10)], name="inner")
    result = await Sequential([inner, says("c")]).arun("go")
    assert (result.metrics.model_calls, result.metrics.tool_calls, result.metrics.iterations) == (5, 2, 2)
    assert result.metrics.total_tokens == sum(step.metrics.total_tokens for step in result.members)
    assert result.metrics.cost_usd is None, "a member's model has no price"
    assert result.members[0].metrics.model_calls == 4 and result.duration_ms > 0


# events


@pytest.mark.spec("OURS-24", "PAT-16")
async def test_events_are_a_tree_of_runs_each_numbered_without_a_gap() -> None:
    pattern = nested(Gate())
    pattern.members["middle"].members["inner"].members["slow"].config.model.open.set()
    events = [event async for event in pattern.run("go")]
    runs = tree(events)
    assert [event.seq for event in events] == list(range(len(events)))
    parents = {own[0].run_id: own[0].parent_run_id for own in runs.values()}
    assert len(runs) == 8 and sum(parent is None for parent in parents.values()) == 1
    for run_id, own in runs.items():
        assert [event.seq for event in own] == list(range(len(own))), run_id
        assert parents[run_id] is None or (parents[run_id] in runs and own[0].member)
    starts = [event for event in runs[events[0].run_id] if isinstance(event, StepStartEvent)]
    assert [event.child_run_id in runs for event in starts] == [True, True]
    ends = [event for event in runs[events[0].run_id] if isinstance(event, StepCompleteEvent)]
    assert [(end.step, end.status, end.result) for end in ends][1] == ("1.never", "completed", "never said")


@pytest.mark.spec("OURS-24")
async def test_tokens_of_members_are_streamed() -> None:
    pattern = Sequential([Sequential([says("a", "one two three")], name="inner")])
    quiet = [event async for event in pattern.run("go")]
    loud = [event async for event in pattern.run("go", stream_tokens=True)]
    chunks = [[e.innermost for e in events if isinstance(e, MemberEvent)] for events in (quiet, loud)]
    texts = ["".join(e.content or "" for e in inner if isinstance(e, ModelChunkEvent)) for inner in chunks]
    assert texts == ["", "one two three"]


@pytest.mark.spec("OURS-24")
async def test_the_callers_callback_sees_the_tree_and_its_error_cancels_it() -> None:
    seen: list[Event] = []
    await Sequential([says("a")], callback_handler=seen.append).arun("go")
    assert {event.event_type for event in seen} >= {"step_start", "member", "step_complete", "terminate"}

    def breaks(event: Event) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await Sequential([says("a")], callback_handler=breaks).arun("go")


# results and handles


@pytest.mark.spec("OURS-24", "PAT-1")
async def test_the_summary_form_has_all_but_the_conversation() -> None:
    pattern = Sequential([says("a"), says("b")])
    light = await pattern.arun("go", full=False)
    assert light.outputs == ["a said", "b said"] and light.final_output == light.message == light.text == "b said"
    assert [step.member for step in light.members] == ["a", "b"] and light.success and light.error is None
    with pytest.raises(RunError, match="summary"):
        _ = light.state
    whole = await pattern.arun("go")
    assert [message.role for message in whole.messages] == ["user", "assistant", "assistant", "assistant"]
    assert light.to_dict()["pattern"]["outputs"] == ["a said", "b said"]


@pytest.mark.spec("OURS-24")
async def test_a_member_gives_its_conversation_where_that_is_asked_for(store: str) -> None:
    async def play(stage: Any) -> Any:
        result = await stage.call("a", "go", full=True)
        plain = await stage.call("a", "go", key="plain")
        await stage.ask("?", key="ask")
        return [[message.role for message in result.messages], plain.conversation is None]

    pattern = Program(play, [says("a")], checkpointer=store)
    await pattern.arun("go", thread_id="t")
    result = await pattern.aresume("x", thread_id="t")
    assert result.value == [["system", "user", "assistant"], True]
    assert "conversation" not in str(result.report)


@pytest.mark.spec("OURS-24")
async def test_a_pattern_is_started_and_attached_to() -> None:
    gate = Gate(text("done"))
    pattern = Sequential([Agent(gate, name="slow")])
    handle = await pattern.start("go")
    await gate.came.wait()
    again = await pattern.attach(handle.run_id)
    gate.open.set()
    events = [event async for event in again.events()]
    result = await handle.result()
    assert result.message == "done" and events[-1].event_type == "terminate"
    assert [event.seq for event in events] == list(range(len(events)))


@pytest.mark.spec("OURS-24", "PAT-2")
async def test_sync_calls_work_and_one_pattern_serves_many_runs() -> None:
    pattern = Loop(says("a", "1"), until=lambda output: True)
    results = await asyncio.gather(*(pattern.arun(f"go {n}") for n in range(20)))
    assert all(result.success for result in results) and len({result.run_id for result in results}) == 20


@pytest.mark.spec("OURS-1", "OURS-24")
async def test_the_end_of_a_durable_pattern_is_found_by_another_process(store: str) -> None:
    async def both(pattern: Pattern, thread: str) -> tuple[Any, Any]:
        result = await pattern.arun("go", thread_id=thread)
        async with new_runtime():
            return result, await (await pattern.attach(result.run_id, thread_id=thread)).result()

    bad = Agent(ScriptedModel([error(ModelError("down"))]), name="bad")
    good, found = await both(Parallel([says("a"), says("b")], merge="list", checkpointer=store), "good")
    assert (found.success, found.value, found.message, found.outputs) == (True, good.value, good.message, good.outputs)
    assert [step.step for step in found.members] == [step.step for step in good.members]
    assert found.metrics.model_calls == 2 and found.metrics.total_tokens == good.metrics.total_tokens
    failed, found = await both(Sequential([says("a"), bad], checkpointer=store), "bad")
    assert (found.success, found.stop_reason, found.outputs) == (False, "error", ["a said"])
    assert str(found.error) == str(failed.error) and found.message == failed.message


def test_a_pattern_in_synchronous_code() -> None:
    with Runtime(inline=True) as runtime:
        failing = Sequential([Agent(ScriptedModel([error(ModelError("down"))]), name="bad")])
        result = failing.run_sync("go", runtime=runtime)
        assert not result.success and "ModelError: down" in str(result.error)
