"""The Messages API against a mock server that is not ours and that judges how its client behaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from umbel.actors.agent.models import AnthropicModel, RetryingModel, RetryNotice, RetryPolicy, Timing, collect, resolve_model
from umbel.actors.agent.models.gate import Gate
from umbel.protocol.errors import AuthenticationFailed, BadRequest, MalformedResponse, ModelConnectionError, ModelError
from umbel.protocol.messages import Message, ToolResult

HI = [Message.system("Be brief."), Message.user("What is the weather in Paris?")]
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
STEADY = Timing(random=lambda: 0.95)  # waits that always grow, so that the judge cannot take them for a constant interval


@pytest.fixture
async def make(llmock: Any) -> AsyncIterator[Callable[..., AnthropicModel]]:
    models: list[AnthropicModel] = []

    def build(**settings: Any) -> AnthropicModel:
        where = {"base_url": llmock.base_url("anthropic"), "api_key": "sk-ant-test"}
        model = resolve_model("anthropic:claude-sonnet-4-5", gate=Gate(), **{**where, **settings})
        assert isinstance(model, AnthropicModel)
        models.append(model)
        return model

    yield build
    for model in models:
        await model.aclose()


def retrying(model: AnthropicModel, **settings: Any) -> RetryingModel:
    return RetryingModel(model, QUICK, timing=STEADY, **settings)


async def ask(model: Any, streaming: bool, messages: list[Message] = HI, tools: Any = None) -> Any:
    return await (collect(model.stream(messages, tools)) if streaming else model.complete(messages, tools))


both = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])


@both
async def test_text(llmock: Any, make: Any, streaming: bool) -> None:
    llmock.reply("Fine, caf\u00e9 \U0001f600")
    response = await ask(make(), streaming)
    assert (response.content, response.stop_reason) == ("Fine, caf\u00e9 \U0001f600", "stop")
    assert response.usage.prompt_tokens > 0
    assert llmock.last_request.stream is streaming
    llmock.assert_resilient(strict=True)


@both
async def test_tool_loop(llmock: Any, make: Any, streaming: bool) -> None:
    model = make(cache_prompt=True)
    llmock.call_tool("get_weather", {"city": "Paris", "note": "\u00e9" * 40}, text="Let me look.")
    response = await ask(model, streaming, tools=TOOLS)
    (call,) = response.tool_calls
    assert (call.name, call.arguments["city"], response.stop_reason) == ("get_weather", "Paris", "tool_calls")
    assert response.content == "Let me look."
    answer = Message.tool(ToolResult(tool_call_id=call.id, name=call.name, content="21C"))
    final = await ask(model, streaming, [*HI, response.message, answer], TOOLS)
    assert final.content
    assert not final.tool_calls
    sent = llmock.last_request.body["messages"]
    assert sent[1]["content"][-1]["id"] == sent[2]["content"][0]["tool_use_id"] == call.provider_id
    llmock.assert_resilient(strict=True)


@pytest.mark.case(1)
async def test_malformed_arguments(llmock: Any, make: Any) -> None:
    llmock.break_tool_call("malformed_arguments")  # only a stream can carry them: whole, an input is an object
    response = await ask(make(), True, tools=TOOLS)
    (call,) = response.tool_calls
    assert (call.arguments, bool(call.malformed_arguments)) == ({}, True)


@pytest.mark.case(24)
@pytest.mark.spec("LOOP-48")
@both
async def test_rate_limit(llmock: Any, make: Any, streaming: bool) -> None:
    llmock.rate_limit(times=2, retry_after=0.3)
    notices: list[RetryNotice] = []
    assert (await ask(retrying(make(), on_retry=notices.append), streaming)).content
    assert [(n.reason, n.status_code, n.from_retry_after) for n in notices] == [("rate_limit", 429, True)] * 2
    llmock.assert_resilient(strict=True)


@both
@pytest.mark.parametrize("status", [500, 503, 529])
async def test_passing_failures_are_retried(llmock: Any, make: Any, streaming: bool, status: int) -> None:
    llmock.fail(status, times=2, retry_after=0.05)
    assert (await ask(retrying(make()), streaming)).content
    assert len(llmock.requests) == 3
    llmock.assert_resilient(strict=True)


@both
@pytest.mark.parametrize(("status", "cls"), [(400, BadRequest), (401, AuthenticationFailed), (404, BadRequest)])
async def test_lasting_failures_are_not(llmock: Any, make: Any, streaming: bool, status: int, cls: type[ModelError]) -> None:
    llmock.fail(status)
    with pytest.raises(cls):
        await ask(retrying(make()), streaming)
    assert len(llmock.requests) == 1
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize(
    ("fault", "cls"), [("truncate", MalformedResponse), ("corrupt", MalformedResponse), ("disconnect", ModelConnectionError)]
)
async def test_broken_streams(llmock: Any, make: Any, fault: str, cls: type[ModelError]) -> None:
    llmock.reply("word " * 4_000)  # too long to be sent to the end before the client hangs up
    getattr(llmock, fault)(after_chunks=1)  # nothing was handed on: tried again
    assert (await ask(retrying(make()), True)).content
    assert len(llmock.requests) == 2
    llmock.assert_resilient(strict=True)
    llmock.reset()
    getattr(llmock, fault)(after_chunks=4)
    with pytest.raises(cls):
        await ask(make(), True)
