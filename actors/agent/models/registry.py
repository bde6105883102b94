"""From ``"provider:name"`` to a model."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ....protocol.errors import ConfigurationError
from .base import ModelProtocol
from .openai_compatible import OpenAICompatibleModel

ModelFactory = Callable[..., ModelProtocol]


@dataclass(frozen=True, slots=True)
class Preset:
    """An OpenAI-compatible provider.

    Attributes:
        base_url: the default; None when there is none.
        key_variable: environment variable of the API key.
        url_variable: environment variable of another base URL.
        needs_key: refuse to start without a key.
        settings: of the model, where the provider differs from the rest.
    """

    base_url: str | None
    key_variable: str
    url_variable: str
    needs_key: bool = True
    settings: dict[str, Any] = field(default_factory=dict)


def _hosted(base_url: str, name: str, **settings: Any) -> Preset:
    return Preset(base_url, f"{name}_API_KEY", f"UMBEL_{name}_BASE_URL", settings=settings)


def _local(port: int, name: str) -> Preset:
    return Preset(f"http://127.0.0.1:{port}/v1", f"{name}_API_KEY", f"UMBEL_{name}_BASE_URL", needs_key=False)


_OPENAI_URL = "https://api.openai.com/v1"
PRESETS: dict[str, Preset] = {
    "openai": Preset(_OPENAI_URL, "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "openai-compatible": Preset(None, "UMBEL_OPENAI_API_KEY", "UMBEL_OPENAI_BASE_URL", needs_key=False),
    "ollama": _local(11434, "OLLAMA"),
    "vllm": _local(8000, "VLLM"),
    "lmstudio": _local(1234, "LMSTUDIO"),
    "llamacpp": _local(8080, "LLAMACPP"),
    "groq": _hosted("https://api.groq.com/openai/v1", "GROQ"),
    "openrouter": _hosted("https://openrouter.ai/api/v1", "OPENROUTER", extra_body={"usage": {"include": True}}),
    "together": _hosted("https://api.together.xyz/v1", "TOGETHER"),
    "deepseek": _hosted("https://api.deepseek.com/v1", "DEEPSEEK"),
    "mistral": _hosted("https://api.mistral.ai/v1", "MISTRAL", include_usage=False, tool_call_ids="nine"),
    "xai": _hosted("https://api.x.ai/v1", "XAI"),
    "fireworks": _hosted("https://api.fireworks.ai/inference/v1", "FIREWORKS"),
}


def _offline(name: str, **settings: Any) -> ModelProtocol:
    from .offline import OfflineModel

    return OfflineModel(name, **settings)


_factories: dict[str, ModelFactory] = {"offline": _offline}


def register_provider(prefix: str, factory: ModelFactory) -> None:
    """Make ``"<prefix>:name"`` mean ``factory(name, **model_kwargs)``. A later registration replaces an earlier one.

    Actors are other processes: register in a module that the agent's own module imports.

    Raises:
        ConfigurationError: the prefix is empty or holds a colon.
    """
    if not prefix or ":" in prefix or prefix != prefix.strip():
        raise ConfigurationError(f"a provider prefix must be a word without a colon, not {prefix!r}")
    _factories[prefix.lower()] = factory


def known_prefixes() -> list[str]:
    """Every prefix that :func:`resolve_model` understands, sorted."""
    return sorted(PRESETS.keys() | _factories.keys())


def resolve_model(spec: str, **model_kwargs: Any) -> ModelProtocol:
    """The model that ``spec`` names. Sends nothing.

    Args:
        spec: ``"provider:name"``, for example ``"openai:gpt-4o-mini"`` or ``"ollama:llama3.1:8b"``.
        **model_kwargs: settings (:class:`ModelSettings`: ``base_url``, ``api_key``, ``timeout``...); anything else goes
            into request bodies (``temperature``).

    Raises:
        ConfigurationError: unknown prefix, missing key or base URL, wrong setting; says which and what to do.
    """
    prefix, colon, name = spec.partition(":")
    prefix, name = prefix.strip().lower(), name.strip()
    if not colon or not name:
        raise ConfigurationError(f"model {spec!r} must read 'provider:name', for example 'openai:gpt-4o-mini'")
    factory = _factories.get(prefix)
    if factory is not None:
        return factory(name, **model_kwargs)
    preset = PRESETS.get(prefix)
    if preset is None:
        raise ConfigurationError(_unknown(prefix, spec))
    return OpenAICompatibleModel(name, provider=prefix, **_with_preset(prefix, preset, model_kwargs))


def _unknown(prefix: str, spec: str) -> str:
    close = difflib.get_close_matches(prefix, known_prefixes(), n=1)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    known = ", ".join(known_prefixes())
    return f"unknown provider {prefix!r} in model {spec!r}{guess} Known: {known}. Add others with register_provider()"


def _with_preset(prefix: str, preset: Preset, given: dict[str, Any]) -> dict[str, Any]:
    settings = {**preset.settings, "key_variable": preset.key_variable, **given}
    if preset.settings.get("extra_body"):
        settings["extra_body"] = preset.settings["extra_body"] | (given.get("extra_body") or {})
    if not settings.get("base_url"):
        settings["base_url"] = os.environ.get(preset.url_variable) or preset.base_url
    if not settings["base_url"]:
        raise ConfigurationError(
            f"{prefix!r} needs a base URL: set {preset.url_variable}, or model_kwargs={{'base_url': 'http://host:port/v1'}}"
        )
    if not settings.get("api_key"):
        settings["api_key"] = os.environ.get(preset.key_variable) or None
    if preset.needs_key and not settings["api_key"]:
        raise ConfigurationError(
            f"{prefix!r} needs an API key: set {preset.key_variable}, or model_kwargs={{'api_key': ...}}. "
            "For a server without keys use 'openai-compatible:' with a base_url"
        )
    if prefix == "openai" and settings["base_url"].rstrip("/") == _OPENAI_URL:
        settings.setdefault("max_tokens_field", "max_completion_tokens")  # reasoning models refuse max_tokens
    return settings
