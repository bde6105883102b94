"""What a store of checkpoints keeps beside them, and the requests about it (spec/memory.md C; OURS-15, 18, 20-23).

    supervisor  -> checkpointer  RecordCalls         -> CallsRecorded
    supervisor  -> checkpointer  TakeLease           -> LeaseTaken        (again and again while a run goes on)
    supervisor  -> checkpointer  ReleaseLease        -> LeaseReleased
    application -> checkpointer  ListThreads         -> ThreadsListed
    application -> checkpointer  LoadHistory         -> HistoryLoaded
    application -> checkpointer  DeleteThread        -> ThreadDeleted
    application -> checkpointer  CollectGarbage      -> GarbageCollected

Saves and loads themselves are in ``commands.py``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from .codec import message_type
from .messages import NOTHING, Frozen, JsonObject, Text, ToolResult

LEDGER_PREFIX = "fleet:"  # of threads that hold the results of a fleet, no conversation


class JournalEntry(Frozen):
    """A step of a tool call with side effects, written down so that a crash cannot make it happen twice.

    Attributes:
        run_id: whose call.
        call_id: the call, unique in the thread.
        phase: ``begun`` stands before the body is started, ``done`` after it has ended, whatever came of it.
        result: what came of it; only with ``done``.
        at: seconds since the epoch, UTC, by the writer's clock.
    """

    run_id: str
    call_id: str
    phase: Literal["begun", "done"]
    result: ToolResult | None = None
    at: float = 0.0


@message_type
class RecordCalls(Frozen):
    """Add to a thread's journal. It is emptied by the next save that ``settles``."""

    store: str
    thread_id: str
    token: int = 0
    entries: tuple[JournalEntry, ...] = ()


@message_type
class CallsRecorded(Frozen):
    """The entries are stored."""


@message_type
class TakeLease(Frozen):
    """Become, or stay, a thread's only writer.

    Attributes:
        owner: who asks, e.g. a run's id; a lease that it holds already is prolonged and keeps its token.
        seconds: from now, by the store's clock, until the lease ends by itself.
        steal: take it even from an owner whose lease has not ended.
    """

    store: str
    thread_id: str
    owner: str
    seconds: float
    steal: bool = False


@message_type
class LeaseTaken(Frozen):
    """The lease is held.

    Attributes:
        token: fencing token: larger than every earlier owner's. Saves that name a smaller one are refused.
        expires_at: seconds since the epoch, by the store's clock.
        unused: the store knows that nothing was ever stored in the thread: there is nothing to load.
    """

    token: int
    expires_at: float = 0.0
    unused: bool = False


@message_type
class ReleaseLease(Frozen):
    """Give the lease back; one that is not held any more is left alone."""

    store: str
    thread_id: str
    owner: str
    token: int


@message_type
class LeaseReleased(Frozen):
    """It is given back, or was lost before."""


class ThreadInfo(Frozen):
    """A thread in a list.

    Attributes:
        thread_id: the thread.
        checkpoint_id: its newest checkpoint.
        checkpoints: how many it has.
        bytes: what they take, shared static parts not counted.
        created_at, updated_at: of its oldest and newest checkpoint, seconds since the epoch, UTC.
        metadata: of the newest checkpoint.
        owner: who holds its lease now, if anybody.
    """

    thread_id: Text
    checkpoint_id: str
    checkpoints: int = 0
    bytes: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0
    metadata: JsonObject = NOTHING
    owner: str | None = None


@message_type
class ListThreads(Frozen):
    """Threads by id, in the order of their ids.

    Attributes:
        prefix: only ids that begin with it.
        where: only threads whose newest metadata has all of these values.
        after: only ids behind this one: the last of the page before.
        limit: at most so many.
    """

    store: str
    prefix: str = ""
    where: JsonObject = NOTHING
    after: str = ""
    limit: int = 100


@message_type
class ThreadsListed(Frozen):
    """A page of threads; the next one begins ``after`` the last of them. Fewer than ``limit`` are the end."""

    threads: tuple[ThreadInfo, ...] = ()


class CheckpointInfo(Frozen):
    """A checkpoint without its state."""

    checkpoint_id: str
    parent_id: str | None = None
    created_at: float = 0.0
    metadata: JsonObject = NOTHING
    depth: int = 0
    bytes: int = 0


@message_type
class LoadHistory(Frozen):
    """A thread's newest checkpoints, newest first."""

    store: str
    thread_id: str
    limit: int = 10


@message_type
class HistoryLoaded(Frozen):
    """They, without their states."""

    checkpoints: tuple[CheckpointInfo, ...] = ()


@message_type
class DeleteThread(Frozen):
    """Delete a thread whole. A tombstone stays: what was written for it before cannot bring it back (OURS-23)."""

    store: str
    thread_id: str


@message_type
class ThreadDeleted(Frozen):
    """It is gone; ``existed`` says whether there was one."""

    existed: bool = False


@message_type
class CollectGarbage(Frozen):
    """Free space.

    Attributes:
        keep: of each thread so many of its newest checkpoints; older ones are folded away. None keeps all.
        older_than: delete threads that were not written for so many seconds. None deletes none.
        spare: threads that are not deleted however old they are.
        tombstones: forget tombstones that are older than so many seconds.
    """

    store: str
    keep: int | None = None
    older_than: float | None = None
    spare: tuple[str, ...] = ()
    tombstones: float = 30 * 86_400.0

    def limit(self, thread_id: str) -> float | None:
        """The age in seconds at which that thread is deleted, if there is one. A fleet's ledger is deleted with the fleet."""
        spared = thread_id in self._spared or thread_id.startswith(LEDGER_PREFIX)
        return None if spared else self.older_than

    def kept(self, thread_id: str) -> int | None:
        """How many checkpoints of that thread stay; None is all. Those of a ledger are results, each its own."""
        return None if thread_id.startswith(LEDGER_PREFIX) else self.keep

    @cached_property
    def _spared(self) -> frozenset[str]:
        return frozenset(self.spare)


@message_type
class GarbageCollected(Frozen):
    """What was freed."""

    threads: int = 0
    checkpoints: int = 0
    static_parts: int = 0
    tombstones: int = 0
    bytes: int = 0
