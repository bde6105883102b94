"""Patterns whose turn was cut off: by an error, a cancel, a process that died at any point. Nothing is done twice or lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Runtime, ToolContext, tool
from umbel.errors import ModelError, NotPaused, RunFailed
from umbel.events import StepCompleteEvent
from umbel.patterns.pattern import Pattern
from umbel.patterns.pipeline import Loop, Parallel, Sequential
from umbel.testing import ScriptedModel, error, text, tool_call, validate_history

from .crashing import Effects, copy_of
from .programs import Gate, Program, ask_person, asks, new_runtime, says


class Flaky(ScriptedModel):
    """A model that is down until it is repaired; known in the test's process only."""

    def __init__(self, *turns: Any) -> None:
        super().__init__(turns)
        self.broken = True

    async def complete(self, messages: Any, tools: Any = None, **settings: Any) -> Any:
        if self.broken:
            raise ModelError("down")
        return await super().complete(messages, tools, **settings)


@pytest.mark.spec("OURS-1", "OURS-24", "OURS-25")
async def test_only_what_failed_is_tried_again(inline: Runtime, store: str) -> None:
    flaky = Flaky(text("b said"))
    done: list[str] = []

    @tool
    async def work(who: str) -> str:
        """Work."""
        done.append(who)
        return who

    def works(name: str) -> Agent:
        return Agent(ScriptedModel([tool_call("work", who=name), text(f"{name} said")]), [work], name=name)

    pattern = Parallel([works("a"), Agent(flaky, name="b"), works("c")], merge="list", checkpointer=store)
    failed = await pattern.arun("go", thread_id="t")
    assert (failed.success, failed.stop_reason) == (False, "error") and "b: ModelError: down" in str(failed.error)
    assert failed.outputs == ["a said", "", "c said"]
    still = await pattern.continue_turn("t")
    assert not still.success and [step.status for step in still.members].count("failed") == 1
    flaky.broken = False
    result = await pattern.continue_turn("t")
    assert result.success and result.error is None and result.value == ["a said", "b said", "c said"]
    assert done == ["a", "c"] and len(result.members) == 3 and result.run_id == failed.run_id
    with pytest.raises(NotPaused, match="finished"):
        await pattern.continue_turn("t")


@pytest.mark.spec("OURS-1", "OURS-24")
async def test_a_member_goes_on_where_it_failed_and_its_tokens_count_once(inline: Runtime, store: str) -> None:
    calls: list[int] = []

    @tool
    async def pay() -> str:
        """Pay."""
        calls.append(1)
        return "paid"

    turns: list[Any] = [tool_call("pay"), error(ModelError("down"))]
    member = Agent(ScriptedModel(turns), [pay], name="m")
    pattern = Sequential([Sequential([member], name="inner")], checkpointer=store)
    failed = await pattern.arun("go", thread_id="t")
    assert not failed.success and failed.metrics.model_calls == 1 and failed.metrics.tool_calls == 1
    repaired = member.with_settings(model=ScriptedModel([tool_call("pay"), text("done")]))
    again = Sequential([Sequential([repaired], name="inner")], checkpointer=store)
    result = await again.continue_turn("t")
    assert result.success and result.final_output == "done" and calls == [1]
    assert (result.metrics.model_calls, result.metrics.tool_calls) == (2, 1)
    leaf = result.members[0].members[0]
    assert result.metrics.total_tokens == leaf.metrics.total_tokens
    state = await again.get_state("t#1.0.inner#1.0.m")
    validate_history(state.messages)


@pytest.mark.spec("OURS-24", "OURS-25")
async def test_a_judge_is_asked_again_about_what_has_changed_and_nobody_else(inline: Runtime, store: str) -> None:
    flaky = Flaky(text("b said"))
    done: list[str] = []

    def works(name: str) -> Agent:
        def answer(seen: Any) -> Any:
            done.append(name)
            return text(f"{name}({str(seen[-1].content).count('said')})")

        return Agent(ScriptedModel([answer]), name=name)

    async def play(stage: Any) -> Any:
        results = await stage.side_by_side([stage.call("first", "go"), stage.call("b", "go")])
        same = await stage.call("same", "go")
        judge = await stage.call("judge", " ".join(result.text for result in results))
        last = await stage.call("last", judge.text)
        if not results[1].success:
            raise LookupError("no b")
        return [same.text, judge.text, last.text]

    members = {"first": works("first"), "b": Agent(flaky), "last": works("last")}
    pattern = Program(play, members, auxiliary={"same": works("same"), "judge": works("judge")}, checkpointer=store)
    with pytest.raises(RunFailed):
        await pattern.arun("go", thread_id="t")
    assert done == ["first", "same", "judge", "last"]
    flaky.broken = False
    result = await pattern.continue_turn("t")
    assert result.value == ["same(0)", "judge(1)", "last(0)"] and done == ["first", "same", "judge", "last", "judge"]
    assert result.metrics.model_calls == 6 and len(result.members) == 5


