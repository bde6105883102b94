"""Grounding without a model: a claim is scored by the words that it shares with the evidence.

Cheap and blind to meaning: a negated claim shares the same words. Use it to screen, not to certify.
Source: spec/reasoning.md, REAS-27.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ....protocol.messages import Frozen, Text
from ....protocol.reasoning import GroundingConfig
from ....protocol.state import ToolExecution
from .evidence import facts_of
from .grounding import GroundingVerdict, find_claims, verdict

EXACT, CONTAINED, NO_KEYWORDS, NO_SUPPORT = 1.0, 0.9, 0.5, 0.3
MINIMUM_OVERLAP = 0.4
MAX_SUPPORTING = 3
_STOP_WORDS = """
a an and are as at be been being but by can could did do does for from had has have he her his how i if in into is it its
may might no nor not of on or our she should so than that the their them then there these they this those to was we were
what when where which who why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
_WORD = re.compile(r"\w+(?:[.,:/-]\w+)*")


class Match(Frozen):
    """How well one claim matches the evidence.

    Attributes:
        score: 0 to 1.
        supporting: the items that match best, at most three, the best first.
    """

    score: float
    supporting: tuple[Text, ...] = ()


def match(claim: str, evidence: Sequence[str], *, evidence_mandatory: bool = True) -> Match:
    """Score one claim against pieces of evidence.

    The same words in the same order score 1.0, a piece that contains the claim 0.9, otherwise the share of the claim's
    keywords that one piece holds, if it is at least 0.4. Case, punctuation and spacing don't count. A claim that consists
    of stop words only says nothing and scores 0.5.

    Args:
        claim: one statement.
        evidence: texts to look in.
        evidence_mandatory: without support the score is 0.0; otherwise 0.3.
    """
    words = _words(claim)
    if STOP_WORDS.issuperset(words):
        return Match(score=NO_KEYWORDS)
    scored = [(_score(words, _words(item)), item) for item in evidence]
    supporting = sorted([row for row in scored if row[0] >= MINIMUM_OVERLAP], key=lambda row: -row[0])[:MAX_SUPPORTING]
    if not supporting:
        return Match(score=0.0 if evidence_mandatory else NO_SUPPORT)
    return Match(score=supporting[0][0], supporting=tuple(item for _, item in supporting))


def judge_by_rule(
    draft: str, executions: Sequence[ToolExecution], config: GroundingConfig, *, evidence_mandatory: bool = True
) -> GroundingVerdict:
    """The verdict of :func:`match` over every claim of ``draft``; 1.0 when there is no claim or no tool ran."""
    claims = find_claims(draft)
    evidence = [line.partition(": ")[2] for line in facts_of(executions)]
    if not claims or not evidence:
        return GroundingVerdict()
    matches = [match(claim, evidence, evidence_mandatory=evidence_mandatory) for claim in claims]
    return verdict(claims, [found.score for found in matches], ["; ".join(found.supporting) for found in matches], config)


def _score(claim: list[str], item: list[str]) -> float:
    if claim == item:
        return EXACT
    if f" {' '.join(claim)} " in f" {' '.join(item)} ":
        return CONTAINED
    keywords = set(claim) - STOP_WORDS
    return len(keywords.intersection(item)) / len(keywords)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
