"""The stage: keys, recorded steps and their order, values, functions, side by side, what is given up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Runtime, ToolContext, tool
from umbel.errors import ConfigurationError, RunError, RunFailed
from umbel.testing import text

from .programs import Gate, Program, asks, says

pytestmark = pytest.mark.usefixtures("inline")


async def test_a_step_is_named_after_its_member_unless_it_has_a_key() -> None:
    async def play(stage: Any) -> Any:
        one = await stage.call("a", "go")
        two = await stage.call("a", "again", key="second/a")
        return [one.step, two.step, one.member, two.member, two.text]

    result = await Program(play, [says("a")]).arun("go")
    assert result.value == ["a", "second/a", "a", "a", "a said"]
    assert [step.step for step in result.members] == ["a", "second/a"]


async def test_two_steps_with_one_key_are_refused() -> None:
    async def play(stage: Any) -> Any:
        await stage.call("a", "go")
        await stage.call("a", "go")

    with pytest.raises(RunError, match="two steps with the key 'a'"):
        await Program(play, [says("a")]).arun("go")


@pytest.mark.parametrize("what", ["member", "function"])
async def test_what_a_pattern_does_not_have_is_an_error_that_lists_what_it_has(what: str) -> None:
    async def play(stage: Any) -> Any:
        await (stage.call("b", "go") if what == "member" else stage.function("b", {}, key="b"))

    with pytest.raises(ConfigurationError, match=f"has no {what} 'b'; it has: a"):
        await Program(play, {"a": lambda prompt: prompt}).arun("go")


async def test_a_program_that_raises_ends_the_run_with_its_error() -> None:
    async def play(stage: Any) -> Any:
        await stage.call("a", "go")
        raise LookupError("lost")

    with pytest.raises(RunFailed, match="LookupError: lost"):
        await Program(play, [says("a")]).arun("go")


async def test_a_program_that_cancels_itself_is_an_error_and_not_a_caller_that_went_away() -> None:
    async def play(stage: Any) -> Any:
        task = asyncio.ensure_future(stage.call("a", "go"))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(RunError, match="cancelled from within"):
        await Program(play, [Agent(Gate(), name="a")]).arun("go")


@pytest.mark.spec("OURS-24")
async def test_recorded_steps_come_again_in_the_order_in_which_they_ended(store: str) -> None:
    gates = {name: Gate(text(name)) for name in "abc"}
    orders: list[list[str]] = []
    prompts: list[str] = []

    async def play(stage: Any) -> Any:
        order: list[str] = []
        orders.append(order)
        running = {asyncio.ensure_future(stage.call(name, "go")) for name in "abc"}
        while running:
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            assert len(ended) == 1, "what ended before another one is heard of before it"
            order.append(ended.pop().result().text)
            await stage.remember(f"after {order[-1]}", lambda: len(order))
            if not running and len(orders) == 1:
                assert not stage.replaying
        return await stage.ask("Well?", key="person")

    async def let() -> None:
        for name in "cab":
            await gates[name].came.wait()
        for name in "cab":
            gates[name].open.set()
            while len(orders[0]) <= "cab".index(name):
                await asyncio.sleep(0)

    pattern = Program(play, {name: Agent(gate, name=name) for name, gate in gates.items()}, checkpointer=store)
    paused, _ = await asyncio.gather(pattern.arun("go", thread_id="t"), let())
    assert [asked["interrupt_id"] for asked in paused.interrupts] == ["person"] and prompts == []
    result = await pattern.aresume("fine", thread_id="t")
    assert orders == [["c", "a", "b"], ["c", "a", "b"]] and result.value == "fine"
    assert [gate.calls for gate in gates.values()] == [1, 1, 1], "nobody worked twice"
    assert [step.step for step in result.members] == ["c", "a", "b"]


@pytest.mark.spec("OURS-24")
async def test_a_program_that_was_changed_since_does_not_hang(store: str, caplog: pytest.LogCaptureFixture) -> None:
    async def before(stage: Any) -> Any:
        for name in "abc":
            await stage.call(name, "go")
        return await stage.ask("Well?", key="person")

    async def after(stage: Any) -> Any:
        results = await stage.side_by_side([stage.call("c", "go"), stage.call("d", "go")])
        return [result.text for result in results] + [await stage.ask("Well?", key="person")]

    members = [says(name) for name in "abcd"]
    await Program(before, members, checkpointer=store).arun("go", thread_id="t")
    result = await Program(after, members, checkpointer=store).aresume("fine", thread_id="t")
    assert result.value == ["c said", "d said", "fine"] and "not asked for" in caplog.text


@pytest.mark.spec("OURS-24")
async def test_a_value_is_chosen_once_and_later_turns_can_look_it_up(store: str) -> None:
    chosen: list[int] = []
    earlier: list[Any] = []

    async def slowly() -> Any:
        chosen.append(len(chosen))
        return {"number": chosen[-1]}

    async def play(stage: Any) -> Any:
        earlier.append(stage.earlier("choice"))
        value = await stage.remember("choice", slowly)
        none = await stage.remember("none", lambda: chosen.append(99))
        assert none is None and stage.earlier("choice") == value and stage.earlier("other") is None
        await stage.call("a", "go")
        assert stage.earlier("choice") == value
        return [value, await stage.ask("Well?", key="person")]

    pattern = Program(play, [says("a")], checkpointer=store)
    await pattern.arun("go", thread_id="t")
    first = await pattern.aresume("one", thread_id="t")
    await pattern.arun("go", thread_id="t")
    second = await pattern.aresume("two", thread_id="t")
    assert (first.value, second.value) == ([{"number": 0}, "one"], [{"number": 2}, "two"])
    assert chosen == [0, 99, 2, 99] and earlier == [None, None, {"number": 0}, {"number": 0}]


async def test_structured_input_is_there_after_a_pause(store: str) -> None:
    async def play(stage: Any) -> Any:
        await stage.ask("Well?", key="person")
        return [stage.values, stage.metadata["user"], stage.prompt]

    pattern = Program(play, checkpointer=store)
    await pattern.arun({"items": [1, 2]}, thread_id="t", metadata={"user": "ann"})
    assert (await pattern.aresume("x", thread_id="t")).value == [{"items": [1, 2]}, "ann", '{"items": [1, 2]}']
    for bad in (3, {"x": object()}):
        with pytest.raises(ConfigurationError):
            await pattern.arun(bad)


@pytest.mark.parametrize(("limit", "cap", "most"), [(None, None, 6), (2, None, 2), (None, 3, 3), (5, 2, 2)])
async def test_so_many_run_at_once(limit: int | None, cap: int | None, most: int) -> None:
    gate = Gate()

    async def play(stage: Any) -> Any:
        calls = [stage.call(f"m{n}", "go") for n in range(6)]
        return [result.member for result in await stage.side_by_side(calls, limit=limit)]

    pattern = Program(play, {f"m{n}": Agent(gate) for n in range(6)}, max_concurrency=cap)
    run = asyncio.ensure_future(pattern.arun("go"))
    while gate.waiting < most:
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    gate.open.set()
    assert (await run).value == [f"m{n}" for n in range(6)] and gate.most == most


async def test_side_by_side_waits_for_all_and_raises_the_first_error() -> None:
    ended: list[str] = []

    async def job(stage: Any, name: str) -> str:
        result = await stage.call(name, "go")
        ended.append(result.text)
        if name != "c":
            raise LookupError(name)
        return name

    async def play(stage: Any) -> Any:
        assert await stage.side_by_side([]) == []
        with pytest.raises(ConfigurationError, match="limit"):
            await stage.side_by_side([], limit=0)
        await stage.side_by_side([job(stage, name) for name in "abc"], limit=1)

    with pytest.raises(RunFailed, match="LookupError: a"):
        await Program(play, [says(name) for name in "abc"]).arun("go")
    assert ended == ["a said", "b said", "c said"]


async def test_side_by_side_that_is_given_up_leaves_nothing_running() -> None:
    gate = Gate()

    async def play(stage: Any) -> Any:
        four = asyncio.ensure_future(stage.side_by_side([stage.call(f"m{n}", "go") for n in range(4)], limit=2))
        while gate.waiting < 2:
            await asyncio.sleep(0)
        four.cancel()
        await asyncio.wait({four})
        assert gate.waiting == 0 and gate.stopped == 2
        return "gave up"

    result = await Program(play, {f"m{n}": Agent(gate) for n in range(4)}).arun("go")
    assert result.value == "gave up" and [step.status for step in result.members] == ["cancelled"] * 2


# what is given up


@pytest.mark.spec("OURS-24")
@pytest.mark.parametrize("how", ["wait_for", "timeout"])
async def test_a_call_that_took_too_long_is_recorded_as_cancelled_and_times_out_again(store: str, how: str) -> None:
    gate = Gate()

    async def limited(stage: Any) -> Any:
        if how == "wait_for":
            return await asyncio.wait_for(stage.call("slow", "go"), 0.25)
        async with asyncio.timeout(0.25):
            return await stage.call("slow", "go")

    async def play(stage: Any) -> Any:
        try:
            await limited(stage)
        except TimeoutError:
            result = await stage.call("quick", "go")
        return [result.text, await stage.ask("Well?", key="person")]

    pattern = Program(play, {"slow": Agent(gate), "quick": says("quick")}, checkpointer=store)
    paused = await pattern.arun("go", thread_id="t")
    assert [(step.step, step.status) for step in paused.members] == [("slow", "cancelled"), ("quick", "completed")]
    assert gate.stopped == 1
    result = await pattern.aresume("fine", thread_id="t")
    assert result.value == ["quick said", "fine"] and gate.calls == 1


@pytest.mark.spec("OURS-24")
async def test_the_first_wins_and_wins_again(store: str) -> None:
    gate = Gate()
    tasks: list[int] = []

    async def play(stage: Any) -> Any:
        running = [asyncio.ensure_future(stage.call(name, "go")) for name in ("slow", "quick")]
        ended, left = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        tasks.append(len(left))
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        [winner] = ended
        return [winner.result().text, await stage.ask("Well?", key="person")]

    pattern = Program(play, {"slow": Agent(gate), "quick": says("quick")}, checkpointer=store)
    await pattern.arun("go", thread_id="t")
    result = await pattern.aresume("fine", thread_id="t")
    assert result.value == ["quick said", "fine"] and tasks == [1, 1] and gate.calls == 1
    assert [(step.step, step.status) for step in result.members] == [("quick", "completed"), ("slow", "cancelled")]


async def test_what_the_program_leaves_behind_is_stopped_with_it() -> None:
    gate = Gate()

    async def play(stage: Any) -> Any:
        left = asyncio.ensure_future(stage.call("slow", "go"))
        await gate.came.wait()
        assert not left.done()
        return "done"

    result = await Program(play, {"slow": Agent(gate)}).arun("go")
    assert result.value == "done" and gate.stopped == 1
    assert [(step.step, step.status) for step in result.members] == [("slow", "cancelled")]


# functions


@pytest.mark.spec("PAT-1", "OURS-24")
async def test_functions_run_in_an_executor_and_give_text_or_json(runtime: Runtime) -> None:
    @tool
    async def add(a: int, b: int) -> dict[str, int]:
        """Add."""
        return {"sum": a + b}

    @tool
    def breaks() -> str:
        """Break."""
        raise ValueError("no")

    async def play(stage: Any) -> Any:
        ok = await stage.function("add", {"a": 1, "b": 2}, key="one", member="adder")
        bad = await stage.function("breaks", {}, key="two")
        wrong = await stage.function("add", {"a": "x"}, key="three")
        return [ok.value, ok.member, ok.success, bad.status, bad.problem, wrong.success]

    result = await Program(play, functions=[add, breaks]).arun("go", runtime=runtime)
    assert result.value[:4] == ['{\n  "sum": 3\n}', "adder", True, "failed"] and "no" in result.value[4] and not result.value[5]


@pytest.mark.spec("OURS-24")
async def test_a_function_asks_as_often_as_it_likes(store: str, tmp_path: Path) -> None:
    @tool
    async def plan(ctx: ToolContext) -> str:
        """Ask twice."""
        with (tmp_path / "log").open("a") as log:
            log.write("x")
        return f"{ctx.interrupt('Where?')} {ctx.interrupt('When?')}"

    async def play(stage: Any) -> Any:
        return (await stage.function("plan", {}, key="trip", idempotent=False)).text

    pattern = Program(play, functions=[plan], checkpointer=store)
    first = await pattern.arun("go", thread_id="t")
    second = await pattern.aresume("Rome", thread_id="t")
    assert [result.interrupts[0]["question"] for result in (first, second)] == ["Where?", "When?"]
    assert first.interrupts[0]["interrupt_id"] != second.interrupts[0]["interrupt_id"]
    assert (await pattern.aresume("May", thread_id="t")).value == "Rome May"
    assert (tmp_path / "log").read_text() == "xxx"


async def test_a_function_that_takes_too_long_is_stopped() -> None:
    @tool
    async def sleeps() -> str:
        """Sleep."""
        await asyncio.sleep(60)
        return "never"

    async def play(stage: Any) -> Any:
        result = await stage.function("sleeps", {}, key="s", timeout=0.01)
        return [result.status, result.stop_reason]

    assert (await Program(play, functions=[sleeps]).arun("go")).value == ["failed", "time_budget"]


async def test_names_that_would_be_mixed_up_are_refused() -> None:
    @tool
    async def a() -> str:
        """A function of the pattern."""
        return ""

    async def play(stage: Any) -> Any:
        return [(await stage.call(name, "x")).text for name in ("b c", "b_c")]

    with pytest.raises(ConfigurationError, match="two functions with the name 'a'"):
        Program(play, {"a": lambda prompt: prompt}, functions=[a])
    assert (await Program(play, {"b c": lambda prompt: "1", "b_c": lambda prompt: "2"}).arun("go")).value == ["1", "2"]


async def test_asks_is_what_it_says() -> None:
    """The member that other tests pause with."""
    agent = asks("a", "one?", "two?")
    paused = await agent.arun("go")
    assert (await agent.aresume("1", result=paused)).interrupts[0]["question"] == "two?"