@pytest.mark.spec("OURS-24", "OURS-25")
async def test_a_race_that_nobody_won_is_run_again(inline: Runtime, store: str) -> None:
    flaky, gate = Flaky(text("fast")), Gate(text("slow"))

    async def play(stage: Any) -> Any:
        running = [asyncio.ensure_future(stage.call(name, "go")) for name in ("fast", "slow")]
        ended, left = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        [winner] = [task.result() for task in ended]
        if not winner.success:
            raise LookupError("nobody won")
        return winner.text

    pattern = Program(play, {"fast": Agent(flaky), "slow": Agent(gate)}, checkpointer=store)
    with pytest.raises(RunFailed):
        await pattern.arun("go", thread_id="t")
    gate.open.set()
    again = Program(play, {"fast": Agent(Gate()), "slow": Agent(gate)}, checkpointer=store)
    result = await again.continue_turn("t")
    assert result.value == "slow" and gate.calls == 2


@pytest.mark.spec("OURS-24", "OURS-25")
async def test_a_member_that_reached_a_limit_begins_anew(inline: Runtime, store: str) -> None:
    @tool
    async def work(n: int) -> str:
        """Work."""
        return str(n)

    model = ScriptedModel([tool_call("work", n=1), text("done")])
    tight = Agent(model, [work], name="m", max_iterations=1)
    failed = await Sequential([tight], checkpointer=store).arun("go", thread_id="t")
    assert failed.stop_reason == "error" and "stopped: max_iterations" in str(failed.error)
    wide = tight.with_settings(max_iterations=5)
    result = await Sequential([wide], checkpointer=store).continue_turn("t")
    assert result.success and result.final_output == "done" and result.metrics.model_calls == 2 + 2


@pytest.mark.spec("OURS-3", "OURS-24", "OURS-25")
async def test_what_failed_after_an_answer_is_not_asked_again(inline: Runtime, store: str) -> None:
    ask = tool_call("ask_person", question="sure?")
    broken = Agent(ScriptedModel([ask, error(ModelError("down"))]), [ask_person], name="m")
    pattern = Sequential([broken], checkpointer=store)
    await pattern.arun("go", thread_id="t")
    failed = await pattern.aresume("yes", thread_id="t")
    assert not failed.success and failed.interrupts == ()
    repaired = broken.with_settings(model=ScriptedModel([ask, lambda seen: text(f"said {seen[-1].content}")]))
    result = await Sequential([repaired], checkpointer=store).continue_turn("t")
    assert result.success and result.final_output == "said yes" and result.metrics.model_calls == 2


@pytest.mark.spec("OURS-3", "OURS-24", "OURS-25")
async def test_a_continued_turn_that_pauses_does_not_report_its_old_failure(inline: Runtime, store: str) -> None:
    flaky = Flaky(text("b said"))

    async def play(stage: Any) -> Any:
        result = await stage.call("b", "go")
        if not result.success:
            raise LookupError("no b")
        return await stage.ask("Well?", key="person")

    pattern = Program(play, {"b": Agent(flaky)}, checkpointer=store)
    with pytest.raises(RunFailed):
        await pattern.arun("go", thread_id="t")
    flaky.broken = False
    paused = await pattern.continue_turn("t")
    assert paused.stop_reason == "interrupted" and paused.error is None and len(paused.interrupts) == 1
    assert (await pattern.aresume("fine", thread_id="t")).value == "fine"


