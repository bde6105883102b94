"""Pipelines: one after another, side by side, in a loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from umbel import Agent, Runtime, tool
from umbel.errors import ConfigurationError, DefinitionError, MemberFailed, ModelError, NothingRan, NotStorable, RunFailed
from umbel.events import PatternEvent
from umbel.patterns.pipeline import RULE, Loop, Parallel, Sequential, loop, parallel, sequential, vote
from umbel.protocol.commands import CancelRun
from umbel.testing import ScriptedModel, error, text, tool_call

from .programs import Gate, asks, says

pytestmark = pytest.mark.usefixtures("inline")


def echo(name: str = "echo") -> Agent:
    """Says what it is asked."""
    return Agent(ScriptedModel([lambda messages: text(f"<{messages[-1].content}>")]), name=name)


def broken(name: str = "bad") -> Agent:
    return Agent(ScriptedModel([error(ModelError("down"))]), name=name)


@tool
async def work(n: int) -> str:
    """Work."""
    return str(n)


def capped(name: str = "capped") -> Agent:
    """Reaches its limit of iterations, and sums up."""
    return Agent(ScriptedModel([tool_call("work", n=1), text("a summary")]), [work], name=name, max_iterations=1)


# sequential


@pytest.mark.spec("PAT-1", "PAT-3", "PAT-8")
async def test_each_gets_what_the_one_before_it_said(runtime: Runtime) -> None:
    result = await sequential(echo("a"), echo("b"), echo("c")).arun("go", runtime=runtime)
    assert result.success and result.stop_reason == "complete" and result.error is None
    assert result.outputs == ["<go>", "<<go>>", "<<<go>>>"] and result.final_output == result.message == "<<<go>>>"
    assert [step.member for step in result.members] == ["a", "b", "c"] and result.duration_ms > 0
    assert [step.metrics.model_calls for step in result.members] == [1, 1, 1], "each step is a conversation of its own"


@pytest.mark.spec("PAT-3")
async def test_templates_and_prompts_of_single_members() -> None:
    pattern = Sequential(
        {"a": echo(), "b": echo(), "c": echo()},
        template="{task}|{previous_output}|{{x}}",
        prompts={"a": "first {task}{previous_output}", 2: "third {previous_output}"},
    )
    result = await pattern.arun("go")
    assert result.outputs == ["<first go>", "<go|<first go>|{x}>", "<third <go|<first go>|{x}>>"]


@pytest.mark.spec("PAT-3", "BUG-58")
async def test_braces_in_prompts_and_outputs_are_not_read_as_templates() -> None:
    nasty = '{"a": {task}} {0} {previous_output.__class__} {{'
    result = await Sequential([says("a", nasty), echo("b")], template="{task}: {previous_output}").arun("{previous_output}")
    assert result.outputs == [nasty, f"<{{previous_output}}: {nasty}>"]


@pytest.mark.spec("PAT-3")
@pytest.mark.parametrize("template", ["{nobody}", "{task.__class__}", "{", "{}", "{0}"])
async def test_a_bad_template_is_refused_when_it_is_written(template: str) -> None:
    with pytest.raises(ConfigurationError, match="template"):
        Sequential([says("a")], template=template)
    with pytest.raises(ConfigurationError, match="template"):
        Parallel([says("a")], prompts={"a": template})
    with pytest.raises(ConfigurationError, match="template"):
        Loop(says("a"), template=template)


@pytest.mark.spec("PAT-3", "PAT-2", "OURS-25")
async def test_a_failing_step_ends_the_chain_and_keeps_what_was_there() -> None:
    result = await Sequential([says("a"), broken(), says("never")]).arun("go")
    assert (result.success, result.stop_reason) == (False, "error") and result.outputs == ["a said"]
    assert isinstance(result.error, MemberFailed) and "bad: ModelError: down" in str(result.error)
    assert result.final_output == "a said" and [step.status for step in result.members] == ["completed", "failed"]
    assert result.error.details["steps"] == ["1.bad"]


@pytest.mark.spec("PAT-2", "OURS-25")
async def test_a_limit_is_a_failure_of_its_step_and_its_summary_is_not_passed_on() -> None:
    result = await Sequential([capped(), echo("never")]).arun("go")
    assert not result.success and result.outputs == [] and "capped: stopped: max_iterations" in str(result.error)
    [step] = result.members
    assert (step.status, step.stop_reason, step.text) == ("failed", "max_iterations", "a summary")
    kept = await Sequential([says("a"), capped(), echo("c")], on_error="continue").arun("go")
    assert kept.success and kept.outputs == ["a said", "", "<a said>"]


@pytest.mark.spec("PAT-2", "OURS-3", "OURS-25")
async def test_a_pause_is_no_output_and_a_cancelled_member_is_a_failure(inline: Runtime) -> None:
    paused = await Sequential([asks("a"), echo("never")]).arun("go")
    assert (paused.success, paused.stop_reason, paused.final_output) == (False, "interrupted", "")
    gate = Gate()
    member = Agent(gate, name="slow")
    pattern = Sequential([member, echo("never")])
    events: list[Any] = []
    pattern.callback_handler = events.append
    run = asyncio.ensure_future(pattern.arun("go"))
    await gate.came.wait()
    [child] = [event.child_run_id for event in events if event.event_type == "step_start"]
    await inline.ask(CancelRun(run_id=child), child)
    result = await run
    assert (result.success, result.stop_reason) == (False, "cancelled") and result.members[0].status == "cancelled"


@pytest.mark.spec("PAT-4", "OURS-25")
@pytest.mark.parametrize("make", [lambda: Sequential([]), lambda: Parallel([]), lambda: Loop([])])
async def test_without_members_nothing_ran_and_that_is_no_success(make: Any) -> None:
    result = await make().arun("go")
    assert not result.success and isinstance(result.error, NothingRan) and result.outputs == []


@pytest.mark.spec("OURS-25")
@pytest.mark.parametrize("make", [Sequential, Parallel, Loop])
async def test_when_every_member_failed_nothing_makes_it_a_success(make: Any) -> None:
    result = await make([broken("x"), broken("y")], on_error="continue").arun("go")
    assert (result.success, result.stop_reason) == (False, "error") and isinstance(result.error, MemberFailed)


@pytest.mark.spec("OURS-25")
async def test_going_on_gives_the_next_one_the_output_before_it() -> None:
    result = await Sequential([says("a"), broken(), echo("c")], on_error="continue").arun("go")
    assert result.success and result.outputs == ["a said", "", "<a said>"] and result.error is None
    assert result.members[1].problem == "ModelError: down"


# parallel


@pytest.mark.spec("PAT-5", "PAT-6")
async def test_all_at_once_and_outputs_in_the_members_order() -> None:
    gates = [Gate(text(str(n))) for n in range(4)]
    run = asyncio.ensure_future(Parallel([Agent(gate) for gate in gates]).arun("go"))
    await asyncio.gather(*(gate.came.wait() for gate in gates))
    for gate in reversed(gates):
        gate.open.set()
        while gate.waiting:
            await asyncio.sleep(0)
    result = await run
    assert result.outputs == ["0", "1", "2", "3"] and result.final_output == RULE.join("0123")


@pytest.mark.spec("PAT-5", "OURS-25", "BUG-58")
async def test_a_failed_member_leaves_its_slot_empty_and_the_others_are_kept() -> None:
    members = [says("a"), broken("x"), says("c"), capped("y")]
    result = await Parallel(members).arun("go")
    assert (result.success, result.outputs) == (False, ["a said", "", "c said", ""])
    assert str(result.error) == "x: ModelError: down; y: stopped: max_iterations"
    assert result.final_output == f"a said{RULE}c said"
    assert (await Parallel(members, on_error="continue").arun("go")).success


@pytest.mark.spec("PAT-6")
@pytest.mark.parametrize(
    ("merge", "final", "value"),
    [
        ("concatenate", "x\n\n---\n\ny\n\n---\n\n X ", None),
        ("last", "", None),
        ("list", '["x", "y", " X ", ""]', ["x", "y", " X ", ""]),
        ("vote", "x", None),
        (max, "y", None),
        (lambda outputs: {"count": len(outputs)}, '{"count": 4}', {"count": 4}),
    ],
)
async def test_merging(merge: Any, final: str, value: Any) -> None:
    members = [says("a", "x"), says("b", "y"), says("c", " X "), broken("d")]
    result = await Parallel(members, merge=merge, on_error="continue").arun("go")
    assert (result.success, result.final_output, result.value) == (True, final, value)


@pytest.mark.spec("PAT-6")
async def test_merging_by_an_async_function_and_by_an_agent() -> None:
    async def longest(outputs: list[str]) -> str:
        await asyncio.sleep(0)
        return max(outputs, key=len)

    members = {"a": says("a", "short"), "b": says("b", "quite long")}
    assert (await Parallel(members, merge=longest).arun("go")).final_output == "quite long"
    result = await Parallel(members, merge=echo("judge")).arun("go")
    assert "Task: go" in result.final_output and "a:\nshort" in result.final_output and "b:\nquite long" in result.final_output
    assert [step.step for step in result.members][-1] == "merger"
    failed = await Parallel(members, merge=broken()).arun("go")
    assert not failed.success and failed.outputs == ["short", "quite long"] and "merger: ModelError" in str(failed.error)


@pytest.mark.spec("PAT-6")
async def test_an_unknown_strategy_and_a_broken_merge() -> None:
    with pytest.raises(ConfigurationError, match="'longest' is not known: use concatenate"):
        Parallel([says("a")], merge="longest")  # type: ignore[arg-type]
    with pytest.raises(NotStorable, match="what merge gave has no JSON form"):
        await Parallel([says("a")], merge=lambda outputs: object()).arun("go")
    with pytest.raises(RunFailed, match="ZeroDivisionError"):
        await Parallel([says("a")], merge=lambda outputs: 1 / 0).arun("go")
    assert vote([]) == "" and vote(["", "B", "a", "b "]) == "B"


@pytest.mark.spec("PAT-6")
async def test_prompts_by_name_by_index_and_by_the_runs_metadata() -> None:
    inner = Parallel([echo("x")], name="inner", merge="last")
    pattern = Parallel(
        {"a": echo(), "b": echo(), "c": echo(), "d": inner}, prompts={"a": "A {task}", 1: "B {task}"}, merge="list"
    )
    assert (await pattern.arun("go")).value == ["<A go>", "<B go>", "<go>", "<go>"]
    given = {"prompts": {"0": "own", "c": "{not a gap}"}}
    assert (await pattern.arun("go", metadata=given)).value == ["<own>", "<B go>", "<{not a gap}>", "<go>"]
    for wrong in ({"9": "x"}, {"-1": "x"}, ["x"], {"nobody": "x"}):
        with pytest.raises(ConfigurationError, match="prompt"):
            await pattern.arun("go", metadata={"prompts": wrong})


# loops


@pytest.mark.spec("PAT-7", "PAT-8", "OURS-25")
async def test_a_loop_ends_when_its_predicate_is_content() -> None:
    result = await loop(echo("a"), until=lambda output: output.count("<") >= 3, max_loops=9).arun("go")
    assert result.success and result.final_output == "<<<go>>>" and result.details == {"rounds": 3}
    assert result.outputs == ["<go>", "<<go>>", "<<<go>>>"]
    assert [step.step for step in result.members] == [f"round-{n}/0.a" for n in (1, 2, 3)]


@pytest.mark.spec("PAT-7", "OURS-25")
async def test_a_loop_that_reaches_its_cap_is_no_success() -> None:
    result = await Loop(echo("a"), template="{round}:{task}:{previous_output}").arun("go")
    assert (result.success, result.stop_reason) == (False, "max_iterations") and len(result.outputs) == 5
    assert result.error is not None and result.error.details == {"cap": "max_loops", "limit": 5}
    assert result.final_output == "<5:go:<4:go:<3:go:<2:go:<go>>>>>" and result.details == {"rounds": 5}
    for wrong in (0, 51):
        with pytest.raises(ConfigurationError, match="1 to 50"):
            Loop(says("a"), max_loops=wrong)


@pytest.mark.spec("PAT-7")
async def test_a_critic_says_what_to_improve_and_when_it_is_good() -> None:
    def judge(messages: Any) -> Any:
        return text("APPROVED" if "better" in messages[-1].content else "make it better")

    critic = Agent(ScriptedModel([judge]), name="critic")
    writer = Agent(ScriptedModel([lambda seen: text("better" if "make it" in str(seen[-1].content) else "bad")]), name="writer")
    result = await Loop(writer, critic=critic).arun("write")
    assert result.success and result.outputs == ["bad", "better"] and result.details == {"rounds": 2}
    own = await Loop(writer, critic=critic, until=lambda comment: comment == "make it better").arun("write")
    assert own.outputs == ["bad"]
    failed = await Loop(writer, critic=broken("critic")).arun("write")
    assert not failed.success and failed.outputs == ["bad"] and "critic: ModelError" in str(failed.error)


@pytest.mark.spec("PAT-7", "OURS-25")
async def test_several_members_make_a_round_and_a_failure_ends_it() -> None:
    result = await Loop([echo("a"), echo("b")], until=lambda output: True).arun("go")
    assert result.outputs == ["<<go>>"] and [step.member for step in result.members] == ["a", "b"]
    result = await Loop([echo("a"), broken()], until=lambda output: True).arun("go")
    assert (result.success, result.outputs, result.final_output) == (False, [], "<go>")

    async def content(output: str) -> bool:
        await asyncio.sleep(0)
        return True

    assert (await Loop([echo("a"), broken()], until=content, on_error="continue").arun("go")).success
    with pytest.raises(RunFailed, match="KeyError"):
        await Loop(echo("a"), until=lambda output: {"other": True}[output]).arun("go")


# members


class Duck:
    """Something of another library."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def arun(self, prompt: str) -> Any:
        return self.answer


