"""``umbel.reasoning``: reflexion, grounding, typed grounding (GSAR) and causal chains, for use outside of an agent too."""

from .actors.supervisor.reasoning.causal import CausalChain, CausalEdge, CausalNode, Conflict
from .actors.supervisor.reasoning.grounding import GroundingVerdict, find_claims, judge
from .actors.supervisor.reasoning.gsar import (
    WEIGHTS,
    Claim,
    Judgement,
    Partition,
    assess,
    decide,
    judge_report,
    score_partition,
)
from .actors.supervisor.reasoning.matching import Match, judge_by_rule, match
from .actors.supervisor.reasoning.refine import Refinement, refine
from .actors.supervisor.reasoning.reflexion import Reflection, Reflector
from .protocol.reasoning import EvidenceKind, GroundingConfig, GsarConfig, ReflexionConfig

__all__ = [
    "WEIGHTS",
    "CausalChain",
    "CausalEdge",
    "CausalNode",
    "Claim",
    "Conflict",
    "EvidenceKind",
    "GroundingConfig",
    "GroundingVerdict",
    "GsarConfig",
    "Judgement",
    "Match",
    "Partition",
    "Refinement",
    "Reflection",
    "Reflector",
    "ReflexionConfig",
    "assess",
    "decide",
    "find_claims",
    "judge",
    "judge_by_rule",
    "judge_report",
    "match",
    "refine",
    "score_partition",
]