@pytest.mark.spec("OURS-3", "OURS-24", "MEM-45")
async def test_both_branches_of_a_fork_are_answered_differently(inline: Runtime, store: str) -> None:
    inner = Sequential([says("first"), asks("deep", "deep?", "deeper?")], name="inner")
    pattern = Parallel({"left": inner, "right": asks("right", "right?")}, merge="list", checkpointer=store)
    await pattern.arun("go", thread_id="t")
    await pattern.fork("t", "u")

    async def answer(thread: str, *answers: str) -> Any:
        for asked, given in zip(("deep?", "right?", "deeper?"), answers, strict=True):
            found = await pattern.pending_interrupts_of(thread)
            [chosen] = [one["interrupt_id"] for one in found if one["question"] == asked]
            result = await pattern.aresume(given, thread_id=thread, interrupt_id=chosen)
        return result

    one, two = await asyncio.gather(answer("t", "1", "2", "3"), answer("u", "4", "5", "6"))
    assert one.value == ["deep: 3", "right: 2"] and two.value == ["deep: 6", "right: 5"]
    assert one.run_id != two.run_id, "a fork is a run of its own"
    threads = {thread.thread_id async for thread in pattern.threads.every("u#")}
    assert threads == {"u#1.0.left", "u#1.0.left#1.1.deep", "u#1.1.right"}


# a process that dies


def effectful(effects: Effects) -> Callable[[str, int], Agent]:
    """Agents that do a number of things, each of which is a moment for a crash."""

    @tool
    async def act(what: str) -> str:
        """Do something that must not be done twice."""
        effects.add(what)
        return what

    def agent(name: str, number: int) -> Agent:
        steps = [tool_call("act", what=f"{name}{n}") for n in range(number)]
        return Agent(ScriptedModel([*steps, text(f"{name} said")]), [act], name=name)

    return agent


def deep(agent: Callable[[str, int], Agent]) -> Pattern:
    """Patterns in patterns in patterns."""
    bottom = Parallel([agent("c", 2), agent("d", 1)], name="bottom")
    middle = Loop({"e": agent("e", 1), "bottom": bottom}, name="middle", until=lambda output: True)
    return Sequential([agent("a", 2), Parallel([middle, agent("b", 2)], name="wide"), agent("z", 1)], name="top")


ALL = Counter(["a0", "a1", "c0", "c1", "d0", "e0", "b0", "b1", "z0"])


@pytest.mark.case(15)
@pytest.mark.spec("OURS-1", "OURS-18", "OURS-24")
async def test_a_process_that_dies_at_any_effect_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    effects = Effects(tmp_path)
    points: list[tuple[str, list[str]]] = []

    class Watched(Effects):
        def add(self, what: str) -> None:
            points.append(self.crash())  # before it is done
            super().add(what)
            points.append(self.crash())  # it is done, and nobody knows

    watched = Watched(tmp_path)
    async with new_runtime():
        whole = await deep(effectful(watched)).stored_in(watched.store).arun("go", thread_id="t")
    assert whole.success and Counter(effects.done) == ALL
    assert len(points) == 2 * ALL.total()
    for number, (store, done) in enumerate(points):
        after = Effects(tmp_path / f"after-{number}")
        after.folder.mkdir()
        async with new_runtime():
            result = await deep(effectful(after)).stored_in(store).continue_turn("t")
        assert result.success and result.final_output == whole.final_output, (number, result.error)
        total = Counter(done) + Counter(after.done)
        unknown = ALL - total
        assert not total - ALL, f"{number}: done twice: {total - ALL}"
        assert unknown.total() <= 3, "what was begun and is not known (one for each that ran side by side) is left to the model"
        assert len(result.members) == 3 and result.run_id == whole.run_id


@pytest.mark.case(15)
@pytest.mark.spec("OURS-1", "OURS-2", "OURS-24")
async def test_a_process_that_dies_after_an_answer_was_given(tmp_path: Path) -> None:
    """Of two questions one is answered; the process dies while its member goes on; the other is answered later."""
    effects = Effects(tmp_path)
    points: list[str] = []

    @tool(idempotent=True)
    async def note(what: str) -> str:
        """Do something that may be repeated."""
        effects.add(what)
        points.append(effects.crash()[0])
        return what

    @tool
    async def pay(ctx: ToolContext) -> str:
        """Pay, once a person has agreed."""
        answer = ctx.interrupt("pay?")
        effects.add("paid")
        return f"paid {answer}"

    def pattern(store: str) -> Pattern:
        pays = Agent(
            ScriptedModel([tool_call("pay"), tool_call("note", what="n"), text("pays done")]), [pay, note], name="pays"
        )
        return Sequential([Parallel([pays, asks("other")], merge="list", name="pair")], checkpointer=store)

    async with new_runtime():
        first = pattern(effects.store)
        paused = await first.arun("go", thread_id="t")
        [pays] = [asked["interrupt_id"] for asked in paused.interrupts if asked["question"] == "pay?"]
        await first.aresume("yes", thread_id="t", interrupt_id=pays)
    assert effects.done == ["paid", "n"]
    [crash] = points
    async with new_runtime():
        second = pattern(crash)
        again = await second.continue_turn("t")
        assert [asked["question"] for asked in again.interrupts] == ["other?"], "the answer was stored before it was used"
        result = await second.aresume("too", thread_id="t")
    assert result.success and result.members[0].value == ["pays done", "other: too"]
    assert Counter(effects.done) == {"paid": 1, "n": 2}, "what was paid is not paid again"


