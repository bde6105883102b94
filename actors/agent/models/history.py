"""Repairs a conversation before it is sent: every call directly followed by its one result, nothing orphaned."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ....protocol.messages import Message

_Place = tuple[int, int]


def paired(messages: Sequence[Message]) -> list[Message]:
    """``messages`` as providers accept them. Pure: the stored conversation is untouched.

    A result whose call is absent is dropped, as is a second result of one call. A call without a result is dropped;
    its message stays as text if it has text. Results stand right behind their calls, in call order, and what stood
    between moves behind them. Assistant messages with nothing in them are removed.

    Source: spec LOOP-43; BUG-31; public case 13.
    """
    results = _results_by_place(messages)
    repaired: list[Message] = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            repaired.extend(_batch(message, index, results))
        elif message.role != "tool":
            repaired.append(message)
    return repaired


def _batch(message: Message, index: int, results: dict[_Place, Message]) -> list[Message]:
    answered = [place for place in ((index, n) for n in range(len(message.tool_calls))) if place in results]
    if len(answered) != len(message.tool_calls):
        message = message.evolve(tool_calls=tuple(message.tool_calls[n] for _, n in answered))
    if not message.tool_calls and not message.content:
        return []
    return [message, *(results[place] for place in answered)]


def _results_by_place(messages: Sequence[Message]) -> dict[_Place, Message]:
    """Result of each call, by the call's place. Calls of one message that share an id are answered in order."""
    waiting: dict[str, deque[_Place]] = {}
    results: dict[_Place, Message] = {}
    for index, message in enumerate(messages):
        if message.tool_calls:
            waiting.update({call.id: deque() for call in message.tool_calls})
            for n, call in enumerate(message.tool_calls):
                waiting[call.id].append((index, n))
        elif message.role == "tool":
            places = waiting.get(message.tool_call_id or "")
            if places:
                results[places.popleft()] = message
    return results
