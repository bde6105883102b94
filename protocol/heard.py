"""What the caller of a pattern has heard of its members in progress: the number of each member's last event, as a tree.

A pattern's events hold those of its members, each with the member's own numbers. When a supervisor dies, whoever recovers the
pattern is told these numbers, so that the members' go on where they were, too: without a gap, and without a repetition.

    {step: {"seq": 7, "end": False, "heard": {step of the member: ...}}}
"""

from __future__ import annotations

from typing import Any

from .event import Event
from .events import InterruptEvent, MemberEvent, StepCompleteEvent, TerminateEvent

Heard = dict[str, dict[str, Any]]


def note(heard: Heard, event: Event) -> None:
    """Take an event of a pattern into account; a step that has ended is forgotten."""
    if isinstance(event, StepCompleteEvent):
        heard.pop(event.step, None)
    elif isinstance(event, MemberEvent):
        member = heard.setdefault(event.step, {"seq": -1, "end": False, "heard": {}})
        member["seq"] = event.event.seq
        member["end"] = isinstance(event.event, TerminateEvent | InterruptEvent)
        note(member["heard"], event.event)


def of_member(heard: dict[str, Any], step: str) -> dict[str, Any]:
    """The fields of a member's request that follow; none if nothing was heard of it."""
    known = heard.get(step)
    if known is None:
        return {}
    return {"after_seq": known["seq"], "heard": known["heard"], **({"events": False} if known["end"] else {})}
