"""Claude over the Messages API: what is sent, what is understood, and that streaming changes nothing."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings, strategies as st

from umbel.actors.agent.models import AnthropicModel, RetryingModel, RetryPolicy, collect, resolve_model
from umbel.actors.agent.models.anthropic_wire import CONTINUED, THINKING, encode_conversation
from umbel.actors.agent.models.gate import Gate
from umbel.actors.supervisor.structured import response_format
from umbel.protocol.errors import (
    AuthenticationFailed,
    BadRequest,
    ContextOverflow,
    MalformedResponse,
    ModelConnectionError,
    ModelError,
    ModelServerError,
    Overloaded,
    RateLimited,
)
from umbel.protocol.messages import Message, ModelResponse, ToolCall, ToolResult, Usage

HI = [Message.user("hi")]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {}}}},
    },
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]
SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "eA=="}


def reply(*blocks: dict[str, Any], stop_reason: str = "end_turn", **usage: int) -> dict[str, Any]:
    counts = {"input_tokens": 3, "output_tokens": 5, **usage}
    return {
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": list(blocks),
        "stop_reason": stop_reason,
        "usage": counts,
    }


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def used(call_id: str, name: str = "add", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


OK = reply(said("ok"))


class Endpoint:
    """An in-process server: keeps the requests, gives the answers of its script, and the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers) or [OK]
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, dict):
            return httpx.Response(200, headers={"content-type": "application/json"}, content=json.dumps(answer).encode())
        if isinstance(answer, list):
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=parts(answer))
        return answer  # type: ignore[no-any-return]

    def model(self, **options: Any) -> AnthropicModel:
        where: dict[str, Any] = {"base_url": "http://model.test", "gate": Gate(), "transport": httpx.MockTransport(self)}
        return AnthropicModel("claude", **{**where, **options})

    @property
    def body(self) -> Any:
        return json.loads(self.requests[-1].content)


async def parts(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def sse(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def events(message: dict[str, Any], cut: Any = None) -> Iterator[dict[str, Any]]:
    """The stream of a message. ``cut(text)`` splits a text into deltas."""
    cut = cut or (lambda text: [text])
    counts = message["usage"]
    yield {
        "type": "message_start",
        "message": {**message, "content": [], "stop_reason": None, "usage": {**counts, "output_tokens": 1}},
    }
    yield {"type": "ping"}
    fields = {"text": ("text", "text_delta"), "thinking": ("thinking", "thinking_delta")}
    blanks: dict[str, dict[str, Any]] = {
        "text": {"text": ""},
        "tool_use": {"input": {}},
        "thinking": {"thinking": "", "signature": ""},
    }
    for index, block in enumerate(message["content"]):
        kind = block["type"]
        yield {"type": "content_block_start", "index": index, "content_block": block | blanks.get(kind, {})}
        if kind in fields:
            field, delta = fields[kind]
            for piece in cut(block[field]):
                yield {"type": "content_block_delta", "index": index, "delta": {"type": delta, field: piece}}
        if kind == "thinking" and block.get("signature"):
            signature = {"type": "signature_delta", "signature": block["signature"]}
            yield {"type": "content_block_delta", "index": index, "delta": signature}
        if kind == "tool_use" and block["input"]:
            for piece in cut(json.dumps(block["input"])):
                yield {
                    "type": "content_block_delta",
                    "index": index,
                    "delta": {"type": "input_json_delta", "partial_json": piece},
                }
        yield {"type": "content_block_stop", "index": index}
    last = {"output_tokens": counts["output_tokens"], "input_tokens": None}
    yield {"type": "message_delta", "delta": {"stop_reason": message["stop_reason"]}, "usage": last}
    yield {"type": "message_stop"}


def stream_of(message: dict[str, Any]) -> list[bytes]:
    return [sse(event) for event in events(message)]


def plain(response: ModelResponse) -> Any:
    """A reply without the ids that are made anew each time."""
    data = response.model_dump()
    for call in data["message"]["tool_calls"]:
        del call["id"]
    return data


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("LOOP-45")
async def test_only_what_was_set_is_sent() -> None:
    """BUG-24."""
    endpoint = Endpoint()
    await endpoint.model(api_key="sk-ant-secret").complete(HI)
    assert endpoint.body == {"model": "claude", "max_tokens": 8192, "messages": [{"role": "user", "content": [said("hi")]}]}
    request = endpoint.requests[0]
    assert (request.url.path, request.headers["x-api-key"]) == ("/v1/messages", "sk-ant-secret")
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in request.headers


@pytest.mark.spec("LOOP-45")
async def test_settings_of_the_call_win() -> None:
    endpoint = Endpoint()
    model = endpoint.model(temperature=0.1, max_tokens=10, headers={"anthropic-beta": "x"})
    await model.complete(HI, TOOLS, temperature=0.9, stop="END", tool_choice="required", parallel_tool_calls=False)
    assert endpoint.body["temperature"] == 0.9
    assert (endpoint.body["max_tokens"], endpoint.body["stop_sequences"]) == (10, ["END"])
    assert endpoint.body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert endpoint.body["tools"] == [
        {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {}}}},
        {"name": "now", "input_schema": {"type": "object"}},
    ]
    assert endpoint.requests[0].headers["anthropic-beta"] == "x"
    await model.complete(HI, tool_choice="auto", parallel_tool_calls=False)
    assert endpoint.body.keys() == {"model", "messages", "max_tokens", "temperature"}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ({"type": "function", "function": {"name": "add"}}, {"type": "tool", "name": "add"}),
        ({"type": "any"}, {"type": "any"}),
    ],
)
async def test_tool_choices(choice: Any, sent: Any) -> None:
    endpoint = Endpoint()
    await endpoint.model(tool_choice=choice).complete(HI, TOOLS)
    assert endpoint.body["tool_choice"] == sent