class SyncDuck:
    name = "sync duck"

    def run_sync(self, prompt: str) -> str:
        return f"sync {prompt}"


class Reply(BaseModel):
    message: str
    success: bool = True
    stop_reason: str = "complete"


@pytest.mark.spec("PAT-1", "OURS-25")
async def test_functions_tools_and_ducks_are_members() -> None:
    async def asynchronous(prompt: str) -> str:
        return f"async {prompt}"

    @tool
    def shout(query: str) -> str:
        """Shout."""
        return query.upper()

    members = [lambda prompt: f"plain {prompt}", asynchronous, shout, Duck("quack"), SyncDuck(), Duck(Reply(message="hi"))]
    result = await parallel(*members, merge="list").arun("go")
    assert result.value == ["plain go", "async go", "GO", "quack", "sync go", "hi"]
    names = [step.member for step in sorted(result.members, key=lambda step: step.step)]
    assert names == ["member-1", "asynchronous", "shout", "member-4", "sync duck", "member-6"]


@pytest.mark.spec("PAT-1", "PAT-2", "OURS-25")
async def test_what_members_that_are_functions_do_wrong_is_a_failure_too() -> None:
    def raises(prompt: str) -> str:
        raise LookupError("lost")

    bad = Duck(Reply(message="half", success=False, stop_reason="max_iterations"))
    result = await Parallel({"a": raises, "b": bad, "c": says("c")}).arun("go")
    assert result.outputs == ["", "", "c said"] and not result.success
    assert "LookupError: lost" in str(result.error) and "max_iterations" in str(result.error)


