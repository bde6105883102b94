"""A thread's head in a bucket: one small object that says what counts, replaced only by whoever saw its newest content.

Checkpoints are objects of their own, each under a name that nobody else uses, written before the head that names them. So a
save has happened once the head is replaced, and what a writer left behind that lost is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any
from uuid import uuid4

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from ...protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from ...protocol.errors import CheckpointError
from ...protocol.messages import NOTHING, Frozen, JsonObject
from ...protocol.storage import CallsRecorded, JournalEntry, ThreadInfo
from .lease import Lease
from .store import Write, WriteOutcome, conflict, misplaced


class Head(Frozen):
    """What ``head`` holds.

    Attributes:
        version: of this form.
        thread_id: whose it is; its key is a hash.
        first: position of the oldest checkpoint.
        line: names of the checkpoints from there on.
        snapshots: positions of those that build on no other.
        bytes: what their states take.
        checkpoint_id, updated_at, metadata: of the newest.
        created_at: of the oldest.
        token, owner, expires_at, deleted_at: see :class:`Lease`.
        journal: see ``CheckpointLoaded``.
        statics: the texts that its checkpoints refer to.
    """

    version: int = 1
    thread_id: str
    first: int = 1
    line: tuple[str, ...] = ()
    snapshots: tuple[int, ...] = ()
    bytes: int = 0
    checkpoint_id: str | None = None
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
    def newest(self) -> int:
        """Position of the newest checkpoint."""
        return self.first + len(self.line) - 1

    @property
    def lease(self) -> Lease:
        """The thread's lease."""
        return Lease(self.token, self.owner, self.expires_at, self.deleted_at)

    def with_lease(self, lease: Lease) -> Head:
        """The head with another lease."""
        return self.evolve(token=lease.token, owner=lease.owner, expires_at=lease.expires_at, deleted_at=lease.deleted_at)

    def root(self, position: int) -> int:
        """Position of the snapshot that the checkpoint at ``position`` builds on."""
        return max(snapshot for snapshot in self.snapshots if snapshot <= position)

    def find(self, checkpoint_id: str) -> int | None:
        """The checkpoint's position."""
        wanted = _name_start(checkpoint_id)
        return next((self.first + n for n, name in enumerate(self.line) if name.startswith(wanted)), None)

    def name(self, position: int) -> str:
        """The name of the checkpoint at ``position``."""
        return self.line[position - self.first]

    def info(self, now: float) -> ThreadInfo:
        """The thread for a list."""
        return ThreadInfo(
            thread_id=self.thread_id,
            checkpoint_id=self.checkpoint_id or "",
            checkpoints=len(self.line),
            bytes=self.bytes,
            created_at=self.created_at,
            updated_at=self.updated_at,
            metadata=self.metadata,
            owner=self.lease.holder(now),
        )

    def after(self, write: Write, now: float, put: Callable[[SaveCheckpoint], str]) -> tuple[Head, WriteOutcome]:
        """The head after ``write``, or the same one and why not.

        Args:
            write: a save or a record.
            now: the server's time.
            put: stores the checkpoint and says under which name.
        """
        if isinstance(write, SaveCheckpoint) and self.find(write.checkpoint_id) is not None:
            return self, CheckpointSaved(checkpoint_id=write.checkpoint_id)
        refusal = self.lease.refusal(write.thread_id, write.token, now)
        if refusal is not None:
            return self, refusal
        if not isinstance(write, SaveCheckpoint):
            return self._with_entries(write.entries), CallsRecorded()
        if write.parent_id != self.checkpoint_id:
            return self, conflict(write, self.checkpoint_id)
        below = self._below(write)
        if below is None:
            return self, misplaced(write)
        return below._advanced(write, put(write)), CheckpointSaved(checkpoint_id=write.checkpoint_id)

    def emptied(self, now: float) -> Head:
        """The tombstone of the thread."""
        return Head(thread_id=self.thread_id).with_lease(self.lease.deleted(now))

    def _with_entries(self, entries: Sequence[JournalEntry], *, settles: bool = False) -> Head:
        journal = {} if settles else {(entry.call_id, entry.phase): entry for entry in self.journal}
        for entry in entries:
            journal.setdefault((entry.call_id, entry.phase), entry)
        return self.evolve(journal=tuple(journal.values()))

    def _below(self, save: SaveCheckpoint) -> Head | None:
        """The head without what ``save`` supersedes; None when that does not stand where it says."""
        if not save.supersedes:
            return self
        kept, gone = self.line[: -save.supersedes], self.line[-save.supersedes :]
        stands = save.onto is None if not kept else save.onto is not None and kept[-1].startswith(_name_start(save.onto))
        newest = self.first + len(kept) - 1
        return (
            self.evolve(
                line=kept,
                snapshots=tuple(at for at in self.snapshots if at <= newest),
                bytes=max(0, self.bytes - sum(map(_size, gone))),
            )
            if stands
            else None
        )

    def _advanced(self, save: SaveCheckpoint, name: str) -> Head:
        snapshots = self.snapshots if save.kind == "delta" else (*self.snapshots, self.newest + 1)
        return (
            self._with_entries(save.entries, settles=save.settles)
            .with_lease(self.lease.begun())
            .evolve(
                line=(*self.line, name),
                snapshots=snapshots,
                bytes=self.bytes + len(save.state),
                checkpoint_id=save.checkpoint_id,
                created_at=self.created_at if self.line else save.created_at,
                updated_at=save.created_at,
                metadata=save.metadata,
                statics=tuple(sorted({*self.statics, *save.statics})),
            )
        )


def read_head(body: bytes | None, thread_id: str, where: str) -> Head:
    """The head of a thread; one that nothing is known of is empty.

    Raises:
        CheckpointError: it is damaged, or of another version.
    """
    if not body:
        return Head(thread_id=thread_id)
    try:
        head = Head.model_validate_json(body)
    except ValidationError as error:
        raise CheckpointError(f"the head of {where} is damaged: {error.errors()[0]['msg']}") from None
    if head.version != 1:
        raise CheckpointError(
            f"the head of {where} has version {head.version}, this Umbel reads 1; run the Umbel that wrote it"
        )
    return head


def thread_folder(thread_id: str) -> str:
    """The folder of a thread; ids hold any character and may be longer than a key."""
    return f"threads/{sha256(thread_id.encode()).hexdigest()}/"


def new_name(checkpoint_id: str, size: int) -> str:
    """A name for a checkpoint's object that nobody else uses; it says how large the state is."""
    return f"{_name_start(checkpoint_id)}{uuid4().hex[:16]}.{size}"


def pack(fact: CheckpointLoaded, base: int, state: bytes, metadata: bytes) -> bytes:
    """A checkpoint's object: a line of facts, then the state."""
    facts = {"checkpoint_id": fact.checkpoint_id, "parent_id": fact.parent_id, "base": base, "created_at": fact.created_at}
    return to_json(facts)[:-1] + b',"metadata":' + metadata + b"}\n" + state


def unpack(body: bytes, where: str) -> tuple[dict[str, Any], bytes]:
    """The facts and the state of a checkpoint's object.

    Raises:
        CheckpointError: it is damaged.
    """
    line, _, state = body.partition(b"\n")
    try:
        facts: dict[str, Any] = from_json(line)
    except ValueError as error:
        raise CheckpointError(f"{where} is damaged: {error}") from None
    return facts, state


def _size(name: str) -> int:
    """Of the state in an object; names of older versions do not say it."""
    return int(name.partition(".")[2] or 0)


def _name_start(checkpoint_id: str) -> str:
    return sha256(checkpoint_id.encode()).hexdigest()[:32] + "-"