@pytest.mark.parametrize("base", ["http://a.test", "http://a.test/", "http://a.test/v1", "http://a.test/v1/messages"])
async def test_base_urls(base: str) -> None:
    endpoint = Endpoint()
    await endpoint.model(base_url=base).complete(HI)
    assert endpoint.requests[0].url.path == "/v1/messages"


def test_the_prefix_and_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://proxy.test/anthropic")
    model = resolve_model("anthropic:claude-x", cache_prompt=True)
    assert isinstance(model, AnthropicModel)
    copy = pickle.loads(pickle.dumps(model))
    assert "http://proxy.test/anthropic" in repr(copy)
    assert "secret" not in repr(copy)
    assert (copy.native_tools, copy.supports_response_format, copy.stateful, copy.family) == (True, True, False, None)


def call(number: int, name: str = "add", **fields: Any) -> ToolCall:
    return ToolCall(id=f"call_{number}", name=name, **fields)


def result(number: int, content: str = "") -> Message:
    return Message.tool(ToolResult(tool_call_id=f"call_{number}", name="add", content=content))


@pytest.mark.spec("LOOP-43")
@pytest.mark.case(13)
def test_a_conversation_with_everything_that_others_refuse() -> None:
    """BUG-23 (late system notes), BUG-31 (pairing), BUG-32 (text beside calls)."""
    history = [
        Message.system("Be brief."),
        Message.system("Be kind."),
        Message.assistant("Hello, "),
        Message.user(" "),
        Message.user("Add."),
        Message.assistant("Let me \n", (call(1, arguments={"a": 1}), call(2), call(3)), **{THINKING: [SIGNED, REDACTED]}),
        Message.system("Mind the budget."),
        result(2, "two"),
        result(1),
        result(9, "orphan"),
        Message.user("Go on"),
        Message.assistant(None),
    ]
    system, turns = encode_conversation(history)
    assert system == [said("Be brief."), said("Be kind.")]
    assert turns == [
        {"role": "user", "content": [said(CONTINUED)]},
        {"role": "assistant", "content": [said("Hello,")]},
        {"role": "user", "content": [said("Add.")]},
        {"role": "assistant", "content": [SIGNED, REDACTED, said("Let me"), used("call_1", a=1), used("call_2")]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1"},
                {"type": "tool_result", "tool_use_id": "call_2", "content": "two"},
                said("[System note] Mind the budget."),
                said("Go on"),
            ],
        },
    ]


