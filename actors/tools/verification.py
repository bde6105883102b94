"""Did the agent check what it wrote? Read from the run's executions, nothing is kept (TOOL-32, TOOL-33, LOOP-94)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ...protocol.config import VERIFICATION_TOOLS, WRITE_TOOLS
from ...protocol.messages import ToolCall, ToolResult
from ...protocol.state import ToolExecution

UNVERIFIED = "unverified"
REMINDER = "You changed something. Verify it (run it, test it or read it back) before you say that the task is complete."
_NEVER_RAN = frozenset(
    {"unknown_tool", "invalid_arguments", "cancelled", "cut_off", "depth", "interrupted", "circuit_open", UNVERIFIED}
)


def unverified_writes(
    executions: Iterable[ToolExecution],
    write_tools: Collection[str] = WRITE_TOOLS,
    verification_tools: Collection[str] = VERIFICATION_TOOLS,
) -> bool:
    """Whether a completion should be held back.

    True after a write, also a failed or cancelled one, until a verification tool has run (whatever it found, but not a
    call that never ran, nor a reused result, which is older than the write) or :func:`blocked` has said so once.

    Args:
        executions: those of the run, in order.
        write_tools: names of the tools that change something.
        verification_tools: names of the tools that check. A tool with a name in both writes.
    """
    pending = False
    for execution in executions:
        if execution.tool_name in write_tools:
            pending = True
        elif execution.code == UNVERIFIED or (execution.tool_name in verification_tools and body_ran(execution)):
            pending = False
    return pending


def wrote(executions: Iterable[ToolExecution], write_tools: Collection[str] = WRITE_TOOLS) -> bool:
    """Whether any of these (those of a batch) is a write: then :data:`REMINDER` is due."""
    return any(execution.tool_name in write_tools for execution in executions)


def blocked(call: ToolCall, verification_tools: Collection[str] = VERIFICATION_TOOLS) -> ToolResult:
    """The answer to a completion that comes too early: an error, so that it does not end the run (OURS-4)."""
    names = ", ".join(sorted(verification_tools)) or "a tool of yours"
    why = (
        "BLOCKED: you wrote something and did not verify it afterwards. "
        f"Verify it first ({names}), then call {call.name} again; if it cannot be verified, say so in your summary."
    )
    return ToolResult(tool_call_id=call.id, name=call.name, error=why, code=UNVERIFIED)


def body_ran(execution: ToolExecution) -> bool:
    """Whether this call did something: it was not refused, stopped, or answered from an earlier result."""
    return execution.code not in _NEVER_RAN and not execution.idempotent_cache_hit
