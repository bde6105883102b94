"""Hooks as the real loop calls them: order, what they may change, what their failures do. Inline and on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from umbel import Agent, GroundingConfig, GsarConfig, Hook, Message, ModelResponse, Runtime, tool
from umbel.errors import RunFailed
from umbel.events import CustomEvent, TerminateEvent, ToolStartEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls


@tool(idempotent=True)
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool
async def echo(words: str, token: str = "none") -> str:
    """Say what was given."""
    return f"{words} with {token}"


def files_with(folder: Path, secret: bytes) -> list[Path]:
    return [file for file in folder.iterdir() if secret in file.read_bytes()]


class Recorder(Hook):
    """Writes down every callback; hooks live in another process on Ray, so it writes to a file."""

    def __init__(self, path: Path, name: str = "r", priority: int = 300) -> None:
        self.path = path
        self.name = name
        self.priority = priority

    def note(self, what: str) -> None:
        with self.path.open("a") as log:
            log.write(f"{self.name}:{what}\n")

    async def on_before_invocation(self, prompt: str, state: Any) -> Any:
        self.note("before_invocation")
        return state.with_metadata("seen", prompt)

    async def on_after_invocation(self, state: Any, success: bool) -> None:
        self.note(f"after_invocation {success}")

    async def on_iteration_start(self, iteration: int, state: Any) -> None:
        self.note(f"start {iteration}")

    async def on_iteration_end(self, iteration: int, state: Any) -> None:
        self.note(f"end {iteration}")

    async def on_before_model_call(self, event: Any) -> None:
        self.note("before_model")

    async def on_after_model_call(self, event: Any) -> None:
        self.note("after_model")

    async def on_before_tool_call(self, event: Any) -> None:
        self.note("before_tool")
        event.emit(CustomEvent(name="about to", data={"tool": event.tool_name}))

    async def on_after_tool_call(self, event: Any) -> None:
        self.note(f"after_tool {event.result}")


@pytest.mark.spec(
    "HOOK-3", "HOOK-7", "HOOK-8", "HOOK-9", "HOOK-10", "HOOK-11", "HOOK-12", "HOOK-13", "LOOP-16", "LOOP-103", "HOOK-28"
)
@pytest.mark.spec("BUG-18")
async def test_every_callback_fires_in_its_order(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    agent = Agent(
        ScriptedModel([tool_call("add", a=2, b=2), text("4")]),
        [add],
        hooks=[Recorder(log, "late"), Recorder(log, "early", priority=10)],
    )
    result = await agent.arun("2 + 2")
    assert result.success and result.state.metadata["seen"] == "2 + 2"
    lines = log.read_text().splitlines()
    early = [line.partition(":")[2] for line in lines if line.startswith("early")]
    assert early == [
        "before_invocation",
        "start 0",
        "before_model",
        "after_model",
        "before_tool",
        "after_tool 4",
        "end 0",
        "start 1",
        "before_model",
        "after_model",
        "end 1",
        "after_invocation True",
    ]
    assert [line for line in lines if "before_tool" in line] == ["early:before_tool", "late:before_tool"]
    assert [line for line in lines if "after_tool" in line] == ["late:after_tool 4", "early:after_tool 4"]


@pytest.mark.spec("EVT-29", "HOOK-26", "LOOP-127")
async def test_a_hooks_event_follows_the_start_of_its_call(runtime: Runtime, tmp_path: Path) -> None:
    agent = Agent(ScriptedModel([tool_call("add", a=2, b=2), text("4")]), [add], hooks=[Recorder(tmp_path / "log")])
    events = [event async for event in agent.run("2 + 2")]
    assert [event.event_type for event in events] == [
        "think",
        "tool_start",
        "custom",
        "tool_complete",
        "think",
        "terminate",
    ]
    custom = events[2]
    assert isinstance(custom, CustomEvent) and custom.name == "about to" and custom.data == {"tool": "add"}
    assert custom.tool_call_id == getattr(events[1], "tool_call_id", None)


class Editor(Hook):
    async def on_before_tool_call(self, event: Any) -> None:
        event.arguments = {**event.arguments, "words": "edited"}
        event.secret_arguments = {"token": "s3cret"}


@pytest.mark.spec("HOOK-20", "HOOK-21", "LOOP-76")
async def test_arguments_are_edited_and_secrets_reach_only_the_body(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([tool_call("echo", words="original"), text("ok")]), [echo], hooks=[Editor()])
    events: list[Any] = []
    result = await agent.with_settings(callback_handler=events.append).arun("say")
    [done] = result.tool_executions
    assert done.arguments == {"words": "edited"} and done.result == "edited with s3cret"
    [start] = [event for event in events if isinstance(event, ToolStartEvent)]
    assert start.arguments == {"words": "original"}


class Refuser(Hook):
    async def on_before_tool_call(self, event: Any) -> None:
        event.cancel = "not today"


@pytest.mark.spec("HOOK-19", "LOOP-74", "OURS-4", "STATE-8")
async def test_a_refused_call_does_not_run_and_does_not_count_as_done(runtime: Runtime) -> None:
    @tool
    async def submit(answer: str) -> str:
        """Hand in."""
        raise AssertionError("it ran")

    agent = Agent(ScriptedModel([tool_call("submit", answer="x"), text("refused")]), [submit], hooks=[Refuser()])
    result = await agent.arun("hand in")
    assert result.stop_reason == "complete" and result.message == "refused"
    [done] = result.tool_executions
    assert (done.result, done.error, done.success) == ("not today", None, False)


class Rewriter(Hook):
    async def on_after_tool_call(self, event: Any) -> None:
        event.result = {"was": event.result}


@pytest.mark.spec("HOOK-24", "LOOP-92", "LOOP-93", "BUG-36", "LOOP-84")
@pytest.mark.parametrize("order", ["sequential", "completion"])
async def test_a_replaced_result_reaches_message_record_and_event(runtime: Runtime, order: Any) -> None:
    agent = Agent(ScriptedModel([tool_call("add", a=2, b=2), text("4")]), [add], hooks=[Rewriter()], tool_event_order=order)
    events: list[Any] = []
    result = await agent.with_settings(callback_handler=events.append).arun("2 + 2")
    told = [event.result for event in events if event.event_type == "tool_complete"]
    messages = [message.content for message in result.messages if message.role == "tool"]
    assert told == messages == [done.result for done in result.tool_executions] == ['{"was": "4"}']


class Again(Hook):
    """Has the first model call repeated, with a hint."""

    async def on_after_model_call(self, event: Any) -> None:
        if event.response.content == "wrong":
            event.retry = True
            event.retry_feedback = "try again"


@pytest.mark.spec("HOOK-11", "HOOK-23", "LOOP-47", "STATE-42")
async def test_a_model_call_is_repeated_with_feedback_that_is_not_kept(runtime: Runtime) -> None:
    def turn(messages: list[Any]) -> Any:
        return text("right" if messages[-1].content == "try again" else "wrong")

    result = await Agent(ScriptedModel([turn], loop=True), hooks=[Again()]).arun("answer")
    assert result.message == "right" and result.metrics.model_calls == 2
    assert "try again" not in [message.content for message in result.messages]
    stubborn = await Agent(ScriptedModel([text("wrong")], loop=True), hooks=[Again()]).arun("answer")
    assert stubborn.message == "wrong" and stubborn.metrics.model_calls == 5


class Redactor(Hook):
    async def on_before_model_call(self, event: Any) -> None:
        event.messages = [m.evolve(content=(m.content or "").replace("4711", "***")) for m in event.messages]


@pytest.mark.spec("HOOK-10", "LOOP-42")
async def test_a_request_is_changed_and_the_state_is_not(runtime: Runtime) -> None:
    seen = ScriptedModel([lambda messages: text(messages[-1].content or "")])
    result = await Agent(seen, hooks=[Redactor()]).arun("my pin is 4711")
    assert result.message == "my pin is ***"
    assert result.messages[1].content == "my pin is 4711"


class Broken(Hook):
    async def on_after_invocation(self, state: Any, success: bool) -> None:
        raise ValueError("hook broke")


@pytest.mark.spec("OURS-7", "LOOP-104", "HOOK-29", "BUG-42")
async def test_a_hook_that_fails_at_the_end_loses_nothing(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    agent = Agent(ScriptedModel([text("one")], loop=True), hooks=[Broken()], checkpointer=url)
    result = await agent.arun("first", thread_id="t")
    assert result.success and len(result.hook_errors) == 1 and "hook broke" in result.hook_errors[0]
    again = await agent.arun("second", thread_id="t")
    assert [message.content for message in again.messages if message.role == "user"] == ["first", "second"]


class Veto(Hook):
    async def on_before_model_call(self, event: Any) -> None:
        raise ValueError("no model today")


@pytest.mark.spec("HOOK-28", "LOOP-101")
async def test_a_hook_that_raises_in_the_loop_ends_the_run(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([text("never")]), hooks=[Veto()])
    events: list[Any] = []
    with pytest.raises(RunFailed, match="no model today"):
        await agent.with_settings(callback_handler=events.append).arun("go")
    assert isinstance(events[-1], TerminateEvent) and events[-1].reason == "error"


@pytest.mark.spec("HOOK-16", "LOOP-79")
async def test_hooks_see_the_call_that_ran_not_its_copies(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    twice = tool_calls(("add", {"a": 1, "b": 1}), ("add", {"a": 1, "b": 1}))
    await Agent(ScriptedModel([twice, text("2")]), [add], hooks=[Recorder(log)]).arun("1 + 1 twice")
    lines = log.read_text().splitlines()
    assert lines.count("r:before_tool") == 2 and lines.count("r:after_tool 2") == 1


class Verdicts:
    """Judges everything as well founded, in both dialects."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        asked = messages[-1].content or ""
        return text('{"status": "resolved", "claims": []}' if "Report:" in asked else "1: 1.0 - so")