@pytest.mark.case(6)
@pytest.mark.case(7)
def test_ids_and_names_that_the_api_would_refuse() -> None:
    calls = (
        call(1, "se arch\u00e9", provider_id="toolu:1"),
        call(2, "", provider_id="same"),
        call(3, provider_id="same", malformed_arguments='{"a": '),
    )
    _, turns = encode_conversation([*HI, Message.assistant(None, calls), result(1), result(2), result(3)])
    first, second, third = turns[1]["content"]
    assert [first["id"], second["id"], third["id"]] == ["call_1", "same", "call_3"]
    assert [first["name"], second["name"]] == ["se_arch_", "unknown"]
    assert third["input"] == {"malformed_arguments": '{"a": '}
    assert [block["tool_use_id"] for block in turns[2]["content"]] == ["call_1", "same", "call_3"]


messages = st.one_of(
    st.builds(Message.user, st.text(max_size=3)),
    st.builds(Message.system, st.text(max_size=3)),
    st.builds(
        lambda text, numbers, thinks: Message.assistant(
            text, tuple(call(n) for n in numbers), **({THINKING: [SIGNED]} if thinks else {})
        ),
        st.text(max_size=3),
        st.lists(st.integers(0, 3), max_size=3),
        st.booleans(),
    ),
    st.builds(result, st.integers(0, 3), st.text(max_size=3)),
)


@pytest.mark.spec("LOOP-43")
@given(st.lists(messages, max_size=12))
def test_any_history_is_one_that_the_api_accepts(history: list[Message]) -> None:
    _, turns = encode_conversation(history)
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"] * (len(turns) % 2)
    asked: list[str] = []
    for turn in turns:
        kinds = [block["type"] for block in turn["content"]]
        assert kinds
        assert all(block["text"].strip() for block in turn["content"] if block["type"] == "text")
        if turn["role"] == "user":
            results = kinds.count("tool_result")
            assert kinds[:results] == ["tool_result"] * results
            assert [block["tool_use_id"] for block in turn["content"][:results]] == asked
        asked = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
    assert asked == []


@pytest.mark.case(2)
async def test_half_characters_never_reach_the_wire() -> None:
    endpoint = Endpoint(reply(said("ok \ud83d"), used("t", a="\ud83d\ude00 \udc00")))
    response = await endpoint.model().complete([Message.user("x \ud83d")], metadata={"user_id": "\ud83d"})
    assert response.content == "ok \ufffd"
    assert response.tool_calls[0].arguments == {"a": "\U0001f600 \ufffd"}
    assert endpoint.body["messages"][0]["content"][0]["text"] == "x \ufffd"


async def test_prompt_caching_marks_the_prefix_and_the_end() -> None:
    endpoint = Endpoint(reply(said("ok"), cache_creation_input_tokens=7, cache_read_input_tokens=11))
    model = endpoint.model(cache_prompt=True)
    response = await model.complete([Message.system("s"), *HI], TOOLS)
    assert response.usage == Usage(prompt_tokens=3, completion_tokens=5, cache_creation_tokens=7, cache_read_tokens=11)
    mark = {"cache_control": {"type": "ephemeral"}}
    assert endpoint.body["system"] == [said("s") | mark]
    assert endpoint.body["messages"][-1]["content"] == [said("hi") | mark]
    assert not any("cache_control" in tool for tool in endpoint.body["tools"])  # they stand in front of the system prompt
    await model.complete(HI, TOOLS)
    assert "cache_control" in endpoint.body["tools"][-1]
    await endpoint.model().complete([Message.system("s"), *HI], TOOLS)
    assert "cache_control" not in endpoint.requests[-1].content.decode()


# --- replies ----------------------------------------------------------------------------------------------------------


async def both_ways(message: dict[str, Any], **options: Any) -> list[ModelResponse]:
    whole = await Endpoint(message).model().complete(HI, TOOLS, **options)
    streamed = await collect(Endpoint(stream_of(message)).model().stream(HI, TOOLS, **options))
    return [whole, streamed]


async def test_thinking_is_kept_and_goes_back_as_it_came() -> None:
    message = reply(SIGNED, REDACTED, said("Adding."), used("toolu_1", a=1), stop_reason="tool_use")
    for response in await both_ways(message):
        assert (response.reasoning, response.content, response.stop_reason) == ("Hm.", "Adding.", "tool_calls")
        (made,) = response.tool_calls
        assert (made.provider_id, made.arguments) == ("toolu_1", {"a": 1})
        stored = Message.model_validate_json(response.message.model_dump_json())  # through a checkpoint
        answer = Message.tool(ToolResult(tool_call_id=made.id, name="add", content="2"))
        _, turns = encode_conversation([*HI, stored, answer])
        assert turns[1]["content"] == message["content"]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "unknown"),
    ],
)
async def test_stop_reasons(reason: str, expected: str) -> None:
    assert [response.stop_reason for response in await both_ways(reply(said("x"), stop_reason=reason))] == [expected] * 2


