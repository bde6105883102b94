"""A stream, however it is cut, gives the reply that the unstreamed request gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given, settings, strategies as st

from umbel.actors.agent.models import OpenAICompatibleModel, collect
from umbel.actors.agent.models.assembly import ReplyAssembly
from umbel.actors.agent.models.endpoint import Endpoint
from umbel.actors.agent.models.gate import Gate
from umbel.protocol.messages import ModelResponse, ToolCall

ENDPOINT = Endpoint("p", "m", httpx.URL("http://h/v1"))


def assemble(*deltas: dict[str, Any]) -> tuple[ToolCall, ...]:
    assembly = ReplyAssembly(ENDPOINT)
    for delta in deltas:
        assembly.feed({"choices": [{"index": 0, "delta": delta}]})
    return next((chunk.tool_calls for chunk in assembly.finish() if chunk.tool_calls), ())


def piece(index: int | None, call_id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        entry["index"] = index
    if call_id is not None:
        entry["id"] = call_id
    if name is not None:
        entry["function"]["name"] = name
    return {"tool_calls": [entry]}


def seen(calls: tuple[ToolCall, ...]) -> list[tuple[str | None, str, dict[str, Any]]]:
    return [(call.provider_id, call.name, call.arguments) for call in calls]


BOTH = [("a", "t", {"n": 1}), ("b", "t", {"n": 2})]


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        (
            [piece(0, "a", "t", ""), piece(0, None, None, '{"n":'), piece(0, None, None, "1}"), piece(1, "b", "t", '{"n":2}')],
            BOTH,
        ),
        (
            [piece(0, "a", "t", '{"n":'), piece(1, "b", "t", '{"n":'), piece(0, None, None, "1}"), piece(1, None, None, "2}")],
            BOTH,
        ),
        # one index for all, as some servers number
        ([piece(0, "a", "t", '{"n":1}'), piece(0, "b", "t", '{"n":2}')], BOTH),
        ([piece(0, "", "t", '{"n":1}'), piece(0, "", "t", '{"n":2}')], [(None, "t", {"n": 1}), (None, "t", {"n": 2})]),
        # no index at all
        ([piece(None, "a", "t", '{"n":'), piece(None, None, None, "1}"), piece(None, "b", "t", '{"n":2}')], BOTH),
        # id and name repeated in every piece, and an empty last one
        (
            [piece(0, "a", "t", '{"n":'), piece(0, "a", "t", "1}"), piece(0, "a", "t", ""), piece(1, "b", "t", '{"n":2}')],
            BOTH,
        ),
        # an object where a text belongs
        ([piece(0, "a", "t", {"n": 1}), piece(0, "b", "t", {"n": 2})], BOTH),
        # equal ids under two indexes
        ([piece(0, "x", "t", '{"n":1}'), piece(1, "x", "t", '{"n":2}')], [("x", "t", {"n": 1}), ("x", "t", {"n": 2})]),
        # the older format, alone and as a duplicate
        (
            [{"function_call": {"name": "t", "arguments": '{"n"'}}, {"function_call": {"arguments": ":1}"}}],
            [(None, "t", {"n": 1})],
        ),
        ([piece(0, "a", "t", '{"n":1}') | {"function_call": {"name": "t", "arguments": "{}"}}], BOTH[:1]),
        ([{"tool_calls": None}, {"tool_calls": ["x", {}]}], [(None, "", {})]),
    ],
)
@pytest.mark.case(6)
def test_calls_in_pieces(deltas: list[dict[str, Any]], calls: list[Any]) -> None:
    found = assemble(*deltas)
    assert seen(found) == calls
    assert len({call.id for call in found}) == len(found)


@pytest.mark.case(1)
def test_cut_arguments_are_malformed() -> None:
    (call,) = assemble(piece(0, "a", "t", '{"q": "x'))
    assert (call.malformed_arguments, call.arguments) == ('{"q": "x', {})


@pytest.mark.case(2)
def test_pairs_cut_between_two_pieces_are_joined() -> None:
    assembly = ReplyAssembly(ENDPOINT)
    texts = []
    for text in ("a\ud83d", "\ude00b", "\ud83d"):
        chunk = assembly.feed({"choices": [{"delta": {"content": text}}]})
        texts += [chunk.content] if chunk else []
    texts += [chunk.content for chunk in assembly.finish() if chunk.content]
    assert texts == ["a", "\U0001f600b", "\ufffd"]
    (call,) = assemble(piece(0, "a", "t", '{"e": "\ud83d'), piece(0, None, None, '\ude00"}'))
    assert call.arguments == {"e": "\U0001f600"}


# --- streamed == unstreamed -----------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs", "Cc", "So")), max_size=30)
CALL = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["", "call_1", "call_2"]),
        "name": st.sampled_from(["search", "add"]),
        "arguments": st.one_of(
            st.dictionaries(st.sampled_from("abc"), st.one_of(TEXT, st.integers(), st.none()), max_size=3).map(json.dumps),
            st.sampled_from(["", '{"q": "x', "[1]", '{"e": "\\ud83d\\ude00"}']),
        ),
    }
)
REPLY = st.fixed_dictionaries(
    {
        "text": TEXT,
        "reasoning": TEXT,
        "calls": st.lists(CALL, max_size=3),
        "finish": st.sampled_from(["stop", "tool_calls", "length", "banana"]),
        "usage": st.one_of(st.none(), st.just({"prompt_tokens": 3, "completion_tokens": 2, "cost": 0.5})),
    }
)


class Body(httpx.AsyncByteStream):
    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


def cut(data: Any, cuts: list[int]) -> list[Any]:
    """``data`` (text or bytes) cut at ``cuts``, taken modulo its length."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def events(reply: dict[str, Any], cuts: list[int], *, ascii_only: bool) -> Iterator[dict[str, Any]]:
    def delta(content: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"model": "m-1", "choices": [{"index": 0, "delta": content, "finish_reason": None, **more}]}

    yield delta({"role": "assistant", "content": ""})
    for part in cut(reply["reasoning"], cuts):
        yield delta({"reasoning_content": part})
    # An escaped text may be cut inside a surrogate pair.
    encoded = reply["text"].encode("utf-16-le")
    units = "".join(encoded[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(encoded), 2))
    for part in cut(units if ascii_only else reply["text"], cuts):
        yield delta({"content": part})
    for index, call in enumerate(reply["calls"]):
        yield delta(piece(index, call["id"], call["name"], ""))
        for part in cut(call["arguments"], cuts):
            yield delta(piece(index, None, None, part))
    yield delta({}, finish_reason=reply["finish"])
    if reply["usage"]:
        yield {"choices": [], "usage": reply["usage"]}


