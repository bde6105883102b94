"""A run at the terminal: its events as they come, and its result."""

from __future__ import annotations

import json
from typing import Any

import typer


class EventView:
    """Shows events: the text that a model writes on stdout, what else happens on stderr; or all of them as JSON.

    Attributes:
        streamed: the newest reply was shown as it was written.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.streamed = False
        self._as_json = as_json

    def show(self, event: Any) -> None:
        """Print one event."""
        if self._as_json:
            typer.echo(event.to_json())
        elif event.event_type == "model_chunk" and event.content:
            self.streamed = True
            typer.echo(event.content, nl=False)
        elif event.event_type == "think":
            if self.streamed:
                typer.echo()
        elif event.event_type == "tool_start":
            self.streamed = False
            typer.echo(f"umbel: calling {event.tool_name}", err=True)


def show_result(result: Any, *, as_json: bool, shown: bool = False) -> None:
    """Print a result; ``shown``: its message was streamed already."""
    if as_json:
        names = ("run_id", "thread_id", "success", "stop_reason", "message")
        metrics = result.metrics.model_dump(mode="json")
        typer.echo(
            json.dumps({**{name: getattr(result, name, None) for name in names}, "metrics": metrics}, ensure_ascii=False)
        )
    elif result.message and not shown:
        typer.echo(result.message)
    if not result.success:
        typer.echo(f"umbel: the run ended with {result.stop_reason}", err=True)