class Sum(BaseModel):
    value: int


@pytest.mark.spec("HOOK-18", "OURS-1")
async def test_judges_repairs_and_summaries_pass_the_model_hooks(runtime: Runtime, tmp_path: Path) -> None:
    def asked(log: Path) -> int:
        lines = log.read_text().splitlines()
        assert lines.count("r:before_model") == lines.count("r:after_model")
        return lines.count("r:before_model")

    judged = tmp_path / "judged"
    script = [tool_call("add", a=2, b=2), text("The sum of the two numbers is certainly four."), text('{"value": 4}')]
    agent = Agent(
        ScriptedModel(script),
        [add],
        hooks=[Recorder(judged)],
        grounding=GroundingConfig(model=Verdicts()),
        gsar=GsarConfig(judge=Verdicts()),
        output_schema=Sum,
    )
    result = await agent.arun("2 + 2")
    assert result.parsed_as(Sum).value == 4 and asked(judged) == result.metrics.model_calls == 5
    summed = tmp_path / "summed"
    stopped = await Agent(ScriptedModel(script), [add], hooks=[Recorder(summed)], max_iterations=1).arun("2 + 2")
    assert stopped.stop_reason == "max_iterations" and asked(summed) == stopped.metrics.model_calls == 2
    nudged = tmp_path / "nudged"
    quiet = await Agent(ScriptedModel([text("")], loop=True), hooks=[Recorder(nudged)], max_empty_replies=1).arun("say")
    assert quiet.stop_reason == "empty_reply" and asked(nudged) == quiet.metrics.model_calls == 3


