from __future__ import annotations

import copy
from typing import Any

import pytest

from umbel.actors.supervisor.hooks import (
    AfterModelCall,
    AfterToolCall,
    BeforeCompaction,
    BeforeModelCall,
    BeforeToolCall,
    HookEvent,
)
from umbel.events import CustomEvent, RunInfo, ThinkEvent
from umbel.protocol.messages import Message, Usage
from umbel.testing import text

RUN = RunInfo(run_id="r1", thread_id="t1", metadata={"user": "ada"}, agent_name="helper")


def every_event() -> list[HookEvent]:
    messages = (Message.user("hello"),)
    return [
        BeforeModelCall(messages=messages, tools=[{"type": "function"}], run=RUN),
        AfterModelCall(response=text("hi"), messages=messages, run=RUN),
        BeforeToolCall(tool_name="add", tool_call_id="c1", arguments={"a": 1}, run=RUN),
        AfterToolCall(tool_name="add", tool_call_id="c1", arguments={"a": 1}, result="1", run=RUN),
        BeforeCompaction(messages=messages, tokens=9, threshold=8, context_window=10, iteration=2, run=RUN),
    ]


FIELDS: dict[type[HookEvent], tuple[set[str], set[str]]] = {
    BeforeModelCall: ({"messages"}, {"tools", "run"}),
    AfterModelCall: ({"retry", "retry_feedback", "response"}, {"messages", "run"}),
    BeforeToolCall: ({"arguments", "secret_arguments", "cancel"}, {"tool_name", "tool_call_id", "run"}),
    AfterToolCall: ({"retry", "result"}, {"tool_name", "tool_call_id", "arguments", "error", "duration_ms", "run"}),
    BeforeCompaction: ({"instructions", "cancel"}, {"messages", "tokens", "threshold", "context_window", "iteration", "run"}),
}


@pytest.mark.spec("HOOK-10", "HOOK-11", "HOOK-12", "HOOK-13", "HOOK-14", "HOOK-15")
@pytest.mark.parametrize("event", every_event(), ids=lambda event: type(event).__name__)
def test_only_the_documented_fields_can_be_set(event: HookEvent) -> None:
    writable, fixed = FIELDS[type(event)]
    for name in writable:
        setattr(event, name, getattr(event, name))
    for name in (*fixed, "undeclared"):
        with pytest.raises(AttributeError) as caught:
            setattr(event, name, None)
        assert all(word in str(caught.value) for word in writable)
    with pytest.raises(AttributeError):
        delattr(event, next(iter(fixed)))


@pytest.mark.spec("HOOK-10")
def test_changing_the_messages_of_a_request_leaves_the_state_alone() -> None:
    conversation = (Message.user("one"),)
    event = BeforeModelCall(messages=conversation)
    event.messages.append(Message.user("two"))
    assert [len(conversation), len(event.messages)] == [1, 2]
    event.messages = (Message.user("three"),)  # type: ignore[assignment]  # any iterable will do
    assert [message.content for message in event.messages] == ["three"]
    with pytest.raises(TypeError, match="Message objects, not str"):
        event.messages = ["three"]  # type: ignore[list-item]


@pytest.mark.spec("HOOK-20")
def test_arguments_are_a_copy_at_every_depth() -> None:
    given = {"path": {"name": "a"}}
    original = copy.deepcopy(given)
    event = BeforeToolCall(tool_name="read", arguments=given)
    event.arguments["path"]["name"] = "b"
    assert given == original
    assert event.arguments == {"path": {"name": "b"}}


def test_arguments_of_a_call_that_is_over_are_read_only() -> None:
    event = AfterToolCall(tool_name="read", arguments={"path": "a"})
    with pytest.raises(TypeError):
        event.arguments["path"] = "b"  # type: ignore[index]


@pytest.mark.spec("HOOK-21")
def test_secret_arguments_reach_the_body_and_are_masked_in_the_repr() -> None:
    event = BeforeToolCall(tool_name="send", arguments={"to": "bob", "token": "none"})
    event.secret_arguments = {"token": "s3cret"}
    assert event.full_arguments == {"to": "bob", "token": "s3cret"}
    assert event.arguments == {"to": "bob", "token": "none"}
    assert "s3cret" not in repr(event) and "'token': '***'" in repr(event) and "bob" in repr(event)


