"""GSAR's outer loop: judge a report, have it rewritten or its evidence collected anew, judge again, within a budget.

Source: arXiv 2604.23366; spec/reasoning.md, REAS-34 to REAS-36.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pydantic import Field

from ....protocol.messages import Frozen, Text
from ....protocol.reasoning import GsarConfig
from .evidence import Ask
from .gsar import Decision, Judgement, Partition, judge_report

SPARE_ENTRIES = 8
Regenerate = Callable[[str, Sequence[str], Judgement], Awaitable[str]]
"""(report, evidence, judgement) -> a new report from the same evidence."""
Replan = Callable[[str, Sequence[str], Judgement], Awaitable[tuple[str, Sequence[str]]]]
"""(report, evidence, judgement) -> a new report, and the evidence that it rests on."""


class Refinement(Frozen):
    """How the loop ended.

    Attributes:
        report: the last report, the one that ``judgement`` is about.
        trajectory: every judgement, oldest first; the last one counts. Never empty.
        replans_used, regenerations_used: how often each callback ran.
        degraded: the budget was spent before a report could pass.
    """

    report: Text
    trajectory: tuple[Judgement, ...] = Field(min_length=1)
    replans_used: int = 0
    regenerations_used: int = 0
    degraded: bool = False

    @property
    def judgement(self) -> Judgement:
        """The judge's output for the last report."""
        return self.trajectory[-1]

    @property
    def score(self) -> float:
        """S of the last report, 0 to 1."""
        return self.judgement.score

    @property
    def decision(self) -> Decision:
        """The decision on the last report."""
        return self.judgement.decision

    @property
    def partition(self) -> Partition:
        """The claims of the last report by cell."""
        return self.judgement.partition


async def refine(
    report: str,
    evidence: Sequence[str],
    ask: Ask,
    config: GsarConfig,
    *,
    regenerate: Regenerate,
    replan: Replan,
    max_replans: int = 2,
) -> Refinement:
    """Improve ``report`` until it may proceed, or the budget is spent.

    A decision to replan, or an abstention, spends one of ``max_replans``; rewriting has no limit of its own, but after
    ``max_replans + 8`` judgements the loop ends. What a callback raises propagates.

    Args:
        report: the first synthesis.
        evidence: what was observed, one item a line.
        ask: one call of the judge's model.
        config: penalty, thresholds and weights; ``fail_on_low_score`` plays no part here.
        regenerate: writes a new report from the same evidence.
        replan: collects new evidence and writes a new report.
        max_replans: the budget (K_max), 0 or more.
    """
    trajectory = [await judge_report(report, evidence, ask, config)]
    replans = regenerations = 0
    while trajectory[-1].decision != "proceed" and len(trajectory) < max_replans + SPARE_ENTRIES:
        latest = trajectory[-1]
        if latest.decision == "regenerate":
            report = await regenerate(report, evidence, latest)
            regenerations += 1
        elif replans < max_replans:
            report, evidence = await replan(report, evidence, latest)
            replans += 1
        else:
            break
        trajectory.append(await judge_report(report, evidence, ask, config))
    return Refinement(
        report=report,
        trajectory=tuple(trajectory),
        replans_used=replans,
        regenerations_used=regenerations,
        degraded=trajectory[-1].decision != "proceed",
    )
