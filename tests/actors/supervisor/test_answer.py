"""Replies without calls: verified, grounded, explicit mode, structured output, held text. Inline and on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from umbel import Agent, GroundingConfig, Message, Runtime, tool
from umbel.actors.supervisor.answer import Continuation, FinalAnswer
from umbel.events import FinalAnswerVerificationEvent, GroundingEvent, ModelChunkEvent
from umbel.termination import NoToolCalls
from umbel.testing import ScriptedModel, text, tool_call


@tool
async def lookup(topic: str) -> str:
    """Look something up."""
    return f"{topic} is 42 metres high and was built in 1887."


async def strict(answer: FinalAnswer) -> str | None:
    return None if "please" in answer.text else "Say please."


async def fallback(answer: FinalAnswer) -> str:
    return f"{answer.text} (unverified: {answer.feedback})"


async def watched(agent: Agent, prompt: str = "go", **options: Any) -> tuple[list[Any], Any]:
    events: list[Any] = []
    result = await agent.with_settings(callback_handler=events.append).arun(prompt, **options)
    return events, result


@pytest.mark.spec("LOOP-67", "LOOP-71", "LOOP-72", "EVT-14")
async def test_a_rejected_draft_is_sent_back_and_not_kept(runtime: Runtime, tmp_path: Path) -> None:
    agent = Agent(
        ScriptedModel([text("No."), text("No, please.")]),
        final_answer_verifier=strict,
        checkpointer=f"sqlite:///{tmp_path}/t.db",
    )
    events, result = await watched(agent, thread_id="t")
    assert result.message == "No, please." and result.success
    assert [message.content for message in result.messages][1:] == ["go", "No, please."]
    verdicts = [event for event in events if isinstance(event, FinalAnswerVerificationEvent)]
    assert [(v.passed, v.attempt, v.replanning) for v in verdicts] == [(False, 0, True), (True, 1, False)]


@pytest.mark.spec("LOOP-69", "EVT-14")
async def test_the_last_draft_may_be_replaced(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([text("No.")], loop=True), final_answer_verifier=strict, final_answer_fallback=fallback)
    events, result = await watched(agent)
    assert result.message == "No. (unverified: Say please.)" == result.messages[-1].content
    assert result.metrics.model_calls == 2
    last = [event for event in events if isinstance(event, FinalAnswerVerificationEvent)][-1]
    assert last.replaced and not last.passed


async def broken(answer: FinalAnswer) -> str | None:
    raise RuntimeError("verifier broke")


@pytest.mark.spec("LOOP-68")
async def test_a_verifier_that_breaks_accepts_and_says_so(runtime: Runtime) -> None:
    events, result = await watched(Agent(ScriptedModel([text("fine")]), final_answer_verifier=broken))
    assert result.success and result.message == "fine"
    [verdict] = [event for event in events if isinstance(event, FinalAnswerVerificationEvent)]
    assert not verdict.passed and "verifier broke" in (verdict.error or "")


async def more(answer: FinalAnswer) -> Continuation | None:
    return Continuation("Now do the second half.", reason="announced_step") if answer.text == "half" else None


@pytest.mark.spec("LOOP-70")
async def test_a_continuation_keeps_the_reply(runtime: Runtime) -> None:
    result = await Agent(ScriptedModel([text("half"), text("whole")]), final_answer_verifier=more).arun("go")
    assert [message.content for message in result.messages][1:] == ["go", "half", "Now do the second half.", "whole"]


class Judge:
    """Scores every claim with 0 until it is told otherwise by the draft."""

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> Any:
        asked = messages[-1].content or ""
        score = "1.0" if "42 metres" in asked.rpartition("Claims:")[2] else "0.0"
        return text("\n".join(f"{number}: {score} - as found" for number in range(1, 9)))


@pytest.mark.spec("LOOP-64", "LOOP-65", "OURS-11", "OURS-13", "REAS-24", "REAS-26", "BUG-19")
async def test_an_ungrounded_answer_is_sent_back_then_fails(runtime: Runtime) -> None:
    grounding = GroundingConfig(model=Judge(), max_replans=1)
    wrong = text("The tower is certainly 90 metres high, as everybody knows.")
    right = text("The tower is certainly 42 metres high, as the lookup says.")
    settings: dict[str, Any] = {"tools": [lookup], "grounding": grounding}
    events, result = await watched(Agent(ScriptedModel([tool_call("lookup", topic="tower"), wrong, right]), **settings))
    assert result.stop_reason == "complete" and result.grounding_score == 1.0
    assert [event.requires_replan for event in events if isinstance(event, GroundingEvent)] == [True, False]
    assert result.metrics.grounding_evaluations == 2 and result.metrics.model_calls == 5
    _, failed = await watched(Agent(ScriptedModel([tool_call("lookup", topic="tower"), wrong, wrong]), **settings))
    assert failed.stop_reason == "grounding_failed" and not failed.success
    assert failed.message == wrong.content and failed.grounding_score == 0.0 and failed.ungrounded_claims


@pytest.mark.spec("LOOP-63", "LOOP-33", "TOOL-31", "TOOL-32", "API-10")
async def test_explicit_mode_goes_on_until_the_task_is_complete(runtime: Runtime) -> None:
    @tool
    async def write_file(path: str) -> str:
        """Write a file."""
        return f"wrote {path}"

    @tool
    async def run_tests() -> str:
        """Run the tests."""
        return "passed"

    turns = [
        text("I will begin."),
        tool_call("write_file", path="a.py"),
        tool_call("task_complete", summary="done"),
        tool_call("run_tests"),
        tool_call("task_complete", summary="done"),
    ]
    agent = Agent(ScriptedModel(turns), [write_file, run_tests], completion_mode="explicit")
    result = await agent.arun("write it")
    assert result.stop_reason == "terminal_tool" and result.success and result.iterations == 5
    blocked, done = [done for done in result.tool_executions if done.tool_name == "task_complete"]
    assert (blocked.error or "").startswith("BLOCKED") and done.success


class Trip(BaseModel):
    """Where to, for how long."""

    city: str
    days: int


@pytest.mark.spec("API-42", "API-43", "API-44", "LOOP-9", "OURS-14", "API-49", "STATE-41")
async def test_structured_output_is_parsed_and_repaired(runtime: Runtime) -> None:
    good = await Agent(ScriptedModel([text('Sure: {"city": "Rome", "days": 3}')]), output_schema=Trip).arun("plan")
    assert good.parsed_as(Trip) == Trip(city="Rome", days=3) and good.message == '{"city":"Rome","days":3}'
    assert "JSON" in (good.messages[0].content or "")
    repaired = await Agent(
        ScriptedModel([text("three days in Rome"), text('{"city": "Rome", "days": 3}')]), output_schema=Trip
    ).arun("plan")
    assert repaired.parsed_as(Trip).days == 3 and repaired.metrics.model_calls == 2
    assert [message.content for message in repaired.messages][-1] == "three days in Rome"
    hopeless = await Agent(ScriptedModel([text("no")], loop=True), output_schema=Trip, output_schema_retries=1).arun("plan")
    assert hopeless.success and hopeless.parsed is None and hopeless.parse_error and hopeless.metrics.model_calls == 2
    events = [event async for event in Agent(ScriptedModel([text('{"city": "Rome", "days": 3}')]), output_schema=Trip).run("x")]
    assert events[-1].final_message == '{"city":"Rome","days":3}'  # type: ignore[attr-defined]


@pytest.mark.spec("LOOP-115", "LOOP-116")
async def test_held_text_is_released_only_when_it_was_accepted(runtime: Runtime) -> None:
    agent = Agent(
        ScriptedModel([text("No never."), text("No, please.")]), final_answer_verifier=strict, hold_final_answer_tokens=True
    )
    events = [event async for event in agent.run("go", stream_tokens=True)]
    streamed = "".join(event.content or "" for event in events if isinstance(event, ModelChunkEvent))
    assert streamed == "No, please."
    turns = [tool_call("lookup", topic="x"), text("42, please.")]
    turns[0] = turns[0].evolve(message=turns[0].message.evolve(content="Let me look."))
    for drop, expected in ((False, "Let me look.42, please."), (True, "42, please.")):
        looking = agent.with_settings(model=ScriptedModel(turns), tools=[lookup], hold_tool_step_text=drop)
        events = [event async for event in looking.run("go", stream_tokens=True)]
        assert "".join(event.content or "" for event in events if isinstance(event, ModelChunkEvent)) == expected
    replaced = agent.with_settings(model=ScriptedModel([text("No.")], loop=True), final_answer_fallback=fallback)
    events = [event async for event in replaced.run("go", stream_tokens=True)]
    chunks = [event.content for event in events if isinstance(event, ModelChunkEvent)]
    assert chunks == ["No. (unverified: Say please.)"]


@pytest.mark.spec("LOOP-32")
async def test_planning_asks_once_and_keeps_the_plan(runtime: Runtime) -> None:
    agent = Agent(
        ScriptedModel(
            [
                tool_call("lookup", topic="x").evolve(
                    message=tool_call("lookup", topic="x").message.evolve(content="1. look it up")
                ),
                text("42"),
            ]
        ),
        [lookup],
        planning=True,
    )
    result = await agent.arun("how high")
    assert result.state.metadata["plan"] == "1. look it up"
    notes = [message for message in result.messages if message.role == "system" and message.metadata.get("automated")]
    assert len(notes) == 1 and "plan" in (notes[0].content or "")


@pytest.mark.spec("LOOP-108")
async def test_output_key_keeps_the_answer(runtime: Runtime) -> None:
    result = await Agent(ScriptedModel([text("42")]), output_key="answer").arun("?")
    assert result.state.metadata["answer"] == "42"


@pytest.mark.spec("LOOP-69")
async def test_a_fallback_that_breaks_leaves_the_draft(runtime: Runtime) -> None:
    async def breaks(answer: FinalAnswer) -> str:
        raise RuntimeError("fallback broke")

    settings: dict[str, Any] = {"final_answer_verifier_max_replans": 0, "final_answer_fallback": breaks}
    events, result = await watched(Agent(ScriptedModel([text("No.")]), final_answer_verifier=strict, **settings))
    assert result.success and result.message == "No." == result.messages[-1].content
    [verdict] = [event for event in events if isinstance(event, FinalAnswerVerificationEvent)]
    assert not verdict.replaced and "fallback broke" in (verdict.error or "")


@pytest.mark.spec("LOOP-71", "TERM-17")
async def test_a_draft_that_is_sent_back_is_no_reply_without_calls(runtime: Runtime) -> None:
    model = ScriptedModel([text("No."), text("No, please.")])
    result = await Agent(model, final_answer_verifier=strict, termination=NoToolCalls()).arun("go")
    assert (result.outcome.reason, result.message) == ("complete", "No, please.")


@pytest.mark.spec("LOOP-64")
async def test_an_answer_without_tools_is_not_compared_with_anything(runtime: Runtime) -> None:
    wrong = text("The tower is certainly 90 metres high, as everybody knows.")
    events, result = await watched(Agent(ScriptedModel([wrong]), [lookup], grounding=GroundingConfig(model=Judge())))
    assert result.success and not [event for event in events if isinstance(event, GroundingEvent)]


class Formatted:
    """Answers with the names of the formats that it was asked for."""

    def __init__(self, knows_formats: bool) -> None:
        self.supports_response_format = knows_formats

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> Any:
        asked = settings.get("response_format", {"type": "none"})["type"]
        return text(f'{{"city": "{asked}", "days": 1}}')


@pytest.mark.spec("LOOP-46", "BUG-70")
async def test_a_native_format_is_asked_for_only_where_no_tools_are_offered(runtime: Runtime) -> None:
    async def city(agent: Agent) -> str:
        return (await agent.arun("plan")).parsed_as(Trip).city

    assert await city(Agent(Formatted(True), output_schema=Trip)) == "json_schema"
    assert await city(Agent(Formatted(True), [lookup], output_schema=Trip)) == "none"
    assert await city(Agent(Formatted(False), output_schema=Trip)) == "none"
    assert "none" in (await Agent(Formatted(True)).arun("plan")).message
