"""What tools and runs give back: rich tool results, and structured output of runs that end in other ways than an answer."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from umbel import Agent, Runtime, ToolOutput, ask_user, tool
from umbel.events import ToolCompleteEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls


class Trip(BaseModel):
    """Where to."""

    city: str


@tool
async def chart(broken: bool = False) -> ToolOutput:
    """Draw a chart."""
    return ToolOutput("no data" if broken else "a chart", structured_content={"points": 3}, is_error=broken)


@tool
async def nothing() -> None:
    """Return nothing."""


@tool
async def trip() -> Trip:
    """Return a model."""
    return Trip(city="Rome")


@pytest.mark.spec("TOOL-18", "TOOL-17", "EVT-9")
async def test_a_rich_result_shows_the_model_its_text_only(runtime: Runtime) -> None:
    calls = tool_calls(("chart", {}), ("chart", {"broken": True}), ("nothing", {}), ("trip", {}))
    agent = Agent(ScriptedModel([calls, text("ok")]), [chart, nothing, trip])
    events: list[Any] = []
    result = await agent.with_settings(callback_handler=events.append).arun("draw")
    drawn, failed, empty, model = result.tool_executions
    assert (drawn.result, failed.result, failed.error) == ("a chart", None, "no data")
    assert empty.success and empty.result and model.result == '{"city":"Rome"}'
    told = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert [event.structured_content for event in told] == [{"points": 3}, {"points": 3}, None, None]
    shown = [message.content or "" for message in result.messages if message.role == "tool"]
    assert shown[:2] == ["a chart", "Error: no data"] and not any("points" in each for each in shown)


@pytest.mark.spec("API-45", "API-44")
async def test_a_run_without_an_answer_is_not_parsed_and_one_at_its_limit_not_repaired(runtime: Runtime) -> None:
    asking = Agent(ScriptedModel([tool_call("ask_user", question="Where?"), text('{"city": "Rome"}')]), [ask_user])
    paused = await asking.with_settings(output_schema=Trip).arun("plan")
    assert (paused.parsed, paused.parse_error, paused.metrics.model_calls) == (None, None, 1)
    script = [tool_call("nothing"), text('{"city": "Rome"}')]
    limited = await Agent(ScriptedModel(script), [nothing], output_schema=Trip, max_iterations=1).arun("plan")
    assert limited.stop_reason == "max_iterations" and limited.parsed_as(Trip).city == "Rome"
    prose = Agent(ScriptedModel([script[0], text("Rome, I think")]), [nothing], output_schema=Trip, max_iterations=1)
    unread = await prose.arun("plan")
    assert unread.parsed is None and unread.parse_error and unread.metrics.model_calls == 2
    assert (unread.message, unread.success) == ("Rome, I think", False)


@pytest.mark.spec("API-44", "API-45")
async def test_the_answer_after_a_pause_is_parsed(runtime: Runtime) -> None:
    script = [tool_call("ask_user", question="Where?"), text('{"city": "Rome"}')]
    agent = Agent(ScriptedModel(script), [ask_user], output_schema=Trip)
    await agent.arun("plan")
    assert (await agent.aresume("Rome")).parsed_as(Trip) == Trip(city="Rome")


class FullDisk:
    """A result store that cannot keep anything."""

    def save(self, key: str, text: str) -> None:
        raise OSError("no space left")

    def load(self, key: str) -> str | None:
        return None


@pytest.mark.spec("TOOL-45")
async def test_a_result_store_that_fails_costs_the_middle_of_the_text_and_not_the_run(runtime: Runtime) -> None:
    @tool
    async def dump() -> str:
        """Return much text."""
        return "a" * 50_000 + "z"

    agent = Agent(ScriptedModel([tool_call("dump"), text("ok")]), [dump], tool_result_store=FullDisk())
    result = await agent.arun("go")
    [done] = result.tool_executions
    assert result.message == "ok" and (done.result or "").startswith("aaa") and (done.result or "").endswith("z")