@pytest.mark.parametrize(
    ("event", "field", "value"),
    [
        (BeforeToolCall(tool_name="x"), "cancel", ""),
        (BeforeToolCall(tool_name="x"), "cancel", None),
        (BeforeToolCall(tool_name="x"), "arguments", [1]),
        (AfterModelCall(response=text("x")), "response", "text"),
        (AfterModelCall(response=text("x")), "retry", "yes"),
        (AfterToolCall(tool_name="x"), "retry", 1),
        (BeforeCompaction(messages=(), tokens=1, threshold=1, context_window=1), "instructions", 7),
    ],
)
@pytest.mark.spec("HOOK-25")
def test_values_of_the_wrong_type_are_refused_where_they_are_set(event: HookEvent, field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=field):
        setattr(event, field, value)


@pytest.mark.parametrize(
    ("cancel", "reason"), [(False, None), (True, "The call was cancelled before it ran."), ("not on Sundays", "not on Sundays")]
)
def test_cancel_is_a_reason_or_a_default_wording(cancel: bool | str, reason: str | None) -> None:
    event = BeforeToolCall(tool_name="x")
    event.cancel = not cancel
    event.cancel = cancel
    assert event.cancel_reason == reason


@pytest.mark.spec("HOOK-26")
def test_custom_events_are_queued_with_the_runs_ids() -> None:
    queue: list[CustomEvent] = []
    event = BeforeToolCall(tool_name="x", tool_call_id="c7", run=RUN, queue=queue)
    event.emit(CustomEvent(name="seen", data={"n": 1}))
    event.emit(CustomEvent(name="own", tool_call_id="c1"))
    assert [(e.name, e.run_id, e.thread_id, e.tool_call_id) for e in queue] == [
        ("seen", "r1", "t1", "c7"),
        ("own", "r1", "t1", "c1"),
    ]
    assert [e.name for e in event.drain()] == ["seen", "own"]
    assert event.drain() == queue == []


@pytest.mark.spec("HOOK-26", "HOOK-27")
def test_emitting_needs_a_run_and_a_custom_event() -> None:
    by_hand = BeforeToolCall(tool_name="x")
    assert by_hand.run is None and by_hand.run_id == ""
    with pytest.raises(RuntimeError, match="inside a run"):
        by_hand.emit(CustomEvent(name="seen"))
    with pytest.raises(TypeError, match="not ThinkEvent"):
        BeforeToolCall(tool_name="x", run=RUN).emit(ThinkEvent(iteration=1))  # type: ignore[arg-type]


@pytest.mark.spec("HOOK-27", "EVT-25")
@pytest.mark.parametrize("event", every_event(), ids=lambda event: type(event).__name__)
def test_every_event_says_whose_run_it_is(event: HookEvent) -> None:
    assert event.run == RUN
    assert event.run_id == "r1"
    assert event.run.metadata["user"] == "ada"
    with pytest.raises(TypeError):
        event.run.metadata["user"] = "bob"  # type: ignore[index]


def test_a_hooks_own_model_call_is_counted_where_the_loop_says() -> None:
    counted: list[tuple[Usage | None, float | None]] = []
    usage = Usage(prompt_tokens=3)
    BeforeToolCall(tool_name="x", run=RUN, count=lambda *call: counted.append(call)).count(usage, 0.5)
    BeforeToolCall(tool_name="x").count(usage)
    assert counted == [(usage, 0.5)]


def test_ephemeral_metadata_can_be_read_and_does_not_show() -> None:
    event = BeforeToolCall(tool_name="x", run=RUN, ephemeral={"token": "s3cret"})
    assert event.ephemeral_metadata["token"] == "s3cret"
    assert "s3cret" not in repr(event)
    with pytest.raises(AttributeError, match="writable here: arguments"):
        setattr(event, "ephemeral_metadata", {})  # noqa: B010 - mypy knows that it cannot be set
    with pytest.raises(TypeError):
        event.ephemeral_metadata["token"] = "x"  # type: ignore[index]
    assert dict(BeforeToolCall(tool_name="x").ephemeral_metadata) == {}
