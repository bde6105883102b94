"""What a segment found when it began. Its last save takes the place of those of its iterations. Source: MEM-42, LOOP-99.

Those are only there for a crash. Once the segment has ended or is paused, its last checkpoint holds all of them, as a delta on
the checkpoint that the segment found: so a thread's history has one checkpoint for each time that a run came to rest, and
what a turn takes in the store is written once more when it ends. ``keep_iteration_checkpoints`` keeps them.

Only a segment's own checkpoints go: those of one that a crash cut off, and that nobody recovered, say that it has begun.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...protocol.commands import CheckpointLoaded, SaveCheckpoint
from ..checkpoints.delta import Baseline

ONTO, SAVES = "segment_onto", "segment_saves"


@dataclass(slots=True)
class Opening:
    """Where a segment began.

    Attributes:
        onto: the checkpoint that it found; None in a new thread.
        baseline: what that holds; None where the state was not read again, and in a new thread.
        saves: checkpoints of the segment since.
    """

    onto: str | None
    baseline: Baseline | None
    saves: int = 0

    def facts(self) -> dict[str, Any]:
        """For the metadata of the segment's next checkpoint: what a recovered run must know."""
        return {ONTO: self.onto, SAVES: self.saves + 1}

    def placed(self, save: SaveCheckpoint, newest: Baseline) -> SaveCheckpoint:
        """A save that was built on this opening, as the one that takes the place of all since."""
        return save.evolve(parent_id=newest.checkpoint_id, supersedes=self.saves, onto=self.onto)


def opening_of(loaded: CheckpointLoaded, found: Baseline | None, segment: str) -> Opening:
    """The opening of the segment that goes on with what was ``loaded``, also if a crash has cut it off meanwhile."""
    facts = loaded.metadata
    if facts.get("segment") == segment and SAVES in facts:
        return Opening(facts.get(ONTO), None, int(facts[SAVES]))
    return Opening(loaded.checkpoint_id, found)
