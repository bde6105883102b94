"""Settings of a model over HTTP, split from what goes into request bodies."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SecretStr, ValidationError

from ....protocol.config import Settings
from ....protocol.errors import ConfigurationError
from .wire import CallIds, SystemMessages


class ModelSettings(Settings):
    """How an OpenAI-compatible endpoint is reached and spoken to.

    Attributes:
        base_url: everything before ``/chat/completions``.
        api_key: sent as a bearer token.
        key_variable: environment variable of the key, for advice in errors.
        headers: further request headers.
        timeout: longest silence while waiting for bytes, seconds; None waits for ever.
        connect_timeout: seconds to connect.
        max_connections: connections at once, in one event loop; further requests wait for a free one.
        max_keepalive_connections: idle connections kept.
        max_retries: wins over the agent's retry policy; None leaves it alone.
        system_messages: ``first_only`` for servers that refuse system messages later in the conversation.
        tool_call_ids: ``nine`` sends ids of nine letters and digits.
        include_usage: ask for token counts at the end of a stream.
        streaming: False answers ``stream`` with one unstreamed request, for servers that cannot stream tool calls.
        max_tokens_field: the provider's name for ``max_tokens``.
        extra_body: fields added to every request body as they are.
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
    system_messages: SystemMessages = "anywhere"
    tool_call_ids: CallIds = "any"
    include_usage: bool = True
    streaming: bool = True
    max_tokens_field: str = "max_tokens"
    extra_body: dict[str, Any] = Field(default_factory=dict)


def split_settings(provider: str, keywords: dict[str, Any]) -> tuple[ModelSettings, dict[str, Any]]:
    """Settings of the connection, and what is left for the request body.

    Raises:
        ConfigurationError: a setting has a wrong value; the message names it and does not show the value.
    """
    known = {name: value for name, value in keywords.items() if name in ModelSettings.model_fields}
    body = {name: value for name, value in keywords.items() if name not in known and value is not None}
    try:
        return ModelSettings(**known), body
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        raise ConfigurationError(f"model_kwargs of {provider!r}: {problems}") from None
