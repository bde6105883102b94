"""The model against a mock server that is not ours and that judges how its client behaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from umbel.actors.agent.models import (
    OpenAICompatibleModel,
    RetryingModel,
    RetryNotice,
    RetryPolicy,
    Timing,
    collect,
    resolve_model,
)
from umbel.actors.agent.models.gate import Gate
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
)
from umbel.protocol.messages import Message, ToolResult

HI = [Message.user("What is the weather in Paris?")]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
QUICK = RetryPolicy(initial_delay=0.06, max_retries=3)
# Jitter that always grows, so that the judge cannot take an unlucky pair of waits for a constant interval.
STEADY = Timing(random=lambda: 0.95)


@pytest.fixture
async def make(llmock: Any) -> AsyncIterator[Callable[..., OpenAICompatibleModel]]:
    models: list[OpenAICompatibleModel] = []

    def build(**settings: Any) -> OpenAICompatibleModel:
        model = resolve_model("openai:gpt-4o-mini", gate=Gate(), **settings)
        assert isinstance(model, OpenAICompatibleModel)
        models.append(model)
        return model

    yield build
    for model in models:
        await model.aclose()


def retrying(model: OpenAICompatibleModel, **settings: Any) -> RetryingModel:
    return RetryingModel(model, QUICK, timing=STEADY, **settings)


async def ask(model: Any, streaming: bool, messages: list[Message] = HI, tools: Any = None) -> Any:
    return await (collect(model.stream(messages, tools)) if streaming else model.complete(messages, tools))


both = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])


@both
async def test_text(llmock: Any, make: Any, streaming: bool) -> None:
    llmock.reply("Fine, caf\u00e9 \U0001f600")
    reply = await ask(make(), streaming)
    assert (reply.content, reply.stop_reason) == ("Fine, caf\u00e9 \U0001f600", "stop")
    assert reply.usage is not None
    assert reply.usage.prompt_tokens > 0
    assert llmock.last_request.stream is streaming
    llmock.assert_resilient(strict=True)


@both
async def test_tool_loop(llmock: Any, make: Any, streaming: bool) -> None:
    model = make()
    llmock.call_tool("get_weather", {"city": "Paris", "note": "\u00e9" * 40}, text="Let me look.")
    reply = await ask(model, streaming, tools=TOOLS)
    (call,) = reply.tool_calls
    assert (call.name, call.arguments["city"], reply.stop_reason) == ("get_weather", "Paris", "tool_calls")
    assert reply.content == "Let me look."
    messages = [*HI, reply.message, Message.tool(ToolResult(tool_call_id=call.id, name=call.name, content="21C"))]
    final = await ask(model, streaming, messages, TOOLS)
    assert final.content
    assert not final.tool_calls
    sent = llmock.last_request.body["messages"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == call.provider_id
    llmock.assert_resilient(strict=True)


@pytest.mark.spec("BUG-61")
async def test_the_same_reply_streamed_and_whole(llmock: Any, make: Any) -> None:
    """BUG-61."""
    llmock.call_tool("get_weather", {"city": "Paris"}, text="Let me look.", times=2)
    replies = [await ask(make(), streaming, tools=TOOLS) for streaming in (False, True)]
    whole, streamed = (reply.model_dump(exclude={"message": {"tool_calls": {0: {"id", "provider_id"}}}}) for reply in replies)
    assert whole == streamed


@pytest.mark.case(1)
@both
async def test_malformed_arguments(llmock: Any, make: Any, streaming: bool) -> None:
    llmock.break_tool_call("malformed_arguments")
    (call,) = (await ask(make(), streaming, tools=TOOLS)).tool_calls
    assert call.malformed_arguments
    assert call.arguments == {}


@pytest.mark.case(24)
@pytest.mark.spec("LOOP-48")
@both
async def test_rate_limit(llmock: Any, make: Any, streaming: bool) -> None:
    llmock.rate_limit(times=2, retry_after=0.3)
    notices: list[RetryNotice] = []
    assert (await ask(retrying(make(), on_retry=notices.append), streaming)).content
    assert [(n.reason, n.status_code, n.from_retry_after) for n in notices] == [("rate_limit", 429, True)] * 2
    assert all(notice.delay_seconds >= 0.3 for notice in notices)
    llmock.assert_resilient(strict=True)


@both
@pytest.mark.parametrize("status", [408, 500, 502, 503, 504, 529])
async def test_passing_failures_are_retried(llmock: Any, make: Any, streaming: bool, status: int) -> None:
    llmock.fail(status, times=2, retry_after=0.05)
    assert (await ask(retrying(make()), streaming)).content
    assert len(llmock.requests) == 3
    llmock.assert_resilient(strict=True)


@both
@pytest.mark.parametrize(
    ("status", "cls"),
    [(400, BadRequest), (401, AuthenticationFailed), (403, AuthenticationFailed), (404, BadRequest), (422, BadRequest)],
)
async def test_lasting_failures_are_not(llmock: Any, make: Any, streaming: bool, status: int, cls: type[ModelError]) -> None:
    llmock.fail(status)
    with pytest.raises(cls):
        await ask(retrying(make()), streaming)
    assert len(llmock.requests) == 1
    llmock.assert_resilient(strict=True)


async def test_context_overflow(llmock: Any, make: Any) -> None:
    llmock.context_overflow()
    with pytest.raises(ContextOverflow):
        await make().complete(HI)
    llmock.assert_resilient(strict=True)


async def test_outage_ends(llmock: Any, make: Any) -> None:
    llmock.add(*_outage(llmock))
    with pytest.raises(Overloaded):
        await ask(retrying(make()), False)
    assert len(llmock.requests) == 4
    llmock.assert_resilient(strict=True)


def _outage(llmock: Any) -> Any:
    from llmock.scenarios import Fail

    return (Fail(503, retry_after=0.05, times=None),)


@pytest.mark.spec("LOOP-49")
@pytest.mark.parametrize(
    ("fault", "cls"), [("truncate", MalformedResponse), ("corrupt", MalformedResponse), ("disconnect", ModelConnectionError)]
)
async def test_broken_streams(llmock: Any, make: Any, fault: str, cls: type[ModelError]) -> None:
    # After the first event nothing was handed on: tried again.
    llmock.reply("word " * 4_000)  # too long to be sent to the end before the client hangs up
    getattr(llmock, fault)(after_chunks=1)
    assert (await ask(retrying(make()), True)).content
    assert len(llmock.requests) == 2
    llmock.assert_resilient(strict=True)
    # Later it was, so the failure is raised, as what it is.
    llmock.reset()
    getattr(llmock, fault)(after_chunks=3)
    stream = retrying(make()).stream(HI)
    assert (await anext(stream)).content
    with pytest.raises(cls):
        await collect(stream)
    assert len(llmock.requests) == 1


async def test_a_call_cut_in_its_arguments_is_retried(llmock: Any, make: Any) -> None:
    llmock.call_tool("get_weather", {"city": "Paris" * 9}).disconnect(after_chunks=3)
    reply = await ask(retrying(make()), True, tools=TOOLS)
    assert all(call.malformed_arguments is None for call in reply.tool_calls)
    assert len(llmock.requests) == 2
    llmock.assert_resilient(strict=True)


async def test_stalled_stream(llmock: Any, make: Any) -> None:
    llmock.stall(after_chunks=1, seconds=3)
    assert (await ask(retrying(make(timeout=0.3)), True)).content
    llmock.stall(after_chunks=3, seconds=3)
    with pytest.raises(ModelTimeout):
        await ask(make(timeout=0.3), True)


async def test_slow_server(llmock: Any, make: Any) -> None:
    llmock.delay(3)
    with pytest.raises(ModelTimeout):
        await make(timeout=0.2).complete(HI)


@pytest.mark.parametrize("prefix", ["mistral", "groq", "together", "xai"])
@both
async def test_dialects(llmock: Any, monkeypatch: pytest.MonkeyPatch, prefix: str, streaming: bool) -> None:
    monkeypatch.setenv(f"{prefix.upper()}_API_KEY", "k")
    model = resolve_model(f"{prefix}:some-model", base_url=llmock.base_url(prefix))
    reply = await ask(model, streaming, tools=TOOLS)
    (call,) = reply.tool_calls
    history = [*HI, reply.message, Message.tool(ToolResult(tool_call_id=call.id, name=call.name, content="21C"))]
    assert (await ask(model, streaming, history, TOOLS)).content
    llmock.fail(500, retry_after=0.05)
    with pytest.raises(ModelServerError):
        await ask(model, streaming)
    await model.aclose()  # type: ignore[attr-defined]


THREE_LOOPS = """
import asyncio, sys
from umbel.actors.agent.models import OpenAICompatibleModel, collect
from umbel.protocol.messages import Message

async def run():
    reply = await model.complete([Message.user("hi")])
    assert reply.content and (await collect(model.stream([Message.user("hi")]))).content
    if sys.argv[2] == "closes":
        await model.aclose()

model = OpenAICompatibleModel("gpt-4o", base_url=sys.argv[1])
for _ in range(3):
    asyncio.run(run())
"""


@pytest.mark.parametrize("closes", ["closes", "leaves open"])
@pytest.mark.spec("BUG-49")
def test_three_event_loops_one_after_the_other(llmock: Any, closes: str) -> None:
    """BUG-49: connections of a loop that is over must not be used in the next, closed or not."""
    # A process of its own: what is left open warns whenever it happens to be collected.
    strict = ["-W", "error"] if closes == "closes" else []
    command = [sys.executable, *strict, "-c", THREE_LOOPS, llmock.base_url(), closes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(llmock.requests) == 6
