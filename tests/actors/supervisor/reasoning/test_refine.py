from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from umbel.actors.supervisor.reasoning.gsar import Judgement
from umbel.actors.supervisor.reasoning.refine import Refinement, refine
from umbel.protocol.messages import Message, ModelResponse
from umbel.protocol.reasoning import GsarConfig

CONFIG = GsarConfig()
# Share of grounded claims among ten, by the decision that follows.
TENTHS = {"proceed": 9, "regenerate": 7, "replan": 2}


def reply(decision: str) -> str:
    if decision == "abstain":
        return '{"status": "abstain", "reason": "cannot tell"}'
    cells = ["grounded" if n < TENTHS[decision] else "ungrounded" for n in range(10)]
    return json.dumps({"claims": [{"text": f"c{n}", "cell": cell, "kind": "tool_match"} for n, cell in enumerate(cells)]})


class Desk:
    """Writes the reports, and hears what the judge is given."""

    def __init__(self, *decisions: str) -> None:
        self.decisions = list(decisions)
        self.log: list[str] = []
        self.judged: list[str] = []

    async def ask(self, messages: list[Message]) -> ModelResponse:
        self.judged.append(messages[0].content or "")
        return ModelResponse(message=Message.assistant(reply(self.decisions.pop(0))))

    async def regenerate(self, report: str, evidence: Sequence[str], judgement: Judgement) -> str:
        self.log.append(f"regenerate after {judgement.decision}")
        return f"{report}r"

    async def replan(self, report: str, evidence: Sequence[str], judgement: Judgement) -> tuple[str, Sequence[str]]:
        self.log.append(f"replan after {judgement.decision}")
        return f"{report}p", [*evidence, f"new {len(evidence)}"]

    async def run(self, **options: Any) -> Refinement:
        return await refine("R", ["first"], self.ask, CONFIG, regenerate=self.regenerate, replan=self.replan, **options)


@pytest.mark.spec("REAS-34", "REAS-36")
async def test_a_good_report_proceeds_at_once() -> None:
    desk = Desk("proceed")
    done = await desk.run()
    assert (done.report, done.decision, done.degraded, done.replans_used, done.regenerations_used) == (
        "R",
        "proceed",
        False,
        0,
        0,
    )
    assert desk.log == []
    assert done.trajectory == (done.judgement,)
    assert (done.score, done.partition.size) == (0.9, 10)


@pytest.mark.spec("REAS-34", "REAS-36")
async def test_each_decision_has_its_callback_and_the_new_report_is_judged() -> None:
    desk = Desk("regenerate", "replan", "abstain", "proceed")
    done = await desk.run()
    assert desk.log == ["regenerate after regenerate", "replan after replan", "replan after abstain"]
    assert (done.report, done.replans_used, done.regenerations_used, done.degraded) == ("Rrpp", 2, 1, False)
    assert [step.decision for step in done.trajectory] == ["regenerate", "replan", "abstain", "proceed"]
    assert "- new 1" not in desk.judged[1]
    assert "- first\n- new 1\n- new 2" in desk.judged[3]
    assert "Rrpp" in desk.judged[3]


@pytest.mark.spec("REAS-34")
@pytest.mark.parametrize("budget", [0, 1, 2])
async def test_spent_replans_degrade_the_result(budget: int) -> None:
    desk = Desk(*["replan"] * (budget + 1))
    done = await desk.run(max_replans=budget)
    assert (done.replans_used, done.degraded, done.decision, len(desk.judged)) == (budget, True, "replan", budget + 1)


@pytest.mark.spec("REAS-35")
async def test_endless_rewriting_is_cut() -> None:
    desk = Desk(*["regenerate"] * 20)
    done = await desk.run()
    assert (len(done.trajectory), done.regenerations_used, done.degraded) == (10, 9, True)


@pytest.mark.spec("REAS-36")
async def test_what_a_callback_raises_propagates() -> None:
    desk = Desk("replan")

    async def broken(*_: Any) -> Any:
        raise LookupError("no more evidence")

    with pytest.raises(LookupError, match="no more evidence"):
        await refine("R", [], desk.ask, CONFIG, regenerate=desk.regenerate, replan=broken)


@pytest.mark.spec("REAS-34", "REAS-35", "REAS-36")
@given(st.lists(st.sampled_from(["regenerate", "replan", "abstain", "proceed"]), min_size=20, max_size=20), st.integers(0, 4))
async def test_whatever_the_judge_says_the_budget_holds(decisions: list[str], budget: int) -> None:
    desk = Desk(*decisions)
    done = await desk.run(max_replans=budget)
    assert done.replans_used <= budget
    assert len(done.trajectory) == 1 + done.replans_used + done.regenerations_used <= budget + 8
    assert done.degraded == (done.decision != "proceed")
    assert [step.decision for step in done.trajectory] == decisions[: len(done.trajectory)]
    assert len(done.report) == len(done.trajectory)
