"""Debates: who reads what, when they end, who decides, and how many calls and messages that takes at most."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from umbel import Agent, Runtime, ToolContext, tool
from umbel.errors import ConfigurationError, MemberFailed, NothingRan
from umbel.patterns.debate import Debate
from umbel.patterns.pipeline import parallel, sequential
from umbel.testing import ScriptedModel, error, text, tool_call

from .team import FLOOR, FloorModel, kinds_of, member, replying


def says(name: str, *answers: str) -> Agent:
    """A debater whose n-th answer stands n-th; the last one stays. How many it gave is read off the prompt."""

    def answer(request: str) -> str:
        own = request.partition("Your answer so far:\n")[2].partition("\n\nThe others")[0]
        return answers[min(answers.index(own) + 1, len(answers) - 1)] if own in answers else answers[0]

    return member(name, replying(answer))


@pytest.mark.spec("OURS-24")
async def test_each_reads_the_last_answers_of_all_the_others(runtime: Runtime) -> None:
    def answer(request: str) -> str:
        if "The others answered" not in request:
            return "first"
        others = request.partition("The others answered:\n\n")[2].partition("\n\nWhere they are right")[0]
        return others.replace("\n\n", " + ").replace(":\n", ": ")

    team = {name: member(name, replying(answer)) for name in ("ann", "bob", "cid")}
    judge = member("judge", replying(lambda request: f"judged: {request.count('ann: first')}"))
    result = await Debate(team, rounds=2, judge=judge, stop_on_consensus=False).arun("Why?")
    assert result.success and result.final_output.startswith("judged")
    assert result.outputs == ["bob: first + cid: first", "ann: first + cid: first", "ann: first + bob: first"]
    assert [one.step for one in result.members] == [
        *(f"round-{number}/{index}.{name}" for number in (1, 2) for index, name in enumerate(team)),
        "judge",
    ]


@pytest.mark.spec("OURS-24")
@pytest.mark.parametrize(("rounds", "members"), [(1, 1), (1, 4), (3, 2), (4, 5)])
async def test_calls_and_messages_stay_within_their_bounds(inline: Runtime, rounds: int, members: int) -> None:
    team = [says(f"m{number}", f"answer {number}", f"other {number}") for number in range(members)]
    result = await Debate(team, rounds=rounds, stop_on_consensus=False).arun("Why?")
    assert result.success and result.metrics.model_calls == rounds * members  # k is 1
    assert result.details["messages"] <= rounds * members and result.details["rounds"] == rounds


@pytest.mark.spec("OURS-24")
async def test_it_ends_with_the_first_round_in_which_all_agree(inline: Runtime) -> None:
    team = [says("ann", "Four.", "five"), says("bob", "five"), says("cid", " FIVE ")]
    result = await Debate(team, rounds=9).arun("2 + 3?")
    assert result.success and result.details == {"rounds": 2, "messages": 3, "consensus": True, "votes": {"five": 3}}
    assert result.metrics.model_calls == 6 and result.final_output == "five"
    on = await Debate(team, rounds=4, stop_on_consensus=False).arun("2 + 3?")
    assert on.details["rounds"] == 4 and on.details["consensus"]


async def test_what_is_compared_can_be_chosen(inline: Runtime) -> None:
    team = [says("ann", "I think\n42"), says("bob", "Surely\n42"), says("cid", "No\n41")]
    result = await Debate(team, rounds=1, same=lambda answer: answer.splitlines()[-1]).arun("?")
    assert result.final_output == "I think\n42" and result.details["votes"] == {"42": 2, "41": 1}


@pytest.mark.parametrize(
    ("judge", "final", "value"),
    [
        ("vote", "b", None),
        (lambda answers: answers[-1], "c", None),
        (lambda answers: {"n": len(answers)}, '{"n": 4}', {"n": 4}),
    ],
)
async def test_who_decides(inline: Runtime, judge: Any, final: str, value: Any) -> None:
    team = [says(f"m{number}", answer) for number, answer in enumerate("abbc")]
    result = await Debate(team, rounds=1, judge=judge).arun("?")
    assert result.success and (result.final_output, result.value) == (final, value) and result.outputs == list("abbc")


@pytest.mark.spec("OURS-25")
async def test_a_member_that_fails(inline: Runtime) -> None:
    def sometimes(messages: list[Any]) -> Any:
        if "The others answered" in messages[-1].content:
            raise error("asleep")
        return text("x")

    team = [member("ann", sometimes), says("bob", "y")]
    strict = await Debate(team, rounds=3).arun("?")
    assert not strict.success and isinstance(strict.error, MemberFailed) and "ann: ModelError: asleep" in str(strict.error)
    assert strict.details["rounds"] == 2 and strict.outputs == ["x", "y"]
    lenient = await Debate(team, rounds=3, on_error="continue").arun("?")
    assert lenient.success and lenient.outputs == ["x", "y"] and lenient.details["rounds"] == 3, "its last answer stands"
    hopeless = await Debate([member("a", error("no")), member("b", error("no"))], on_error="continue").arun("?")
    assert not hopeless.success and hopeless.details["rounds"] == 1
    nobody = await Debate([]).arun("?")
    assert not nobody.success and isinstance(nobody.error, NothingRan)
    broken = await Debate([says("ann", "x")], judge=member("judge", error("no verdict"))).arun("?")
    assert not broken.success and "no verdict" in str(broken.error) and broken.outputs == ["x"]


async def test_a_round_is_side_by_side(inline: Runtime) -> None:
    team = [Agent(FloorModel(text("x"), together=4), name=f"m{number}") for number in range(4)]
    async with asyncio.timeout(20):
        assert (await Debate(team, rounds=2).arun("?")).success
    assert FLOOR.most == 4


@tool
async def consult(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(ctx.interrupt("Which?"))


@pytest.mark.spec("OURS-24", "OURS-3")
async def test_a_debater_may_ask_a_person_at_any_depth(inline: Runtime) -> None:
    asks = Agent(ScriptedModel([tool_call("consult"), replying(lambda _: "B")]), [consult], name="asks")
    other = Agent(FloorModel(text("B")), name="other")
    debate = Debate([asks, other], rounds=2, name="debate", stop_on_consensus=False)
    pattern = parallel(sequential(debate, name="inner"), name="outer", checkpointer="memory://")
    result = await pattern.arun("?", thread_id="t")
    for _ in range(2):
        assert result.stop_reason == "interrupted" and len(result.interrupts) == 1
        result = await pattern.aresume("B", thread_id="t")
    assert result.success and result.final_output == "B"
    assert sum(FLOOR.came.values()) == 2, "once a round"


@pytest.mark.spec("PAT-16")
async def test_its_events(inline: Runtime) -> None:
    kinds = await kinds_of(Debate([says("ann", "a"), says("bob", "b")]), "?")
    assert kinds == ["round_started", "round_completed"] * 2


@pytest.mark.parametrize(
    ("settings", "what"), [({"rounds": 0}, "rounds"), ({"judge": "jury"}, "jury"), ({"template": "{answers}"}, "answers")]
)
def test_wrong_settings_say_what_is_wrong(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        Debate([says("ann", "a")], **settings)
