"""Every failure below us has its place in the tree, and none shows a key."""

from __future__ import annotations

import inspect
from typing import Any

import httpx
import pytest
from httpx_sse import SSEError

from umbel.actors.agent.models.endpoint import Endpoint
from umbel.actors.agent.models.failures import HTTPX_ERRORS, from_exception, from_payload, from_response
from umbel.protocol.errors import (
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

KEY = "sk-secret-0123456789"
ENDPOINT = Endpoint("openai", "gpt", httpx.URL("https://user:pw@api.example/v1?api-version=1"), "OPENAI_API_KEY", (KEY,))
NOW = 1_700_000_000.0

EXPECTED: dict[str, type[ModelError]] = {
    "ConnectTimeout": ModelTimeout,
    "ReadTimeout": ModelTimeout,
    "WriteTimeout": ModelTimeout,
    "PoolTimeout": ModelTimeout,
    "TimeoutException": ModelTimeout,
    "ConnectError": ModelConnectionError,
    "ReadError": ModelConnectionError,
    "WriteError": ModelConnectionError,
    "CloseError": ModelConnectionError,
    "NetworkError": ModelConnectionError,
    "RemoteProtocolError": ModelConnectionError,
    "ProtocolError": ModelConnectionError,
    "ProxyError": ModelConnectionError,
    "TransportError": ModelConnectionError,
    "LocalProtocolError": BadRequest,
    "UnsupportedProtocol": BadRequest,
    "TooManyRedirects": BadRequest,
    "InvalidURL": BadRequest,
    "CookieConflict": BadRequest,
    "DecodingError": MalformedResponse,
    "SSEError": MalformedResponse,
    "HTTPStatusError": ModelServerError,
    # Our own misuse of the client, or a base class that is never raised itself.
    "HTTPError": ModelError,
    "RequestError": ModelError,
    "StreamError": ModelError,
    "StreamConsumed": ModelError,
    "StreamClosed": ModelError,
    "ResponseNotRead": ModelError,
    "RequestNotRead": ModelError,
}
CLASSES = [
    cls for _, cls in inspect.getmembers(httpx, inspect.isclass) if issubclass(cls, Exception) and cls.__module__ == "httpx"
]


def make(cls: type[Exception]) -> Exception:
    if cls is httpx.HTTPStatusError:
        request = httpx.Request("POST", "https://api.example")
        return httpx.HTTPStatusError(f"{KEY} x", request=request, response=httpx.Response(500, request=request))
    required = [
        p for p in inspect.signature(cls).parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    return cls(*(f"quotes {KEY}" for _ in required))


@pytest.mark.parametrize("cls", [*CLASSES, SSEError], ids=lambda cls: cls.__name__)
def test_every_exception_of_the_http_client_is_mapped(cls: type[Exception]) -> None:
    assert len(CLASSES) > 20
    assert issubclass(cls, HTTPX_ERRORS), "would escape the model as it is"
    error = from_exception(ENDPOINT, make(cls))
    assert type(error) is EXPECTED[cls.__name__]
    assert KEY not in str(error)
    assert cls.__name__ in str(error) or cls is httpx.HTTPStatusError


def respond(status: int, body: Any = b"", **headers: str) -> ModelError:
    response = httpx.Response(status, headers={k.replace("_", "-"): v for k, v in headers.items()})
    return from_response(ENDPOINT, response, body if isinstance(body, bytes) else httpx.Response(200, json=body).content, NOW)


@pytest.mark.parametrize(
    ("status", "cls"),
    [
        (301, BadRequest),
        (400, BadRequest),
        (401, AuthenticationFailed),
        (402, AuthenticationFailed),
        (403, AuthenticationFailed),
        (404, BadRequest),
        (405, BadRequest),
        (408, ModelTimeout),
        (409, Overloaded),
        (413, BadRequest),
        (422, BadRequest),
        (429, RateLimited),
        (500, ModelServerError),
        (502, ModelServerError),
        (503, Overloaded),
        (504, ModelServerError),
        (529, Overloaded),
    ],
)
def test_status(status: int, cls: type[ModelError]) -> None:
    error = respond(status)
    assert type(error) is cls
    assert error.status_code == status
    assert error.details["provider"] == "openai"
    assert error.details["model"] == "gpt"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"code": "context_length_exceeded", "message": "too long"}}),
        (400, {"error": {"message": "This model's maximum context length is 8192 tokens", "code": None}}),
        (400, {"error": {"code": 400, "message": "the request exceeds", "type": "exceed_context_size_error"}}),
        (413, {"message": "prompt is too long: 9 tokens"}),
        (500, {"error": {"message": "Requested tokens exceed context window of 4096"}}),
    ],
)
def test_context_overflow(status: int, body: Any) -> None:
    assert type(respond(status, body)) is ContextOverflow


def test_spent_quota_is_not_a_rate_limit() -> None:
    error = respond(
        429, {"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "pay"}}, retry_after="1"
    )
    assert type(error) is AuthenticationFailed
    assert not error.retryable
    assert error.retry_after is None


def test_retry_after_is_kept_where_a_retry_may_follow() -> None:
    assert respond(429, retry_after="7").retry_after == 7
    assert respond(503, retry_after="7").retry_after == 7
    assert respond(429, x_ratelimit_reset_requests="150ms").retry_after == pytest.approx(0.15)
    assert respond(503, x_ratelimit_reset_requests="90s").retry_after is None
    assert respond(400, retry_after="7").retry_after is None


def test_messages_are_bounded_redacted_and_say_what_to_do() -> None:
    text = str(respond(401, {"error": {"message": f"wrong key {KEY} " + "x" * 5000}}))
    assert KEY not in text
    assert "pw" not in text
    assert "OPENAI_API_KEY" in text
    assert "https://api.example/v1" in text
    assert len(text) < 800
    assert KEY not in repr(ENDPOINT)
    assert "lone \ufffd" in str(respond(400, b'{"error": "lone \\ud83d"}'))
    assert "\\" not in str(respond(404, "<html>caf\u00e9</html>".encode("latin-1"))).replace("\\n", "")


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        ({"code": 429, "message": "m"}, RateLimited),
        ({"code": "502", "message": "m"}, ModelServerError),
        ({"type": "rate_limit_error", "message": "m"}, RateLimited),
        ({"type": "overloaded_error"}, Overloaded),
        ({"code": "context_length_exceeded"}, ContextOverflow),
        ({"type": "invalid_request_error", "message": "m"}, BadRequest),
        ({"type": "authentication_error"}, AuthenticationFailed),
        ({"code": "insufficient_quota"}, AuthenticationFailed),
        ({"message": "who knows"}, ModelServerError),
        ("just text", ModelServerError),
    ],
)
def test_errors_inside_a_200(error: Any, cls: type[ModelError]) -> None:
    assert type(from_payload(ENDPOINT, {"error": error})) is cls