async def test_members_that_cannot_be_members() -> None:
    @tool
    def two(a: str, b: str) -> str:
        """Take two."""
        return a + b

    for wrong in (3, Duck, "agent", two):
        with pytest.raises(DefinitionError, match="cannot be a member"):
            Sequential([wrong])
    with pytest.raises(ConfigurationError, match="one character or more"):
        Sequential({"": says("a")})
    with pytest.raises(ConfigurationError, match="on_error"):
        Sequential([], on_error="ignore")
    with pytest.raises(ConfigurationError, match="max_concurrency"):
        Parallel([], max_concurrency=0)
    with pytest.raises(ConfigurationError, match="has no setting modell"):
        Sequential([], modell="x")


async def test_members_of_one_name_are_told_apart() -> None:
    members = [says("a-2", "1"), says("a", "2"), says("a", "3"), says("a", "4")]
    pattern = Sequential(members)
    assert list(pattern.members) == ["a-2", "a", "a-3", "a-4"]
    assert (await pattern.arun("go")).outputs == ["1", "2", "3", "4"]


async def test_an_agent_behind_a_tool_is_the_member() -> None:
    result = await Sequential([says("a").as_tool()]).arun("go")
    assert result.outputs == ["a said"] and result.members[0].run_id


@pytest.mark.spec("PAT-8")
async def test_helpers_take_members_one_by_one_or_as_a_list_or_mapping() -> None:
    for made in (
        sequential(says("a"), says("b")),
        sequential([says("a"), says("b")]),
        sequential({"a": says("x"), "b": says("y")}),
    ):
        assert list(made.members) == ["a", "b"]
    assert isinstance(parallel(says("a")), Parallel) and isinstance(loop(says("a"), max_loops=2), Loop)


@pytest.mark.spec("PAT-16")
async def test_what_a_pipeline_does_is_told() -> None:
    async def kinds(pattern: Any) -> list[str]:
        return [event.kind async for event in pattern.run("go") if isinstance(event, PatternEvent)]

    assert await kinds(Sequential([says("a")])) == ["stage_started", "stage_completed"]
    assert await kinds(Parallel([says("a")])) == ["fan_out_started", "fan_out_completed"]
    assert await kinds(Loop(says("a"), until=lambda output: True)) == [
        "loop_iteration_started", "loop_iteration_completed", "loop_terminated",
    ]  # fmt: skip
