"""What a model is: anything with ``complete`` and ``stream``; and how a stream becomes the reply it stands for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ....protocol.messages import FinishReason, Message, ModelChunk, ModelResponse, ToolCall, Usage


@runtime_checkable
class ModelProtocol(Protocol):
    """A language model.

    An optional ``async aclose()`` releases connections of the running event loop. Failures are raised as
    :class:`umbel.protocol.errors.ModelError`; only such errors (and plain ``TimeoutError`` or ``ConnectionError``)
    are retried.
    """

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> ModelResponse:
        """The whole reply to ``messages``.

        Args:
            messages: the conversation; the model repairs what its provider would refuse.
            tools: functions on offer, as ``{"type": "function", "function": {"name", "description", "parameters"}}``.
            **kwargs: settings of this call (``temperature``, ``max_tokens``...).
        """
        ...

    def stream(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> AsyncIterator[ModelChunk]:
        """The same reply in pieces: text as it arrives, whole tool calls late, usage and stop reason last."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the loop must know of a model, from attributes of these names.

    Attributes:
        native_tools: tool calls come as structured data.
        supports_response_format: ``complete`` and ``stream`` take ``response_format={"type": "json_schema", ...}``.
        stateful: the provider keeps the conversation and wants new messages only.
        family: whose call markup it may leak into its text, or None.
    """

    native_tools: bool = True
    supports_response_format: bool = False
    stateful: bool = False
    family: str | None = None

    @classmethod
    def of(cls, model: object) -> Capabilities:
        """Those of ``model``; what it does not say is as by default."""
        return cls(**{name: getattr(model, name) for name in cls.__slots__ if hasattr(model, name)})


class FormatOptional:
    """A model that is called again without ``response_format`` when it does not know that argument.

    Source: spec API-43.
    """

    def __init__(self, model: ModelProtocol) -> None:
        self._model = model

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> ModelResponse:
        """The whole reply."""
        try:
            return await self._model.complete(messages, tools, **kwargs)
        except TypeError:
            if kwargs.pop("response_format", None) is None:
                raise
        return await self._model.complete(messages, tools, **kwargs)

    async def stream(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> AsyncGenerator[ModelChunk, None]:
        """The reply in pieces. Once one was handed on, an error is raised."""
        forwarded = False
        while True:
            chunks = self._model.stream(messages, tools, **kwargs)
            try:
                async for chunk in chunks:
                    forwarded = True
                    yield chunk
                return
            except TypeError:
                if forwarded or kwargs.pop("response_format", None) is None:
                    raise
            finally:
                await aclose(chunks)


async def collect(stream: AsyncIterable[ModelChunk]) -> ModelResponse:
    """The reply that ``stream`` stands for, equal to what ``complete`` would have returned.

    A stream that names no stop reason counts as ``tool_calls`` or ``stop``, by what it held.
    """
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    usage: Usage | None = None
    stop_reason: FinishReason | None = None
    cost_usd: float | None = None
    model: str | None = None
    metadata: dict[str, Any] = {}
    async for chunk in stream:
        text.append(chunk.content or "")
        reasoning.append(chunk.reasoning or "")
        calls.extend(chunk.tool_calls)
        usage = chunk.usage or usage
        stop_reason = chunk.stop_reason or stop_reason
        cost_usd = cost_usd if chunk.cost_usd is None else chunk.cost_usd
        model = chunk.model or model
        metadata |= chunk.metadata
    return ModelResponse(
        message=Message.assistant("".join(text) or None, tool_calls=tuple(calls), **metadata),
        usage=usage,
        stop_reason=stop_reason or ("tool_calls" if calls else "stop"),
        reasoning="".join(reasoning) or None,
        cost_usd=cost_usd,
        model=model,
    )


def pieces(response: ModelResponse) -> list[ModelChunk]:
    """``response`` as the stream that :func:`collect` turns back into it, for models that can't stream."""
    chunks = []
    if response.content or response.reasoning:
        chunks.append(ModelChunk(content=response.content, reasoning=response.reasoning))
    if response.tool_calls:
        chunks.append(ModelChunk(tool_calls=response.tool_calls))
    last = ModelChunk(
        done=True,
        usage=response.usage,
        stop_reason=response.stop_reason,
        cost_usd=response.cost_usd,
        model=response.model,
        metadata=response.message.metadata,
    )
    return [*chunks, last]


async def aclose(model: object) -> None:
    """Release what ``model`` holds in the running event loop, if it has an ``aclose``."""
    close = getattr(model, "aclose", None)
    if close is not None:
        await close()
