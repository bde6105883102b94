from __future__ import annotations

import umbel
from umbel import reasoning


def test_the_module_shows_what_it_lists() -> None:
    assert [name for name in reasoning.__all__ if not hasattr(reasoning, name)] == []


def test_the_package_has_the_same_names() -> None:
    shared = set(umbel.__all__) & set(reasoning.__all__)
    assert shared >= {"CausalChain", "GroundingConfig", "GsarConfig", "ReflexionConfig"}
    assert all(getattr(umbel, name) is getattr(reasoning, name) for name in shared)
