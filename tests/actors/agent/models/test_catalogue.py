"""What is known of models by name, and how users say otherwise."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from umbel.actors.agent.models import catalogue
from umbel.actors.agent.models.catalogue import (
    ModelFacts,
    Prices,
    adopt,
    facts_of,
    facts_to_carry,
    price_of,
    register_model,
    require_prices,
    title_of,
)
from umbel.actors.agent.models.known_models import KNOWN
from umbel.actors.agent.models.openai_compatible import OpenAICompatibleModel
from umbel.protocol.errors import ConfigurationError
from umbel.protocol.messages import Usage
from umbel.protocol.state import AgentState


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No registrations of other tests, and none left behind."""
    monkeypatch.setattr(catalogue, "_registered", {})
    monkeypatch.delenv("UMBEL_MODELS", raising=False)


def known(provider: str, name: str) -> ModelFacts:
    window, price_in, price_out = KNOWN[provider][name]
    return ModelFacts(context_window=window, input_price=price_in, output_price=price_out)


def test_every_row_of_the_table_is_found_by_its_own_name() -> None:
    for provider, models in KNOWN.items():
        assert list(models) == sorted(models), provider
        for name in models:
            assert facts_of(f"{provider}:{name}") == known(provider, name)
            assert price_of(f"{provider}:{name}") is not None


@pytest.mark.parametrize(
    ("given", "provider", "name"),
    [
        ("openai:gpt-4o-2024-08-06", "openai", "gpt-4o"),
        ("openai:GPT-4o-mini-2024-07-18", "openai", "gpt-4o-mini"),
        ("openai:gpt-4-0613", "openai", "gpt-4"),
        ("anthropic:claude-sonnet-4-20250514", "anthropic", "claude-sonnet-4"),
        ("anthropic:claude-opus-4-1-20250805", "anthropic", "claude-opus-4-1"),
        ("anthropic:claude-3-5-sonnet-latest", "anthropic", "claude-3-5-sonnet"),
        ("claude-sonnet-4-5@20250929", "anthropic", "claude-sonnet-4-5"),
        ("gemini:gemini-2.5-flash-preview-09-2025", "google", "gemini-2.5-flash"),
        ("google:gemini-2.0-flash-001", "google", "gemini-2.0-flash"),
        ("openrouter:openai/gpt-4o", "openai", "gpt-4o"),
        ("openrouter:anthropic/claude-sonnet-4.5", "anthropic", "claude-sonnet-4-5"),
        ("openai-compatible:gpt-4o", "openai", "gpt-4o"),
        ("gpt-4o", "openai", "gpt-4o"),
        ("groq:openai/gpt-oss-20b", "groq", "openai/gpt-oss-20b"),
    ],
)
def test_dated_and_routed_names_are_the_model_they_name(given: str, provider: str, name: str) -> None:
    assert facts_of(given) == known(provider, name)


@pytest.mark.parametrize(
    "given",
    [
        "openai:gpt-4.7",
        "openai:gpt-4-32k",
        "openai:gpt-5-turbo",
        "anthropic:claude-opus-4-9-20261001",
        "mistral:gpt-4o",
        "ollama:gpt-4o",
        "vllm:deepseek-chat",
        "together:moonshotai/kimi-k3",
        "offline:gpt-4o",
        "openai:",
        "",
    ],
)
def test_another_version_or_another_server_is_not_that_model(given: str) -> None:
    assert facts_of(given) == ModelFacts()
    assert price_of(given) is None


def test_a_model_object_is_known_by_its_provider_and_name() -> None:
    model = OpenAICompatibleModel("gpt-4o-mini", provider="openai", base_url="http://127.0.0.1:1/v1")
    assert facts_of(model) == known("openai", "gpt-4o-mini")
    assert title_of(model) == "openai:gpt-4o-mini"
    assert facts_of(object()) == ModelFacts() and title_of(object()) == "object"


class Priced:
    name = "gpt-4o"

    def __init__(self, prices: Any) -> None:
        self.prices = prices


def test_a_models_own_prices_win() -> None:
    own = Prices(input_per_million=1, output_per_million=2)
    register_model("gpt-4o", input_price=5, output_price=5)
    assert price_of(Priced(own)) == own
    assert price_of(Priced(None)) == Prices(input_per_million=5, output_per_million=5)
    with pytest.raises(ConfigurationError, match=r"Priced\.prices must be umbel\.Prices, not tuple"):
        price_of(Priced((1, 2)))


