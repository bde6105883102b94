"""Puts a streamed message of Anthropic's API together: text goes on at once, blocks are held until they are whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....protocol.errors import MalformedResponse
from ....protocol.messages import ModelChunk, ModelResponse
from .anthropic_wire import build_reply
from .assembly import SplitPairs
from .endpoint import Endpoint
from .failures import from_payload
from .wire import as_text

_DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


class MessageAssembly:
    """One streamed message in the making.

    Args:
        endpoint: who was asked.
        answering: the answer was asked for as a call; all text is held then, since the call takes its place.
    """

    def __init__(self, endpoint: Endpoint, answering: bool = False) -> None:
        self._endpoint = endpoint
        self._answering = answering
        self._blocks: dict[Any, dict[str, Any]] = {}
        self._text = SplitPairs()
        self._thinking = SplitPairs()
        self._usage: dict[str, Any] | None = None
        self._stop_reason: Any = None
        self._model: Any = None
        self.is_empty = True
        self.has_ended = False

    @property
    def is_finished(self) -> bool:
        """Whether the provider said why it stopped."""
        return self._stop_reason is not None

    def feed(self, event: Any) -> ModelChunk | None:
        """Take one event; returns the text that may go on, if any. Events of an unknown type mean nothing.

        Raises:
            MalformedResponse: the event is not an event of a message.
            ModelError: the event reports an error.
        """
        self.is_empty = False
        if not isinstance(event, dict):
            raise self._endpoint.error(MalformedResponse, "the stream holds an event that is not a JSON object")
        match event.get("type"):
            case "error":
                raise from_payload(self._endpoint, event)
            case "message_start":
                message = _object(event, "message")
                self._model = message.get("model")
                self._note(message)
            case "content_block_start":
                return self._start(event.get("index"), _object(event, "content_block"))
            case "content_block_delta":
                return self._extend(event.get("index"), _object(event, "delta"))
            case "message_delta":
                self._note(event)
                self._note(_object(event, "delta"))
            case "message_stop":
                self.has_ended = True
        return None

    def finish(self) -> list[ModelChunk]:
        """What remains: held text, the whole calls, then usage, stop reason and what the message must carry."""
        reply = self._reply()
        text, thinking = self._text.rest(), self._thinking.rest()
        if self._answering:
            text = reply.content or ""
        chunks = [ModelChunk(content=text or None, reasoning=thinking or None)] if text or thinking else []
        if reply.tool_calls:
            chunks.append(ModelChunk(tool_calls=reply.tool_calls))
        last = ModelChunk(
            done=True,
            usage=reply.usage,
            stop_reason=reply.stop_reason,
            model=reply.model,
            metadata=reply.message.metadata,
        )
        return [*chunks, last]

    def _reply(self) -> ModelResponse:
        blocks = []
        for block in self._blocks.values():
            partial = block.get("partial_json")
            blocks.append({**block, "input": partial} if partial else block)
        for block in blocks:
            block.pop("partial_json", None)
        return build_reply(
            blocks, stop_reason=self._stop_reason, usage=self._usage, model=self._model, answering=self._answering
        )

    def _note(self, part: Mapping[str, Any]) -> None:
        """Counts are totals so far: each replaces the one before."""
        usage = part.get("usage")
        if isinstance(usage, dict):
            self._usage = (self._usage or {}) | {name: value for name, value in usage.items() if value is not None}
        if part.get("stop_reason") is not None:
            self._stop_reason = part["stop_reason"]

    def _start(self, index: Any, block: Mapping[str, Any]) -> ModelChunk | None:
        self._blocks[index] = dict(block)
        return self._forward(as_text(block.get("text")), as_text(block.get("thinking")))

    def _extend(self, index: Any, delta: Mapping[str, Any]) -> ModelChunk | None:
        field = _DELTAS.get(as_text(delta.get("type")))
        block = self._blocks.get(index)
        if field is None:
            return None
        if block is None:
            raise self._endpoint.error(MalformedResponse, "the stream adds to a content block that it has not started")
        piece = as_text(delta.get(field))
        block[field] = as_text(block.get(field)) + piece
        return self._forward(piece if field == "text" else "", piece if field == "thinking" else "")

    def _forward(self, text: str, thinking: str) -> ModelChunk | None:
        text = "" if self._answering else self._text.feed(text)
        thinking = self._thinking.feed(thinking)
        return ModelChunk(content=text or None, reasoning=thinking or None) if text or thinking else None


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = event.get(name)
    return value if isinstance(value, dict) else {}
