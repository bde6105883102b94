"""Settings of a model over HTTP, split from what goes into request bodies."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError

from ....protocol.config import Limits
from ....protocol.errors import ConfigurationError
from ....protocol.settings import Settings
from .wire import CallIds, SystemMessages

S = TypeVar("S", bound="HttpSettings")


class HttpSettings(Settings):
    """How an endpoint is reached, and what its model can do.

    Attributes:
        base_url: everything before the path of the provider's API.
        api_key: sent in the provider's own way.
        key_variable: environment variable of the key, for advice in errors.
        headers: further request headers.
        timeout: longest silence while waiting for bytes, seconds; None waits for ever.
        connect_timeout: seconds to connect.
        max_connections: connections at once, in one event loop; further requests wait for a free one.
        max_keepalive_connections: idle connections kept.
        max_retries: wins over the agent's retry policy; None leaves it alone.
        streaming: False answers ``stream`` with one unstreamed request, for servers that cannot stream tool calls.
        extra_body: fields added to every request body as they are.
        native_tools: tool calls come as structured data; False lets the loop look for them in the text.
        supports_response_format: a JSON schema for the reply is understood.
        family: whose markup the model may leak, where its name does not tell.
        limits: what the endpoint allows this account; wins over ``Topology.limits``.
    """

    base_url: str
    api_key: SecretStr | None = None
    key_variable: str | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    timeout: float | None = Field(default=120.0, gt=0)
    connect_timeout: float = Field(default=10.0, gt=0)
    max_connections: int = Field(default=1000, ge=1)
    max_keepalive_connections: int = Field(default=100, ge=0)
    max_retries: int | None = Field(default=None, ge=0)
    streaming: bool = True
    extra_body: dict[str, Any] = Field(default_factory=dict)
    native_tools: bool = True
    supports_response_format: bool = True
    family: str | None = None
    limits: Limits | None = None


class ModelSettings(HttpSettings):
    """Settings of an OpenAI-compatible endpoint; its base URL ends before ``/chat/completions``, the key is a bearer token.

    Attributes:
        system_messages: ``first_only`` for servers that refuse system messages later in the conversation.
        tool_call_ids: ``nine`` sends ids of nine letters and digits.
        include_usage: ask for token counts at the end of a stream.
        max_tokens_field: the provider's name for ``max_tokens``.
    """

    system_messages: SystemMessages = "anywhere"
    tool_call_ids: CallIds = "any"
    include_usage: bool = True
    max_tokens_field: str = "max_tokens"


class AnthropicSettings(HttpSettings):
    """Settings of Anthropic's Messages API; its base URL ends before ``/v1/messages``, the key goes into ``x-api-key``.

    Attributes:
        version: the ``anthropic-version`` header.
        cache_prompt: mark the system prompt, the tools and the conversation so far for the provider's prompt cache.
        output_format: how a ``response_format`` is asked for: ``tool`` makes the model call a tool of that schema, which
            every model can; ``native`` uses the API's own output format.
    """

    version: str = "2023-06-01"
    cache_prompt: bool = False
    output_format: Literal["tool", "native"] = "tool"


def split_settings(provider: str, keywords: dict[str, Any], cls: type[S]) -> tuple[S, dict[str, Any]]:
    """Settings of the connection (of class ``cls``), and what is left for the request body.

    Raises:
        ConfigurationError: a setting has a wrong value; the message names it and does not show the value.
    """
    known = {name: value for name, value in keywords.items() if name in cls.model_fields}
    body = {name: value for name, value in keywords.items() if name not in known and value is not None}
    try:
        return cls(**known), body
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        raise ConfigurationError(f"model_kwargs of {provider!r}: {problems}") from None
