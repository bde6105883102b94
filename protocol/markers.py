"""Keys of ``Message.metadata`` and ``AgentState.metadata`` that the runtime itself writes.

Notes that the loop writes in the user's role carry :data:`AUTOMATED`, so that nothing takes them for the user's request.
"""

from __future__ import annotations

from .messages import Message

TURN_ONLY = "turn_only"
MEMORY_BLOCK = "memory_block"
AUTOMATED = "automated"
CONTINUATION_REASON = "continuation_reason"
BUDGET_NOTE = "budget_note"
COMPACTION_SUMMARY = "compaction_summary"
CLEARED_OUTPUT = "cleared_output"
ARCHIVED_OUTPUT = "archived_output"
RECALLABLE_OUTPUTS = "recallable_outputs"
FIRST_SAVED = "first_saved"
VALUES = "values"
STEP = "step"
HANDOFF = "handoff"  # label of a tool: a run that its call ends has no answer of its own

EPHEMERAL = "ephemeral"
MCP_HEADERS = "mcp_headers"
ITERATION_SAVES = "iteration_saves"
EPHEMERAL_KEYS = frozenset({EPHEMERAL, MCP_HEADERS})


def is_durable(message: Message) -> bool:
    """Whether the message outlives its turn: not a memory block and not marked for this turn only."""
    metadata = message.metadata
    return not metadata or not (metadata.get(TURN_ONLY) or metadata.get(MEMORY_BLOCK))


def is_request(message: Message) -> bool:
    """Whether a person (or the caller) wrote this message: the user's role, and not a note of the runtime."""
    return message.role == "user" and not message.metadata.get(AUTOMATED)
