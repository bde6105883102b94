"""Replies that are no answer: empty ones, calls written as text, summaries that are calls. Inline and on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, GroundingConfig, Hook, Message, ModelChunk, ModelResponse, Runtime, Usage, tool
from umbel.errors import ModelError, UmbelError
from umbel.events import GroundingEvent, ModelChunkEvent, TerminateEvent
from umbel.testing import ScriptedModel, error, text, tool_call

HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
UNFINISHED = '<tool_call>\n{"name": "add", "argu'


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class Sulks:
    """With tools on offer it adds, then says nothing more; without tools it gives the replies it was made with."""

    def __init__(self, *replies: Any, talks: bool = False) -> None:
        self.replies = replies
        self.talks = talks

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        results = sum(message.role == "tool" for message in messages)
        if tools:
            if results < 1:
                first = tool_call("add", a=1, b=1)
                return first.evolve(message=first.message.evolve(content="Let me add." if self.talks else None))
            return text("done at last" if results > 1 else "")
        reply = self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return text(str(reply), usage=Usage(prompt_tokens=7, completion_tokens=1))


@pytest.mark.spec("LOOP-59", "LOOP-62", "OURS-8", "OURS-9", "STATE-41")
async def test_an_empty_reply_is_nudged_and_then_asked_for_without_tools(runtime: Runtime) -> None:
    agent = Agent(Sulks("It is two."), [add], max_empty_replies=1)
    result = await agent.arun("go")
    assert (result.stop_reason, result.success, result.message) == ("complete", True, "It is two.")
    assert [message.role for message in result.messages[4:]] == ["assistant", "system", "assistant", "system", "assistant"]
    assert result.messages[-1].content == "It is two.", "the answer is in the conversation"
    assert result.metrics.model_calls == 4 and result.metrics.total_tokens == 8


@pytest.mark.spec("LOOP-60", "LOOP-57")
async def test_a_call_instead_of_the_last_answer_is_run(runtime: Runtime) -> None:
    agent = Agent(Sulks(HERMES), [add], max_empty_replies=0, leaked_tool_call_formats=("hermes",))
    result = await agent.arun("go")
    assert (result.stop_reason, result.message) == ("complete", "done at last")
    assert [done.result for done in result.tool_executions] == ["2", "3"]
    assert not [message for message in result.messages if "final answer" in (message.content or "")], "the note is removed"
    calls = [call for message in result.messages for call in message.tool_calls]
    assert [call.arguments for call in calls] == [{"a": 1, "b": 1}, {"a": 1, "b": 2}]


@pytest.mark.spec("LOOP-60", "LOOP-58")
async def test_a_broken_call_instead_of_the_last_answer_is_sent_back(runtime: Runtime) -> None:
    agent = Agent(Sulks(UNFINISHED), [add], max_empty_replies=0, leaked_tool_call_formats=("hermes",), max_iterations=3)
    result = await agent.arun("go")
    assert UNFINISHED not in [message.content for message in result.messages]
    assert [message.role for message in result.messages if "broke off" in (message.content or "")][:1] == ["user"]
    assert [done.result for done in result.tool_executions] == ["2"]


@pytest.mark.spec("LOOP-61", "OURS-8")
@pytest.mark.parametrize("last", ["", ModelError("overloaded")])
async def test_when_the_last_try_fails_the_newest_text_or_a_digest_is_what_remains(runtime: Runtime, last: Any) -> None:
    spoke = await Agent(Sulks(last, talks=True), [add], max_empty_replies=0).arun("go")
    assert (spoke.stop_reason, spoke.success, spoke.message) == ("empty_reply", False, "Let me add.")
    silent = await Agent(Sulks(last), [add], max_empty_replies=0).arun("go")
    assert silent.stop_reason == "empty_reply" and "1 tool calls" in silent.message and "add: 2" in silent.message
    assert silent.messages[-1].role == "assistant" and silent.messages[-1].content == silent.message


class Severe:
    """A judge for whom nothing is grounded."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        return text("\n".join(f"{number}: 0.0 - made up" for number in range(1, 9)))


@pytest.mark.spec("LOOP-66")
async def test_the_last_try_is_not_judged_for_grounding(runtime: Runtime) -> None:
    grounding = GroundingConfig(model=Severe(), max_replans=0)
    claim = "The sum of both numbers is certainly ninety-nine."
    settings: dict[str, Any] = {"grounding": grounding, "max_empty_replies": 0}
    events: list[Any] = []
    result = await Agent(Sulks(claim), [add], callback_handler=events.append, **settings).arun("go")
    assert result.stop_reason == "complete" and result.message == claim
    assert not [event for event in events if isinstance(event, GroundingEvent)]
    ordinary = await Agent(ScriptedModel([tool_call("add", a=1, b=1), text(claim)]), [add], **settings).arun("go")
    assert ordinary.stop_reason == "grounding_failed"


@pytest.mark.spec("LOOP-67")
async def test_the_last_try_is_shown_to_the_verifier(runtime: Runtime) -> None:
    async def refuse(answer: Any) -> str | None:
        return "Not this."

    async def replace(answer: Any) -> str:
        return f"instead of: {answer.text}"

    settings: dict[str, Any] = {"final_answer_verifier_max_replans": 0, "final_answer_fallback": replace}
    result = await Agent(Sulks("It is two."), [add], final_answer_verifier=refuse, max_empty_replies=0, **settings).arun("go")
    assert result.message == "instead of: It is two." == result.messages[-1].content


