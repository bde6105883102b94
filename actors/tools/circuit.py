"""A tool that fails again and again is not called any more in this run (TOOL-21). Read from its executions, nothing is kept."""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.messages import ToolCall, ToolResult
from ...protocol.state import ToolExecution
from .verification import body_ran

THRESHOLD = 3
OPEN = "circuit_open"


def open_circuits(executions: Iterable[ToolExecution], threshold: int = THRESHOLD) -> frozenset[str]:
    """Names of the tools whose last ``threshold`` bodies all failed. A call whose body never ran counts for nothing.

    Args:
        executions: those of the run, in order. A new turn starts without any, and so with every circuit closed.
        threshold: failures in a row, 1 or more.
    """
    failures: dict[str, int] = {}
    for execution in executions:
        if body_ran(execution):
            failures[execution.tool_name] = 0 if execution.error is None else failures.get(execution.tool_name, 0) + 1
    return frozenset(name for name, count in failures.items() if count >= threshold)


def short_circuited(call: ToolCall, threshold: int = THRESHOLD) -> ToolResult:
    """The answer to a call of such a tool: an error, and the body does not run."""
    why = f"{call.name} was not called: it failed {threshold} times in a row. Go on without it, or say why you cannot."
    return ToolResult(tool_call_id=call.id, name=call.name, error=why, code=OPEN)
