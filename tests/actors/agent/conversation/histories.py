"""Conversations for tests: built by hand, or drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from umbel.actors.agent.conversation.steps import is_summary, opening, split_steps
from umbel.protocol.markers import AUTOMATED, MEMORY_BLOCK, TURN_ONLY
from umbel.protocol.messages import Message, ToolCall, ToolResult
from umbel.testing import validate_history


def calls(*ids: str, text: str | None = None, **arguments: Any) -> Message:
    return Message.assistant(text, tool_calls=tuple(ToolCall(id=i, name="look", arguments=arguments) for i in ids))


def result(call_id: str, content: str = "r") -> Message:
    return Message.tool(ToolResult(tool_call_id=call_id, name="look", content=content))


def turn(number: int, size: int = 400) -> list[Message]:
    """A call and its result of ``size`` characters."""
    return [calls(f"c{number}"), result(f"c{number}", f"{number}:".ljust(size, "x"))]


def work(turns: int, size: int = 400) -> list[Message]:
    """A system prompt, a request, and so many turns of one call each."""
    return [Message.system("system"), Message.user("request"), *(m for n in range(turns) for m in turn(n, size))]


_TEXT = st.sampled_from(["a", "bb " * 10, "c" * 300, "d" * 2_000])
_NOTES = st.one_of(
    st.builds(Message.system, _TEXT),
    st.builds(lambda text: Message.user(text, **{AUTOMATED: True}), _TEXT),
    st.builds(lambda text: Message.system(text, **{MEMORY_BLOCK: True}), _TEXT),
    st.builds(lambda text: Message.system(text, **{TURN_ONLY: True}), _TEXT),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Any conversation that a provider accepts: system messages, then requests, replies, batches of calls, and notes."""
    messages = [Message.system(text) for text in draw(st.lists(_TEXT, max_size=2))]
    messages.append(Message.user(draw(_TEXT)))
    number = 0
    for kind in draw(st.lists(st.sampled_from(["user", "text", "calls", "calls", "calls", "note"]), max_size=30)):
        if kind == "user":
            messages.append(Message.user(draw(_TEXT)))
        elif kind == "text":
            messages.append(Message.assistant(draw(_TEXT)))
        elif kind == "note":
            messages.append(draw(_NOTES))
        else:
            ids = [f"c{number + n}" for n in range(draw(st.integers(1, 3)))]
            number += len(ids)
            messages += [calls(*ids), *(result(i, draw(_TEXT)) for i in ids)]
    validate_history(messages)
    return messages


def check_shortened(before: Sequence[Message], after: Sequence[Message]) -> None:
    """What every shortening must leave true: valid, whole steps in order, system prompt, request and newest turn kept."""
    validate_history(after)
    kept = [message for message in after if not is_summary(message)]
    rest = iter(before)
    for message in kept:
        assert any(same(message, other) for other in rest), "reordered or invented"
    systems = [m for n, m in enumerate(before) if all(x.role == "system" for x in before[: n + 1])]
    assert list(after[: len(systems)]) == systems
    steps = split_steps(before)
    request = opening(steps)
    assert request is not None and any(message is steps[request][0] for message in after)
    assert same(after[-1], before[-1])


def same(one: Message, other: Message) -> bool:
    """The same message, its output perhaps cleared."""
    return one is other or (one.role == other.role == "tool" and one.tool_call_id == other.tool_call_id)
