from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from umbel.actors.supervisor.reasoning.grounding import GroundingVerdict
from umbel.actors.supervisor.reasoning.matching import STOP_WORDS, judge_by_rule, match
from umbel.protocol.reasoning import GroundingConfig
from umbel.protocol.state import ToolExecution

Make = Callable[..., ToolExecution]
words = st.lists(st.sampled_from(["order", "refund", "paid", "the", "is", "30", "not", "by"]), max_size=8).map(" ".join)


@pytest.mark.spec("REAS-27")
@pytest.mark.parametrize(
    ("claim", "evidence", "score"),
    [
        ("The order was paid.", "the ORDER was  paid", 1.0),
        ("order was paid", "yesterday the order was paid by card", 0.9),
        ("order 12 paid", "order 123 paid", 2 / 3),
        ("red green blue black white", "red and green", 0.4),
        ("red green blue black white grey", "red and green", 0.0),
        ("the red is not green", "red green", 1.0),
        ("red green", "", 0.0),
        ("it is what it is", "nothing alike", 0.5),
        ("...", "nothing alike", 0.5),
    ],
)
def test_the_scores(claim: str, evidence: str, score: float) -> None:
    assert match(claim, [evidence]).score == pytest.approx(score)


@pytest.mark.spec("REAS-27")
def test_no_support_is_milder_where_evidence_is_not_mandatory() -> None:
    assert match("red green", ["blue"]).score == 0.0
    assert match("red green", ["blue"], evidence_mandatory=False).score == 0.3
    assert match("red green", []).supporting == ()


@pytest.mark.spec("REAS-27")
def test_the_three_best_items_are_listed_best_first() -> None:
    evidence = ["red x", "red green blue", "red green", "blue x", "red green blue now"]
    found = match("red green blue", evidence)
    assert (found.score, found.supporting) == (1.0, ("red green blue", "red green blue now", "red green"))


@given(words, st.lists(words, max_size=4), words)
def test_more_evidence_never_lowers_a_score(claim: str, evidence: list[str], more: str) -> None:
    before, after = match(claim, evidence).score, match(claim, [*evidence, more]).score
    assert 0 <= before <= after <= 1


@given(words)
def test_a_claim_supports_itself_unless_it_says_nothing(claim: str) -> None:
    assert match(claim, [claim]).score == (1.0 if set(claim.split()) - STOP_WORDS else 0.5)


class TestVerdict:
    config = GroundingConfig()

    def test_it_scores_every_claim_of_a_draft(self, ran: Make) -> None:
        draft = "The refund of 30 euros was paid. Martians live underneath Lisbon cathedral."
        found = judge_by_rule(draft, [ran("the refund of 30 euros was paid")], self.config)
        assert (found.scores, found.score, found.requires_replan) == ((1.0, 0.0), 0.5, True)
        assert found.ungrounded == ("Martians live underneath Lisbon cathedral.",)

    def test_the_tools_name_is_no_evidence(self, ran: Make) -> None:
        found = judge_by_rule("martians_live_underneath lisbon.", [ran("nope", "martians_live_underneath")], self.config)
        assert found.score == 0.0

    def test_without_claims_or_tools_there_is_nothing_to_judge(self, ran: Make) -> None:
        assert judge_by_rule("Done.", [ran()], self.config) == GroundingVerdict()
        assert judge_by_rule("The refund of 30 euros was paid.", [], self.config) == GroundingVerdict()
