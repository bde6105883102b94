"""What every model over HTTP shares: connections, the gate, failures as errors, replies whole and streamed."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar, cast

import httpx
from httpx_sse import EventSource, ServerSentEvent

from ....protocol.errors import BadRequest, ConfigurationError, MalformedResponse, ModelError, Overloaded, RateLimited
from ....protocol.messages import Message, ModelChunk, ModelResponse
from ..limits.turns import Turn
from ..timing import SYSTEM, Timing
from .base import pieces
from .clients import LoopClients, tls_context
from .endpoint import Endpoint, check_headers, check_key, parse_base_url, secret_values
from .failures import HTTPX_ERRORS, from_exception, from_response
from .gate import Gate, limits_of, shared_gate
from .leaked_calls import family_of
from .rate_headers import told_by
from .settings import HttpSettings, split_settings
from .wire import encode_body

_GATED_STATUS = frozenset({429, 503, 529})
_DRAIN_SECONDS = 0.2

S = TypeVar("S", bound=HttpSettings)


class Assembly(Protocol):
    """A streamed reply in the making."""

    is_empty: bool
    has_ended: bool

    @property
    def is_finished(self) -> bool:
        """Whether the provider said why it stopped."""
        ...

    def feed(self, event: Any) -> ModelChunk | None:
        """Take one event; returns what may go on, if anything."""
        ...

    def finish(self) -> list[ModelChunk]:
        """What remains, the stop reason last."""
        ...


class HttpModel(ABC, Generic[S]):
    """A model behind an HTTP endpoint. One attempt per call; ``RetryingModel`` adds retries.

    Requests of all models of a process to one base URL and account share a gate: once a rate limit says when to come
    back, none of them asks before. Connections are pooled per model and event loop.

    Args:
        name: the provider's name of the model.
        provider: prefix in errors.
        timing: clock, sleep and randomness.
        gate: a gate of its own instead of the shared one.
        transport: instead of the network, for tests.
        **settings: fields of the class's settings; anything else goes into every request body (``temperature=0``).

    Raises:
        ConfigurationError: a setting is wrong.
    """

    stateful: ClassVar[bool] = False
    """Whether the provider keeps the conversation and wants new messages only."""
    _settings_class: ClassVar[type[HttpSettings]]

    def __init__(
        self,
        name: str,
        *,
        provider: str,
        timing: Timing = SYSTEM,
        gate: Gate | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        **settings: Any,
    ) -> None:
        if "api_keys" in settings:
            raise ConfigurationError("a model object has one api_key; api_keys is for a model given as text, 'provider:name'")
        known, self._defaults = split_settings(provider, settings, self._settings_class)
        self._settings = cast(S, known)
        url = parse_base_url(self._settings.base_url, provider)
        check_headers(self._settings.headers, provider)
        secrets = secret_values(check_key(self._key, provider), url, self._settings.headers)
        self._endpoint = Endpoint(provider, name, url, self._settings.key_variable, secrets)
        self._url = url.copy_with(path=self._request_path(url.path.rstrip("/")))
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

    @property
    def endpoint(self) -> str:
        """The address and a digest of the account: what fails together has this in common."""
        return f"{self._endpoint.address}#{self._endpoint.account[:12]}"

    def wait_for(self) -> float:
        """Seconds that a request which comes now waits for this account's limits, at least."""
        return self._gate.wait_for()

    @property
    def native_tools(self) -> bool:
        """Whether tool calls come as structured data."""
        return self._settings.native_tools

    @property
    def supports_response_format(self) -> bool:
        """Whether ``response_format={"type": "json_schema", ...}`` is understood."""
        return self._settings.supports_response_format

    @property
    def family(self) -> str | None:
        """Whose markup this model may leak: ``deepseek``, ``qwen``, ``hermes``, ``kimi``, ``glm``, or None."""
        return self._settings.family or family_of(self.name)

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
        body = self._body(messages, tools, kwargs)
        async with self._exchange(body, kwargs) as (response, turn):
            reply = await self._whole(response, body)
            turn.used = _total(reply)
            return reply

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
        body = self._streamed(self._body(messages, tools, kwargs))
        async with self._exchange(body, kwargs) as (response, turn):
            if "json" in response.headers.get("content-type", ""):  # a server that does not stream
                reply = await self._whole(response, body)
                turn.used = _total(reply)
                for chunk in pieces(reply):
                    yield chunk
                return
            async with aclosing(self._chunks(response, body)) as chunks:
                async for chunk in chunks:
                    turn.used = _total(chunk) or turn.used
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

    @abstractmethod
    def _request_path(self, base: str) -> str:
        """The path that requests go to, for a base URL with the path ``base``."""

    @abstractmethod
    def _credentials(self, key: str) -> dict[str, str]:
        """The headers that carry the key."""

    @abstractmethod
    def _body(self, messages: list[Message], tools: list[dict[str, Any]] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The request body of a whole reply."""

    @abstractmethod
    def _streamed(self, body: dict[str, Any]) -> dict[str, Any]:
        """``body`` of a streamed reply."""

    @abstractmethod
    def _decode(self, data: Any, body: dict[str, Any]) -> ModelResponse:
        """The reply that the JSON of a response to ``body`` holds."""

    @abstractmethod
    def _assembly(self, body: dict[str, Any]) -> Assembly:
        """Puts a streamed response to ``body`` together."""

    @property
    def _key(self) -> str | None:
        secret = self._settings.api_key
        return secret.get_secret_value().strip() if secret else None

    def _default_gate(self) -> Gate:
        address = self._endpoint.address
        limits = self._settings.limits or limits_of(self.provider, address)
        if self._timing is SYSTEM:
            return shared_gate(address, self._endpoint.account, limits)
        return Gate(address, timing=self._timing, limits=limits)

    def _new_client(self) -> httpx.AsyncClient:
        headers = httpx.Headers({"content-type": "application/json", "user-agent": "umbel"})
        if self._key:
            headers.update(self._credentials(self._key))
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

    def _own(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Body fields: the model's own, and over them those of the call; settings of the connection are left out."""
        fields = type(self._settings).model_fields
        return self._defaults | {name: value for name, value in kwargs.items() if value is not None and name not in fields}

    def _extra(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return self._settings.extra_body | (kwargs.get("extra_body") or {})

    @asynccontextmanager
    async def _exchange(self, body: dict[str, Any], kwargs: dict[str, Any]) -> AsyncIterator[tuple[httpx.Response, Turn]]:
        """The open response to ``body``, and its turn; every failure inside comes out as a ``ModelError``."""
        try:
            response, turn = await self._send(body, kwargs)
            try:
                yield response, turn
            finally:
                self._gate.finish(turn)
                await response.aclose()
        except HTTPX_ERRORS as error:
            # The cause of a local protocol error quotes headers.
            cause = None if isinstance(error, httpx.LocalProtocolError) else error
            raise from_exception(self._endpoint, error) from cause

    async def _send(self, body: dict[str, Any], kwargs: dict[str, Any]) -> tuple[httpx.Response, Turn]:
        client = self._clients.get()
        headers = kwargs.get("headers") or {}
        check_headers(headers, self.provider)
        timeout = self._timeout(kwargs["timeout"]) if "timeout" in kwargs else httpx.USE_CLIENT_DEFAULT
        try:
            content = encode_body(body)
        except (TypeError, ValueError) as error:
            raise self._endpoint.error(BadRequest, f"the request cannot be written as JSON: {error}") from error
        request = client.build_request("POST", self._url, content=content, headers=headers, timeout=timeout)
        admission = await self._gate.admit(_expected(content, body))
        try:
            response = await client.send(request, stream=True)
        except BaseException:  # also a cancellation must give its place at the gate back
            self._gate.abandon(admission)
            raise
        if not response.is_success:
            await self._refuse(response, admission)
        self._gate.settle(admission, told_by(response.headers))
        return response, admission

    async def _refuse(self, response: httpx.Response, admission: Turn) -> NoReturn:
        error = from_response(self._endpoint, response, b"", self._timing.wall())
        if response.status_code in _GATED_STATUS and isinstance(error, RateLimited | Overloaded):
            self._gate.refuse(admission, error.retry_after, told_by(response.headers))
        else:
            self._gate.settle(admission)
        self._gate.finish(admission)
        try:
            body = await response.aread()
        except HTTPX_ERRORS:  # the status alone says enough
            body = b""
        finally:
            await response.aclose()
        raise from_response(self._endpoint, response, body, self._timing.wall())

    async def _whole(self, response: httpx.Response, body: dict[str, Any]) -> ModelResponse:
        text = (await response.aread()).decode("utf-8", "replace")
        return self._decode(self._json(text, "the reply"), body)

    async def _chunks(self, response: httpx.Response, body: dict[str, Any]) -> AsyncGenerator[ModelChunk, None]:
        response.encoding = "utf-8"  # event streams always are, whatever the header says
        assembly = self._assembly(body)
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
                    if assembly.has_ended:
                        ended = True
                        break
            except HTTPX_ERRORS:
                if not assembly.is_finished:  # otherwise the reply is whole
                    raise
            if not ended and not assembly.is_finished:
                raise self._cut(assembly)
            for chunk in assembly.finish():
                yield chunk
            if ended:
                await _drain(events)

    def _cut(self, assembly: Assembly) -> ModelError:
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


def _expected(content: bytes, body: dict[str, Any]) -> int:
    """Tokens that a request is going to use, roughly; its limiter learns afterwards what it really used."""
    most = body.get("max_tokens") or body.get("max_completion_tokens")
    return len(content) // 4 + (most if isinstance(most, int) else 0)


def _total(reply: ModelResponse | ModelChunk) -> int | None:
    return reply.usage.total_tokens if reply.usage is not None else None


def _restore(cls: type[HttpModel[Any]], name: str, provider: str, settings: dict[str, Any]) -> HttpModel[Any]:
    return cls(name, provider=provider, **settings)


async def _drain(events: AsyncIterator[ServerSentEvent]) -> None:
    """Read to the end after the last event, so that the connection can be used again."""
    with suppress(TimeoutError, *HTTPX_ERRORS):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in events:
                pass
