"""Entrypoints: plain code whose tasks, questions and agents are durable steps."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from umbel import Agent, Runtime, ToolContext, interrupt, tool
from umbel.errors import ConfigurationError, DefinitionError, InvalidArguments, MemberFailed, RunError, StoreUnavailable
from umbel.events import MemberEvent, StepCompleteEvent
from umbel.patterns.functional import ask, entrypoint, step, task
from umbel.patterns.pipeline import Sequential
from umbel.testing import ScriptedModel, text, tool_call

from . import tasks
from .tasks import double, fail, runs, step_names, writer


@pytest.fixture(autouse=True)
def _forget_runs() -> None:
    runs.clear()


# what it is


@pytest.mark.spec("PAT-64")
async def test_plain_code_is_a_pattern(runtime: Runtime) -> None:
    @task(name="greet")
    async def greeting(name: str) -> str:
        return f"Hello {name}"

    @task
    def add_up(numbers: list[int]) -> int:
        return sum(numbers)

    @entrypoint
    async def main(numbers: list[int], name: str = "you") -> dict[str, Any]:
        doubled = await asyncio.gather(*(double(n) for n in numbers))
        async with asyncio.TaskGroup() as group:
            total, hello = group.create_task(add_up(doubled)), group.create_task(greeting(name=name))
        return {"total": total.result(), "hello": hello.result(), "draft": (await step(writer, "Write")).text}

    result = await main.arun({"numbers": [1, 2, 3], "name": "Ada"})
    assert result.success and result.error is None
    assert result.value == {"total": 12, "hello": "Hello Ada", "draft": "A draft."}
    assert {key for key, _ in step_names(result)} == {"double-1", "double-2", "double-3", "add_up-1", "greet-1", "writer-1"}
    assert sorted(done.step for done in result.members) == sorted(key for key, _ in step_names(result))
    assert result.metrics.model_calls == 1
    assert next(done for done in result.members if done.step == "add_up-1").value == 12


def test_outside_of_an_entrypoint_it_is_just_functions() -> None:
    @entrypoint
    async def main(n: int) -> int:
        return await double(n) + 1

    async def call() -> int:
        return await main(4)

    assert asyncio.run(call()) == 9
    assert (main.name, main.__doc__, double.__doc__) == ("main", None, "Twice as much.")
    with pytest.raises(RunError, match=r"ask\(\) belongs into the body of an @entrypoint"):
        _ = ask("?")
    with pytest.raises(RunError, match=r"step\(\) belongs"):
        _ = step(writer, "?")


@pytest.mark.spec("PAT-65")
async def test_a_sync_body_waits_in_a_thread_of_its_own_and_gets_futures(runtime: Runtime) -> None:
    @task
    def where() -> int:
        return threading.get_ident()

    @entrypoint
    def main(n: int) -> list[Any]:
        begun: list[Any] = [double(i) for i in range(n)]
        asleep = [future.result() for future in begun]
        return [asleep, step(writer, "Write").result().text, threading.get_ident() == where().result()]

    results = await asyncio.gather(*(main.arun({"n": n}) for n in range(12)))  # more than a pool of threads would have
    assert [result.value for result in results] == [[[2 * i for i in range(n)], "A draft.", False] for n in range(12)]


@pytest.mark.spec("PAT-65")
async def test_a_sync_task_does_not_block_the_loop(inline: Runtime) -> None:
    begun, released = threading.Event(), threading.Event()

    @task
    def wait() -> str:
        begun.set()
        assert released.wait(20)
        return "released"

    @entrypoint
    async def main() -> Any:
        return await wait()

    waiting = asyncio.ensure_future(main.arun("go"))
    while not begun.is_set():
        await asyncio.sleep(0.001)  # the loop runs while the body of the task waits in a thread
    released.set()
    assert (await waiting).value == "released"


@pytest.mark.spec("PAT-65")
async def test_runs_at_the_same_time_never_mix(inline: Runtime) -> None:
    meeting = asyncio.Barrier(5)

    @task
    async def meet(who: int, turn: int) -> str:
        await meeting.wait()
        return f"{who}.{turn}"

    @entrypoint
    async def main(who: int) -> list[str]:
        return [await meet(who, turn) for turn in range(3)]

    results = await asyncio.gather(*(main.arun({"who": who}) for who in range(5)))
    for who, result in enumerate(results):
        assert result.value == [f"{who}.{turn}" for turn in range(3)]
        assert step_names(result) == [(f"meet-{n}", "completed") for n in (1, 2, 3)]


@pytest.mark.spec("PAT-65")
async def test_what_members_and_tasks_call_is_no_step_of_the_body(inline: Runtime) -> None:
    class Calling(ScriptedModel):
        async def complete(self, messages: Any, tools: Any = None, **settings: Any) -> Any:
            assert await double(1) == 2
            return await super().complete(messages, tools, **settings)

    @tool
    async def calls() -> str:
        """Call a task."""
        return str(await double(2))

    @task
    async def nested(n: int) -> int:
        return await double(n)

    member = Agent(Calling([tool_call("calls"), text("done")]), tools=[calls], name="member")

    @entrypoint
    async def main() -> int:
        first, n = await asyncio.gather(step(member, "go"), nested(4))
        return n + len(first.text)

    result = await main.arun("go")
    assert (result.value, step_names(result)) == (12, [("member-1", "completed"), ("nested-1", "completed")])


async def test_entrypoints_call_each_other_and_members_of_patterns(inline: Runtime) -> None:
    @entrypoint
    async def inner(n: int, by: int = 2) -> int:
        return await double(n) * by

    @entrypoint
    async def outer(n: int) -> list[int]:
        both = await asyncio.gather(inner(n), inner(n, by=5))
        return [*both, (await step(inner, {"n": 10})).value]

    result = await outer.arun("3")
    assert result.value == [12, 30, 40]
    assert step_names(result) == [("inner-1", "completed"), ("inner-2", "completed"), ("inner-3", "completed")]
    assert [child.step for child in result.members[0].members] == ["double-1"]
    chain = await Sequential([inner, inner]).arun("1")
    assert (chain.final_output, chain.success) == ("16", True)


# input and output


class Order(BaseModel):
    item: str
    count: int = 1


@pytest.mark.parametrize("given", [{"item": "tea", "count": 2}, Order(item="tea", count=2), '{"item": "tea", "count": 2}'])
async def test_arguments_and_results_are_what_annotations_say(inline: Runtime, given: Any) -> None:
    @task
    async def more(order: Order) -> Order:
        assert isinstance(order, Order)
        return order.model_copy(update={"count": order.count + 1})

    @entrypoint
    async def main(order: Order) -> Order:
        assert isinstance(order, Order)
        changed = await more(order)
        assert isinstance(changed, Order)
        return changed

    assert (await main.arun(given)).value == {"item": "tea", "count": 3}
    assert (await main.arun({"order": {"item": "tea"}})).value == {"item": "tea", "count": 2}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"n": "many"}, "n: Input should be a valid integer"),
        ({"m": 1}, "n"),
        ("many", "n: Input should"),
        ({}, "n: Input should"),
    ],
)
async def test_an_input_that_does_not_fit_is_refused_before_anything_runs(inline: Runtime, given: Any, why: str) -> None:
    @entrypoint
    async def main(n: int) -> int:
        return n

    with pytest.raises(InvalidArguments, match=r"the input of main does not fit: .*It takes: n \(integer\)") as refused:
        await main.arun(given)
    assert why in str(refused.value)


async def test_what_has_no_json_form_is_an_error_that_names_it(inline: Runtime) -> None:
    @task
    async def odd() -> Any:
        return object()

    @task
    async def wrong() -> int:
        return "no number"  # type: ignore[return-value]

    @entrypoint
    async def main(which: str) -> Any:
        if which == "argument":
            return await double(object())  # type: ignore[arg-type]
        return await odd() if which == "odd" else await wrong() if which == "wrong" else object()

    for which, why in [
        ("argument", "the argument 'n' of task 'double' has no JSON form"),
        ("odd", "odd: NotStorable: what task 'odd' returned has no JSON form"),
        ("wrong", "task 'wrong' returned something else than it says"),
        ("return", "what entrypoint 'main' returned has no JSON form"),
    ]:
        result = await main.arun(which)
        assert not result.success and why in str(result.error)


@pytest.mark.parametrize("make", [task, entrypoint])
def test_what_cannot_be_one_is_refused(make: Any) -> None:
    def generator() -> Any:
        yield 1

    def anything(*numbers: int) -> int:
        return sum(numbers)

    for wrong in (3, double, generator, anything):
        with pytest.raises(DefinitionError):
            make(wrong)
    with pytest.raises(DefinitionError, match="cache"):
        task(cache="always")(anything)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="try, except"):
        entrypoint(on_error="continue")(double.function)


# failures


@pytest.mark.spec("OURS-25")
async def test_a_failed_task_is_raised_in_the_body_and_names_the_task(inline: Runtime) -> None:
    @entrypoint
    async def main(catch: bool) -> str:
        try:
            return await fail("no luck")
        except MemberFailed as error:
            if catch:
                return f"{error.details['steps']} {error.message}"
            raise

    caught = await main.arun({"catch": True})
    assert (caught.success, caught.value) == (True, "['fail-1'] fail: ValueError: no luck")
    assert step_names(caught) == [("fail-1", "failed")]
    thrown = await main.arun({"catch": False})
    assert (thrown.success, thrown.stop_reason) == (False, "error")
    assert isinstance(thrown.error, MemberFailed) and "no luck" in thrown.error.message


@pytest.mark.spec("OURS-25")
async def test_what_the_body_raises_is_the_result(inline: Runtime) -> None:
    @entrypoint
    async def main(how: str) -> None:
        if how == "exit":
            raise SystemExit(3)
        if how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(fail("one"))
                group.create_task(double(1))
        raise KeyError("where")

    assert isinstance((await main.arun("group")).error, MemberFailed)
    for how, why in [("exit", "main: SystemExit: 3"), ("group", "fail: ValueError: one"), ("else", "main: KeyError: 'where'")]:
        result = await main.arun(how)
        assert (result.success, result.stop_reason, why in str(result.error)) == (False, "error", True)


@pytest.mark.spec("OURS-25")
async def test_an_agent_that_comes_to_no_answer_is_a_failure(inline: Runtime) -> None:
    endless = Agent(ScriptedModel([tool_call("nothing")], loop=True), name="endless", max_iterations=2)

    @entrypoint
    async def main(check: bool) -> str:
        return str((await step(endless, "Go", check=check)).stop_reason)

    result = await main.arun({"check": True})
    assert not result.success and "endless: " in str(result.error)
    assert (await main.arun({"check": False})).value == result.members[0].stop_reason


async def test_a_budget_that_stops_a_step_stops_the_run_for_the_same_reason(inline: Runtime) -> None:
    @entrypoint(token_budget=1)
    async def main() -> str:
        await step(writer, "Write a long text about umbels, please.")
        return str((await step(writer, "Go on")).text)

    result = await main.arun("go")
    assert (result.success, result.stop_reason) == (False, "token_budget")


@pytest.mark.parametrize("swallow", [True, False])
async def test_a_broken_store_is_no_failure_of_a_task(inline: Runtime, monkeypatch: pytest.MonkeyPatch, swallow: bool) -> None:
    async def full(run: Any) -> None:
        raise StoreUnavailable("the disk is full")

    @entrypoint(checkpointer="memory://")
    async def main() -> str:
        try:
            await double(1)
        except StoreUnavailable:
            if not swallow:
                raise
            return "swallowed"
        return "nothing noticed"

    monkeypatch.setattr("umbel.actors.supervisor.progress.save", full)
    with pytest.raises(StoreUnavailable):
        await main.arun("go", thread_id="t")


@pytest.mark.spec("PAT-64")
async def test_retries_are_one_step(inline: Runtime) -> None:
    @task(retries=2)
    async def flaky() -> int:
        runs["flaky"] += 1
        if runs["flaky"] < 3:
            raise OSError("again")
        return runs["flaky"]

    @entrypoint
    async def main() -> int:
        return await flaky()

    result = await main.arun("go")
    assert (result.value, runs["flaky"], step_names(result)) == (3, 3, [("flaky-1", "completed")])


async def test_a_task_that_takes_too_long_fails(inline: Runtime) -> None:
    @task(timeout=0.01)
    async def hang() -> None:
        await asyncio.Event().wait()

    @entrypoint
    async def main() -> None:
        await hang()

    assert "hang: ToolTimeout" in str((await main.arun("go")).error)


# what is seen of it


async def test_events_name_the_steps_and_steps_of_steps(inline: Runtime) -> None:
    @entrypoint
    async def inner() -> int:
        return await double(1)

    @entrypoint
    async def main() -> int:
        return await inner()

    told = [event async for event in main.run("go")]
    done = [event.step for event in told if isinstance(event, StepCompleteEvent)]
    deep = [event.innermost for event in told if isinstance(event, MemberEvent)]
    assert done == ["inner-1"]
    assert [event.step for event in deep if isinstance(event, StepCompleteEvent)] == ["double-1"]


async def test_a_body_that_a_tool_began_is_not_the_tools(inline: Runtime) -> None:
    @entrypoint
    async def main() -> str:
        draft = await step(writer, "Write")
        try:
            interrupt("Whose question is it?")
        except RunError as error:
            return f"{draft.text} {error}"
        return ""

    @tool
    async def begin(ctx: ToolContext) -> str:
        """Begin it."""
        return (await ctx.run_subagent(main, "go")).text

    result = await Agent(ScriptedModel([tool_call("begin"), text("done")]), tools=[begin]).arun("go")
    assert result.success and str(result.tool_executions[0].result).startswith("A draft. interrupt() belongs into")


async def test_an_agent_run_past_the_steps_is_refused_with_advice(inline: Runtime) -> None:
    @entrypoint
    async def main() -> str:
        return str((await writer.arun("Write")).message)

    result = await main.arun("go")
    assert "await step(agent, prompt)" in str(result.error)


def test_what_a_body_reaches_is_known_before_it_runs() -> None:
    experts = {"first": writer, "others": [Agent(ScriptedModel([text("x")]), name="second")]}

    @entrypoint
    async def consult(name: str) -> Any:
        return await step(experts["first"], name) if name else await tasks.confirm(name)  # type: ignore[arg-type]

    assert {getattr(one, "name", None) for one in consult.inner()} == {"writer", "second", "confirm"}

    @entrypoint
    async def inner() -> int:
        return await outer(1)

    @entrypoint
    async def outer(n: int) -> int:
        await step(writer, "x")
        return await double(n) + await inner()

    assert set(outer.inner()) == {double, writer} == set(inner.inner())
