"""Model strings, and errors that say what to do."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from umbel.actors.agent.models import ModelProtocol, OpenAICompatibleModel, known_prefixes, register_provider, resolve_model
from umbel.actors.agent.models.registry import PRESETS
from umbel.protocol.errors import ConfigurationError

KEY = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for preset in PRESETS.values():
        monkeypatch.delenv(preset.key_variable, raising=False)
        monkeypatch.delenv(preset.url_variable, raising=False)


@pytest.mark.parametrize("prefix", [p for p, preset in PRESETS.items() if preset.needs_key])
def test_hosted_presets_need_their_key(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = PRESETS[prefix].key_variable
    with pytest.raises(ConfigurationError, match=variable):
        resolve_model(f"{prefix}:m")
    monkeypatch.setenv(variable, KEY)
    model = resolve_model(f"{prefix}:m")
    assert isinstance(model, ModelProtocol)
    assert KEY not in repr(model)
    assert "https://" in repr(model)


@pytest.mark.parametrize("prefix", ["ollama", "vllm", "lmstudio", "llamacpp"])
def test_local_presets_need_nothing(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "http://127.0.0.1:" in repr(resolve_model(f"{prefix}:llama3:8b"))
    monkeypatch.setenv(PRESETS[prefix].url_variable, "http://gpu-7:9/v1")
    assert "http://gpu-7:9/v1" in repr(resolve_model(f"{prefix}:llama3:8b"))


def test_openai_compatible_needs_a_base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="UMBEL_OPENAI_BASE_URL"):
        resolve_model("openai-compatible:m")
    assert "http://a/v1" in repr(resolve_model("openai-compatible:m", base_url="http://a/v1"))
    monkeypatch.setenv("UMBEL_OPENAI_BASE_URL", "http://b/v1")
    assert "http://b/v1" in repr(resolve_model("openai-compatible:m"))


def test_model_names_may_hold_colons_and_slashes() -> None:
    model = resolve_model("ollama:org/llama3.1:8b")
    assert isinstance(model, OpenAICompatibleModel)
    assert (model.name, model.provider) == ("org/llama3.1:8b", "ollama")


@pytest.mark.spec("API-4")
@pytest.mark.parametrize("spec", ["gpt-4o", "openai:", ":x", ""])
def test_malformed_strings(spec: str) -> None:
    with pytest.raises(ConfigurationError):
        resolve_model(spec)


def test_unknown_prefix_names_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'openai'") as caught:
        resolve_model("opnai:gpt")
    assert all(prefix in str(caught.value) for prefix in known_prefixes())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"base_url": "ftp://x"}, "http://"),
        ({"base_url": "localhost:8000"}, "http://"),
        ({"timeout": "long"}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"max_connections": 0}, "max_connections"),
        ({"headers": 3}, "headers"),
        ({"api_key": KEY + "\nx"}, "API key"),
        ({"api_key": {"k": KEY}}, "api_key"),
    ],
)
def test_wrong_settings_are_named_and_never_shown(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        resolve_model("ollama:m", **settings)
    assert KEY not in str(caught.value)


def test_keys_are_not_shown_and_survive_pickling() -> None:
    model = resolve_model("openai:m", api_key=KEY, headers={"x-api-key": KEY}, temperature=0.5)
    copy = pickle.loads(pickle.dumps(model))
    for shown in (repr(model), str(vars(model)), repr(copy)):
        assert KEY not in shown
    assert isinstance(copy, OpenAICompatibleModel)
    assert copy.__reduce__() == model.__reduce__()


def test_own_providers() -> None:
    made: list[Any] = []

    def factory(name: str, **settings: Any) -> ModelProtocol:
        made.append((name, settings))
        return resolve_model("ollama:x")

    register_provider("mine", factory)
    assert isinstance(resolve_model("mine:a:b", temperature=1), ModelProtocol)
    assert made == [("a:b", {"temperature": 1})]
    assert "mine" in known_prefixes()
    with pytest.raises(ConfigurationError):
        register_provider("a:b", factory)
