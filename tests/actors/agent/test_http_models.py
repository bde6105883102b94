"""Whole runs over HTTP, against a model server that is not ours: the request goes from an agent actor on either runtime."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from umbel import Agent, RetryPolicy, Runtime, tool
from umbel.errors import AuthenticationFailed, RateLimited
from umbel.events import ModelRetryEvent, TerminateEvent

ACCOUNTS = itertools.count()
RETRY = RetryPolicy(initial_delay=0.05, max_retries=4)


@tool
async def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


def agent_for(llmock: Any, **options: Any) -> Agent:
    account = next(ACCOUNTS)  # a rate limit holds back the whole account, so every agent has its own
    where = {"base_url": f"{llmock.url}/v1", "api_key": f"sk-test-key-{account}"}
    return Agent("openai:gpt-4o-mini", [get_weather], model_kwargs=where, model_retry=RETRY, **options)


async def test_a_tool_turn(runtime: Runtime, llmock: Any) -> None:
    llmock.call_tool("get_weather", {"city": "Paris"}, times=1)
    result = await agent_for(llmock).arun("What is the weather in Paris?")
    assert result.success and result.message
    assert [(done.tool_name, done.result) for done in result.tool_executions] == [("get_weather", "sunny in Paris")]
    assert result.metrics.total_tokens > 0


async def test_streamed_tokens(runtime: Runtime, llmock: Any) -> None:
    llmock.reply("Streaming works over the whole distance.", times=1)
    events = [event async for event in agent_for(llmock).run("Say it", stream_tokens=True)]
    said = "".join(getattr(event, "content", None) or "" for event in events if event.event_type == "model_chunk")
    assert said == "Streaming works over the whole distance."


@pytest.mark.spec("EVT-15", "LOOP-48", "LOOP-50")
@pytest.mark.case(24)
async def test_a_rate_limit_is_waited_out_and_reported(runtime: Runtime, llmock: Any) -> None:
    llmock.rate_limit(times=1, retry_after=1)
    llmock.reply("after the wait")
    events = [event async for event in agent_for(llmock).run("hi")]
    retries = [event for event in events if isinstance(event, ModelRetryEvent)]
    assert [(event.reason, event.status_code, event.from_retry_after) for event in retries] == [("rate_limit", 429, True)]
    assert isinstance(events[-1], TerminateEvent) and events[-1].final_message == "after the wait"
    llmock.assert_resilient(strict=True)


async def test_a_limit_that_does_not_end_is_a_typed_error_without_the_key(runtime: Runtime, llmock: Any) -> None:
    llmock.rate_limit(times=None, retry_after=3_600)
    with pytest.raises(RateLimited) as caught:
        await agent_for(llmock).arun("hi")
    assert caught.value.status_code == 429 and "sk-test-key" not in repr(caught.value.to_wire())


async def test_broken_arguments_are_answered_and_the_run_goes_on(runtime: Runtime, llmock: Any) -> None:
    llmock.break_tool_call("malformed_arguments", times=1)
    llmock.reply("fixed")
    result = await agent_for(llmock).arun("weather?")
    assert result.success
    assert result.tool_executions[0].error


@pytest.mark.spec("API-8")
async def test_a_missing_key_is_found_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with Runtime(inline=True):
        with pytest.raises((AuthenticationFailed, ValueError), match="OPENAI_API_KEY"):
            await Agent("openai:gpt-4o-mini").arun("hi")
