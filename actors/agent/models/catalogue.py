"""What is known of models by name: how much they read, and what they cost.

``known_models.py`` has a table of well-known ones. A file that ``UMBEL_MODELS`` names (TOML or JSON, one table a model), and
above it :func:`register_model`, add to it and win over it, field by field. An entry serves dated and preview names too
(``gpt-4o-2024-08-06``), never another version (``gpt-4`` says nothing about ``gpt-4.1``).
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from ....protocol.errors import ConfigurationError
from ....protocol.messages import Frozen, Usage
from ....protocol.settings import Settings
from ....protocol.state import token_cost
from .known_models import KNOWN

FILE_VARIABLE = "UMBEL_MODELS"
UNLISTED = frozenset({"fireworks", "llamacpp", "lmstudio", "offline", "ollama", "together", "vllm"})
"""Hosts and local servers: a model's name alone does not tell what it reads and costs there."""
ALIASES = {"gemini": "google", "grok": "xai", "mistralai": "mistral", "vertex": "google", "x-ai": "xai"}
_VERSION = re.compile(r"(?:[-@](?:\d{3,8}|\d{4}-\d{2}-\d{2}|\d{2}-\d{2}|\d{2}-\d{4}|latest|preview|exp))*")


class Prices(Frozen):
    """What a model charges, US dollars per million tokens."""

    input_per_million: float = Field(ge=0, allow_inf_nan=False)
    output_per_million: float = Field(ge=0, allow_inf_nan=False)

    def cost_of(self, usage: Usage) -> float:
        """US dollars for one call; cache writes count 1.25, reads 0.1 of a prompt token (spec STATE-27)."""
        return token_cost(
            self.input_per_million,
            self.output_per_million,
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cache_creation_tokens,
            usage.cache_read_tokens,
        )


class ModelFacts(Settings):
    """What is known of a model; None is unknown.

    Attributes:
        context_window: tokens that a request and its reply may have together.
        input_price, output_price: US dollars per million tokens; both or neither.
    """

    context_window: int | None = Field(default=None, ge=1)
    input_price: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    output_price: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _both_prices(self) -> Self:
        if (self.input_price is None) != (self.output_price is None):
            raise ValueError("give both input_price and output_price, or neither")
        return self

    def over(self, other: ModelFacts) -> ModelFacts:
        """These facts, with ``other``'s where these are silent."""
        known = {name: value for name, value in self if value is not None}
        return other.model_copy(update=known)


_registered: dict[str, ModelFacts] = {}


def register_model(
    name: str,
    *,
    context_window: int | None = None,
    input_price: float | None = None,
    output_price: float | None = None,
) -> None:
    """Say what is true of a model; wins over what was known. A later call replaces an earlier one.

    Args:
        name: ``"provider:name"``, or the bare name for every provider; it serves its dated names too.
        context_window: tokens.
        input_price: US dollars per million prompt tokens.
        output_price: US dollars per million completion tokens.

    Raises:
        ConfigurationError: a value is out of range, or only one price is given.
    """
    if not name.strip():
        raise ConfigurationError("register_model: the name is empty")
    facts = {"context_window": context_window, "input_price": input_price, "output_price": output_price}
    _registered[name.strip().lower()] = _facts(facts, f"register_model({name!r})")


def facts_of(model: Any) -> ModelFacts:
    """What is known of ``model``.

    Args:
        model: ``"provider:name"``, a bare name, or an object with ``name`` (and ``provider``).

    Raises:
        ConfigurationError: the file that ``UMBEL_MODELS`` names cannot be read.
    """
    provider, name = _named(model)
    if not name:
        return ModelFacts()
    own = [f"{provider}:{name}", name] if provider else [name]
    found = _find(own, _registered).over(_find(own, _from_environment()))
    return found if provider in UNLISTED else found.over(_find(_table_names(provider, name), KNOWN_FACTS))


def facts_to_carry(models: Iterable[Any]) -> dict[str, ModelFacts]:
    """What this process knows of ``models``, by name: what a definition takes along to other processes."""
    return {title_of(model): facts for model in models if (facts := facts_of(model)) != ModelFacts()}


def adopt(facts: Mapping[str, ModelFacts]) -> None:
    """Take over what :func:`facts_to_carry` gave in another process; what is registered here wins."""
    for name, carried in facts.items():
        _registered[name] = _registered.get(name, ModelFacts()).over(carried)


