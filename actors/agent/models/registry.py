"""From ``"provider:name"`` to a model."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ....protocol.errors import ConfigurationError
from ...secrets import find_secret
from .base import ModelProtocol
from .http_model import HttpModel
from .key_pool import KeyPool, keys_of
from .openai_compatible import OpenAICompatibleModel

ModelFactory = Callable[..., ModelProtocol]


@dataclass(frozen=True, slots=True)
class Preset:
    """A provider that is spoken to over HTTP.

    Attributes:
        base_url: the default; None when there is none.
        key_variable: environment variable of the API key.
        url_variable: environment variable of another base URL.
        needs_key: refuse to start without a key.
        settings: of the model, where the provider differs from the rest.
        dialect: whose API it speaks.
    """

    base_url: str | None
    key_variable: str
    url_variable: str
    needs_key: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    dialect: Literal["openai", "anthropic"] = "openai"


def _hosted(base_url: str, name: str, **settings: Any) -> Preset:
    return Preset(base_url, f"{name}_API_KEY", f"UMBEL_{name}_BASE_URL", settings=settings)


def _local(port: int, name: str) -> Preset:
    return Preset(f"http://127.0.0.1:{port}/v1", f"{name}_API_KEY", f"UMBEL_{name}_BASE_URL", needs_key=False)


_OPENAI_URL = "https://api.openai.com/v1"
PRESETS: dict[str, Preset] = {
    "openai": Preset(_OPENAI_URL, "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "anthropic": Preset("https://api.anthropic.com", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", dialect="anthropic"),
    "openai-compatible": Preset(None, "UMBEL_OPENAI_API_KEY", "UMBEL_OPENAI_BASE_URL", needs_key=False),
    "ollama": _local(11434, "OLLAMA"),
    "vllm": _local(8000, "VLLM"),
    "lmstudio": _local(1234, "LMSTUDIO"),
    "llamacpp": _local(8080, "LLAMACPP"),
    "groq": _hosted("https://api.groq.com/openai/v1", "GROQ"),
    "openrouter": _hosted("https://openrouter.ai/api/v1", "OPENROUTER", extra_body={"usage": {"include": True}}),
    "together": _hosted("https://api.together.xyz/v1", "TOGETHER"),
    "deepseek": _hosted("https://api.deepseek.com/v1", "DEEPSEEK", supports_response_format=False),
    "mistral": _hosted("https://api.mistral.ai/v1", "MISTRAL", include_usage=False, tool_call_ids="nine"),
    "xai": _hosted("https://api.x.ai/v1", "XAI"),
    "fireworks": _hosted("https://api.fireworks.ai/inference/v1", "FIREWORKS"),
}


def _offline(name: str, **settings: Any) -> ModelProtocol:
    from .offline import OfflineModel

    return OfflineModel(name, **settings)


_BUILT_IN: dict[str, ModelFactory] = {"offline": _offline}
_factories: dict[str, ModelFactory] = {}


def register_provider(prefix: str, factory: ModelFactory) -> None:
    """Make ``"<prefix>:name"`` mean ``factory(name, **model_kwargs)``. A later registration replaces an earlier one.

    Actors are other processes: the factory travels with every agent that names the prefix, if it was registered before
    the agent's first run. It must therefore be picklable, like a tool: a function or class, not a bound connection.

    Raises:
        ConfigurationError: the prefix is empty or holds a colon.
    """
    if not prefix or ":" in prefix or prefix != prefix.strip():
        raise ConfigurationError(f"a provider prefix must be a word without a colon, not {prefix!r}")
    _factories[prefix.lower()] = factory


def registered_factories(models: Iterable[Any]) -> dict[str, ModelFactory]:
    """The factories that those of ``models`` need which are text: what a definition takes along to other processes."""
    prefixes = {model.partition(":")[0].strip().lower() for model in models if isinstance(model, str)}
    return {prefix: _factories[prefix] for prefix in sorted(prefixes & _factories.keys())}


def known_prefixes() -> list[str]:
    """Every prefix that :func:`resolve_model` understands, sorted."""
    return sorted(PRESETS.keys() | _BUILT_IN.keys() | _factories.keys())


def resolve_model(spec: str, providers: Mapping[str, ModelFactory] | None = None, /, **model_kwargs: Any) -> ModelProtocol:
    """The model that ``spec`` names. Sends nothing.

    Args:
        spec: ``"provider:name"``, for example ``"openai:gpt-4o-mini"`` or ``"ollama:llama3.1:8b"``.
        providers: factories by prefix that win over the registered ones.
        **model_kwargs: settings (:class:`ModelSettings`: ``base_url``, ``api_key``, ``timeout``...); ``api_keys`` are several
            accounts that share the load (:class:`KeyPool`); anything else goes into request bodies (``temperature``).

    Raises:
        ConfigurationError: unknown prefix, missing key or base URL, wrong setting; says which and what to do.
    """
    prefix, colon, name = spec.partition(":")
    prefix, name = prefix.strip().lower(), name.strip()
    if not colon or not name:
        raise ConfigurationError(f"model {spec!r} must read 'provider:name', for example 'openai:gpt-4o-mini'")
    factory = {**_BUILT_IN, **_factories, **(providers or {})}.get(prefix)
    if factory is not None:
        return factory(name, **model_kwargs)
    preset = PRESETS.get(prefix)
    if preset is None:
        raise ConfigurationError(_unknown(prefix, spec))
    keys = model_kwargs.pop("api_keys", None)
    if keys is not None:
        if model_kwargs.get("api_key"):
            raise ConfigurationError("give either api_key or api_keys")
        return KeyPool([_open(name, prefix, preset, {**model_kwargs, "api_key": key}) for key in keys_of(keys)])
    return _open(name, prefix, preset, model_kwargs)


def _open(name: str, prefix: str, preset: Preset, given: dict[str, Any]) -> HttpModel[Any]:
    settings = _with_preset(prefix, preset, given)
    if preset.dialect == "anthropic":
        from .anthropic import AnthropicModel

        return AnthropicModel(name, provider=prefix, **settings)
    return OpenAICompatibleModel(name, provider=prefix, **settings)


def _unknown(prefix: str, spec: str) -> str:
    close = difflib.get_close_matches(prefix, known_prefixes(), n=1)
    guess = f"; did you mean {close[0]!r}?" if close else "."
    known = ", ".join(known_prefixes())
    advice = "Add others with register_provider(), before the first run of an agent that names them"
    return f"unknown provider {prefix!r} in model {spec!r}{guess} Known: {known}. {advice}"


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
        settings["api_key"] = find_secret(preset.key_variable)
    if preset.needs_key and not settings["api_key"]:
        raise ConfigurationError(
            f"{prefix!r} needs an API key: set {preset.key_variable} or {preset.key_variable}_FILE, "
            "or model_kwargs={'api_key': ...}. "
            "For a server without keys use 'openai-compatible:' with a base_url"
        )
    if prefix == "openai" and settings["base_url"].rstrip("/") == _OPENAI_URL:
        settings.setdefault("max_tokens_field", "max_completion_tokens")  # reasoning models refuse max_tokens
    return settings
