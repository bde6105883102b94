from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from umbel.protocol.reasoning import GroundingConfig, GroundingSetting, GsarConfig, ReflexionConfig, ReflexionSetting


@pytest.mark.spec("REAS-1")
def test_defaults_of_reflexion() -> None:
    assert dict(ReflexionConfig()) == {
        "enabled": True,
        "confidence_threshold": 0.85,
        "diminishing_returns": True,
        "evaluate_every_n_iterations": 1,
        "include_guidance": True,
        "model": None,
    }


@pytest.mark.spec("REAS-17")
def test_defaults_of_grounding() -> None:
    assert dict(GroundingConfig()) == {
        "enabled": True,
        "threshold": 0.65,
        "max_replans": 2,
        "check_before_final": True,
        "model": None,
    }


@pytest.mark.spec("REAS-39", "API-14")
def test_defaults_of_gsar() -> None:
    assert dict(GsarConfig()) == {
        "judge": None,
        "contradiction_penalty": 0.5,
        "tau_proceed": 0.80,
        "tau_regenerate": 0.65,
        "weight_map": None,
        "fail_on_low_score": False,
    }


@pytest.mark.spec("REAS-1", "REAS-17", "REAS-30", "REAS-31")
@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (ReflexionConfig, "confidence_threshold", 1.01),
        (ReflexionConfig, "confidence_threshold", -0.01),
        (ReflexionConfig, "confidence_threshold", float("nan")),
        (ReflexionConfig, "evaluate_every_n_iterations", 0),
        (ReflexionConfig, "evaluate_every", 2),
        (GroundingConfig, "threshold", 1.01),
        (GroundingConfig, "max_replans", -1),
        (GroundingConfig, "max_replan", 1),
        (GsarConfig, "contradiction_penalty", 1.01),
        (GsarConfig, "tau_proceed", 0.65),
        (GsarConfig, "tau_regenerate", 0.8),
        (GsarConfig, "weight_map", {"toolmatch": 0.5}),
        (GsarConfig, "weight_map", {"tool_match": 1.5}),
        (GsarConfig, "k_max", 2),
    ],
)
def test_what_does_not_fit_is_refused_by_name(cls: Any, field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=r"tau_|weight_map|confidence|evaluate|threshold|max_replan|penalty|k_max"):
        cls(**{field: value})


def test_they_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ReflexionConfig().enabled = False  # type: ignore[misc]


@pytest.mark.spec("REAS-1")
@pytest.mark.parametrize(("setting", "cls"), [(ReflexionSetting, ReflexionConfig), (GroundingSetting, GroundingConfig)])
def test_an_agent_takes_true_for_the_defaults_and_false_for_off(setting: Any, cls: Any) -> None:
    read = TypeAdapter(setting).validate_python
    given = cls(enabled=False)
    assert (read(True), read(False), read(None)) == (cls(), None, None)
    assert read(given) is given
    with pytest.raises(ValidationError):
        read("yes")