class TestRegistering:
    def test_it_wins_field_by_field_and_serves_dated_names(self) -> None:
        register_model("openai:gpt-4o", context_window=1_000)
        assert facts_of("openai:gpt-4o-2024-08-06") == known("openai", "gpt-4o").model_copy(update={"context_window": 1_000})
        register_model("openai:gpt-4o", input_price=0, output_price=0)
        assert facts_of("openai:gpt-4o") == ModelFacts(context_window=128_000, input_price=0, output_price=0)

    def test_a_bare_name_holds_for_every_provider_a_full_one_for_its_own(self) -> None:
        register_model("My-Model", context_window=1_000)
        register_model("vllm:my-model", context_window=2_000)
        assert [facts_of(name).context_window for name in ("ollama:my-model", "vllm:my-model", "my-model")] == [
            1_000,
            2_000,
            1_000,
        ]

    @pytest.mark.parametrize(
        ("values", "problem"),
        [
            ({"context_window": 0}, "context_window"),
            ({"input_price": -1, "output_price": 1}, "input_price"),
            ({"input_price": float("nan"), "output_price": 1}, "input_price"),
            ({"input_price": 1}, "both input_price and output_price"),
        ],
    )
    def test_wrong_values_are_refused(self, values: dict[str, Any], problem: str) -> None:
        with pytest.raises(ConfigurationError, match=rf"register_model\('m'\).*{problem}"):
            register_model("m", **values)
        with pytest.raises(ConfigurationError, match="name is empty"):
            register_model(" ", context_window=1)

    def test_what_is_known_travels_to_other_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        register_model("own", input_price=1, output_price=2)
        carried = pickle.loads(pickle.dumps(facts_to_carry(["corp:own-2026-01-01", "corp:unheard-of", Priced(None), object()])))
        assert carried.keys() == {"corp:own-2026-01-01", "gpt-4o"}
        monkeypatch.setattr(catalogue, "_registered", {})
        assert price_of("corp:own-2026-01-01") is None
        register_model("corp:own-2026-01-01", context_window=5)
        adopt(carried)
        assert facts_of("corp:own-2026-01-01") == ModelFacts(context_window=5, input_price=1, output_price=2)
        assert facts_of("gpt-4o") == known("openai", "gpt-4o")


class TestFile:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("models.toml", '["openai:gpt-4o"]\ncontext_window = 99\n["own"]\ninput_price = 1.0\noutput_price = 2.0\n'),
            ("models.json", '{"openai:gpt-4o": {"context_window": 99}, "own": {"input_price": 1.0, "output_price": 2.0}}'),
        ],
    )
    def test_it_adds_to_the_table_and_registrations_win_over_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
    ) -> None:
        (tmp_path / name).write_text(text)
        monkeypatch.setenv("UMBEL_MODELS", str(tmp_path / name))
        assert facts_of("openai:gpt-4o") == known("openai", "gpt-4o").model_copy(update={"context_window": 99})
        assert price_of("vllm:own") == Prices(input_per_million=1, output_per_million=2)
        register_model("openai:gpt-4o", context_window=100)
        assert facts_of("openai:gpt-4o").context_window == 100

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("context_window = 1", "one table per model"),
            ('["m"]\nwindow = 1', "m: window"),
            ('["m"]\ncontext_window = "x"', "m: context_window"),
            ("[", "models.toml"),
        ],
    )
    def test_a_wrong_one_is_named_with_its_field(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
    ) -> None:
        (tmp_path / "models.toml").write_text(text)
        monkeypatch.setenv("UMBEL_MODELS", str(tmp_path / "models.toml"))
        with pytest.raises(ConfigurationError, match=rf"UMBEL_MODELS=.*{problem}"):
            facts_of("m")

    def test_a_missing_one_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("UMBEL_MODELS", str(tmp_path / "none.toml"))
        with pytest.raises(ConfigurationError, match=r"none\.toml: No such file"):
            facts_of("m")


def test_a_budget_needs_prices() -> None:
    assert require_prices("openai:gpt-4o") == Prices(input_per_million=2.5, output_per_million=10)
    with pytest.raises(ValueError, match=r"max_cost_usd needs the prices of model ollama:llama3.*register_model"):
        require_prices("ollama:llama3")


@pytest.mark.spec("STATE-27")
def test_cost_is_what_a_state_would_count() -> None:
    prices = Prices(input_per_million=2, output_per_million=10)
    usage = Usage(
        prompt_tokens=1_000, completion_tokens=100, cache_creation_tokens=400, cache_read_tokens=5_000, cached_tokens=9
    )
    state = AgentState(input_price_per_million=2, output_price_per_million=10).with_token_usage(usage)
    assert prices.cost_of(usage) == state.cost_usd_used == pytest.approx((1_000 + 500 + 500) * 2e-6 + 100 * 1e-5)
