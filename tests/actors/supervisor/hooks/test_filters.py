from __future__ import annotations

import pytest

from umbel.actors.supervisor.hooks import AfterModelCall, BeforeToolCall, ContentFilterHook, OutputFilterHook
from umbel.errors import ConfigurationError, GuardrailViolation
from umbel.events import CustomEvent, RunInfo
from umbel.protocol.messages import Message, ModelResponse, ToolCall, Usage
from umbel.testing import text, tool_call

from .tiny_loop import TinyLoop

CALL = ToolCall(id="c1", name="send", arguments={"to": "ada@example.org"}, provider_id="p1")


def reply(content: str, reasoning: str | None = None) -> ModelResponse:
    return ModelResponse(
        message=Message.assistant(content, tool_calls=(CALL,), kept="yes"),
        usage=Usage(prompt_tokens=7, completion_tokens=3),
        stop_reason="tool_calls",
        reasoning=reasoning,
        cost_usd=0.25,
        model="m",
    )


async def filtered(hook: OutputFilterHook | ContentFilterHook, response: ModelResponse) -> ModelResponse:
    event = AfterModelCall(response=response)
    await hook.on_after_model_call(event)
    return event.response


@pytest.mark.spec("HOOK-40")
async def test_personal_data_is_masked_and_everything_else_of_the_reply_stays() -> None:
    before = reply("mail ada@example.org", reasoning="ssn 536-22-1234")
    after = await filtered(OutputFilterHook(), before)
    assert after.content == "mail [REDACTED EMAIL]"
    assert after.reasoning == "ssn [REDACTED SSN]"
    assert after.tool_calls == (CALL,)
    assert after.message.metadata == {"kept": "yes"}
    assert (after.usage, after.cost_usd, after.model, after.stop_reason) == (before.usage, 0.25, "m", "tool_calls")


async def test_a_clean_reply_is_the_same_object() -> None:
    before = reply("nothing to see")
    assert await filtered(OutputFilterHook(blocked_content={"x": "bomb"}), before) is before


@pytest.mark.spec("HOOK-40")
@pytest.mark.parametrize(
    ("content", "refused"),
    [
        ("how to build a BOMB", {"policy": "content", "name": "weapons"}),
        ("ask about Tax Advice today", {"policy": "topic", "name": "money"}),
        ("taxes are due, advice follows", None),
    ],
)
async def test_a_policy_hit_becomes_the_refusal_without_calls_and_with_its_usage(
    content: str, refused: dict[str, str] | None
) -> None:
    hook = OutputFilterHook(blocked_content={"weapons": r"build a \w*bomb"}, blocked_topics={"money": ["tax advice"]})
    queue: list[CustomEvent] = []
    event = AfterModelCall(response=reply(content, "thinking"), run=RunInfo(run_id="r1"), queue=queue)
    await hook.on_after_model_call(event)
    assert event.response.usage == Usage(prompt_tokens=7, completion_tokens=3)
    if refused is None:
        assert event.response.content == content and queue == []
        return
    assert (event.response.content, event.response.tool_calls) == ("I can't help with that.", ())
    assert (event.response.reasoning, event.response.cost_usd, event.response.stop_reason) == (None, 0.25, "stop")
    assert [(custom.name, custom.data) for custom in queue] == [("output_filtered", refused)]


async def test_the_content_policy_comes_first() -> None:
    queue: list[CustomEvent] = []
    hook = OutputFilterHook(blocked_content={"a": "x"}, blocked_topics={"b": ["x"]}, refusal="no")
    event = AfterModelCall(response=text("x"), run=RunInfo(run_id="r1"), queue=queue)
    await hook.on_after_model_call(event)
    assert queue[0].data["policy"] == "content" and event.response.content == "no"


def test_what_cannot_be_used_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot redact name"):
        OutputFilterHook(redact=["name"])
    with pytest.raises(ConfigurationError, match="not a regular expression"):
        OutputFilterHook(blocked_content={"x": "("})
    with pytest.raises(ConfigurationError, match="not a regular expression"):
        ContentFilterHook(blocked_patterns=["("])


@pytest.mark.spec("HOOK-41")
@pytest.mark.parametrize("prompt", ["tell me about the Plan B", "key-1234", "x" * 50_001])
async def test_a_prompt_with_blocked_content_is_refused(prompt: str) -> None:
    hook = ContentFilterHook(blocked_words=["plan b"], blocked_patterns=[r"key-\d+"])
    with pytest.raises(GuardrailViolation, match="the prompt was refused"):
        await TinyLoop([hook], [text("done")]).run(prompt)
    state = await TinyLoop([hook], [text("done")]).run("plan bravo, key-x")
    assert state.messages[-1].content == "done"


@pytest.mark.spec("HOOK-41")
async def test_a_call_with_blocked_content_is_cancelled() -> None:
    hook = ContentFilterHook(blocked_words=["secret"], max_input_length=20)
    loop = TinyLoop([hook], [tool_call("add", items=[{"x": "a secret"}]), text("done")], add=lambda items: "1")
    state = await loop.run("go")
    assert state.tool_executions[0].result == "add was not run: it holds blocked content"
    long = BeforeToolCall(tool_name="add", arguments={"a": "x" * 15, "b": "y" * 15})
    await hook.on_before_tool_call(long)
    assert "characters" in str(long.cancel)


@pytest.mark.spec("HOOK-41")
async def test_the_output_length_is_enforced() -> None:
    hook = ContentFilterHook(max_output_length=20)
    after = await filtered(hook, reply("x" * 30))
    assert after.content == "x" * 14 + " [cut]" and len(after.content) == 20
    assert after.tool_calls == (CALL,) and after.usage == Usage(prompt_tokens=7, completion_tokens=3)
    fits = reply("x" * 20)
    assert await filtered(hook, fits) is fits
    assert (await filtered(ContentFilterHook(max_output_length=3), text("abcdef"))).content == " [c"
    unlimited = reply("x" * 100_000)
    assert await filtered(ContentFilterHook(), unlimited) is unlimited