@pytest.mark.case(5)
@pytest.mark.case(6)
async def test_parallel_calls_keep_their_order_and_get_ids_of_their_own() -> None:
    """BUG-61: streamed calls are not lost."""
    message = reply(used("same", a=1), used("same", a=2), used("", "now"), stop_reason="tool_use")
    for response in await both_ways(message):
        assert [(made.name, made.arguments) for made in response.tool_calls] == [
            ("add", {"a": 1}),
            ("add", {"a": 2}),
            ("now", {}),
        ]
        assert len({made.id for made in response.tool_calls}) == 3


@pytest.mark.case(1)
async def test_cut_arguments_are_never_taken_for_whole_ones() -> None:
    stream: list[dict[str, Any]] = [
        {"type": "message_start", "message": reply()},
        {"type": "content_block_start", "index": 0, "content_block": used("t")},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": "x'}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    response = await collect(Endpoint([sse(event) for event in stream]).model().stream(HI, TOOLS))
    (made,) = response.tool_calls
    assert (made.malformed_arguments, made.arguments, response.stop_reason) == ('{"a": "x', {}, "length")


words = st.text(max_size=12) | st.text(alphabet="\ud83d\ude00a\u00e9", max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
inputs = st.dictionaries(words, values, max_size=3)
blocks = st.one_of(
    words.map(said),
    st.builds(
        lambda text, sign: {"type": "thinking", "thinking": text, "signature": sign}, words, st.sampled_from(["", "c2ln"])
    ),
    st.just(REDACTED),
    st.builds(lambda name, arguments: {"type": "tool_use", "id": "t", "name": name, "input": arguments}, words, inputs),
)
reasons = st.sampled_from(["end_turn", "tool_use", "max_tokens", "new"])


@settings(max_examples=150, deadline=None)
@given(st.lists(blocks, max_size=5), reasons, st.booleans(), st.randoms(use_true_random=False))
def test_the_streamed_reply_is_the_whole_one(content: list[Any], reason: str, answering: bool, random: Any) -> None:
    """BUG-61. Deltas cut anywhere in a text, and the bytes of the stream cut anywhere too."""

    def cut(text: str) -> list[str]:
        places = sorted(random.randint(0, len(text)) for _ in range(random.randint(0, 4)))
        return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]

    if answering:
        content = [*content, used("t", "final_answer", a="\u00e9")]
    message = reply(*content, stop_reason=reason)
    data = b"".join(sse(event) for event in events(message, cut))
    places = sorted(random.randint(0, len(data)) for _ in range(6))
    chunks = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    options: dict[str, Any] = {"response_format": response_format(dict[str, str])} if answering else {}

    async def ask() -> list[ModelResponse]:
        whole = await Endpoint(message).model().complete(HI, **options)
        return [whole, await collect(Endpoint([chunk for chunk in chunks if chunk]).model().stream(HI, **options))]

    whole, streamed = asyncio.run(ask())
    assert plain(streamed) == plain(whole)
    assert not answering or json.loads(whole.content or "") == {"a": "\u00e9"}


async def test_a_server_that_does_not_stream() -> None:
    assert (await collect(Endpoint(OK).model().stream(HI))).content == "ok"


# --- structured answers -----------------------------------------------------------------------------------------------

WANTED = {
    "type": "json_schema",
    "json_schema": {"name": "n", "strict": True, "schema": {"type": "object", "properties": {"a": {}}}},
}


async def test_an_answer_of_a_schema_is_asked_for_as_a_call_and_comes_as_text() -> None:
    message = reply(said("Well: "), used("t", "final_answer", a=1), stop_reason="tool_use")
    endpoint = Endpoint(message, stream_of(message))
    replies = [await endpoint.model().complete(HI, response_format=WANTED)]
    replies.append(await collect(endpoint.model().stream(HI, response_format=WANTED)))
    for response in replies:
        assert (response.content, response.tool_calls, response.stop_reason) == ('{"a":1}', (), "stop")
    assert endpoint.body["tool_choice"] == {"type": "tool", "name": "final_answer"}
    assert endpoint.body["tools"][0]["input_schema"] == WANTED["json_schema"]["schema"]  # type: ignore[index]
    assert "response_format" not in endpoint.body


@pytest.mark.parametrize(
    ("options", "tools"),
    [({"output_format": "native"}, None), ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, None), ({}, TOOLS)],
    ids=["native", "thinking", "tools"],
)
async def test_where_a_forced_call_is_refused_the_native_format_is_used(options: Any, tools: Any) -> None:
    endpoint = Endpoint(reply(said('{"a": 1}')))
    response = await endpoint.model(**options).complete(HI, tools, response_format=WANTED)
    assert response.content == '{"a": 1}'
    sent = endpoint.body
    assert sent["output_config"] == {"format": {"type": "json_schema", "schema": WANTED["json_schema"]["schema"]}}  # type: ignore[index]
    assert "tool_choice" not in sent


