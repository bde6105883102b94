"""A tool call on its way to a result, and what the run's subscriber is told of it."""

from __future__ import annotations

from typing import Any

from ...protocol.commands import ToolProgress
from ...protocol.events import CustomEvent, ToolCompleteEvent, ToolProgressEvent, ToolStartEvent
from ...protocol.messages import ToolCall, ToolResult
from ...protocol.turn import PendingInterrupt
from .run import Run


class Slot:
    """One call of the batch.

    Attributes:
        call: the call as it runs and is recorded: hooks may have edited its arguments.
        given: the call as the model made it.
        result: None until it is known.
        reused: an earlier equal call's result was taken; the body did not run.
        twin: an equal idempotent call earlier in the batch, whose result this one shares.
        secrets: arguments that only the body sees.
        waits: the interrupts that were answered, when the call goes on after a pause.
        asks: what the call asks a person; it has no result then.
        intended: the journal says that the body starts.
        began: the body was started.
        ran: the body ended, so hooks that look at results are asked.
        emitted: what those hooks emitted; it follows the event of the result.
        unsaved: its result is stored with the iteration, and is not told before.
        announced, told: its start and its completion were announced.
    """

    __slots__ = (
        "announced",
        "asks",
        "began",
        "call",
        "emitted",
        "given",
        "intended",
        "ran",
        "result",
        "reused",
        "secrets",
        "told",
        "tool",
        "twin",
        "unsaved",
        "waits",
    )

    def __init__(self, call: ToolCall, tool: Any, waits: tuple[PendingInterrupt, ...] = ()) -> None:
        self.call = self.given = call
        self.tool = tool
        self.waits = waits
        self.result: ToolResult | None = None
        self.twin: Slot | None = None
        self.secrets: dict[str, Any] | None = None
        self.asks: tuple[PendingInterrupt, ...] = ()
        self.emitted: list[CustomEvent] = []
        self.reused = self.intended = self.began = self.ran = self.announced = self.told = self.unsaved = False


def announce(run: Run, slot: Slot) -> None:
    """Tell the subscriber that a call starts, with the arguments that the model gave."""
    if not slot.announced:
        slot.announced = True
        call = slot.given
        run.emit(ToolStartEvent, tool_name=call.name, tool_call_id=call.id, arguments=call.arguments)


def progress(run: Run, slot: Slot, part: Any) -> None:
    """Tell the subscriber how far a call is."""
    if isinstance(part, ToolProgress):
        announce(run, slot)
        run.emit(
            ToolProgressEvent,
            tool_name=slot.call.name,
            tool_call_id=slot.call.id,
            progress=part.progress,
            total=part.total,
            message=part.message,
        )


def complete(run: Run, slot: Slot) -> None:
    """Tell the subscriber a call's result, and what its hooks had to say."""
    result = slot.result
    if result is not None and not slot.told:
        announce(run, slot)
        slot.told = True
        if slot.unsaved:
            run.hold()
        run.emit(
            ToolCompleteEvent,
            tool_name=slot.call.name,
            tool_call_id=slot.call.id,
            result=result.content if result.error is None else None,
            error=result.error,
            code=result.code,
            duration_ms=result.duration_ms,
            structured_content=result.structured_content,
            content_blocks=result.content_blocks,
        )
        if run.watched and run.journal is not None:
            run.ends.append([run.seq, slot.call.id])
    run.publish(slot.emitted)
    slot.emitted = []
