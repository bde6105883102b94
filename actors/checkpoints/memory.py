"""Checkpoints in this process's memory: for tests, and for conversations that need not outlive it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic_core import from_json

from ...protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from ...protocol.errors import NotStorable, StoreUnavailable
from .delta import fold
from .store import MAX_STATE_BYTES, SaveOutcome, Store, check_id, conflict, encode_metadata
from .url import StoreUrl


@dataclass(frozen=True, slots=True)
class _Row:
    save: SaveCheckpoint
    metadata: bytes
    depth: int

    def loaded(self, state: bytes | None) -> CheckpointLoaded:
        return CheckpointLoaded(
            checkpoint_id=self.save.checkpoint_id,
            parent_id=self.save.parent_id,
            state=state,
            metadata=from_json(self.metadata),
            created_at=self.save.created_at,
            depth=self.depth,
        )


@dataclass(slots=True)
class _Thread:
    rows: list[_Row] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)


class MemoryStore(Store):
    """A store in memory. Its URL is ``memory://`` or ``memory://name``; each store that is opened is empty."""

    def __init__(self, *, max_bytes: int = MAX_STATE_BYTES) -> None:
        super().__init__(max_bytes=max_bytes)
        self._threads: dict[str, _Thread] = {}
        self._closed = False
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str) -> MemoryStore:
        """An empty store; ``?max_bytes=`` limits one state."""
        parsed = StoreUrl.parse(url)
        parsed.expect("max_bytes")
        return cls(max_bytes=int(parsed.number("max_bytes", MAX_STATE_BYTES)))

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        """See :meth:`Store.save`."""
        self._check_open()
        with self._lock:
            self.commits += 1
            return [self._save(save) for save in saves]

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        """See :meth:`Store.load`."""
        self._check_open()
        check_id(thread_id)
        thread = self._threads.get(thread_id)
        if thread is None or (checkpoint_id is not None and checkpoint_id not in thread.positions):
            return CheckpointLoaded()
        position = len(thread.rows) - 1 if checkpoint_id is None else thread.positions[checkpoint_id]
        row = thread.rows[position]
        snapshot, *deltas = thread.rows[position - row.depth : position + 1]
        state = fold(
            snapshot.save.state,
            [(delta.save.base, delta.save.state) for delta in deltas],
            where=f"checkpoint {row.save.checkpoint_id!r} of thread {thread_id!r}",
        )
        return row.loaded(state)

    async def history(self, thread_id: str, limit: int = 10) -> list[CheckpointLoaded]:
        """See :meth:`Store.history`."""
        self._check_open()
        check_id(thread_id)
        thread = self._threads.get(thread_id, _Thread())
        return [row.loaded(None) for row in reversed(thread.rows[max(0, len(thread.rows) - limit) :])]

    async def close(self) -> None:
        """See :meth:`Store.close`."""
        self._closed = True
        self._threads.clear()

    def _save(self, save: SaveCheckpoint) -> SaveOutcome:
        try:
            metadata = encode_metadata(save, self.max_bytes)
        except NotStorable as error:
            return error
        thread = self._threads.get(save.thread_id) or _Thread()
        if save.checkpoint_id in thread.positions:
            return CheckpointSaved(checkpoint_id=save.checkpoint_id)
        head = thread.rows[-1] if thread.rows else None
        found = head.save.checkpoint_id if head else None
        if save.parent_id != found:
            return conflict(save, found)
        thread.positions[save.checkpoint_id] = len(thread.rows)
        thread.rows.append(_Row(save, metadata, head.depth + 1 if head and save.kind == "delta" else 0))
        self._threads[save.thread_id] = thread
        return CheckpointSaved(checkpoint_id=save.checkpoint_id)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the memory:// store was closed")
