from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from umbel.actors.supervisor.reasoning.gsar import (
    CELLS,
    WEIGHTS,
    Cell,
    Claim,
    Judgement,
    Partition,
    assess,
    decide,
    judge_report,
    read_judgement,
    score_partition,
)
from umbel.protocol.errors import GsarRejected, JudgeFailed, Overloaded, UmbelError
from umbel.protocol.reasoning import EvidenceKind, GsarConfig
from umbel.protocol.state import ToolExecution

Make = Callable[..., ToolExecution]
CONFIG, GATE = GsarConfig(), GsarConfig(fail_on_low_score=True)
KINDS: tuple[EvidenceKind, ...] = get_args(EvidenceKind)
kinds = st.sampled_from(KINDS)
cells = st.fixed_dictionaries({cell: st.lists(kinds, max_size=6) for cell in CELLS})
penalties = st.floats(0, 1)
weight_maps = st.none() | st.dictionaries(kinds, st.floats(0, 1))


def partition(**rows: Sequence[EvidenceKind]) -> Partition:
    made = {cell: [Claim(text=f"{cell} {n}", kind=kind) for n, kind in enumerate(rows.get(cell, ()))] for cell in CELLS}
    return Partition.model_validate(made)


def reply(*claims: tuple[str, str, str], status: str = "resolved", reason: str = "because") -> str:
    rows = [{"text": text, "cell": cell, "kind": kind} for text, cell, kind in claims]
    return json.dumps({"status": status, "reason": reason, "claims": rows})


GOOD = reply(("paid", "grounded", "tool_match"))
MIDDLING = reply(
    *((f"g{n}", "grounded", "tool_match") for n in range(7)), *((f"u{n}", "ungrounded", "tool_match") for n in range(3))
)
BAD = reply(("paid", "contradicted", "tool_match"))
ABSTAIN = reply(status="abstain", reason="the evidence is about something else")


class TestScore:
    @pytest.mark.spec("REAS-28")
    def test_weights(self) -> None:
        assert WEIGHTS == {
            "tool_match": 1.00,
            "specific_data": 0.95,
            "signal_match": 0.90,
            "complementary_finding": 0.85,
            "synthesis": 0.80,
            "negative_evidence": 0.70,
            "inference": 0.60,
            "domain": 0.60,
            "unknown": 0.60,
        }

    @pytest.mark.spec("REAS-28", "REAS-30")
    def test_the_formula(self) -> None:
        every = partition(
            grounded=["tool_match", "synthesis"],
            ungrounded=["inference"],
            contradicted=["signal_match"],
            complementary=["complementary_finding"],
        )
        assert score_partition(every) == pytest.approx((1.8 + 0.85) / (1.8 + 0.6 + 0.5 * 0.9 + 0.85))
        assert score_partition(every, contradiction_penalty=0) == pytest.approx(2.65 / 3.25)
        overridden = score_partition(every, weights={"inference": 0.1, "tool_match": 0.5})
        assert overridden == pytest.approx((1.3 + 0.85) / (1.3 + 0.1 + 0.45 + 0.85))

    @pytest.mark.spec("REAS-30")
    def test_nothing_to_weigh_is_neutral(self) -> None:
        assert score_partition(Partition()) == 0.5
        assert score_partition(partition(contradicted=["domain"]), contradiction_penalty=0) == 0.5
        assert score_partition(partition(grounded=["domain"]), weights={"domain": 0}) == 0.5

    @pytest.mark.spec("REAS-30")
    @pytest.mark.parametrize("penalty", [-0.1, 1.1, float("nan")])
    def test_a_penalty_out_of_range_is_refused(self, penalty: float) -> None:
        with pytest.raises(ValueError, match="contradiction_penalty"):
            score_partition(Partition(), contradiction_penalty=penalty)

    def test_a_weight_out_of_range_is_refused(self) -> None:
        with pytest.raises(ValueError, match="inference"):
            score_partition(Partition(), weights={"inference": -1})

    @pytest.mark.spec("REAS-30")
    @given(cells, penalties, weight_maps)
    def test_it_is_a_share(self, rows: Any, penalty: float, weights: Any) -> None:
        assert 0 <= score_partition(partition(**rows), contradiction_penalty=penalty, weights=weights) <= 1

    @pytest.mark.spec("REAS-29", "REAS-30")
    @given(cells, st.sampled_from(CELLS), kinds, penalties)
    def test_it_is_monotone_in_each_cell(self, rows: Any, cell: Cell, kind: EvidenceKind, penalty: float) -> None:
        more = {**rows, cell: [*rows[cell], kind]}
        before = score_partition(partition(**rows), contradiction_penalty=penalty)
        after = score_partition(partition(**more), contradiction_penalty=penalty)
        if cell in {"grounded", "complementary"}:
            assert after >= before - 1e-12
        else:
            assert after <= before + 1e-12

    @given(cells, penalties, penalties)
    def test_a_higher_penalty_never_helps(self, rows: Any, one: float, other: float) -> None:
        rows = {**rows, "grounded": [*rows["grounded"], "tool_match"]}
        low, high = sorted([one, other])
        harsh = score_partition(partition(**rows), contradiction_penalty=high)
        assert harsh <= score_partition(partition(**rows), contradiction_penalty=low) + 1e-12

    @given(cells)
    def test_hiding_a_contradiction_pays_less_than_it_would_without_a_penalty(self, rows: Any) -> None:
        rows = {**rows, "grounded": [*rows["grounded"], "tool_match"], "contradicted": [*rows["contradicted"], "tool_match"]}
        assert score_partition(partition(**rows)) < score_partition(partition(**{**rows, "contradicted": []}))


