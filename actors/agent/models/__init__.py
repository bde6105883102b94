"""Language models: what one is, models over HTTP, retries, and names like ``openai:gpt-4o-mini``."""

from .base import ModelProtocol, collect
from .gate import Gate
from .history import paired
from .openai_compatible import OpenAICompatibleModel
from .registry import known_prefixes, register_provider, resolve_model
from .retry import RetryingModel, RetryNotice, RetryPolicy
from .settings import ModelSettings
from .timing import Timing

__all__ = [
    "Gate",
    "ModelProtocol",
    "ModelSettings",
    "OpenAICompatibleModel",
    "RetryNotice",
    "RetryPolicy",
    "RetryingModel",
    "Timing",
    "collect",
    "known_prefixes",
    "paired",
    "register_provider",
    "resolve_model",
]