class Tenant(Hook):
    """Looks at whose run it is."""

    async def on_before_tool_call(self, event: Any) -> None:
        token = event.ephemeral_metadata["token"]
        event.secret_arguments = {"token": f"{event.run.metadata['tenant']}/{event.run.thread_id}/{len(token)}"}


@pytest.mark.spec("HOOK-27", "API-20", "OURS-19", "HOOK-21")
async def test_hooks_know_whose_run_it_is_and_its_ephemeral_metadata(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    model = ScriptedModel([tool_call("echo", words="hi"), text("ok")])
    agent = Agent(model, [echo], hooks=[Tenant()], checkpointer=f"sqlite:///{path}")
    result = await agent.arun("say", thread_id="t", metadata={"tenant": "acme"}, ephemeral={"token": "4711-secret"})
    [done] = result.tool_executions
    assert done.result == "hi with acme/t/11" and done.arguments == {"words": "hi"}
    assert not files_with(tmp_path, b"4711-secret")
    assert "4711-secret" not in str(result.to_dict())


class SecondTry(Hook):
    """Has a failed call repeated."""

    async def on_before_tool_call(self, event: Any) -> None:
        event.secret_arguments = {"token": "s3cret"}

    async def on_after_tool_call(self, event: Any) -> None:
        event.retry = True
        event.result = "not used"


@pytest.mark.spec("LOOP-92", "HOOK-24")
async def test_a_call_is_repeated_once_with_the_same_arguments(runtime: Runtime, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"

    @tool
    async def flaky(words: str, token: str = "none") -> str:
        """Fail the first time."""
        again = ledger.exists()
        with ledger.open("a") as file:
            file.write(f"{words}-{token}\n")
        if not again:
            raise OSError("not yet")
        return "worked"

    result = await Agent(ScriptedModel([tool_call("flaky", words="a"), text("ok")]), [flaky], hooks=[SecondTry()]).arun("go")
    assert ledger.read_text().split() == ["a-s3cret", "a-s3cret"]
    [done] = result.tool_executions
    assert (done.result, done.error, done.arguments) == ("worked", None, {"words": "a"})


@pytest.mark.spec("LOOP-93")
async def test_replacing_the_text_of_a_failed_call_keeps_its_error(runtime: Runtime) -> None:
    @tool
    async def broken() -> str:
        """Fail."""
        raise OSError("disk full")

    result = await Agent(ScriptedModel([tool_call("broken"), text("ok")]), [broken], hooks=[Rewriter()]).arun("go")
    [done] = result.tool_executions
    assert "disk full" in (done.error or "") and done.result is None and not done.success
    [shown] = [message.content for message in result.messages if message.role == "tool"]
    assert shown == '{"was": null}'


class Unsteady(Hook):
    """Another secret for every call, and always the same arguments."""

    def __init__(self) -> None:
        self.calls = 0

    async def on_before_tool_call(self, event: Any) -> None:
        self.calls += 1
        event.arguments = {"words": "same"}
        event.secret_arguments = {"token": f"secret {self.calls}"}


@pytest.mark.spec("LOOP-76")
async def test_idempotent_calls_are_compared_after_edits_and_without_secrets(runtime: Runtime, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"

    @tool(idempotent=True)
    async def note(words: str, token: str = "none") -> str:
        """Write down."""
        with ledger.open("a") as file:
            file.write("x")
        return words

    twice = tool_calls(("note", {"words": "a"}), ("note", {"words": "b"}))
    agent = Agent(ScriptedModel([twice, tool_call("note", words="c"), text("ok")]), [note], hooks=[Unsteady()])
    result = await agent.arun("go")
    assert ledger.read_text() == "x"
    assert [done.idempotent_cache_hit for done in result.tool_executions] == [False, True, True]