def price_of(model: Any) -> Prices | None:
    """What ``model`` charges: by its own attribute ``prices`` (:class:`Prices`) if it has one, else as :func:`facts_of` knows.

    Raises:
        ConfigurationError: ``prices`` is something else.
    """
    own = None if isinstance(model, str) else getattr(model, "prices", None)
    if own is not None:
        if not isinstance(own, Prices):
            raise ConfigurationError(f"{type(model).__name__}.prices must be umbel.Prices, not {type(own).__name__}")
        return own
    facts = facts_of(model)
    if facts.input_price is None or facts.output_price is None:
        return None
    return Prices(input_per_million=facts.input_price, output_per_million=facts.output_price)


def require_prices(model: Any) -> Prices:
    """The prices of ``model``, for an agent with a cost budget (spec LOOP-38).

    Raises:
        ConfigurationError: they are unknown.
    """
    prices = price_of(model)
    if prices is None:
        raise ConfigurationError(
            f"max_cost_usd needs the prices of model {title_of(model)}, which are unknown: "
            "register_model(name, input_price=..., output_price=...) in US dollars per million tokens (0 for a free one)"
        )
    return prices


def title_of(model: Any) -> str:
    """``model`` in messages: ``provider:name``, or its class."""
    provider, name = _named(model)
    return (f"{provider}:{name}" if provider else name) or type(model).__name__


def _named(model: Any) -> tuple[str, str]:
    if isinstance(model, str):
        provider, colon, name = model.strip().lower().partition(":")
        return (provider, name) if colon else ("", provider)
    given: list[Any] = [getattr(model, "provider", None), getattr(model, "name", None)]
    provider, name = (text.lower() if isinstance(text, str) else "" for text in given)
    return (provider, name) if name else ("", "")


def _table_names(provider: str, name: str) -> list[str]:
    """The names under which the table may know a model. A router (``openrouter:vendor/name``) passes prices on."""
    provider = ALIASES.get(provider, provider)
    vendor, slash, short = name.rpartition("/")
    if slash and provider not in PROVIDERS:
        vendor = ALIASES.get(vendor, vendor)
        return [f"{vendor}:{short}", f"{vendor}:{short.replace('.', '-')}"]
    return [f"{provider}:{name}"] if provider in PROVIDERS else [f"{known}:{name}" for known in MAKERS]


def _find(names: list[str], entries: Mapping[str, ModelFacts]) -> ModelFacts:
    """The facts of the longest entry that one of ``names`` is, or is a dated name of; the first name wins."""
    for name in names:
        keys = [key for key in entries if name.startswith(key) and _VERSION.fullmatch(name, len(key))]
        if keys:
            return entries[max(keys, key=len)]
    return ModelFacts()


def _from_environment() -> Mapping[str, ModelFacts]:
    given = os.environ.get(FILE_VARIABLE, "").strip()
    if not given:
        return {}
    path = Path(given).expanduser()
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigurationError(f"{FILE_VARIABLE}={given}: {error.strerror or error}; name a TOML or JSON file") from None


@lru_cache(maxsize=4)
def _read(path: Path, _changed: int) -> Mapping[str, ModelFacts]:
    what = f"{FILE_VARIABLE}={path}"
    try:
        text = path.read_text()
        entries: Any = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    if not isinstance(entries, dict) or not all(isinstance(fields, dict) for fields in entries.values()):
        raise ConfigurationError(f'{what}: expected one table per model, for example ["openai:gpt-4o"] context_window = 128000')
    return {name.strip().lower(): _facts(fields, f"{what}: {name}") for name, fields in entries.items()}


def _facts(fields: dict[str, Any], what: str) -> ModelFacts:
    try:
        return ModelFacts(**fields)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'prices'}: {e['msg']}" for e in error.errors(include_url=False))
        raise ConfigurationError(f"{what}: {problems}") from None


KNOWN_FACTS: Mapping[str, ModelFacts] = {
    f"{provider}:{name}": ModelFacts(context_window=window, input_price=price_in, output_price=price_out)
    for provider, models in KNOWN.items()
    for name, (window, price_in, price_out) in models.items()
}
PROVIDERS = frozenset(KNOWN)
MAKERS = tuple(provider for provider in KNOWN if provider != "groq")  # a bare name means its maker's own offer
