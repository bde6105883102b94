from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from umbel.actors.supervisor.reasoning.grounding import GroundingVerdict, find_claims, judge, read_scores
from umbel.protocol.errors import JudgeFailed, ModelTimeout
from umbel.protocol.reasoning import GroundingConfig
from umbel.protocol.state import ToolExecution

Make = Callable[..., ToolExecution]
CONFIG = GroundingConfig()
THREE = "The order was shipped on Monday. The refund amounts to 30 euros! The customer lives in Lisbon."
CLAIMS = ("The order was shipped on Monday.", "The refund amounts to 30 euros!", "The customer lives in Lisbon.")


class TestClaims:
    @pytest.mark.spec("REAS-18")
    def test_sentences_that_state_something(self) -> None:
        assert find_claims(THREE) == CLAIMS

    @pytest.mark.spec("REAS-18")
    def test_more_than_twenty_characters(self) -> None:
        assert find_claims("x" * 20) == ()
        assert find_claims("x" * 21) == ("x" * 21,)

    @pytest.mark.spec("REAS-18")
    @pytest.mark.parametrize(
        "text",
        [
            "Shall the order be sent again tomorrow?",
            "I looked up the order in the database.",
            "I'm going to look up the order now.",
            "I\u2019ve found the order in the database.",
            "We should look at this again tomorrow.",
            "Let me look at the order once more.",
            "let me look at the order once more.",
        ],
    )
    def test_questions_and_talk_of_oneself_are_none(self, text: str) -> None:
        assert find_claims(text) == ()

    def test_words_that_only_look_like_an_opener_are_claims(self) -> None:
        texts = ("Its total comes to 30 euros.", "Western Europe is the largest market.", "Letters are sent every Monday.")
        assert find_claims(" ".join(texts)) == texts

    def test_a_question_does_not_swallow_the_claim_after_it(self) -> None:
        assert find_claims("Was it sent? The order was shipped on Monday.") == ("The order was shipped on Monday.",)

    def test_figures_are_not_cut_and_list_items_are_claims_of_their_own(self) -> None:
        text = "Figures:\n- revenue grew by 3.5 percent\n2. costs fell by 1.25 million euros\n"
        assert find_claims(text) == ("revenue grew by 3.5 percent", "costs fell by 1.25 million euros")

    @pytest.mark.spec("REAS-25")
    def test_a_claim_that_is_repeated_counts_once(self) -> None:
        assert find_claims(f"{CLAIMS[0]} {CLAIMS[1]} {CLAIMS[0]}") == CLAIMS[:2]


class TestScores:
    @pytest.mark.spec("REAS-21")
    def test_one_line_a_claim(self) -> None:
        reply = "1: 0.9 - the log says so\n2: 0 - no mention\n3: 1.0"
        assert read_scores(reply, 3) == [(0.9, "the log says so"), (0.0, "no mention"), (1.0, "")]

    @pytest.mark.parametrize(
        "line",
        [
            "Claim 1: 0.75 - why",
            "**1**: 0.75 - why",
            "1. 0.75 why",
            "1) 0.75: why",
            "- 1: Score: 0.75 \u2013 why",
            "1: .75 why",
        ],
    )
    def test_the_forms_that_models_write(self, line: str) -> None:
        assert read_scores(line, 1) == [(0.75, "why")]

    @pytest.mark.spec("REAS-21")
    @pytest.mark.parametrize(
        "line",
        [
            "",
            "looks fine",
            "1: good",
            "1: 8/10",
            "1: 80%",
            "1: 80 %",
            "2: 0.9",
            "0: 0.9",
            "1 0.9",
            "9999999999: 1",
            "1.5 million: 1",
        ],
    )
    def test_what_is_not_a_score_counts_as_zero(self, line: str) -> None:
        assert read_scores(line, 1) == [(0.0, "")]

    @pytest.mark.spec("REAS-21")
    def test_scores_are_clamped(self) -> None:
        assert [score for score, _ in read_scores("1: 7\n2: -0.5", 2)] == [1.0, 0.0]

    def test_the_last_word_on_a_claim_counts(self) -> None:
        assert read_scores("1: 0.9 at first sight\nbut no:\n1: 0.1 on a second look", 1) == [(0.1, "on a second look")]

    @given(st.text(alphabet="0123456789:.-% \nclaim", max_size=200), st.integers(1, 5))
    def test_any_text_gives_scores_in_range(self, reply: str, count: int) -> None:
        rows = read_scores(reply, count)
        assert len(rows) == count
        assert all(0 <= score <= 1 for score, _ in rows)


