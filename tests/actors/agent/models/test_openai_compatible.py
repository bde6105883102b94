"""The model against exact bytes on the wire."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from typing import Any

import pytest

from umbel.actors.agent.models import RetryingModel, RetryPolicy, collect
from umbel.protocol.errors import (
    AuthenticationFailed,
    BadRequest,
    ConfigurationError,
    ContextOverflow,
    MalformedResponse,
    ModelConnectionError,
    ModelError,
    ModelServerError,
    ModelTimeout,
    RateLimited,
)
from umbel.protocol.messages import Message, ModelChunk, ToolCall, ToolResult, Usage

HI = [Message.user("hi")]
KEY = "sk-secret-0123456789"
TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}]
OK = {"model": "m-1", "choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 2}}


def event(**delta: Any) -> bytes:
    finish = delta.pop("finish_reason", None)
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
STOP = event(finish_reason="stop")


# --- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("LOOP-45")
async def test_only_what_was_set_is_sent(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.json(OK)
    await model_at(server.url).complete(HI)
    assert server.requests[0].body == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert "authorization" not in server.requests[0].headers


@pytest.mark.spec("LOOP-45", "API-19")
async def test_settings_of_the_call_win_over_the_models(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.json(OK)
    model = model_at(server.url, api_key=KEY, temperature=0.1, top_p=0.5, extra_body={"a": 1}, headers={"x-a": "1"})
    await model.complete(HI, temperature=0.9, seed=7, max_tokens=5, top_p=None, extra_body={"b": 2}, headers={"x-b": "2"})
    request = server.requests[0]
    assert request.path == "/v1/chat/completions"
    body = {name: value for name, value in request.body.items() if name not in {"messages", "model"}}
    assert body == {"temperature": 0.9, "top_p": 0.5, "seed": 7, "max_tokens": 5, "a": 1, "b": 2}
    assert (request.headers["x-a"], request.headers["x-b"]) == ("1", "2")
    assert request.headers["authorization"] == f"Bearer {KEY}"


async def test_connection_settings_among_the_kwargs_of_a_call_never_reach_the_body(
    server: Any, answers: Any, model_at: Any
) -> None:
    server.default = answers.json(OK)
    await model_at(server.url).complete(
        HI, api_key=KEY, base_url="http://elsewhere/v1", max_retries=3, timeout=5, streaming=True
    )
    assert server.requests[0].body.keys() == {"model", "messages"}
    assert KEY not in str(server.requests[0])


async def test_tool_settings_are_sent_with_tools_only(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.json(OK)
    model = model_at(server.url, tool_choice="auto", parallel_tool_calls=False)
    await model.complete(HI, TOOLS)
    await model.complete(HI, [])
    assert server.requests[0].body["tools"] == TOOLS
    assert server.requests[0].body["tool_choice"] == "auto"
    assert server.requests[1].body.keys() == {"model", "messages"}


async def test_other_names_and_addresses(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.json(OK)
    await model_at(server.url + "/?api-version=7", max_tokens_field="max_completion_tokens").complete(HI, max_tokens=3)
    await model_at(server.url + "/chat/completions").complete(HI)
    assert [request.path for request in server.requests] == ["/v1/chat/completions?api-version=7", "/v1/chat/completions"]
    assert server.requests[0].body["max_completion_tokens"] == 3


async def test_usage_is_asked_for_in_streams(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.events([STOP, DONE])
    await collect(model_at(server.url).stream(HI))
    await collect(model_at(server.url, include_usage=False).stream(HI))
    first, second = (request.body for request in server.requests)
    assert (first["stream"], first["stream_options"]) == (True, {"include_usage": True})
    assert "stream_options" not in second


async def test_no_null_content_beside_tool_calls(server: Any, answers: Any, model_at: Any) -> None:
    """llama_cpp.server answers 500 to ``"content": null`` there."""

    async def strict(request: Any, writer: Any) -> None:
        bad = any(message["content"] is None for message in request.body["messages"])
        await answers.json(*([{"error": {"message": "null"}}, 500] if bad else [OK]))(request, writer)

    server.default = strict
    call = ToolCall(id="call_1", name="add")
    history = [*HI, Message.assistant(None, tool_calls=(call,)), Message.tool(ToolResult(tool_call_id="call_1", name="add"))]
    assert (await model_at(server.url).complete(history)).content == "ok"


async def test_what_cannot_be_written_as_json_is_a_bad_request(server: Any, model_at: Any) -> None:
    with pytest.raises(BadRequest, match="object"):
        await model_at(server.url).complete(HI, logit_bias=object())


# --- replies --------------------------------------------------------------------------------------------------------


async def test_unstreamed_reply(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.json(OK)
    reply = await model_at(server.url).complete(HI)
    assert (reply.content, reply.stop_reason, reply.usage, reply.model) == ("ok", "stop", Usage(prompt_tokens=2), "m-1")


async def test_stream_order_and_end(server: Any, answers: Any, model_at: Any) -> None:
    call = event(tool_calls=[{"index": 0, "id": "a", "function": {"name": "add", "arguments": "{}"}}])
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n'
    end = event(finish_reason="tool_calls")
    server.default = answers.events([event(role="assistant"), event(content="a"), call, event(content="b"), end, usage, DONE])
    chunks: list[ModelChunk] = [chunk async for chunk in model_at(server.url).stream(HI, TOOLS)]
    assert [chunk.content for chunk in chunks] == ["a", "b", None, None]
    assert [call.name for call in chunks[2].tool_calls] == ["add"]
    assert (chunks[3].done, chunks[3].stop_reason) == (True, "tool_calls")
    assert chunks[3].usage == Usage(prompt_tokens=3, completion_tokens=1)


@pytest.mark.case(2)
async def test_bytes_may_be_cut_anywhere(server: Any, answers: Any, model_at: Any) -> None:
    whole = 'data: {"choices": [{"delta": {"content": "caf\u00e9 \U0001f600"}}]}\n\n'.encode() + STOP + DONE
    server.default = answers.events([bytes([byte]) for byte in whole])
    assert (await collect(model_at(server.url).stream(HI))).content == "caf\u00e9 \U0001f600"
    escaped = b'data: {"choices": [{"delta": {"content": "\\ud83d\\ude00 \\ud83d"}}]}\n\n' + STOP + DONE
    server.default = answers.events([escaped])
    assert (await collect(model_at(server.url).stream(HI))).content == "\U0001f600 \ufffd"


async def test_usage_may_be_missing_or_under_groqs_name(server: Any, answers: Any, model_at: Any) -> None:
    """llama_cpp.server ignores ``include_usage``."""
    groq = b'data: {"choices": [], "x_groq": {"usage": {"prompt_tokens": 9}}}\n\n'
    server.script = [answers.events([event(content="a"), STOP, DONE]), answers.events([event(content="a"), STOP, groq, DONE])]
    model = model_at(server.url)
    assert (await collect(model.stream(HI))).usage is None
    assert (await collect(model.stream(HI))).usage == Usage(prompt_tokens=9)


async def test_empty_stream_is_malformed(server: Any, answers: Any, model_at: Any) -> None:
    """llama_cpp.server does this for streamed automatic tool calls."""
    server.default = answers.events([])
    with pytest.raises(MalformedResponse, match="streaming=False"):
        await collect(model_at(server.url).stream(HI, TOOLS))


async def test_streaming_can_be_off(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.json(OK)
    chunks = [chunk async for chunk in model_at(server.url, streaming=False).stream(HI)]
    assert "stream" not in server.requests[0].body
    assert [chunk.content for chunk in chunks] == ["ok", None]


async def test_a_server_that_does_not_stream(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.json(OK)
    assert await collect(model_at(server.url).stream(HI)) == await model_at(server.url).complete(HI)


@pytest.mark.parametrize("ends", [True, False], ids=["in good order", "dropped"])
async def test_a_stream_that_stops_too_early(server: Any, answers: Any, model_at: Any, ends: bool) -> None:
    cut = answers.events([event(content="half")], end=ends)
    server.script = [cut]
    stream = model_at(server.url).stream(HI)
    assert (await anext(stream)).content == "half"
    with pytest.raises(MalformedResponse if ends else ModelConnectionError) as caught:
        await collect(stream)
    assert caught.value.retryable
    server.script = [cut]
    with pytest.raises(ModelError):
        await collect(RetryingModel(model_at(server.url)).stream(HI))
    assert not server.script
    # Nothing was handed on yet, not even by half of a tool call: tried again.
    part = event(tool_calls=[{"index": 0, "id": "a", "function": {"name": "add", "arguments": '{"n"'}}])
    server.script = [
        answers.events([event(role="assistant"), part], end=ends),
        answers.events([event(content="ok"), STOP, DONE]),
    ]
    retrying = RetryingModel(model_at(server.url), RetryPolicy(initial_delay=0.01))
    assert (await collect(retrying.stream(HI))).content == "ok"


async def test_a_whole_reply_counts_even_if_the_connection_then_drops(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.events([event(content="ok"), STOP], end=False)
    reply = await collect(model_at(server.url).stream(HI))
    assert (reply.content, reply.stop_reason) == ("ok", "stop")


async def test_end_without_done_or_without_reason(server: Any, answers: Any, model_at: Any) -> None:
    server.script = [answers.events([event(content="a"), STOP]), answers.events([event(content="a"), DONE])]
    model = model_at(server.url)
    assert (await collect(model.stream(HI))).stop_reason == "stop"
    assert (await collect(model.stream(HI))).stop_reason == "unknown"


@pytest.mark.parametrize("data", [b"{malformed", b"3", b'"x"', b"[" * 50_000])
async def test_corrupt_event(server: Any, answers: Any, model_at: Any, data: bytes) -> None:
    server.default = answers.events([b"data: " + data + b"\n\n", STOP, DONE])
    with pytest.raises(MalformedResponse):
        await collect(model_at(server.url).stream(HI))


async def test_error_inside_a_stream(server: Any, answers: Any, model_at: Any) -> None:
    error = b'data: {"error": {"code": 429, "message": "slow down"}}\n\n'
    server.default = answers.events([event(content="a"), error])
    with pytest.raises(RateLimited, match="slow down"):
        await collect(model_at(server.url).stream(HI))


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff\xfe", b"null", b"{}"])
async def test_unstreamed_nonsense(server: Any, answers: Any, model_at: Any, body: bytes) -> None:
    server.default = answers.json(body)
    with pytest.raises(MalformedResponse):
        await model_at(server.url).complete(HI)


async def test_wrong_content_type_of_a_stream(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.events([b"<html>"], content_type="text/html")
    with pytest.raises(MalformedResponse):
        await collect(model_at(server.url).stream(HI))


@pytest.mark.parametrize(
    ("status", "body", "cls"),
    [
        (401, {"error": {"message": f"wrong key: {KEY}"}}, AuthenticationFailed),
        (400, {"error": {"code": "context_length_exceeded", "message": "too long"}}, ContextOverflow),
        (500, {"error": {"message": "boom"}}, ModelServerError),
        (302, {}, BadRequest),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_refusals(
    server: Any, answers: Any, model_at: Any, status: int, body: Any, cls: type[ModelError], streaming: bool
) -> None:
    server.default = answers.json(body, status)
    model = model_at(server.url, api_key=KEY)
    with pytest.raises(cls) as caught:
        await (collect(model.stream(HI)) if streaming else model.complete(HI))
    assert type(caught.value) is cls
    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_no_server(model_at: Any) -> None:
    with pytest.raises(ModelConnectionError, match="is the server running"):
        await model_at("http://127.0.0.1:9/v1").complete(HI)


async def test_silence_is_a_timeout(server: Any, model_at: Any) -> None:
    async def silent(request: Any, writer: Any) -> None:
        await asyncio.Event().wait()

    server.default = silent
    with pytest.raises(ModelTimeout):
        await model_at(server.url, timeout=0.05).complete(HI)
    with pytest.raises(ModelTimeout):
        await collect(model_at(server.url).stream(HI, timeout=0.05))


async def test_keys_stay_out_of_errors_and_logs(
    server: Any, answers: Any, model_at: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.default = answers.json({"error": f"key {KEY}"}, 400)
    illegal = {"x-api-key": KEY + "\nx"}
    for settings, call in (({"api_key": KEY}, {}), ({"headers": {"x-api-key": KEY}}, {}), ({}, {"headers": illegal})):
        with pytest.raises((BadRequest, ConfigurationError)) as caught:
            await model_at(server.url, **settings).complete(HI, **call)
        assert KEY not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigurationError, match="x-api-key") as refused:
        model_at(server.url, headers=illegal)
    assert KEY not in str(refused.value)
    assert KEY not in caplog.text


# --- connections ----------------------------------------------------------------------------------------------------


async def test_connections_are_used_again(server: Any, answers: Any, model_at: Any) -> None:
    model = model_at(server.url)
    server.script = [
        answers.json(OK),
        answers.events([event(content="a"), STOP, DONE]),
        answers.json(OK),
        answers.json({}, 400),
    ]
    await model.complete(HI)
    await collect(model.stream(HI))
    await model.complete(HI)
    with pytest.raises(BadRequest):
        await model.complete(HI)
    assert [request.connection for request in server.requests] == [0, 0, 0, 0]


async def test_the_pool_is_bounded_and_waiting_for_it_is_no_failure(server: Any, answers: Any, model_at: Any) -> None:
    server.default = answers.json(OK)
    model = model_at(server.url, max_connections=2)
    await asyncio.gather(*(model.complete(HI) for _ in range(10)))
    assert {request.connection for request in server.requests} == {0, 1}


@pytest.mark.parametrize("streaming", [False, True])
async def test_cancelling_closes_the_request(server: Any, model_at: Any, streaming: bool) -> None:
    arrived, hung_up = asyncio.Event(), asyncio.Event()

    async def watch(request: Any, writer: Any) -> None:
        arrived.set()
        await request.reader.read()
        hung_up.set()

    server.default = watch
    model = model_at(server.url)
    task = asyncio.ensure_future(collect(model.stream(HI)) if streaming else model.complete(HI))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(hung_up.wait(), 5)


async def test_closing_a_stream_early_closes_the_request(server: Any, answers: Any, model_at: Any) -> None:
    hung_up = asyncio.Event()

    async def endless(request: Any, writer: Any) -> None:
        await answers.events([event(content="a")], end=True)(request, _Unended(writer))
        await request.reader.read()
        hung_up.set()

    server.default = endless
    stream = model_at(server.url).stream(HI)
    assert (await anext(stream)).content == "a"
    await stream.aclose()
    await asyncio.wait_for(hung_up.wait(), 5)


class _Unended:
    """A writer that swallows the end of the response."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        if data != b"0\r\n\r\n":
            self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()
