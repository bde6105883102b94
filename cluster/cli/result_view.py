"""A run at the terminal: its events as they come, and its result."""

from __future__ import annotations

import json
from typing import Any

import typer


class EventView:
    """Shows events: the text that a model writes on stdout, what else happens on stderr; or all of them as JSON.

    What a member of a pattern writes goes to stderr, line by line, with the member's step before it: several may write at
    the same time.

    Attributes:
        streamed: the newest reply was shown as it was written.
    """

    def __init__(self, *, as_json: bool, quiet: bool = False) -> None:
        self.streamed = False
        self._as_json = as_json
        self._quiet = quiet
        self._lines: dict[str, str] = {}

    def show(self, event: Any) -> None:
        """Print one event."""
        if self._as_json:
            typer.echo(event.to_json())
            return
        place: list[str] = []
        while event.event_type == "member":
            place.append(event.step)
            event = event.event
        if place and not self._quiet:
            self._show_member("/".join(place), event)
        elif place:
            return
        elif event.event_type == "model_chunk" and event.content:
            self.streamed = True
            typer.echo(event.content, nl=False)
        elif event.event_type == "think":
            if self.streamed:
                typer.echo()
        elif event.event_type == "tool_start":
            self.streamed = False
            _tell(f"calling {event.tool_name}")
        elif not self._quiet:
            _tell_of_step(event, "")

    def _show_member(self, place: str, event: Any) -> None:
        if event.event_type == "model_chunk" and event.content:
            *whole, rest = (self._lines.pop(place, "") + event.content).split("\n")
            for line in whole:
                _tell(line, f"{place}| ")
            self._lines[place] = rest
        elif event.event_type == "think":
            self._flush(place)
        elif event.event_type == "tool_start":
            self._flush(place)
            _tell(f"{place}: calling {event.tool_name}")
        else:
            _tell_of_step(event, f"{place}/")

    def _flush(self, place: str) -> None:
        line = self._lines.pop(place, "")
        if line:
            _tell(line, f"{place}| ")


def _tell(text: str, before: str = "umbel: ") -> None:
    from .thread_views import printable

    typer.echo(printable(f"{before}{text}"), err=True)


def _tell_of_step(event: Any, place: str) -> None:
    """A step of a pattern starts or ends, or a conversation is handed over."""
    if event.event_type == "step_start":
        _tell(f"{place}{event.step}: started")
    elif event.event_type == "step_complete":
        why = f" ({event.error})" if event.error else ""
        _tell(f"{place}{event.step}: {event.status}{why} after {event.duration_ms / 1e3:,.1f} s")
    elif event.event_type == "handoff":
        _tell(f"{place}{event.source} hands over to {event.target}")


def show_result(result: Any, *, as_json: bool, shown: bool = False, quiet: bool = False) -> None:
    """Print a result.

    Args:
        result: of an agent or a pattern; of a pattern also what its members did, on stderr.
        as_json: as one JSON object.
        shown: its message was streamed already.
        quiet: without the members.
    """
    members = getattr(result, "members", None)
    if as_json:
        typer.echo(json.dumps(facts_of(result), ensure_ascii=False))
    elif result.message and not shown:
        typer.echo(result.message)
    if members and not as_json and not quiet:
        from .member_view import member_table

        typer.echo(member_table(members), err=True)
    if not result.success:
        error = getattr(result, "error", None)
        _tell(f"the run ended with {result.stop_reason}{f': {error}' if error is not None else ''}")
    for asked in getattr(result, "interrupts", ()):
        options = f" ({', '.join(asked['options'])})" if asked.get("options") else ""
        _tell(f"it asks, as {asked['interrupt_id']}: {asked['question']}{options}")


def facts_of(result: Any) -> dict[str, Any]:
    """A result as JSON values; the keys are stable."""
    names = ("run_id", "thread_id", "success", "stop_reason", "message")
    facts = {name: getattr(result, name, None) for name in names}
    facts["metrics"] = result.metrics.model_dump(mode="json")
    if getattr(result, "members", None) is not None:
        from .member_view import member_facts

        error = result.error
        facts |= {"value": result.value, "outputs": result.outputs, "details": result.details}
        facts |= {"error": None if error is None else error.to_wire(), "members": member_facts(result.members)}
    if getattr(result, "interrupts", ()):
        facts["interrupts"] = list(result.interrupts)
    return facts
