"""Pauses in a pattern: several at once, beside what works and fails, inside each other, answered here and elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from umbel import Agent, Runtime, tool
from umbel.errors import ModelError, NotPaused
from umbel.events import InterruptEvent, MemberEvent, StepCompleteEvent
from umbel.patterns.pattern import Pattern
from umbel.patterns.pipeline import Parallel, Sequential
from umbel.testing import ScriptedModel, error, text, tool_call, tool_calls

from .programs import Gate, Program, ask_person, asks, new_runtime, says


def named(result: Any) -> dict[str, str]:
    """Questions by interrupt id."""
    return {asked["interrupt_id"]: asked["question"] for asked in result.interrupts}


def id_of(result: Any, question: str) -> str:
    [found] = [asked["interrupt_id"] for asked in result.interrupts if asked["question"] == question]
    return str(found)


class Breaks(ScriptedModel):
    """A model that is down."""

    def __init__(self) -> None:
        super().__init__([error(ModelError("down"))])


@pytest.mark.spec("OURS-3", "OURS-24")
async def test_a_pattern_asks_at_its_own_level(inline: Runtime, store: str) -> None:
    async def play(stage: Any) -> Any:
        first = await stage.ask("Go on?", key="go-on", options=["yes", "no"], metadata={"why": "cost"})
        second = await stage.ask("How far?", key="far", fields={"km": "number"})
        return [first, second]

    pattern = Program(play, checkpointer=store)
    one = await pattern.arun("go", thread_id="t")
    assert not one.success and one.stop_reason == "interrupted" and one.message == ""
    assert [(a["interrupt_id"], a["options"], a["metadata"]) for a in one.interrupts] == [
        ("go-on", ["yes", "no"], {"why": "cost"})
    ]
    two = await pattern.aresume(None, thread_id="t")
    assert named(two) == {"far": "How far?"} and two.interrupts[0]["fields"] == {"km": "number"}
    assert (await pattern.aresume({"km": 3}, thread_id="t")).value == [None, {"km": 3}]
    with pytest.raises(NotPaused, match="finished"):
        await pattern.aresume("again", thread_id="t")


def trio() -> Pattern:
    """Two that ask, the second twice, and one that does not."""
    return Parallel({"a": asks("a"), "b": asks("b", "b1?", "b2?"), "c": says("c")}, merge="list")


@pytest.mark.spec("OURS-2", "OURS-3", "OURS-24")
@pytest.mark.parametrize("durable", [True, False])
async def test_several_pauses_are_answered_one_at_a_time_in_any_order(inline: Runtime, store: str, durable: bool) -> None:
    pattern = trio().stored_in(store) if durable else trio()
    thread: dict[str, Any] = {"thread_id": "t"} if durable else {}
    result = await pattern.arun("go", **thread)
    assert set(named(result).values()) == {"a?", "b1?"} and result.members[0].text == "c said"
    for question, answer, left in (("b1?", "one", {"a?", "b2?"}), ("a?", "two", {"b2?"}), ("b2?", "three", set())):
        with pytest.raises(NotPaused):
            await pattern.aresume("x", interrupt_id="nobody", **thread or {"result": result})
        chosen = {"interrupt_id": id_of(result, question), **(thread or {"result": result})}
        result = await pattern.aresume(answer, **chosen)
        assert set(named(result).values()) == left
    assert result.success and result.value == ["a: two", "b: three", "c said"]
    assert [step.step for step in result.members] == ["2.c", "0.a", "1.b"]
    assert result.metrics.model_calls == 2 + 3 + 1 and result.metrics.tool_calls == 3


@pytest.mark.spec("OURS-2", "OURS-24")
async def test_several_pauses_are_answered_at_once_and_a_bare_answer_is_refused(inline: Runtime, store: str) -> None:
    pattern = trio().stored_in(store)
    result = await pattern.arun("go", thread_id="t")
    with pytest.raises(NotPaused, match="waits for 2 answers"):
        await pattern.aresume("x", thread_id="t")
    answers = {id_of(result, "a?"): "one", id_of(result, "b1?"): "two"}
    result = await pattern.aresume(answers=answers, thread_id="t")
    assert set(named(result).values()) == {"b2?"}
    assert (await pattern.aresume("three", thread_id="t")).value == ["a: one", "b: three", "c said"]


@pytest.mark.spec("OURS-2", "OURS-15", "OURS-24")
async def test_two_people_answer_at_the_same_moment(inline: Runtime, store: str) -> None:
    pattern = trio().stored_in(store)
    paused = await pattern.arun("go", thread_id="t")
    given = [("one", id_of(paused, "a?")), ("two", id_of(paused, "b1?"))]
    results = await asyncio.gather(*(pattern.aresume(answer, thread_id="t", interrupt_id=asked) for answer, asked in given))
    assert [set(named(result).values()) for result in results] == [{"b1?"}, {"b2?"}], "one after the other"
    assert (await pattern.aresume("three", thread_id="t")).value == ["a: one", "b: three", "c said"]


@pytest.mark.spec("OURS-2", "OURS-24")
async def test_a_member_that_asks_two_things_at_once_goes_on_when_it_has_both_answers(inline: Runtime, store: str) -> None:
    both = tool_calls(("ask_person", {"question": "x?"}), ("ask_person", {"question": "y?"}))
    member = Agent(ScriptedModel([both, lambda seen: text(f"{seen[-2].content} {seen[-1].content}")]), [ask_person], name="m")
    pattern = Sequential([member, says("after")], checkpointer=store)
    result = await pattern.arun("go", thread_id="t")
    result = await pattern.aresume("1", thread_id="t", interrupt_id=id_of(result, "y?"))
    assert set(named(result).values()) == {"x?"}
    result = await pattern.aresume("2", thread_id="t")
    assert result.outputs == ["1 2", "after said"]


@pytest.mark.spec("OURS-2", "OURS-25", "BUG-58")
async def test_what_runs_beside_a_pause_ends_first_well_or_badly(inline: Runtime, store: str) -> None:
    gate = Gate(text("late"))
    members = {"asks": asks("asks"), "fails": Agent(Breaks(), name="fails"), "slow": Agent(gate, name="slow")}
    pattern = Parallel(members, on_error="continue", merge="list", checkpointer=store)
    run = asyncio.ensure_future(pattern.arun("go", thread_id="t"))
    await gate.came.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not run.done(), "the pause waits for what runs"
    gate.open.set()
    paused = await run
    assert paused.stop_reason == "interrupted" and paused.error is None
    assert {step.member: step.status for step in paused.members} == {"fails": "failed", "slow": "completed"}
    result = await pattern.aresume("ok", thread_id="t")
    assert result.value == ["asks: ok", "", "late"] and result.success and gate.calls == 1
    assert [step.problem for step in result.members if not step.success] == ["ModelError: down"]


@pytest.mark.spec("OURS-3", "OURS-24")
async def test_pauses_pass_through_patterns_in_patterns(runtime: Runtime, store: str) -> None:
    inner = Sequential([says("first"), asks("deep", "deep?")], name="inner")
    middle = Parallel({"left": inner, "right": asks("right", "right?")}, name="middle", merge="list")
    pattern = Sequential([middle, says("last")], name="outer", checkpointer=store)
    result = await pattern.arun("go", thread_id="t")
    assert set(named(result).values()) == {"deep?", "right?"}
    result = await pattern.aresume("d", thread_id="t", interrupt_id=id_of(result, "deep?"))
    assert set(named(result).values()) == {"right?"}
    result = await pattern.aresume("r", thread_id="t")
    assert result.success and result.final_output == "last said"
    assert [step.text for step in result.members[0].members[0].members] == ["first said", "deep: d"]
    assert result.metrics.model_calls == 1 + 2 + 2 + 1


@pytest.mark.spec("OURS-3", "OURS-24")
@pytest.mark.parametrize("durable", [True, False])
async def test_a_pattern_is_a_tool_that_may_pause(inline: Runtime, store: str, durable: bool) -> None:
    team = Parallel({"a": asks("a"), "b": says("b")}, name="team")
    boss = Agent(
        ScriptedModel([tool_call("team", prompt="work"), lambda seen: text(f"boss: {seen[-1].content}")]),
        [team.as_tool()],
        checkpointer=store if durable else None,
    )
    thread: dict[str, Any] = {"thread_id": "t"} if durable else {}
    paused = await boss.arun("go", **thread)
    assert set(named(paused).values()) == {"a?"}
    result = await boss.aresume("yes", **(thread or {"result": paused}))
    assert result.message == "boss: a: yes\n\n---\n\nb said"
    assert result.metrics.model_calls == 2 + 2 + 1


@pytest.mark.spec("OURS-3", "OURS-24")
async def test_an_agent_with_a_pattern_as_tool_is_a_member_of_a_pattern(inline: Runtime, store: str) -> None:
    team = Sequential([asks("a")], name="team")
    script: list[Any] = [tool_call("team", prompt="work"), lambda seen: text(f"boss: {seen[-1].content}")]
    boss = Agent(ScriptedModel(script), [team.as_tool()], name="boss")
    pattern = Sequential([boss, says("last")], checkpointer=store)
    paused = await pattern.arun("go", thread_id="t")
    result = await pattern.aresume("yes", thread_id="t", interrupt_id=id_of(paused, "a?"))
    assert result.outputs == ["boss: a: yes", "last said"]


@pytest.mark.spec("OURS-2", "OURS-3", "OURS-24")
async def test_another_process_sees_the_pause_and_answers_it(store: str) -> None:
    pattern = trio().stored_in(store)
    async with new_runtime():
        await pattern.arun("go", thread_id="t")
    other = trio().stored_in(store)
    async with new_runtime():
        asked = {one["question"]: one["interrupt_id"] for one in await other.pending_interrupts_of("t")}
        assert set(asked) == {"a?", "b1?"}
        await other.aresume("one", thread_id="t", interrupt_id=asked["a?"])
    async with new_runtime():
        assert [one["question"] for one in await other.pending_interrupts_of("t")] == ["b1?"]
        await other.aresume("two", thread_id="t")
        assert (await other.aresume("three", thread_id="t")).value == ["a: one", "b: three", "c said"]


@pytest.mark.spec("OURS-3")
async def test_a_pause_is_told_at_every_level(inline: Runtime, store: str) -> None:
    pattern = Sequential([asks("a")], checkpointer=store)
    events = [event async for event in pattern.run("go", thread_id="t")]
    assert isinstance(events[-1], InterruptEvent) and events[-1].question == "a?"
    inner = [event.innermost for event in events if isinstance(event, MemberEvent)]
    assert isinstance(inner[-1], InterruptEvent) and inner[-1].interrupt_id != events[-1].interrupt_id
    [step] = [event for event in events if isinstance(event, StepCompleteEvent)]
    assert step.status == "interrupted"
    after = [event async for event in pattern.resume("yes", thread_id="t")]
    assert after[-1].event_type == "terminate" and [event.seq for event in after] == list(range(len(after)))


@pytest.mark.spec("OURS-2", "OURS-24")
async def test_a_pause_that_nobody_waits_for_does_not_hold_up_the_pattern(inline: Runtime, store: str) -> None:
    async def play(stage: Any) -> Any:
        asked = asyncio.ensure_future(stage.call("asks", "go"))
        result = await stage.call("b", "go")
        asked.cancel()
        return result.text

    result = await Program(play, [asks("asks"), says("b")], checkpointer=store).arun("go", thread_id="t")
    assert result.success and result.value == "b said" and result.interrupts == ()


@pytest.mark.spec("OURS-5", "OURS-24")
async def test_cancelling_what_was_answered_keeps_the_answer(inline: Runtime, store: str) -> None:
    gate = Gate(text("worked"))
    started = asyncio.Event()

    @tool(idempotent=True)
    async def work() -> str:
        """Work."""
        started.set()
        await gate.open.wait()
        return "worked"

    script = [tool_call("ask_person", question="a?"), tool_call("work"), text("done")]
    pattern = Parallel(
        [Agent(ScriptedModel(script), [ask_person, work], name="a"), asks("b")], checkpointer=store, merge="list"
    )
    paused = await pattern.arun("go", thread_id="t")
    run = asyncio.ensure_future(pattern.aresume("yes", thread_id="t", interrupt_id=id_of(paused, "a?")))
    await started.wait()
    pattern.cancel("t")
    assert (await run).stop_reason == "cancelled"
    gate.open.set()
    again = await pattern.continue_turn("t")
    assert set(named(again).values()) == {"b?"}, "the first is not asked again, the second is"
    result = await pattern.aresume("too", thread_id="t")
    assert result.value == ["done", "b: too"]