class TestDecision:
    @pytest.mark.spec("REAS-31")
    @pytest.mark.parametrize(
        ("score", "decision"),
        [(1, "proceed"), (0.80, "proceed"), (0.7999, "regenerate"), (0.65, "regenerate"), (0.6499, "replan"), (0, "replan")],
    )
    def test_the_three_tiers(self, score: float, decision: str) -> None:
        assert decide(score) == decision

    @pytest.mark.spec("REAS-31")
    @pytest.mark.parametrize("values", [(-0.1,), (1.1,), (float("nan"),), (0.5, 0.7, 0.7), (0.5, 0.6, 0.7)])
    def test_values_out_of_order_are_refused(self, values: tuple[float, ...]) -> None:
        with pytest.raises(ValueError, match=r"from 0 to 1|must be below"):
            decide(*values)

    @pytest.mark.spec("REAS-31", "REAS-32")
    @given(st.floats(0, 1), st.floats(0, 1))
    def test_it_rises_with_the_score_and_is_never_an_abstention(self, one: float, other: float) -> None:
        order = ["replan", "regenerate", "proceed"]
        low, high = sorted([one, other])
        assert order.index(decide(low)) <= order.index(decide(high))


@pytest.mark.spec("REAS-29")
class TestPartition:
    def test_a_claim_stands_in_one_cell(self) -> None:
        claim = Claim(text="paid")
        with pytest.raises(ValueError, match="both grounded and contradicted"):
            Partition(grounded=(claim,), contradicted=(claim,))

    def test_size_and_cells(self) -> None:
        rows = partition(grounded=["domain", "domain"], contradicted=["inference"])
        assert (rows.size, len(rows.cell("grounded")), len(rows.cell("complementary"))) == (3, 2, 0)


class TestReadingTheJudge:
    @pytest.mark.spec("REAS-29", "REAS-32")
    def test_claims_are_sorted_into_their_cells(self) -> None:
        status, reason, found = read_judgement(reply(*((cell, cell, "domain") for cell in CELLS)))
        assert (status, reason) == ("resolved", "because")
        assert {cell: found.cell(cell) for cell in CELLS} == {cell: (Claim(text=cell, kind="domain"),) for cell in CELLS}

    @pytest.mark.parametrize(
        ("before", "after"), [("```json\n", "\n```"), ("Thinking {x} aloud... {} ", ""), ("", "\nThat is {all}.")]
    )
    def test_text_around_the_object_is_ignored(self, before: str, after: str) -> None:
        assert read_judgement(before + GOOD + after)[2].grounded == (Claim(text="paid", kind="tool_match"),)

    @pytest.mark.spec("REAS-28")
    @pytest.mark.parametrize("kind", ["hearsay", None, 7, ["tool_match"]])
    def test_a_kind_nobody_knows_is_unknown(self, kind: Any) -> None:
        text = json.dumps({"claims": [{"text": "paid", "cell": "grounded", "kind": kind}]})
        assert read_judgement(text)[2].grounded == (Claim(text="paid", kind="unknown"),)

    def test_the_same_row_twice_counts_once(self) -> None:
        row = ("paid", "grounded", "tool_match")
        assert read_judgement(reply(row, row))[2].size == 1

    @pytest.mark.spec("REAS-32")
    def test_an_abstention_needs_a_reason(self) -> None:
        assert read_judgement(ABSTAIN)[:2] == ("abstain", "the evidence is about something else")
        with pytest.raises(JudgeFailed, match="without a reason"):
            read_judgement(reply(status="abstain", reason=" "))

    @pytest.mark.spec("REAS-32", "REAS-33")
    @pytest.mark.parametrize(
        "text",
        [
            "all fine",
            "{",
            "[1, 2]",
            '{"verdict": "good"}',
            '{"status": "proceed"}',
            '{"status": ["resolved"]}',
            '{"status": "resolved", "reason": 5}',
            '{"claims": 5}',
            '{"claims": ["paid"]}',
            '{"claims": [{"cell": "grounded"}]}',
            '{"claims": [{"text": "paid"}]}',
            '{"claims": [{"text": 5, "cell": "grounded"}]}',
            '{"claims": [{"text": "paid", "cell": "true"}]}',
            '{"claims": [{"text": "paid", "cell": ["grounded"]}]}',
            reply(("paid", "grounded", "domain"), ("paid", "contradicted", "domain")),
            '{"claims":' + "[" * 5_000,
        ],
    )
    async def test_what_cannot_be_read_is_a_safe_default(self, judge_of: Any, text: str) -> None:
        with pytest.raises(JudgeFailed):
            read_judgement(text)
        found = await judge_report("It was paid.", (), judge_of(text), CONFIG)
        assert (found.status, found.decision, found.score, found.partition) == ("abstain", "abstain", 0.5, Partition())
        assert found.reason
        assert found.error


