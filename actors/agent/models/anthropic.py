"""Claude models over Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

from ....protocol.messages import Message, ModelResponse
from .anthropic_assembly import MessageAssembly
from .anthropic_wire import (
    ANSWER_TOOL,
    answer_tool,
    decode_message,
    encode_conversation,
    encode_tool_choice,
    encode_tools,
    mark_cached,
    may_think,
)
from .http_model import Assembly, HttpModel
from .settings import AnthropicSettings

DEFAULT_MAX_TOKENS = 8192
_TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")


class AnthropicModel(HttpModel[AnthropicSettings]):
    """A model behind Anthropic's Messages API; see :class:`HttpModel`, and :class:`AnthropicSettings` for its settings.

    Understands OpenAI's names for what both have: ``stop``, ``tool_choice="required"``, ``parallel_tool_calls`` and
    ``response_format``. ``max_tokens``, which the API demands, is 8192 unless set. Thinking blocks are kept in the
    message's metadata and sent back with it.
    """

    _settings_class = AnthropicSettings

    def __init__(self, name: str, *, provider: str = "anthropic", **settings: Any) -> None:
        super().__init__(name, provider=provider, **settings)

    def _request_path(self, base: str) -> str:
        if base.endswith("/messages"):
            return base
        return f"{base}/messages" if base.endswith("/v1") else f"{base}/v1/messages"

    def _credentials(self, key: str) -> dict[str, str]:
        return {"x-api-key": key, "anthropic-version": self._settings.version}

    def _body(self, messages: list[Message], tools: list[dict[str, Any]] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        own = self._own(kwargs)
        choice = encode_tool_choice(own.pop("tool_choice", None), own.pop("parallel_tool_calls", None))
        wanted = own.pop("response_format", None)
        if (stop := own.pop("stop", None)) is not None:
            own["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
        body = {"max_tokens": DEFAULT_MAX_TOKENS} | {name: own[name] for name in own if name not in _TOOL_FIELDS}
        system, turns = encode_conversation(messages)
        if system:
            body["system"] = system
        if tools:
            body["tools"] = encode_tools(tools)
            if choice is not None:
                body["tool_choice"] = choice
        body |= {"model": self.name, "messages": turns}
        if not may_think(turns):
            body.pop("thinking", None)
        if wanted is not None:
            self._demand(body, wanted)
        if self._settings.cache_prompt:
            mark_cached(body)
        return body | self._extra(kwargs)

    def _demand(self, body: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Ask for an answer of a schema. Where a forced call is refused (beside thinking or tools), the native way is taken."""
        schema = (wanted.get("json_schema") or {}).get("schema")
        if schema is None:  # plain JSON mode: there is none
            return
        thinks = (body.get("thinking") or {}).get("type", "disabled") != "disabled"
        native = self._settings.output_format == "native" or thinks or bool(body.get("tools"))
        if native or schema.get("type") != "object":
            body["output_config"] = {**(body.get("output_config") or {}), "format": {"type": "json_schema", "schema": schema}}
        else:
            body["tools"] = [answer_tool(schema)]
            body["tool_choice"] = {"type": "tool", "name": ANSWER_TOOL}

    def _streamed(self, body: dict[str, Any]) -> dict[str, Any]:
        return body | {"stream": True}

    def _decode(self, data: Any, body: dict[str, Any]) -> ModelResponse:
        return decode_message(self._endpoint, data, _is_answering(body))

    def _assembly(self, body: dict[str, Any]) -> Assembly:
        return MessageAssembly(self._endpoint, _is_answering(body))


def _is_answering(body: dict[str, Any]) -> bool:
    return bool((body.get("tool_choice") or {}).get("name") == ANSWER_TOOL)
