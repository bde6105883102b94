"""The built-in hooks, and what their events may change, in real runs: they travel to the supervisor, and work there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from umbel import (
    Agent,
    CompactionConfig,
    ContentFilterHook,
    GuardrailsHook,
    GuardrailViolation,
    Hook,
    Message,
    ModelResponse,
    ModelRetryHook,
    OutputFilterHook,
    Runtime,
    SteeringHook,
    Usage,
    tool,
)
from umbel.events import CompactionEvent, CustomEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls


@tool
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@tool
async def dump(size: int) -> str:
    """Return much text."""
    return "begin " + "x" * size + " end"


async def watched(agent: Agent, prompt: str = "go") -> tuple[list[Any], Any]:
    events: list[Any] = []
    result = await agent.with_settings(callback_handler=events.append).arun(prompt)
    return events, result


@pytest.mark.spec("HOOK-36", "HOOK-37", "HOOK-39")
async def test_guardrails_cancel_the_call_refuse_the_prompt_and_mask_it(runtime: Runtime) -> None:
    script = ScriptedModel([tool_call("delete", path="a"), text("I may not.")])
    events, result = await watched(Agent(script, [delete], hooks=[GuardrailsHook()]))
    [done] = result.tool_executions
    assert result.message == "I may not." and not done.success and "deleted" not in (done.result or "")
    assert [event.name for event in events if isinstance(event, CustomEvent)] == ["guardrail_violation"]
    strict = Agent(script, hooks=[GuardrailsHook(actions={"prompt:email": "block"})])
    with pytest.raises(GuardrailViolation):
        await strict.arun("write to ada@example.org")
    echo = ScriptedModel([lambda messages: text(messages[-1].content or "")])
    masked = await Agent(echo, hooks=[GuardrailsHook(actions={"prompt:email": "redact"})]).arun("write to ada@example.org")
    assert "ada@" not in masked.message and "write to" in masked.message and "ada@" not in str(masked.messages)


class Judge:
    """Wants the path to be safe."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        asked = "\n".join(message.content or "" for message in messages)
        answer = "PROCEED" if "/tmp/safe" in asked.rpartition("delete")[2] else "GUIDE: stay in /tmp/safe"
        return text(answer, usage=Usage(prompt_tokens=1_000, completion_tokens=1))


@pytest.mark.spec("HOOK-42", "OURS-13")
async def test_a_steering_judge_guides_the_model_and_its_tokens_count(runtime: Runtime) -> None:
    script = [tool_call("delete", path="/etc/x"), tool_call("delete", path="/tmp/safe/x"), text("done")]
    result = await Agent(ScriptedModel(script), [delete], hooks=[SteeringHook(Judge(), "be careful")]).arun("go")
    first, second = result.tool_executions
    assert "stay in /tmp/safe" in (first.result or "") and second.result == "deleted /tmp/safe/x"
    assert result.metrics.prompt_tokens > 2_000


@pytest.mark.spec("HOOK-40", "HOOK-41", "HOOK-25")
async def test_filtered_replies_are_what_enters_the_conversation(runtime: Runtime) -> None:
    mail = ScriptedModel([text("Write to ada@example.org.", usage=Usage(prompt_tokens=7, completion_tokens=5))])
    masked = await Agent(mail, hooks=[OutputFilterHook()]).arun("whom?")
    assert "ada@" not in masked.message and masked.messages[-1].content == masked.message
    assert masked.metrics.total_tokens == 12
    refusing = OutputFilterHook(blocked_topics={"secrets": ["project x"]}, refusal="No comment.")
    leak = ScriptedModel([tool_call("delete", path="project x").evolve(message=Message.assistant("about project x"))])
    assert (await Agent(leak, [delete], hooks=[refusing]).arun("tell")).message == "No comment."
    cut = await Agent(ScriptedModel([text("x" * 100)]), hooks=[ContentFilterHook(max_output_length=10)]).arun("go")
    assert cut.message == "xxxx [cut]"


@pytest.mark.spec("HOOK-35", "HOOK-23")
async def test_empty_replies_are_asked_for_again_without_a_trace(runtime: Runtime, tmp_path: Path) -> None:
    def reply(messages: list[Message]) -> ModelResponse:
        asked = len(list(tmp_path.iterdir()))
        (tmp_path / str(asked)).touch()
        return text("" if asked < 2 else "here")

    agent = Agent(ScriptedModel([reply], loop=True), hooks=[ModelRetryHook(initial_delay=0.0)])
    result = await agent.arun("go")
    assert (result.message, result.metrics.model_calls, result.iterations) == ("here", 3, 1)
    assert [message.role for message in result.messages] == ["system", "user", "assistant"]


class Insists(Hook):
    async def on_after_tool_call(self, event: Any) -> None:
        event.retry = True


@pytest.mark.spec("HOOK-22")
async def test_a_call_is_repeated_once_whatever_a_hook_wants(runtime: Runtime, tmp_path: Path) -> None:
    @tool
    async def count() -> str:
        """Count the calls."""
        with (tmp_path / "log").open("a") as file:
            file.write(".")
        return str(len((tmp_path / "log").read_text()))

    result = await Agent(ScriptedModel([tool_call("count"), text("ok")]), [count], hooks=[Insists()]).arun("go")
    assert [done.result for done in result.tool_executions] == ["2"]


class Summariser:
    """Repeats what it was told about the summary."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        asked = "\n".join(message.content or "" for message in messages)
        return text("kept the invoices" if "keep the invoices" in asked else "a plain summary")


class Wishes(Hook):
    def __init__(self, cancel: str | bool = False) -> None:
        self.cancel = cancel

    async def on_before_compaction(self, event: Any) -> None:
        event.instructions = "keep the invoices"
        event.cancel = self.cancel
        event.emit(CustomEvent(name="asked", data={"window": event.context_window, "over": event.tokens > event.threshold}))


@pytest.mark.spec("HOOK-14", "HOOK-26")
async def test_a_hook_has_a_say_in_compaction(runtime: Runtime) -> None:
    settings: dict[str, Any] = {
        "tools": [dump],
        "context_window": 1_000,
        "compaction": CompactionConfig(summary_model=Summariser(), tail_turns=1),
        "max_iterations": 12,
    }
    thought = "thinking " * 80
    script = [*(tool_calls(("dump", {"size": number}), content=thought) for number in range(5)), text("done")]
    events, result = await watched(Agent(ScriptedModel(script, loop=True), hooks=[Wishes()], **settings))
    kinds = [type(event) for event in events if isinstance(event, CompactionEvent | CustomEvent)]
    assert kinds[:2] == [CustomEvent, CompactionEvent]
    asked = next(event for event in events if isinstance(event, CustomEvent))
    assert asked.data == {"window": 1_000, "over": True}
    assert any("kept the invoices" in (message.content or "") for message in result.messages)
    events, _ = await watched(Agent(ScriptedModel(script, loop=True), hooks=[Wishes("not now")], **settings))
    assert not any(isinstance(event, CompactionEvent) for event in events)
