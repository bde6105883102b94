"""Any server that speaks OpenAI's chat completions, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NoReturn

import httpx
from httpx_sse import EventSource, ServerSentEvent

from ....protocol.errors import BadRequest, MalformedResponse, ModelError, Overloaded, RateLimited
from ....protocol.messages import Message, ModelChunk, ModelResponse
from .assembly import ReplyAssembly
from .base import pieces
from .clients import LoopClients, tls_context
from .endpoint import Endpoint, check_headers, check_key, parse_base_url, secret_values
from .failures import HTTPX_ERRORS, from_exception, from_response
from .gate import Gate, shared_gate
from .settings import ModelSettings, split_settings
from .timing import SYSTEM, Timing
from .wire import decode_reply, encode_body, encode_messages

_GATED_STATUS = frozenset({429, 503, 529})
_PATH = "/chat/completions"
_DRAIN_SECONDS = 0.2


class OpenAICompatibleModel:
    """A model behind an OpenAI-compatible endpoint. One attempt per call; ``RetryingModel`` adds retries.

    Requests of all models of a process to one base URL and account share a gate: once a rate limit says when to come
    back, none of them asks before. Connections are pooled per model and event loop.

    Args:
        name: the provider's name of the model.
        provider: prefix in errors.
        timing: clock, sleep and randomness.
        gate: a gate of its own instead of the shared one.
        transport: instead of the network, for tests.
        **settings: fields of :class:`ModelSettings`; anything else goes into every request body (``temperature=0``).

    Raises:
        ConfigurationError: a setting is wrong.
    """

    def __init__(
        self,
        name: str,
        *,
        provider: str = "openai-compatible",
        timing: Timing = SYSTEM,
        gate: Gate | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        **settings: Any,
    ) -> None:
        self._settings, self._defaults = split_settings(provider, settings)
        url = parse_base_url(self._settings.base_url, provider)
        check_headers(self._settings.headers, provider)
        secrets = secret_values(check_key(self._key, provider), url, self._settings.headers)
        self._endpoint = Endpoint(provider, name, url, self._settings.key_variable, secrets)
        self._url = _completions_url(url)
        self._timing = timing
        self._gate = gate or self._default_gate()
        self._transport = transport
        self._clients = LoopClients(self._new_client)

    @property
    def name(self) -> str:
        """The provider's name of the model."""
        return self._endpoint.model

    @property
    def provider(self) -> str:
        """The provider's prefix."""
        return self._endpoint.provider

    @property
    def max_retries(self) -> int | None:
        """Retries that this model wants, or None to leave it to the policy."""
        return self._settings.max_retries

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> ModelResponse:
        """The whole reply.

        Args:
            messages: the conversation.
            tools: functions on offer.
            **kwargs: body fields of this call, which win over the model's own; ``timeout``, ``headers`` and
                ``extra_body`` mean the same as on the model; other settings of the connection are ignored here.

        Raises:
            ModelError: of the class that tells what to do about it.
        """
        async with self._exchange(self._body(messages, tools, kwargs), kwargs) as response:
            return await self._whole(response)

    async def stream(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> AsyncGenerator[ModelChunk, None]:
        """The reply in pieces; arguments and errors as for :meth:`complete`.

        A stream that breaks off raises, even where the connection ended in good order. Closing the iterator closes
        the request.
        """
        if not self._settings.streaming:
            for chunk in pieces(await self.complete(messages, tools, **kwargs)):
                yield chunk
            return
        body = self._body(messages, tools, kwargs) | {"stream": True}
        if self._settings.include_usage:
            body["stream_options"] = {"include_usage": True, **(body.get("stream_options") or {})}
        async with self._exchange(body, kwargs) as response:
            if "json" in response.headers.get("content-type", ""):  # a server that does not stream
                for chunk in pieces(await self._whole(response)):
                    yield chunk
                return
            async with aclosing(self._chunks(response)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The model can be used again."""
        await self._clients.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, provider={self.provider!r}, base_url={self._endpoint.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self._settings.model_dump(exclude_unset=True)
        if self._key:
            settings["api_key"] = self._key
        return _restore, (type(self), self.name, self.provider, settings | self._defaults)

    @property
    def _key(self) -> str | None:
        secret = self._settings.api_key
        return secret.get_secret_value().strip() if secret else None

    def _default_gate(self) -> Gate:
        if self._timing is SYSTEM:
            return shared_gate(self._endpoint.address, self._endpoint.account)
        return Gate(self._endpoint.address, timing=self._timing)

    def _new_client(self) -> httpx.AsyncClient:
        headers = httpx.Headers({"content-type": "application/json", "user-agent": "umbel"})
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        headers.update(self._settings.headers)
        return httpx.AsyncClient(
            headers=headers,
            timeout=self._timeout(self._settings.timeout),
            limits=httpx.Limits(
                max_connections=self._settings.max_connections,
                max_keepalive_connections=self._settings.max_keepalive_connections,
            ),
            verify=tls_context() if self._url.scheme == "https" else False,  # without TLS there is nothing to verify
            trust_env=not self._endpoint.is_local,  # a proxy cannot reach this machine
            transport=self._transport,
        )

    def _timeout(self, silence: float | None) -> httpx.Timeout:
        # Waiting for a connection of our own pool is no failure of the provider, so it has no limit of its own.
        return httpx.Timeout(silence, connect=self._settings.connect_timeout, pool=None)

    def _body(self, messages: list[Message], tools: list[dict[str, Any]] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        settings = self._settings
        own = {name: value for name, value in kwargs.items() if value is not None and name not in ModelSettings.model_fields}
        body = self._defaults | own
        if "max_tokens" in body:
            body[settings.max_tokens_field] = body.pop("max_tokens")
        if tools:
            body["tools"] = tools
        else:  # refused without tools
            for name in ("tools", "tool_choice", "parallel_tool_calls"):
                body.pop(name, None)
        body |= settings.extra_body | (kwargs.get("extra_body") or {})
        encoded = encode_messages(messages, settings.system_messages, settings.tool_call_ids)
        return body | {"model": self.name, "messages": encoded}

    @asynccontextmanager
    async def _exchange(self, body: dict[str, Any], kwargs: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        """The open response to ``body``; every failure inside comes out as a ``ModelError``."""
        try:
            response = await self._send(body, kwargs)
            try:
                yield response
            finally:
                await response.aclose()
        except HTTPX_ERRORS as error:
            # The cause of a local protocol error quotes headers.
            cause = None if isinstance(error, httpx.LocalProtocolError) else error
            raise from_exception(self._endpoint, error) from cause

    async def _send(self, body: dict[str, Any], kwargs: dict[str, Any]) -> httpx.Response:
        client = self._clients.get()
        headers = kwargs.get("headers") or {}
        check_headers(headers, self.provider)
        timeout = self._timeout(kwargs["timeout"]) if "timeout" in kwargs else httpx.USE_CLIENT_DEFAULT
        try:
            content = encode_body(body)
        except (TypeError, ValueError) as error:
            raise self._endpoint.error(BadRequest, f"the request cannot be written as JSON: {error}") from error
        request = client.build_request("POST", self._url, content=content, headers=headers, timeout=timeout)
        admission = await self._gate.admit()
        try:
            response = await client.send(request, stream=True)
        except BaseException:  # also a cancellation must give its place at the gate back
            self._gate.abandon(admission)
            raise
        if not response.is_success:
            await self._refuse(response, admission)
        self._gate.settle(admission)
        return response

    async def _refuse(self, response: httpx.Response, admission: int) -> NoReturn:
        error = from_response(self._endpoint, response, b"", self._timing.wall())
        if response.status_code in _GATED_STATUS and isinstance(error, RateLimited | Overloaded):
            if error.retry_after:
                self._gate.close(error.retry_after)
            else:
                self._gate.abandon(admission)
        else:
            self._gate.settle(admission)
        try:
            body = await response.aread()
        except HTTPX_ERRORS:  # the status alone says enough
            body = b""
        finally:
            await response.aclose()
        raise from_response(self._endpoint, response, body, self._timing.wall())

    async def _whole(self, response: httpx.Response) -> ModelResponse:
        text = (await response.aread()).decode("utf-8", "replace")
        return decode_reply(self._endpoint, self._json(text, "the reply"))

    async def _chunks(self, response: httpx.Response) -> AsyncGenerator[ModelChunk, None]:
        response.encoding = "utf-8"  # event streams always are, whatever the header says
        assembly = ReplyAssembly(self._endpoint)
        ended = False
        async with aclosing(EventSource(response).aiter_sse()) as events:
            try:
                async for event in events:
                    if event.data.strip() == "[DONE]":
                        ended = True
                        break
                    chunk = assembly.feed(self._json(event.data, "an event of the stream")) if event.data else None
                    if chunk is not None:
                        yield chunk
            except HTTPX_ERRORS:
                if not assembly.is_finished:  # otherwise the reply is whole
                    raise
            if not ended and not assembly.is_finished:
                raise self._cut(assembly)
            for chunk in assembly.finish():
                yield chunk
            if ended:
                await _drain(events)

    def _cut(self, assembly: ReplyAssembly) -> ModelError:
        if assembly.is_empty:
            return self._endpoint.error(
                MalformedResponse,
                "the event stream is empty; if the server cannot stream tool calls, set streaming=False in model_kwargs",
            )
        return self._endpoint.error(MalformedResponse, "the stream ended before the reply did")

    def _json(self, text: str, what: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            problem = f"{what} is not JSON: {self._endpoint.quote(text) or '(nothing)'}"
            raise self._endpoint.error(MalformedResponse, problem) from None


def _restore(cls: type[OpenAICompatibleModel], name: str, provider: str, settings: dict[str, Any]) -> OpenAICompatibleModel:
    return cls(name, provider=provider, **settings)


def _completions_url(url: httpx.URL) -> httpx.URL:
    path = url.path.rstrip("/")
    return url.copy_with(path=path if path.endswith(_PATH) else path + _PATH)


async def _drain(events: AsyncIterator[ServerSentEvent]) -> None:
    """Read to the end after the last event, so that the connection can be used again."""
    with suppress(TimeoutError, *HTTPX_ERRORS):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in events:
                pass