class Auxiliary:
    """Says what it was asked with."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        return text(f"tools={tools!r} settings={sorted(settings)}", usage=Usage(prompt_tokens=100, completion_tokens=11))


@pytest.mark.spec("LOOP-27", "LOOP-26")
async def test_the_summary_is_the_auxiliary_models_whole_and_without_the_runs_settings(runtime: Runtime) -> None:
    step = tool_call("add", a=1, b=1).evolve(usage=Usage(prompt_tokens=1, completion_tokens=1))
    agent = Agent(ScriptedModel([step], loop=True), [add], auxiliary_model=Auxiliary(), max_iterations=1)
    events = [event async for event in agent.run("go", stream_tokens=True, model_kwargs={"seed": 1})]
    last = events[-1]
    assert isinstance(last, TerminateEvent) and last.reason == "max_iterations"
    assert last.final_message == "tools=None settings=[]"
    assert last.usage == Usage(prompt_tokens=101, completion_tokens=12)
    chunks = [event.content for event in events if isinstance(event, ModelChunkEvent) and event.content]
    assert chunks == []


@pytest.mark.spec("LOOP-28")
async def test_what_stands_for_a_summary_that_is_none(runtime: Runtime) -> None:
    def summarised_by(reply: str, said: str | None) -> Agent:
        step = tool_call("add", a=1, b=1)

        def turn(messages: list[Message]) -> ModelResponse:
            if messages[-1].role == "system":
                return text(reply)
            return step.evolve(message=step.message.evolve(content=said))

        return Agent(ScriptedModel([turn], loop=True), [add], max_iterations=1, leaked_tool_call_formats=("hermes",))

    assert (await summarised_by("All done.", "Adding.").arun("go")).message == "All done."
    assert (await summarised_by(HERMES, "Adding.").arun("go")).message == "Adding."
    assert (await summarised_by("", "Adding.").arun("go")).message == "Adding."
    digest = await summarised_by(HERMES, None).arun("go")
    assert "1 iterations" in digest.message and "add: 2" in digest.message
    assert [done.result for done in digest.tool_executions] == ["2"]


@pytest.mark.spec("LOOP-30")
async def test_a_summary_that_fails_is_an_error(runtime: Runtime) -> None:
    broken = ScriptedModel([error(RuntimeError("no summary"))], loop=True)
    agent = Agent(ScriptedModel([tool_call("add", a=1, b=1)]), [add], auxiliary_model=broken, max_iterations=1)
    with pytest.raises(UmbelError, match="no summary"):
        await agent.arun("go")


@pytest.mark.spec("LOOP-29", "OURS-8")
async def test_the_next_turn_sees_the_summary(runtime: Runtime, tmp_path: Path) -> None:
    def turn(messages: list[Message]) -> ModelResponse:
        if messages[-1].role == "system":
            return text("one sum is done")
        return text(repr([m.content for m in messages])) if messages[-1].content == "and?" else tool_call("add", a=1, b=1)

    agent = Agent(ScriptedModel([turn], loop=True), [add], max_iterations=1, checkpointer=f"sqlite:///{tmp_path}/t.db")
    await agent.arun("go", thread_id="t")
    again = await agent.arun("and?", thread_id="t")
    assert "one sum is done" in again.message
    assert [message.role for message in again.messages][-4:] == ["system", "assistant", "user", "assistant"]


class Once(Hook):
    """Rejects the first draft of a reply."""

    async def on_after_model_call(self, event: Any) -> None:
        if event.response.content == "draft":
            event.retry = True
            event.retry_feedback = "Again."


class Streams(ScriptedModel):
    async def stream(self, messages: list[Message], tools: Any = None, **settings: Any) -> Any:
        reply = await self.complete(messages, tools, **settings)
        yield ModelChunk(content=reply.content)
        if reply.tool_calls:
            yield ModelChunk(tool_calls=reply.tool_calls)
        yield ModelChunk(done=True, usage=reply.usage, stop_reason=reply.stop_reason)


async def accept(answer: Any) -> str | None:
    return None


@pytest.mark.spec("LOOP-115", "LOOP-116", "EVT-7")
@pytest.mark.parametrize(("drop", "heard"), [(False, ["Adding.", "Two."]), (True, ["Two."])])
async def test_held_text_of_a_tool_step_is_released_unless_it_shall_not(runtime: Runtime, drop: bool, heard: list[str]) -> None:
    step = tool_call("add", a=1, b=1)

    def last(messages: list[Message]) -> ModelResponse:
        return text("Two." if messages[-1].content == "Again." else "draft")

    turns: list[Any] = [step.evolve(message=step.message.evolve(content="Adding.")), last]
    agent = Agent(
        Streams(turns),
        [add],
        hooks=[Once()],
        final_answer_verifier=accept,
        hold_final_answer_tokens=True,
        hold_tool_step_text=drop,
    )
    events = [event async for event in agent.run("go", stream_tokens=True)]
    chunks = [event for event in events if isinstance(event, ModelChunkEvent)]
    assert [chunk.content for chunk in chunks if chunk.content] == heard
    assert [len(chunk.tool_calls) for chunk in chunks if chunk.tool_calls] == [1], "chunks with calls are kept"
    assert sum(chunk.done for chunk in chunks) == 2
    kinds = [event.event_type for event in events]
    assert kinds.index("model_chunk") < kinds.index("tool_start")


@pytest.mark.spec("LOOP-58", "OURS-9")
async def test_calls_that_break_off_again_and_again_are_no_answer(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([text(UNFINISHED)], loop=True), [add], leaked_tool_call_formats=("hermes",))
    result = await agent.arun("go")
    assert (result.stop_reason, result.success, result.metrics.model_calls) == ("empty_reply", False, 3)
    assert UNFINISHED not in [message.content for message in result.messages]
