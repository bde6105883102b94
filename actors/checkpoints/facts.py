"""The metadata of checkpoints: what the runtime notes of them, and what of its own metadata a thread is found by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...protocol.markers import EPHEMERAL_KEYS, ITERATION_SAVES

MAX_CHARACTERS = 256
MEMBER_OF = "member_of"  # of a member of a pattern: the pattern's thread
SEGMENT_FACTS = frozenset({"segment", "ending", "model_calls", "ends", "segment_onto", "segment_saves"})
RUNTIME_FACTS = SEGMENT_FACTS | {MEMBER_OF, "run_id", "finished", "reason", "updated_from", "forked_from", "forked_checkpoint"}
_NOT_KEPT = EPHEMERAL_KEYS | {ITERATION_SAVES, MEMBER_OF}


def searchable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Of a conversation's metadata what its thread can be found by: texts of up to 256 characters, numbers, yes, no, None."""
    return {key: value for key, value in metadata.items() if key not in _NOT_KEPT and _is_short(value)}


def amended(facts: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's facts for the one after it, whose state has this metadata. The runtime's own names win."""
    others = {key: value for key, value in facts.items() if key not in metadata or key in RUNTIME_FACTS}
    return {**searchable({key: value for key, value in metadata.items() if key not in RUNTIME_FACTS}), **others}


def of_a_fork(facts: Mapping[str, Any], thread_id: str, checkpoint_id: str | None) -> dict[str, Any]:
    """The facts of a copy in another thread: it is nobody's segment there."""
    kept = {key: value for key, value in facts.items() if key not in SEGMENT_FACTS and key != MEMBER_OF}
    return {**kept, "forked_from": thread_id, "forked_checkpoint": checkpoint_id}


def _is_short(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_CHARACTERS)
