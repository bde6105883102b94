"""What a failed HTTP exchange with a provider means, as an error of Umbel's tree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
from httpx_sse import SSEError

from ....protocol.errors import (
    AuthenticationFailed,
    BadRequest,
    ContextOverflow,
    MalformedResponse,
    ModelConnectionError,
    ModelError,
    ModelServerError,
    ModelTimeout,
    Overloaded,
    RateLimited,
)
from .endpoint import Endpoint
from .retry_after import retry_after_seconds

HTTPX_ERRORS = (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, httpx.StreamError)

_BY_STATUS: dict[int, type[ModelError]] = {
    401: AuthenticationFailed,
    402: AuthenticationFailed,
    403: AuthenticationFailed,
    408: ModelTimeout,
    409: Overloaded,
    425: Overloaded,
    429: RateLimited,
    498: Overloaded,  # Groq: flex capacity exceeded
    503: Overloaded,
    529: Overloaded,
}
_BY_WORD: tuple[tuple[str, type[ModelError]], ...] = (
    ("rate_limit", RateLimited),
    ("too_many_requests", RateLimited),
    ("overloaded", Overloaded),
    ("unavailable", Overloaded),
    ("timeout", ModelTimeout),
    ("authentication", AuthenticationFailed),
    ("permission", AuthenticationFailed),
    ("api_key", AuthenticationFailed),
    ("invalid_request", BadRequest),
    ("bad_request", BadRequest),
    ("not_found", BadRequest),
)
# First match wins, so subclasses stand before their bases.
_BY_EXCEPTION: tuple[tuple[type[Exception], type[ModelError]], ...] = (
    (SSEError, MalformedResponse),
    (httpx.TimeoutException, ModelTimeout),
    (httpx.NetworkError, ModelConnectionError),
    (httpx.RemoteProtocolError, ModelConnectionError),
    (httpx.ProxyError, ModelConnectionError),
    (httpx.LocalProtocolError, BadRequest),
    (httpx.UnsupportedProtocol, BadRequest),
    (httpx.TransportError, ModelConnectionError),
    (httpx.DecodingError, MalformedResponse),
    (httpx.TooManyRedirects, BadRequest),
    (httpx.InvalidURL, BadRequest),
    (httpx.CookieConflict, BadRequest),
)
_OVERFLOW_CODES = ("context_length_exceeded", "exceed_context_size", "context_window_exceeded")
_OVERFLOW_TEXTS = (
    "maximum context length",
    "context window",
    "prompt is too long",
    "available context size",
    "context length exceeded",
)
_QUOTA_CODES = ("insufficient_quota", "billing", "credit_balance")
_QUOTA_TEXTS = ("credit balance is too low",)  # Anthropic calls that an invalid request


def from_response(endpoint: Endpoint, response: httpx.Response, body: bytes, now: float) -> ModelError:
    """The error that an HTTP status outside 2xx means.

    Args:
        endpoint: who was asked.
        response: status and headers.
        body: what was read of it.
        now: the wall clock, for dates in headers.
    """
    payload = _payload(body)
    text = _text(payload) or body.decode("utf-8", "replace")
    code = _code(payload)
    status = response.status_code
    cls = _class(status, code, text)
    return endpoint.error(
        cls,
        f"HTTP {status}{_advice(endpoint, cls, status)}: {endpoint.quote(text) or '(no text)'}",
        status_code=status,
        provider_code=endpoint.quote(code) or None,
        retry_after=_wait(response.headers, status, cls, now),
    )


def from_payload(endpoint: Endpoint, payload: Any) -> ModelError:
    """The error that an ``error`` object inside a 200 reply or a stream means."""
    code = _code(payload)
    text = _text(payload) or "the provider reported an error without text"
    status = _status(payload)
    cls = _class(status, code, text) if status else _class_by_word(code, text)
    return endpoint.error(cls, endpoint.quote(text), status_code=status, provider_code=endpoint.quote(code) or None)


def from_exception(endpoint: Endpoint, error: Exception) -> ModelError:
    """The error that an exception of the HTTP client means."""
    name = type(error).__name__
    if isinstance(error, httpx.HTTPStatusError):
        cls = _class(error.response.status_code, "", "")
        return endpoint.error(cls, f"HTTP {error.response.status_code}", status_code=error.response.status_code)
    for known, cls in _BY_EXCEPTION:
        if isinstance(error, known):
            # A local protocol error quotes the illegal header, so it may quote the key.
            text = "" if isinstance(error, httpx.LocalProtocolError) else endpoint.quote(str(error))
            advice = ": is the server running?" if isinstance(error, httpx.ConnectError) and endpoint.is_local else ""
            return endpoint.error(cls, f"{name}{f' ({text})' if text else ''}{advice}")
    return endpoint.error(ModelError, f"{name} ({endpoint.quote(str(error))})")


def _class(status: int, code: str, text: str) -> type[ModelError]:
    if _overflows(code, text) and (status in {400, 413, 422} or status == 500):
        return ContextOverflow
    if _is_out_of_credit(code, text):
        return AuthenticationFailed
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ModelServerError if status >= 500 else BadRequest


def _class_by_word(code: str, text: str) -> type[ModelError]:
    if _overflows(code, text):
        return ContextOverflow
    if _is_out_of_credit(code, text):
        return AuthenticationFailed
    return next((cls for word, cls in _BY_WORD if word in code), ModelServerError)


def _is_out_of_credit(code: str, text: str) -> bool:
    return any(word in code for word in _QUOTA_CODES) or any(words in text.lower() for words in _QUOTA_TEXTS)


def _overflows(code: str, text: str) -> bool:
    lower = text.lower()
    return any(word in code for word in _OVERFLOW_CODES) or any(words in lower for words in _OVERFLOW_TEXTS)


def _wait(headers: Mapping[str, str], status: int, cls: type[ModelError], now: float) -> float | None:
    if not cls.retryable:
        return None
    if status != 429:
        headers = {name: headers[name] for name in ("retry-after", "retry-after-ms", "date") if name in headers}
    return retry_after_seconds(headers, now)


def _advice(endpoint: Endpoint, cls: type[ModelError], status: int) -> str:
    if status == 401:
        return f", check the key in {endpoint.key_variable}" if endpoint.key_variable else ", check the API key"
    if cls is AuthenticationFailed:
        return ", the account may not do this or has no credit left"
    if status == 404:
        return ", check the model's name and the base URL"
    if 300 <= status < 400:
        return ", the base URL redirects; use its target"
    return ""


def _payload(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _inner(payload: Any) -> Any:
    if isinstance(payload, list) and payload:  # Google wraps its errors in a list
        payload = payload[0]
    if isinstance(payload, dict) and payload.get("error"):
        return payload["error"]
    return payload


def _text(payload: Any) -> str:
    inner = _inner(payload)
    if isinstance(inner, str):
        return inner
    if isinstance(inner, dict):
        for name in ("message", "detail", "error_description"):
            if inner.get(name):
                value = inner[name]
                return value if isinstance(value, str) else json.dumps(value, default=str)
    return ""


def _code(payload: Any) -> str:
    """Code and type of the error object, lower case, as one searchable text."""
    inner = _inner(payload)
    if not isinstance(inner, dict):
        return ""
    parts = [value for value in (inner.get("code"), inner.get("type")) if isinstance(value, str)]
    return " ".join(parts).lower()


def _status(payload: Any) -> int | None:
    inner = _inner(payload)
    for name in ("code", "status", "status_code"):
        value = inner.get(name) if isinstance(inner, dict) else None
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None
