"""Plan and execute: the two ledgers, stalls and new plans, and how it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from umbel import Agent, Runtime, ToolContext, tool
from umbel.errors import CapReached, ConfigurationError, MemberFailed, NothingRan
from umbel.patterns.pipeline import parallel, sequential
from umbel.patterns.plan_execute import PlanExecute
from umbel.testing import ScriptedModel, error, text, tool_call

from .team import FLOOR, FloorModel, kinds_of, member, replying

DONE = {"is_done": True}


def step(speaker: str, instruction: str = "do it", **more: Any) -> dict[str, Any]:
    return {"is_done": False, "next_speaker": speaker, "instruction": instruction, **more}


STALL = step("ann", is_progressing=False)


def managing(*rounds: dict[str, Any] | str, plans: Any = None) -> ScriptedModel:
    """A model that keeps these progress ledgers, one a round, whichever run it is; rounds are read off the prompt."""

    def reply(messages: list[Any]) -> Any:
        request = messages[-1].content
        if "Write the final answer" in request:
            return text(f"final after {turns_in(request)}")
        if "make a plan" in request or "make another plan" in request:
            number = 2 if "another" in request else 1
            plan = {"facts": f"facts {number}", "plan": [f"plan {number}", "end"]}
            return text(json.dumps(plan) if plans is None else plans)
        now = rounds[min(turns_in(request), len(rounds) - 1)]
        return text(now if isinstance(now, str) else json.dumps(now))

    return ScriptedModel([reply, reply, reply])


def turns_in(request: str) -> int:
    return request.count(", told to: ") + request.count("(there is no member")


def worker(name: str) -> Agent:
    return Agent(FloorModel(replying(lambda request: f"{name} did {request.rpartition('Do this now: ')[2]}")), name=name)


@pytest.mark.spec("OURS-24")
async def test_the_manager_plans_and_instructs_until_it_is_done(runtime: Runtime) -> None:
    def sees(request: str) -> str:
        assert "facts 1" in request and "1. plan 1" in request and "ann did look" in request
        return "bob wrote"

    model = managing(step("ann", "look"), step("bob", "write"), DONE)
    ann = member("ann", replying(lambda request: f"ann did {request.rpartition('Do this now: ')[2]}"))
    result = await PlanExecute([ann, member("bob", replying(sees))], model=model).arun("Report.")
    assert result.success and result.final_output == "final after 2" and result.outputs == ["ann did look", "bob wrote"]
    assert result.details == {"facts": "facts 1", "plan": ["plan 1", "end"], "rounds": 3, "stalls": 0, "replans": 0}
    assert [one.step for one in result.members] == [
        "plan-0",
        "round-1/manager",
        "round-1/ann",
        "round-2/manager",
        "round-2/bob",
        "round-3/manager",
        "reporter",
    ]


@pytest.mark.spec("OURS-24")
@pytest.mark.parametrize("max_rounds", [1, 4, 9])
async def test_calls_stay_within_their_bound(inline: Runtime, max_rounds: int) -> None:
    result = await PlanExecute([worker("ann")], model=managing(step("ann")), max_rounds=max_rounds).arun("x")
    assert result.metrics.model_calls <= max_rounds * 1 + max_rounds + 0 + 2  # r k + r + p + 2
    assert not result.success and isinstance(result.error, CapReached) and result.stop_reason == "max_iterations"
    assert result.error.details == {"cap": "max_rounds", "limit": max_rounds} and len(result.outputs) == max_rounds
    assert result.final_output == "ann did do it", "what there is"


@pytest.mark.spec("OURS-25")
@pytest.mark.parametrize(
    "stall", [STALL, step("ann", in_loop=True), step("nobody"), step(""), step("ann", in_loop=True, is_progressing=False)]
)
async def test_without_progress_the_plan_is_made_anew_and_in_the_end_given_up(inline: Runtime, stall: dict[str, Any]) -> None:
    pattern = PlanExecute([worker("ann")], model=managing(stall), max_stalls=2, max_replans=1)
    result = await pattern.arun("x")
    assert not result.success and isinstance(result.error, CapReached) and result.error.details["cap"] == "max_replans"
    assert result.details["replans"] == 1 and result.details["rounds"] == 4 and result.details["facts"] == "facts 2"
    kinds = await kinds_of(pattern, "x")
    assert kinds == ["planned", "progress", "progress", "replanned", "progress", "progress"]


async def test_progress_makes_up_for_a_stall(inline: Runtime) -> None:
    model = managing(STALL, step("ann"), STALL, step("ann"), STALL, DONE)
    result = await PlanExecute([worker("ann")], model=model, max_stalls=2, max_replans=0).arun("x")
    assert result.success and result.details["replans"] == 0 and result.details["stalls"] == 1
    worse = managing(STALL, STALL, DONE)
    result = await PlanExecute([worker("ann")], model=worse, max_stalls=2, max_replans=0).arun("x")
    assert not result.success and result.details["rounds"] == 2


@pytest.mark.spec("OURS-25")
async def test_a_member_that_fails(inline: Runtime) -> None:
    team = [member("ann", error("no hands")), worker("bob")]
    model = managing(step("ann"), step("bob"), DONE)
    strict = await PlanExecute(team, model=model).arun("x")
    assert not strict.success and isinstance(strict.error, MemberFailed) and "no hands" in str(strict.error)
    lenient = await PlanExecute(team, model=model, on_error="continue").arun("x")
    assert lenient.success and lenient.outputs == ["bob did do it"] and lenient.details["rounds"] == 3
    all_failed = managing(step("ann"), DONE)
    hopeless = await PlanExecute(team, model=all_failed, on_error="continue").arun("x")
    assert not hopeless.success and isinstance(hopeless.error, MemberFailed), "whatever the manager thinks of it"
    nobody = await PlanExecute([], model=model).arun("x")
    assert not nobody.success and isinstance(nobody.error, NothingRan)


@pytest.mark.spec("OURS-25")
async def test_a_ledger_that_is_none(inline: Runtime) -> None:
    for model in (managing(DONE, plans="no plan"), managing("no ledger"), ScriptedModel([error("out of order")])):
        result = await PlanExecute([worker("ann")], model=model).arun("x")
        assert not result.success and isinstance(result.error, MemberFailed) and not FLOOR.came


@tool
async def consult(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(ctx.interrupt("May I?"))


@pytest.mark.spec("OURS-24", "OURS-3")
async def test_a_member_may_ask_a_person_at_any_depth(inline: Runtime) -> None:
    asks = Agent(
        ScriptedModel([tool_call("consult"), lambda messages: text(str(messages[-1].content))]), [consult], name="asks"
    )
    inner = PlanExecute(
        [worker("ann"), asks], model=managing(step("ann", "a"), step("asks"), step("ann", "b"), DONE), name="plan"
    )
    pattern = parallel(sequential(inner, name="inner"), name="outer", checkpointer="memory://")
    result = await pattern.arun("x", thread_id="t")
    assert result.stop_reason == "interrupted" and len(result.interrupts) == 1
    result = await pattern.aresume("yes", thread_id="t")
    assert result.success and (result.members[0].members[0].pattern or {})["outputs"] == ["ann did a", "yes", "ann did b"]
    assert sum(FLOOR.came.values()) == 2, "what was done is not done again"


@pytest.mark.spec("OURS-5")
async def test_a_member_at_work_is_cancelled_with_it(inline: Runtime) -> None:
    slow = Agent(FloorModel(text("x"), together=9), name="ann")
    pattern = PlanExecute([slow], model=managing(step("ann")))
    running = asyncio.ensure_future(pattern.arun("x"))
    async with asyncio.timeout(20):
        while not FLOOR.now:
            await asyncio.sleep(0)
        pattern.cancel()
        result = await running
    assert result.stop_reason == "cancelled" and not FLOOR.now


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"max_rounds": 0}, "max_rounds"),
        ({"max_stalls": 0}, "max_stalls"),
        ({"max_replans": -1}, "max_replans"),
        ({"model": worker("ann")}, "model is a model"),
    ],
)
def test_wrong_settings_say_what_is_wrong(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        PlanExecute([worker("ann")], **{"model": managing(DONE), **settings})