class TestJudge:
    @pytest.mark.spec("REAS-19", "REAS-21")
    async def test_it_asks_once_with_evidence_and_numbered_claims(self, judge_of: Any, ran: Make) -> None:
        ask = judge_of("1: 1\n2: 1\n3: 1")
        await judge(THREE, [ran("shipped on Monday", "orders")], ask, CONFIG)
        (prompt,) = ask.prompts
        assert "- orders: shipped on Monday" in prompt
        assert all(f"{number}. {claim}" in prompt for number, claim in enumerate(CLAIMS, 1))

    @pytest.mark.spec("REAS-21", "REAS-22")
    async def test_the_score_is_the_mean_and_weak_claims_are_named(self, judge_of: Any, ran: Make) -> None:
        found = await judge(THREE, [ran()], judge_of("1: 1.0 - yes\n2: 0.5\n3: 0.3 - no"), CONFIG)
        assert found.score == pytest.approx(0.6)
        assert (found.claims, found.scores, found.reasons) == (CLAIMS, (1.0, 0.5, 0.3), ("yes", "", "no"))
        assert found.ungrounded == (CLAIMS[2],)
        assert found.requires_replan
        assert CLAIMS[2] in (found.guidance or "")
        assert CLAIMS[0] not in (found.guidance or "")

    @pytest.mark.spec("REAS-22")
    async def test_at_the_threshold_the_draft_passes(self, judge_of: Any, ran: Make) -> None:
        config = GroundingConfig(threshold=0.5)
        found = await judge(THREE, [ran()], judge_of("1: 1.0\n2: 0.5\n3: 0.0"), config)
        assert (found.score, found.requires_replan, found.guidance) == (0.5, False, None)
        assert found.ungrounded == (CLAIMS[2],)

    @pytest.mark.spec("REAS-22")
    async def test_advice_names_at_most_five_claims(self, judge_of: Any, ran: Make) -> None:
        draft = " ".join(f"This is statement number {n}." for n in range(8))
        found = await judge(draft, [ran()], judge_of("none of it"), CONFIG)
        assert len(found.ungrounded) == 8
        assert (found.guidance or "").count("This is statement number") == 5

    async def test_advice_names_middling_claims_when_none_is_ungrounded(self, judge_of: Any, ran: Make) -> None:
        found = await judge(THREE, [ran()], judge_of("1: 0.6\n2: 0.6\n3: 0.7"), CONFIG)
        assert found.ungrounded == ()
        assert CLAIMS[0] in (found.guidance or "")
        assert CLAIMS[2] not in (found.guidance or "")

    @pytest.mark.spec("REAS-21")
    async def test_claims_that_the_reply_leaves_out_score_zero(self, judge_of: Any, ran: Make) -> None:
        found = await judge(THREE, [ran()], judge_of("2: 0.9 - yes"), CONFIG)
        assert found.scores == (0.0, 0.9, 0.0)

    @pytest.mark.spec("REAS-20", "EVT-13")
    async def test_without_claims_or_tools_nothing_is_asked(self, judge_of: Any, ran: Make) -> None:
        for draft, executions in (("Done.", [ran()]), (THREE, [])):
            assert await judge(draft, executions, judge_of(), CONFIG) == GroundingVerdict(score=1.0, claims=())

    @pytest.mark.spec("REAS-20")
    async def test_claims_beside_failed_tools_are_judged_by_the_failures(self, judge_of: Any, failed: Make) -> None:
        ask = judge_of("nothing of this is there")
        found = await judge(THREE, [failed("no such order")], ask, CONFIG)
        assert "lookup failed: no such order" in ask.prompts[0]
        assert (found.score, found.requires_replan) == (0.0, True)

    @pytest.mark.spec("REAS-23")
    async def test_a_judge_that_fails_is_a_typed_error(self, judge_of: Any, ran: Make) -> None:
        with pytest.raises(JudgeFailed, match="ModelTimeout"):
            await judge(THREE, [ran()], judge_of(ModelTimeout("slow")), CONFIG)

    async def test_braces_in_the_material_do_no_harm(self, judge_of: Any, ran: Make) -> None:
        ask = judge_of("1: 1")
        await judge("The value of {evidence} is {0} today.", [ran('{"a": {"b": 1}}')], ask, CONFIG)
        assert "The value of {evidence} is {0} today." in ask.prompts[0]
        assert 'lookup: {"a": {"b": 1}}' in ask.prompts[0]
