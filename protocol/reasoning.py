"""Settings of what watches over a run's reasoning: reflexion, grounding, typed grounding (GSAR), and GSAR's evidence types.

``ReflexionSetting`` and ``GroundingSetting`` are the types of an agent's fields: a config, or True for the defaults and
False for off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from .settings import Settings

EvidenceKind = Literal[
    "tool_match",
    "specific_data",
    "signal_match",
    "complementary_finding",
    "synthesis",
    "negative_evidence",
    "inference",
    "domain",
    "unknown",
]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class ReflexionConfig(Settings):
    """How a run reflects on its progress (spec/reasoning.md, REAS-1). Reflection is a rule; it calls no model.

    Attributes:
        enabled: reflect at all.
        confidence_threshold: in completion mode ``auto`` the run ends when its confidence reaches this, 0 to 1.
        diminishing_returns: a gain counts only for the part still missing to full confidence.
        evaluate_every_n_iterations: reflect in iterations that are a multiple of this.
        include_guidance: put the reflection's advice into the conversation.
        model: accepted for compatibility, never called.
    """

    enabled: bool = True
    confidence_threshold: Share = 0.85
    diminishing_returns: bool = True
    evaluate_every_n_iterations: int = Field(default=1, ge=1)
    include_guidance: bool = True
    model: Any = None


class GroundingConfig(Settings):
    """How the final answer is checked against what the tools returned (spec/reasoning.md, REAS-17).

    Attributes:
        enabled: check at all.
        threshold: a mean score below this, 0 to 1, asks for a new plan.
        max_replans: how many times the run may be sent back.
        check_before_final: check the draft before it becomes the answer.
        model: the judge; None uses the agent's auxiliary model, or else its model.
    """

    enabled: bool = True
    threshold: Share = 0.65
    max_replans: int = Field(default=2, ge=0)
    check_before_final: bool = True
    model: Any = None


class GsarConfig(Settings):
    """How typed grounding scores an answer and what follows from the score (spec/reasoning.md, REAS-39).

    Attributes:
        judge: the model that sorts the claims; None uses the agent's model.
        contradiction_penalty: how much a contradicted claim weighs against the answer, 0 to 1 (rho).
        tau_proceed: a score of at least this, 0 to 1, lets the answer pass.
        tau_regenerate: a score of at least this, below ``tau_proceed``, asks for a new wording; anything less for a new plan.
        weight_map: weights, 0 to 1, that replace the defaults of the evidence kinds named.
        fail_on_low_score: an answer that does not pass is an error (``GsarRejected``).

    Source: arXiv 2604.23366.
    """

    judge: Any = None
    contradiction_penalty: Share = 0.5
    tau_proceed: Share = 0.80
    tau_regenerate: Share = 0.65
    weight_map: Mapping[EvidenceKind, Share] | None = None
    fail_on_low_score: bool = False

    @model_validator(mode="after")
    def _thresholds_in_order(self) -> GsarConfig:
        if self.tau_regenerate >= self.tau_proceed:
            raise ValueError(f"tau_regenerate ({self.tau_regenerate:g}) must be below tau_proceed ({self.tau_proceed:g})")
        return self


def _switch(config: type[Settings]) -> BeforeValidator:
    """True stands for the default config, False for None."""
    return BeforeValidator(lambda value: (config() if value else None) if isinstance(value, bool) else value)


ReflexionSetting = Annotated[ReflexionConfig | None, _switch(ReflexionConfig)]
GroundingSetting = Annotated[GroundingConfig | None, _switch(GroundingConfig)]