@pytest.mark.case(15)
@pytest.mark.spec("OURS-15", "OURS-18", "OURS-24")
@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_function_that_was_running_is_repeated_only_where_that_is_safe(tmp_path: Path, idempotent: bool) -> None:
    effects = Effects(tmp_path)
    points: list[str] = []

    @tool(idempotent=idempotent)
    async def act(prompt: str) -> str:
        """Do something."""
        effects.add(prompt)
        if not points:
            points.append(effects.crash()[0])
        return "done"

    async with new_runtime():
        assert (await Sequential([act, says("after")], checkpointer=effects.store).arun("x", thread_id="t")).success
    async with new_runtime():
        pattern = Sequential([act, says("after")], checkpointer=points[0])
        result = await pattern.continue_turn("t")
        if idempotent:
            assert result.success and effects.done == ["x", "x"]
            return
        assert not result.success and "outcome_unknown" in str(result.members[0].error) and effects.done == ["x"]
        assert (await pattern.continue_turn("t")).success, "whoever has looked may have it done again"
        assert effects.done == ["x", "x"]


@pytest.mark.spec("OURS-18", "OURS-24")
async def test_a_function_that_asked_is_no_function_that_was_running(tmp_path: Path) -> None:
    gate = Gate()

    @tool
    async def act(prompt: str, ctx: ToolContext) -> str:
        """Do something once a person has agreed."""
        return str(ctx.interrupt("sure?"))

    store = f"sqlite:///{tmp_path}/t.db"
    async with new_runtime():
        pattern = Parallel([act, Agent(gate, name="slow")], checkpointer=store, merge="list")
        run = asyncio.ensure_future(pattern.arun("x", thread_id="t"))
        await gate.came.wait()
        pattern.cancel("t")
        assert (await run).stop_reason == "cancelled"
        gate.open.set()
        paused = await pattern.continue_turn("t")
        assert [asked["question"] for asked in paused.interrupts] == ["sure?"]
        assert (await pattern.aresume("yes", thread_id="t")).value == ["yes", "let"]


@pytest.mark.spec("OURS-18", "OURS-22", "OURS-24")
async def test_what_is_told_is_stored(tmp_path: Path) -> None:
    """Whatever a watcher has heard of a step's end, a process that comes after a crash knows, too."""
    effects = Effects(tmp_path)
    agent = effectful(effects)
    heard: list[tuple[str, str]] = []
    pattern = Sequential([agent("a", 1), Parallel([agent("b", 1), agent("c", 1)], name="p")], checkpointer=effects.store)
    async with new_runtime():
        async for event in pattern.run("go", thread_id="t"):
            if isinstance(event, StepCompleteEvent):
                heard.append((event.step, copy_of(tmp_path / "threads.db", tmp_path / f"copy-{len(heard)}.db")))
    assert [step for step, _ in heard] == ["0.a", "1.p"]
    for number, (_, store) in enumerate(heard):
        async with new_runtime():
            state = await Sequential([says("a")], checkpointer=store).get_state("t")
        assert sum(message.metadata["step"]["kind"] == "result" for message in state.messages[1:]) >= number + 1


@pytest.mark.spec("OURS-1", "OURS-24")
async def test_a_caller_that_goes_away_is_no_program_that_gives_up(inline: Runtime, store: str) -> None:
    gate = Gate(text("worked"))
    pattern = Sequential([Parallel([Agent(gate, name="slow"), says("b")], name="p"), says("last")], checkpointer=store)
    run = asyncio.ensure_future(pattern.arun("go", thread_id="t"))
    await gate.came.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    while gate.waiting:
        await asyncio.sleep(0)
    gate.open.set()
    result = await pattern.continue_turn("t")
    assert result.success and result.final_output == "last said" and gate.calls == 2
    assert [step.status for step in result.members] == ["completed"] * 2
