"""Language models: what one is, models over HTTP, retries, and names like ``openai:gpt-4o-mini``."""

from ..timing import Timing
from .anthropic import AnthropicModel
from .base import Capabilities, ModelProtocol, collect
from .failover import FailoverModel
from .gate import Gate
from .history import paired
from .http_model import HttpModel
from .openai_compatible import OpenAICompatibleModel
from .registry import known_prefixes, register_provider, resolve_model
from .retry import RetryingModel, RetryNotice, RetryPolicy
from .settings import AnthropicSettings, HttpSettings, ModelSettings
from .text_calls import Recovery, recover

__all__ = [
    "AnthropicModel",
    "AnthropicSettings",
    "Capabilities",
    "FailoverModel",
    "Gate",
    "HttpModel",
    "HttpSettings",
    "ModelProtocol",
    "ModelSettings",
    "OpenAICompatibleModel",
    "Recovery",
    "RetryNotice",
    "RetryPolicy",
    "RetryingModel",
    "Timing",
    "collect",
    "known_prefixes",
    "paired",
    "recover",
    "register_provider",
    "resolve_model",
]
