"""Pairing of calls and results before a request."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from umbel.actors.agent.models import paired
from umbel.protocol.messages import Message, ToolCall, ToolResult


def call(*ids: str, text: str | None = None) -> Message:
    return Message.assistant(text, tool_calls=tuple(ToolCall(id=i, name="t") for i in ids))


def result(call_id: str, content: str = "r") -> Message:
    return Message.tool(ToolResult(tool_call_id=call_id, name="t", content=content))


def test_sound_conversation_is_unchanged() -> None:
    messages = [Message.system("s"), Message.user("u"), call("a", "b"), result("a"), result("b"), Message.assistant("done")]
    assert paired(messages) == messages


@pytest.mark.spec("LOOP-43")
@pytest.mark.case(13)
def test_orphan_results_and_second_results_are_dropped() -> None:
    messages = [result("x"), Message.user("u"), call("a"), result("a", "1"), result("a", "2"), result("y")]
    assert paired(messages) == [Message.user("u"), call("a"), result("a", "1")]


@pytest.mark.spec("LOOP-43")
def test_call_without_result_is_dropped_and_its_text_kept() -> None:
    assert paired([call("a", text="thinking"), Message.user("u")]) == [Message.assistant("thinking"), Message.user("u")]
    assert paired([call("a"), Message.user("u")]) == [Message.user("u")]


@pytest.mark.spec("LOOP-43")
def test_answered_sibling_of_an_orphan_call_stays() -> None:
    assert paired([call("a", "b", "c"), result("c"), result("a")]) == [call("a", "c"), result("a"), result("c")]


@pytest.mark.case(13)
def test_notes_between_call_and_result_move_behind_the_batch() -> None:
    note = Message.system("note")
    assert paired([call("a", "b"), result("a"), note, result("b")]) == [call("a", "b"), result("a"), result("b"), note]


@pytest.mark.case(6)
def test_equal_ids_are_answered_in_order_and_may_come_again() -> None:
    messages = [call("x", "x"), result("x", "1"), result("x", "2"), call("x"), result("x", "3")]
    assert paired(messages) == messages


def test_empty_assistant_message_is_removed() -> None:
    assert paired([Message.user("u"), Message.assistant(None), Message.assistant("")]) == [Message.user("u")]


IDS = st.sampled_from(["", "a", "b", "c"])
MESSAGES = st.lists(
    st.one_of(
        st.builds(Message.user, st.just("u")),
        st.builds(Message.system, st.just("s")),
        st.builds(lambda ids, text: call(*ids, text=text), st.lists(IDS, max_size=3), st.sampled_from([None, "", "text"])),
        st.builds(result, IDS),
    ),
    max_size=12,
)


@pytest.mark.case(13)
@given(MESSAGES)
def test_any_history_becomes_one_that_providers_accept(messages: list[Message]) -> None:
    fixed = paired(messages)
    waiting: list[str] = []
    for message in fixed:
        if message.role == "tool":
            assert waiting
            assert message.tool_call_id == waiting.pop(0)
            continue
        assert not waiting
        waiting = [c.id for c in message.tool_calls]
        assert message.role != "assistant" or message.content or message.tool_calls
    assert not waiting
    assert paired(fixed) == fixed
    others = [m for m in messages if m.role in {"user", "system"}]
    assert [m for m in fixed if m.role in {"user", "system"}] == others
