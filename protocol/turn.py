"""Where a turn stands between its segments: paused, cut off, or over."""

from __future__ import annotations

from .messages import Frozen, InterruptRequest, Json, JsonObject, Message, Text, ToolCall


class PendingInterrupt(Frozen):
    """A tool call that waits for a person.

    Attributes:
        interrupt_id: what an answer must name: the call's id, and a number when the call asks again.
        call: the call as it was made.
        request: what is asked.
        answers: answers that the call got before, oldest first: it is performed again with all of them.
        child: the paused state of the agent that the call runs, and which of its interrupts this one stands for.
    """

    interrupt_id: Text
    call: ToolCall
    request: InterruptRequest
    answers: tuple[Json, ...] = ()
    child: JsonObject | None = None


class Turn(Frozen):
    """Where a turn stands between its segments.

    Attributes:
        elapsed_seconds: what earlier segments took; waiting for a person does not count.
        model_calls: of earlier segments, where the turn is paused.
        interrupts: what the paused turn waits for, in call order.
        stop_reason: why the turn ended; None while it goes on, is paused, or was cut off.
    """

    elapsed_seconds: float = 0.0
    model_calls: int = 0
    interrupts: tuple[PendingInterrupt, ...] = ()
    stop_reason: Text | None = None


def open_calls(messages: tuple[Message, ...]) -> list[ToolCall]:
    """Calls without a result, in order."""
    answered = {message.tool_call_id for message in messages if message.role == "tool"}
    return [call for message in messages for call in message.tool_calls if call.id not in answered]