def unstreamed(reply: dict[str, Any]) -> dict[str, Any]:
    calls = [{"id": c["id"], "function": {"name": c["name"], "arguments": c["arguments"]}} for c in reply["calls"]]
    message = {"content": reply["text"] or None, "reasoning_content": reply["reasoning"], "tool_calls": calls}
    choice = {"message": message, "finish_reason": reply["finish"]}
    return {"model": "m-1", "choices": [choice], "usage": reply["usage"]}


def without_ids(response: ModelResponse) -> dict[str, Any]:
    data = response.model_dump()
    for call in data["message"]["tool_calls"]:
        assert call.pop("id").startswith("call_")
    return data


@pytest.mark.case(2)
@settings(max_examples=200, deadline=None)
@given(
    REPLY,
    st.lists(st.integers(0, 10_000), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_streamed_equals_unstreamed(
    reply: dict[str, Any], text_cuts: list[int], byte_cuts: list[int], ascii_only: bool, crlf: bool
) -> None:
    end = "\r\n\r\n" if crlf else "\n\n"
    data = (json.dumps(event, ensure_ascii=ascii_only) for event in events(reply, text_cuts, ascii_only=ascii_only))
    lines = [f"data: {line}{end}" for line in data]
    stream = f": ping{end}" + "".join(lines) + f"data: [DONE]{end}"

    def answer(request: httpx.Request) -> httpx.Response:
        if b'"stream":true' in request.content:
            kind = {"content-type": "text/event-stream; charset=latin-1"}
            return httpx.Response(200, headers=kind, stream=Body(cut(stream.encode(), byte_cuts)))
        return httpx.Response(200, json=unstreamed(reply))

    async def both() -> tuple[ModelResponse, ModelResponse]:
        model = OpenAICompatibleModel("m", base_url="http://h/v1", transport=httpx.MockTransport(answer), gate=Gate())
        try:
            return await collect(model.stream([])), await model.complete([])
        finally:
            await model.aclose()

    streamed, whole = asyncio.run(both())
    assert without_ids(streamed) == without_ids(whole)
    assert len({call.id for call in streamed.tool_calls}) == len(reply["calls"])
