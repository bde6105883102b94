"""A tool's long result, stored once: what repeats the text of a message says which message it is.

The loop keeps a result three times: for the model in the conversation, for the application in ``tool_executions``, and for
reflection in ``reasoning_steps``. In memory they are one object; in a store they would be three copies of everything that
tools ever gave. Messages of a chain of deltas keep their places, so a place is a safe reference: whatever moves one is stored
as a snapshot, with references of its own. Source: OURS-22.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import is_
from typing import Any

from ...protocol.errors import CheckpointError
from ...protocol.messages import Message
from ...protocol.state import AgentState, ReasoningStep, ToolExecution

MARK = "umbel-echo:"
_TEXT = MARK + "="  # stands before a text that would be taken for a reference
LONG = 1_024  # characters
_FIELDS = ("tool_executions", "reasoning_steps")


def take_out(state: AgentState, place: int, fields: Collection[str] | None) -> AgentState:
    """``state`` with references instead of what repeats one of its messages.

    Args:
        state: what is stored.
        place: of the first of its messages in the whole conversation.
        fields: those that are stored; None is all.
    """
    places = {
        message.content: place + number
        for number, message in enumerate(state.messages)
        if message.role == "tool" and message.content is not None and len(message.content) >= LONG
    }

    def refer(text: str) -> str:
        if text in places:
            return f"{MARK}{places[text]}"
        return _TEXT + text if text.startswith(MARK) else text

    return _changed(state, refer, [name for name in _FIELDS if fields is None or name in fields])


def put_back(state: AgentState, where: str) -> AgentState:
    """What :func:`take_out` was given, of the whole state.

    Args:
        state: as it was stored, whole.
        where: names the checkpoint in errors.

    Raises:
        CheckpointError: a reference leads nowhere.
    """

    def read(text: str) -> str:
        if text.startswith(_TEXT):
            return text[len(_TEXT) :]
        return _text_at(state.messages, text[len(MARK) :], where) if text.startswith(MARK) else text

    return _changed(state, read, _FIELDS)


def _text_at(messages: tuple[Message, ...], place: str, where: str) -> str:
    known = place.isdecimal() and len(place) < 10 and int(place) < len(messages)
    message = messages[int(place)] if known else None
    if message is None or message.role != "tool" or message.content is None:
        raise CheckpointError(f"{where} is damaged: a tool's result refers to message {place[:20]!r}, which is none")
    return message.content


def _changed(state: AgentState, change: Callable[[str], str], fields: Collection[str]) -> AgentState:
    changes: dict[str, Any] = {}
    if "tool_executions" in fields:
        changes["tool_executions"] = tuple([_changed_execution(done, change) for done in state.tool_executions])
    if "reasoning_steps" in fields:
        changes["reasoning_steps"] = tuple([_changed_step(step, change) for step in state.reasoning_steps])
    if all(all(map(is_, now, getattr(state, name))) for name, now in changes.items()):
        return state
    return state.evolve(**changes)


def _changed_execution(done: ToolExecution, change: Callable[[str], str]) -> ToolExecution:
    text = None if done.result is None else change(done.result)
    return done if text is done.result else done.evolve(result=text)


def _changed_step(step: ReasoningStep, change: Callable[[str], str]) -> ReasoningStep:
    contents = [change(result.content) for result in step.tool_results]
    pairs = list(zip(contents, step.tool_results, strict=True))
    if all(text is result.content for text, result in pairs):
        return step
    return step.evolve(tool_results=tuple(result.evolve(content=text) for text, result in pairs))
