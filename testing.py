"""Doubles for tests: a scripted model, and the rule that every provider enforces on a conversation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from .protocol.errors import ModelError, UmbelError
from .protocol.messages import Message, ModelChunk, ModelResponse, ToolCall, Usage

Turn = ModelResponse | Exception | Callable[[list[Message]], ModelResponse]


def text(content: str, *, stop_reason: Any = "stop", usage: Usage | None = None) -> ModelResponse:
    """A reply that is text."""
    return ModelResponse(message=Message.assistant(content), stop_reason=stop_reason, usage=usage)


def tool_call(name: str, /, **arguments: Any) -> ModelResponse:
    """A reply that is one call."""
    return tool_calls((name, arguments))


def tool_calls(*calls: tuple[str, dict[str, Any]] | ToolCall, content: str | None = None) -> ModelResponse:
    """A reply with several calls: ``(name, arguments)`` pairs, or ``ToolCall`` objects for full control."""
    made = tuple(call if isinstance(call, ToolCall) else ToolCall(name=call[0], arguments=call[1]) for call in calls)
    return ModelResponse(message=Message.assistant(content, tool_calls=made), stop_reason="tool_calls")


def error(problem: str | Exception) -> Exception:
    """A turn that fails: ``ModelError`` with this text, or the given exception."""
    return problem if isinstance(problem, Exception) else ModelError(problem)


class ScriptedModel:
    """Turn n answers the n-th model call of a turn, whichever actor makes it.

    The position is read off the conversation (assistant messages since the last user message), so one model serves any
    number of runs at once. Every conversation is checked with :func:`validate_history` first.

    Args:
        turns: replies, exceptions to raise, or functions from the conversation to a reply.
        delay: seconds that every call takes.
        loop: begin again at the end instead of failing.

    Raises:
        ModelError: more calls than turns.
    """

    def __init__(self, turns: Sequence[Turn], *, delay: float = 0.0, loop: bool = False) -> None:
        self.turns = tuple(turns)
        self.delay = delay
        self.loop = loop

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **settings: Any
    ) -> ModelResponse:
        if self.delay:
            await asyncio.sleep(self.delay)
        validate_history(messages)
        turn = self._turn(messages)
        if isinstance(turn, Exception):
            raise turn.with_traceback(None)  # one object, raised in many runs, would collect all their frames
        reply = turn(messages) if callable(turn) else turn
        return reply if reply.usage is not None else reply.evolve(usage=_usage(messages, reply))

    async def stream(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **settings: Any
    ) -> AsyncIterator[ModelChunk]:
        reply = await self.complete(messages, tools, **settings)
        for word in re.findall(r"\s*\S+|\s+$", reply.content or ""):
            yield ModelChunk(content=word)
        if reply.tool_calls:
            yield ModelChunk(tool_calls=reply.tool_calls)
        yield ModelChunk(done=True, usage=reply.usage, stop_reason=reply.stop_reason)

    def _turn(self, messages: list[Message]) -> Turn:
        position = 0
        for message in reversed(messages):
            if message.role == "user" and not message.metadata.get("automated"):
                break
            position += message.role == "assistant"
        if position >= len(self.turns) and not self.loop:
            raise ModelError(f"the script has {len(self.turns)} turns, this is model call {position + 1} of the run")
        return self.turns[position % len(self.turns)]


def validate_history(messages: Sequence[Message]) -> None:
    """Check what providers demand of a conversation: every call is answered exactly once, directly after its message.

    Raises:
        InvalidHistory: the first violation, with its position.
    """
    waiting: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(messages):
        where = f"message {index} ({message.role})"
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                raise InvalidHistory(f"{where} answers {message.tool_call_id!r}, which is not an open call right before it")
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            raise InvalidHistory(f"{where} comes before the results of {', '.join(waiting)}")
        for call in message.tool_calls:
            if not call.id:
                raise InvalidHistory(f"{where} has a call without an id")
            if call.id in seen:
                raise InvalidHistory(f"{where} uses call id {call.id!r} a second time")
            seen.add(call.id)
            waiting.append(call.id)
    if waiting:
        raise InvalidHistory(f"the conversation ends before the results of {', '.join(waiting)}")


class InvalidHistory(UmbelError):
    """A conversation that a provider would refuse."""

    code = "invalid_history"


def _usage(messages: list[Message], reply: ModelResponse) -> Usage:
    prompt = sum(len(message.content or "") for message in messages)
    return Usage(prompt_tokens=prompt // 4, completion_tokens=len(reply.content or "") // 4 + 8 * len(reply.tool_calls))
