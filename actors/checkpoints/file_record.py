"""``thread.json``: what a file store knows of a thread without reading its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.messages import NOTHING, Frozen, JsonObject
from ...protocol.storage import JournalEntry
from .lease import Lease

RECORD = "thread.json"


class ThreadRecord(Frozen):
    """What ``thread.json`` holds.

    Attributes:
        thread_id: whose folder it is; the folder's own name is a hash.
        first, newest: positions of the oldest and the newest checkpoint; ``newest`` is 0 without any.
        gaps: first and last positions of files that do not count any more, until the next save has removed them.
        checkpoint_id, depth, updated_at, metadata: of the newest.
        created_at: of the oldest.
        token, owner, expires_at, deleted_at: see :class:`Lease`.
        journal: see ``CheckpointLoaded``.
        statics: the texts that its checkpoints refer to.
    """

    thread_id: str
    first: int = 1
    newest: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    checkpoint_id: str | None = None
    depth: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0
    metadata: JsonObject = NOTHING
    token: int = 0
    owner: str | None = None
    expires_at: float = 0.0
    deleted_at: float | None = None
    journal: tuple[JournalEntry, ...] = ()
    statics: tuple[str, ...] = ()

    @property
    def lease(self) -> Lease:
        """The thread's lease."""
        return Lease(self.token, self.owner, self.expires_at, self.deleted_at)

    def with_lease(self, lease: Lease) -> ThreadRecord:
        """The record with another lease."""
        return self.evolve(token=lease.token, owner=lease.owner, expires_at=lease.expires_at, deleted_at=lease.deleted_at)

    def with_entries(self, entries: Sequence[JournalEntry], *, settles: bool = False) -> ThreadRecord:
        """The record with more in its journal."""
        journal = {} if settles else {(entry.call_id, entry.phase): entry for entry in self.journal}
        for entry in entries:
            journal.setdefault((entry.call_id, entry.phase), entry)
        return self.evolve(journal=tuple(journal.values()))
