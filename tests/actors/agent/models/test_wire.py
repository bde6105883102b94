"""Requests and unstreamed replies in OpenAI's format."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from umbel.actors.agent.models.endpoint import Endpoint
from umbel.actors.agent.models.wire import decode_finish, decode_reply, decode_usage, encode_body, encode_messages
from umbel.protocol.errors import MalformedResponse, ModelError, RateLimited
from umbel.protocol.messages import Message, ModelResponse, ToolCall, ToolResult, Usage

ENDPOINT = Endpoint("p", "m", httpx.URL("http://h/v1"))


def reply(message: Any, **choice: Any) -> ModelResponse:
    return decode_reply(ENDPOINT, {"choices": [{"message": message, "finish_reason": "stop", **choice}]})


def calls(*entries: Any) -> tuple[ToolCall, ...]:
    return reply({"content": None, "tool_calls": list(entries)}).tool_calls


def entry(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call: ToolCall, content: str = "r") -> Message:
    return Message.tool(ToolResult(tool_call_id=call.id, name=call.name, content=content))


@pytest.mark.case(6)
@pytest.mark.parametrize("given", [("", ""), ("call_1", "call_1"), (None, None), ("a", ""), (0, 0)])
def test_any_ids_become_unique_ones_and_go_back_consistently(given: tuple[Any, Any]) -> None:
    first, second = calls(entry(given[0], "add", '{"n": 1}'), entry(given[1], "add", '{"n": 2}'))
    assert first.id != second.id
    assert all(re.fullmatch("call_[0-9a-f]{12}", call.id) for call in (first, second))
    assert first.provider_id == (str(given[0]) if given[0] not in {"", None} else None)
    history = [Message.assistant(None, tool_calls=(first, second)), result(second, "two"), result(first, "one")]
    assistant, one, two = encode_messages(history)
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(ids)
    assert [(m["tool_call_id"], m["content"]) for m in (one, two)] == [(ids[0], "one"), (ids[1], "two")]
    if given[0]:
        assert ids[0] == given[0]


@pytest.mark.case(6)
def test_ids_stay_unique_over_the_whole_conversation_and_equal_in_every_request() -> None:
    history: list[Message] = []
    requests = []
    for turn in range(4):
        (call,) = calls(entry("call_0", "add", "{}"))
        history += [Message.user(str(turn)), Message.assistant(None, tool_calls=(call,)), result(call)]
        requests.append(encode_messages(history))
    ids = [m["tool_call_id"] for m in requests[-1] if m["role"] == "tool"]
    assert ids[0] == "call_0"
    assert len(set(ids)) == 4
    assert all(request == requests[-1][: len(request)] for request in requests)


def test_ids_that_a_provider_would_refuse_are_replaced() -> None:
    for odd in ("x" * 41, "caf\u00e9"):
        (call,) = calls(entry(odd, "t", "{}"))
        assistant, answer = encode_messages([Message.assistant(None, tool_calls=(call,)), result(call)])
        assert assistant["tool_calls"][0]["id"] == answer["tool_call_id"] == call.id
    fine, odd_call = calls(entry("abcDEF123", "t", "{}"), entry("call_abcdef", "t", "{}"))
    encoded = encode_messages(
        [Message.assistant(None, tool_calls=(fine, odd_call)), result(fine), result(odd_call)], call_ids="nine"
    )
    ids = [m["tool_call_id"] for m in encoded[1:]]
    assert ids[0] == "abcDEF123"
    assert re.fullmatch("[0-9a-z]{9}", ids[1])


@pytest.mark.case(1)
@pytest.mark.parametrize("text", ['{"q": "x', "[1]", '"x"', "null", "{'q': 1}", "[" * 100_000, '{"q": 1} trailing'])
def test_arguments_that_are_no_object_are_kept_as_text(text: str) -> None:
    broken, fine = calls(entry("a", "search", text), entry("b", "search", '{"q": "x"}'))
    assert broken.malformed_arguments == text
    assert broken.arguments == {}
    assert (fine.arguments, fine.malformed_arguments) == ({"q": "x"}, None)


@pytest.mark.case(1)
def test_malformed_arguments_go_back_as_valid_json() -> None:
    (call,) = calls(entry("a", "search", '{"q": "x'))
    assistant, _ = encode_messages([Message.assistant(None, tool_calls=(call,)), result(call, "Error: not JSON")])
    assert '{"q": "x' in json.loads(assistant["tool_calls"][0]["function"]["arguments"]).values()


@pytest.mark.parametrize(
    ("given", "arguments"), [("", {}), ("  ", {}), (None, {}), ({"a": 1}, {"a": 1}), ('{"a":1}', {"a": 1})]
)
def test_arguments_of_lax_servers(given: Any, arguments: dict[str, Any]) -> None:
    (call,) = calls(entry("a", "t", given))
    assert (call.arguments, call.malformed_arguments) == (arguments, None)


@pytest.mark.case(2)
def test_surrogates_in_arguments_names_and_requests() -> None:
    (call,) = calls(entry("a\ud83d", "t\ud83d", '{"e": "\\ud83d\\ude00", "half": "\\ud83d"}'))
    assert call.arguments == {"e": "\U0001f600", "half": "\ufffd"}
    (call.name + (call.provider_id or "")).encode()
    body = encode_body({"messages": [], "note": "\ud83d\ude00 \ud83d"})
    assert json.loads(body)["note"] == "\U0001f600 \ufffd"


def test_content_is_a_text_on_every_message() -> None:
    (call,) = calls(entry("a", "t", "{}"))
    history = [
        Message(role="system"),
        Message(role="user"),
        Message.assistant(None, tool_calls=(call,)),
        Message(role="tool", tool_call_id=call.id),
    ]
    assert [m["content"] for m in encode_messages(history)] == ["", "", "", ""]


def test_metadata_stays_here() -> None:
    assert "secret" not in str(encode_messages([Message.user("hi", secret="secret")]))


@pytest.mark.spec("BUG-23")
def test_later_system_messages() -> None:
    history = [Message.system("a"), Message.system("b"), Message.user("u"), Message.system("note"), Message.assistant("x")]
    assert [m["role"] for m in encode_messages(history)] == ["system", "system", "user", "system", "assistant"]
    assert encode_messages(history, "first_only") == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "u"},
        {"role": "user", "content": "[System note] note"},
        {"role": "assistant", "content": "x"},
    ]


@pytest.mark.case(8)
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("stop", "stop"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("length", "length"),
        ("model_length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        ("error", "unknown"),
        ("banana", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
        (3, "unknown"),
        (["stop"], "unknown"),
    ],
)
def test_finish_reasons(value: Any, reason: str) -> None:
    assert decode_finish(value) == reason


@pytest.mark.case(9)
def test_finish_reason_tool_calls_without_calls_is_told_as_it_is() -> None:
    response = reply({"content": None, "tool_calls": []}, finish_reason="tool_calls")
    assert (response.stop_reason, response.tool_calls, response.content) == ("tool_calls", (), None)


@pytest.mark.case(10)
def test_calls_of_a_cut_reply_keep_the_reason() -> None:
    response = reply({"content": None, "tool_calls": [entry("a", "rm", '{"path": "/data/a"}')]}, finish_reason="length")
    assert response.stop_reason == "length"
    assert len(response.tool_calls) == 1


def test_legacy_function_call_counts_only_alone() -> None:
    legacy = {"name": "old", "arguments": '{"a": 1}'}
    assert [c.name for c in reply({"content": None, "function_call": legacy}).tool_calls] == ["old"]
    both = reply({"content": None, "function_call": legacy, "tool_calls": [entry("a", "new", "{}")]})
    assert [c.name for c in both.tool_calls] == ["new"]


def test_reasoning_and_parts() -> None:
    assert reply({"content": "a", "reasoning_content": "r"}).reasoning == "r"
    assert reply({"content": "a", "reasoning": "r"}).reasoning == "r"
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, {"type": "text", "text": "a"}, "b"]
    response = reply({"content": parts})
    assert (response.content, response.reasoning) == ("ab", "t")
    assert reply({"content": None, "refusal": "no"}).content == "no"


def test_usage_and_cost() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2},
        "cost": 0.25,
    }
    response = decode_reply(ENDPOINT, {"model": "m-1", "choices": [{"message": {"content": "x"}}], "usage": usage})
    assert response.usage == Usage(prompt_tokens=10, completion_tokens=10, cached_tokens=3, cache_write_tokens=2)
    assert (response.cost_usd, response.model) == (0.25, "m-1")
    assert decode_usage({"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 4}) == Usage(
        prompt_tokens=5, completion_tokens=1, cached_tokens=4
    )
    assert decode_usage({"prompt_tokens": None, "completion_tokens": "x", "prompt_tokens_details": None}) == Usage()
    assert decode_usage(None) is None


@pytest.mark.parametrize(
    "data",
    [
        None,
        1,
        "x",
        [],
        {},
        {"choices": []},
        {"choices": None},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"message": "x"}]},
    ],
)
def test_nonsense_is_a_typed_error(data: Any) -> None:
    with pytest.raises(MalformedResponse):
        decode_reply(ENDPOINT, data)


def test_error_in_the_clothes_of_a_200() -> None:
    with pytest.raises(RateLimited):
        decode_reply(ENDPOINT, {"error": {"code": 429, "message": "slow down"}})
    with pytest.raises(ModelError, match="boom"):
        decode_reply(ENDPOINT, {"error": "boom"})