class TestJudgeReport:
    @pytest.mark.spec("REAS-31")
    @pytest.mark.parametrize(("text", "decision"), [(GOOD, "proceed"), (MIDDLING, "regenerate"), (BAD, "replan")])
    async def test_the_score_decides(self, judge_of: Any, text: str, decision: str) -> None:
        found = await judge_report("It was paid.", ("db: paid",), judge_of(text), CONFIG)
        assert (found.status, found.decision, found.error) == ("resolved", decision, None)

    @pytest.mark.spec("REAS-32")
    async def test_the_judge_may_abstain_whatever_the_score(self, judge_of: Any) -> None:
        text = reply(("paid", "grounded", "tool_match"), status="abstain", reason="unclear")
        found = await judge_report("It was paid.", (), judge_of(text), CONFIG)
        assert (found.decision, found.score, found.reason, found.error) == ("abstain", 1.0, "unclear", None)

    @pytest.mark.spec("REAS-33")
    async def test_a_model_that_fails_is_a_safe_default(self, judge_of: Any) -> None:
        found = await judge_report("It was paid.", (), judge_of(Overloaded("busy")), CONFIG)
        assert (found.status, found.decision, found.score, found.partition.size) == ("abstain", "abstain", 0.5, 0)
        assert "Overloaded: busy" in (found.error or "")

    @pytest.mark.spec("REAS-39")
    async def test_the_settings_are_used(self, judge_of: Any) -> None:
        mixed = reply(("a", "grounded", "tool_match"), ("b", "contradicted", "inference"))
        strict = GsarConfig(contradiction_penalty=1, tau_proceed=0.7, tau_regenerate=0.6, weight_map={"inference": 0.5})
        found = await judge_report("It was paid.", (), judge_of(mixed), strict)
        assert found.score == pytest.approx(1 / 1.5)
        assert found.decision == "regenerate"

    async def test_the_prompt_holds_report_and_evidence_as_they_are(self, judge_of: Any) -> None:
        ask = judge_of(GOOD)
        await judge_report("Paid {in full}.", ('db: {"paid": true}',), ask, CONFIG)
        assert "Paid {in full}." in ask.prompts[0]
        assert '- db: {"paid": true}' in ask.prompts[0]


class TestAssess:
    @pytest.mark.spec("REAS-38")
    async def test_evidence_is_one_line_per_fresh_success(self, judge_of: Any, ran: Make, failed: Make) -> None:
        ask = judge_of(GOOD)
        await assess("It was paid.", [ran("paid"), failed("lost"), ran("old", idempotent_cache_hit=True)], ask, CONFIG)
        assert "- lookup: paid" in ask.prompts[0]
        assert "lost" not in ask.prompts[0]
        assert "old" not in ask.prompts[0]

    async def test_it_is_one_call_and_gives_the_judgement(self, judge_of: Any, ran: Make) -> None:
        ask = judge_of(BAD)
        found = await assess("It was paid.", [ran()], ask, CONFIG)
        assert (found.decision, found.score, len(ask.prompts)) == ("replan", 0.0, 1)
        assert Judgement.model_validate_json(found.model_dump_json()) == found

    @pytest.mark.spec("REAS-40")
    @pytest.mark.parametrize(("text", "decision"), [(MIDDLING, "regenerate"), (BAD, "replan"), (ABSTAIN, "abstain")])
    async def test_the_gate_refuses_whatever_may_not_proceed(self, judge_of: Any, text: str, decision: str) -> None:
        without_gate = await assess("It was paid.", [], judge_of(text), CONFIG)
        with pytest.raises(GsarRejected, match=decision) as caught:
            await assess("It was paid.", [], judge_of(text), GATE)
        assert caught.value.details == {
            "decision": without_gate.decision,
            "score": without_gate.score,
            "reason": without_gate.reason,
            "judge_error": None,
        }
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, UmbelError)

    @pytest.mark.spec("REAS-40")
    async def test_the_gate_lets_good_answers_pass(self, judge_of: Any) -> None:
        assert (await assess("It was paid.", [], judge_of(GOOD), GATE)).decision == "proceed"

    @pytest.mark.spec("REAS-41", "OURS-11", "BUG-20")
    @pytest.mark.parametrize("failure", [Overloaded("busy"), RuntimeError("broken"), None, "no JSON"])
    async def test_the_gate_is_closed_when_the_judge_fails(self, judge_of: Any, failure: Any) -> None:
        with pytest.raises(GsarRejected) as caught:
            await assess("It was paid.", [], judge_of(failure), GATE)
        assert (caught.value.details["decision"], caught.value.details["score"]) == ("abstain", 0.5)
        assert caught.value.details["judge_error"]