# --- failures ---------------------------------------------------------------------------------------------------------


def refusal(status: int, kind: str, text: str = "no", **headers: str) -> httpx.Response:
    body = {"type": "error", "error": {"type": kind, "message": text}}
    return httpx.Response(status, json=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("answer", "cls"),
    [
        (refusal(429, "rate_limit_error"), RateLimited),
        (refusal(529, "overloaded_error"), Overloaded),
        (refusal(500, "api_error"), ModelServerError),
        (refusal(401, "authentication_error"), AuthenticationFailed),
        (refusal(403, "permission_error"), AuthenticationFailed),
        (refusal(400, "invalid_request_error"), BadRequest),
        (refusal(404, "not_found_error"), BadRequest),
        (refusal(400, "invalid_request_error", "Your credit balance is too low to use the API."), AuthenticationFailed),
        (refusal(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000"), ContextOverflow),
        (httpx.Response(200, json={"type": "error", "error": {"type": "overloaded_error", "message": "x"}}), Overloaded),
        (httpx.Response(200, json={"choices": []}), MalformedResponse),
        (httpx.Response(200, text="<html>"), MalformedResponse),
    ],
)
async def test_failures_are_typed(answer: httpx.Response, cls: type[ModelError]) -> None:
    with pytest.raises(cls) as caught:
        await Endpoint(answer).model(api_key="sk-ant-secret").complete(HI)
    assert type(caught.value) is cls
    assert "secret" not in repr(caught.value.to_wire())


@pytest.mark.case(24)
@pytest.mark.spec("LOOP-48")
@pytest.mark.parametrize("status", [429, 529])
async def test_retry_after_is_obeyed(virtual: Any, status: int) -> None:
    endpoint = Endpoint(refusal(status, "rate_limit_error", retry_after="7"), OK)
    model = endpoint.model(timing=virtual.timing, gate=None)
    response = await virtual.run(RetryingModel(model, RetryPolicy(), timing=virtual.timing).complete(HI))
    assert response.content == "ok"
    assert virtual.now >= 7


@pytest.mark.parametrize(("kind", "cls"), [("overloaded_error", Overloaded), ("api_error", ModelServerError)])
@pytest.mark.parametrize("after", [0, 1, 4])
async def test_an_error_inside_a_stream_is_raised_as_what_it_is(kind: str, cls: type[ModelError], after: int) -> None:
    failure = sse({"type": "error", "error": {"type": kind, "message": "x"}})
    with pytest.raises(cls):
        await collect(Endpoint([*stream_of(OK)[:after], failure]).model().stream(HI))


async def test_a_stream_that_ends_early_is_a_failure() -> None:
    stream = stream_of(OK)
    for length in range(len(stream) - 2):
        with pytest.raises(MalformedResponse):
            await collect(Endpoint(stream[:length]).model().stream(HI))
    assert (await collect(Endpoint(stream[:-1]).model().stream(HI))).content == "ok"  # all was said before the last event


@pytest.mark.parametrize(
    "event", [7, {"type": "content_block_delta", "index": 5, "delta": {"type": "text_delta", "text": "x"}}]
)
async def test_events_that_make_no_sense(event: Any) -> None:
    with pytest.raises(MalformedResponse):
        await collect(Endpoint([f"data: {json.dumps(event)}\n\n".encode()]).model().stream(HI))


async def test_a_lost_connection() -> None:
    def lost(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(ModelConnectionError):
        await Endpoint().model(transport=httpx.MockTransport(lost)).complete(HI)
