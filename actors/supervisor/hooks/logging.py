"""Hooks that write a run's course into the log: as text, or as one dictionary a record.

Neither keeps anything between callbacks. At the default settings neither writes argument values or results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .base import Hook, Priority

if TYPE_CHECKING:
    from ....protocol.state import AgentState
    from .events import AfterToolCall, BeforeToolCall

PROMPT_PREVIEW = 100
RESULT_PREVIEW = 200


def utc_now() -> datetime:
    """The time, UTC."""
    return datetime.now(UTC)


def preview(text: str, limit: int) -> str:
    """One line of ``text``, at most ``limit`` characters and a mark that something was cut."""
    line = " ".join(text[: 2 * limit + 1].split())
    return line if len(line) <= limit and len(text) <= 2 * limit else f"{line[:limit]}..."


def summary(state: AgentState, now: datetime) -> dict[str, Any]:
    """What a finished turn amounts to; ``duration_s`` are seconds since it began, None when that is unknown."""
    started = state.started_at
    return {
        "iterations": state.iteration,
        "confidence": round(state.confidence, 3),
        "tool_calls": len(state.tool_executions),
        "errors": len(state.errors),
        "duration_s": None if started is None else round((now - started).total_seconds(), 3),
    }


class LoggingHook(Hook):
    """Writes lines to the logger ``umbel.agent``.

    Args:
        level: of the lines.
        log_arguments: write the values of tool arguments, not only their names.
        log_results: write a preview of tool results (200 characters).
        logger: another logger's name.
        clock: the time, for durations.

    Source: HOOK-32.
    """

    priority = Priority.OBSERVABILITY

    def __init__(
        self,
        *,
        level: int = logging.INFO,
        log_arguments: bool = False,
        log_results: bool = False,
        logger: str = "umbel.agent",
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.level = level
        self.log_arguments = log_arguments
        self.log_results = log_results
        self.logger = logger
        self.clock = clock

    async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
        self._log("run %s started: %s", state.run_id, preview(prompt, PROMPT_PREVIEW))
        return state

    async def on_after_invocation(self, state: AgentState, success: bool) -> None:
        facts = summary(state, self.clock())
        outcome = "completed" if success else "failed"
        self._log("run %s %s: %s", state.run_id, outcome, ", ".join(f"{name}={value}" for name, value in facts.items()))

    async def on_iteration_start(self, iteration: int, state: AgentState) -> None:
        self._log("run %s iteration %d started", state.run_id, iteration)

    async def on_iteration_end(self, iteration: int, state: AgentState) -> None:
        self._log("run %s iteration %d ended", state.run_id, iteration)

    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        shown: Any = event.arguments if self.log_arguments else sorted(event.arguments)
        self._log("run %s tool %s started (%s): %s", event.run_id, event.tool_name, event.tool_call_id, shown)

    async def on_after_tool_call(self, event: AfterToolCall) -> None:
        outcome = "ended" if event.error is None else "failed"
        shown = f": {preview(str(event.result), RESULT_PREVIEW)}" if self.log_results and event.result is not None else ""
        self._log("run %s tool %s %s (%s)%s", event.run_id, event.tool_name, outcome, event.tool_call_id, shown)

    def _log(self, text: str, *values: Any) -> None:
        logging.getLogger(self.logger).log(self.level, text, *values)


class StructuredLoggingHook(Hook):
    """Writes to the logger ``umbel.agent.structured``: each record's ``msg`` is a dictionary, for JSON formatters.

    Every dictionary has ``event`` (``invocation_start``, ``invocation_end``, ``iteration_start``, ``iteration_end``,
    ``tool_start``, ``tool_end``) and ``run_id``; never arguments or results.

    Args:
        level: of the records.
        timestamps: add ``timestamp``, ISO 8601, UTC.
        logger: another logger's name.
        clock: the time.

    Source: HOOK-33.
    """

    priority = Priority.OBSERVABILITY

    def __init__(
        self,
        *,
        level: int = logging.INFO,
        timestamps: bool = True,
        logger: str = "umbel.agent.structured",
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.level = level
        self.timestamps = timestamps
        self.logger = logger
        self.clock = clock

    async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
        self._log("invocation_start", state.run_id, prompt_chars=len(prompt))
        return state

    async def on_after_invocation(self, state: AgentState, success: bool) -> None:
        self._log("invocation_end", state.run_id, success=success, **summary(state, self.clock()))

    async def on_iteration_start(self, iteration: int, state: AgentState) -> None:
        self._log("iteration_start", state.run_id, iteration=iteration)

    async def on_iteration_end(self, iteration: int, state: AgentState) -> None:
        self._log("iteration_end", state.run_id, iteration=iteration)

    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        self._log("tool_start", event.run_id, tool_name=event.tool_name, tool_call_id=event.tool_call_id)

    async def on_after_tool_call(self, event: AfterToolCall) -> None:
        names = {"tool_name": event.tool_name, "tool_call_id": event.tool_call_id}
        self._log("tool_end", event.run_id, **names, success=event.error is None)

    def _log(self, event: str, run_id: str, **facts: Any) -> None:
        record = {"event": event, "run_id": run_id, **facts}
        if self.timestamps:
            record["timestamp"] = self.clock().isoformat()
        logging.getLogger(self.logger).log(self.level, record)
