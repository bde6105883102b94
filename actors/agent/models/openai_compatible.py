"""Any server that speaks OpenAI's chat completions, over HTTP."""

from __future__ import annotations

from typing import Any

from ....protocol.messages import Message, ModelResponse
from .assembly import ReplyAssembly
from .http_model import Assembly, HttpModel
from .settings import ModelSettings
from .wire import decode_reply, encode_messages

_PATH = "/chat/completions"


class OpenAICompatibleModel(HttpModel[ModelSettings]):
    """A model behind an OpenAI-compatible endpoint; see :class:`HttpModel`, and :class:`ModelSettings` for its settings."""

    _settings_class = ModelSettings

    def __init__(self, name: str, *, provider: str = "openai-compatible", **settings: Any) -> None:
        super().__init__(name, provider=provider, **settings)

    def _request_path(self, base: str) -> str:
        return base if base.endswith(_PATH) else base + _PATH

    def _credentials(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    def _body(self, messages: list[Message], tools: list[dict[str, Any]] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        settings = self._settings
        body = self._own(kwargs)
        if "max_tokens" in body:
            body[settings.max_tokens_field] = body.pop("max_tokens")
        if tools:
            body["tools"] = tools
        else:  # refused without tools
            for name in ("tools", "tool_choice", "parallel_tool_calls"):
                body.pop(name, None)
        body |= self._extra(kwargs)
        encoded = encode_messages(messages, settings.system_messages, settings.tool_call_ids)
        return body | {"model": self.name, "messages": encoded}

    def _streamed(self, body: dict[str, Any]) -> dict[str, Any]:
        body = body | {"stream": True}
        if self._settings.include_usage:
            body["stream_options"] = {"include_usage": True, **(body.get("stream_options") or {})}
        return body

    def _decode(self, data: Any, body: dict[str, Any]) -> ModelResponse:
        return decode_reply(self._endpoint, data)

    def _assembly(self, body: dict[str, Any]) -> Assembly:
        return ReplyAssembly(self._endpoint)
