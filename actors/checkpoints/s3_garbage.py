"""Folding and forgetting in a bucket, a thread at a time.

No request can see two objects at once. So a collector marks a text that nobody seems to need, looks at every head once more,
and empties it only if it is still what it marked; a writer stores it anew before and after its save, which takes the mark away.
Objects of saves that lost or never ended are deleted when they are an hour old.
"""

from __future__ import annotations

from collections import defaultdict
from uuid import uuid4

from pydantic_core import to_json

from ...protocol.errors import CheckpointError
from ...protocol.storage import CollectGarbage, GarbageCollected
from .lease import Lease
from .s3_head import Head, new_name, pack, read_head, thread_folder
from .s3_threads import HERE, MARKED, S3Threads, name_key, text_of
from .static_parts import references
from .store import passing_over_damage

_ORPHAN_SECONDS = 3_600.0
_Listed = dict[str, tuple[int, float]]


class S3Garbage:
    """What makes room in a bucket; its calls block."""

    def __init__(self, threads: S3Threads) -> None:
        self._threads = threads
        self._client = threads.client

    def collect(self, request: CollectGarbage) -> GarbageCollected:
        """See :meth:`Store.collect`. Also puts threads into the list that are missing there."""
        freed = GarbageCollected()
        used: set[str] = set()
        folders, sound = self._folders(), 0
        for folder, listed in folders.items():
            with passing_over_damage():
                part = self._collect_folder(folder, listed, request, used)
                sound += 1
                freed = freed.evolve(
                    threads=freed.threads + part.threads,
                    checkpoints=freed.checkpoints + part.checkpoints,
                    tombstones=freed.tombstones + part.tombstones,
                    bytes=freed.bytes + part.bytes,
                )
        # What a damaged thread refers to is not known.
        texts, size = self._free_texts(used) if sound == len(folders) else (0, 0)
        return freed.evolve(static_parts=texts, bytes=freed.bytes + size)

    def _collect_folder(self, folder: str, listed: _Listed, request: CollectGarbage, used: set[str]) -> GarbageCollected:
        """What one thread gave; the texts that it still refers to are added to ``used``."""
        head, now = self._head(folder)
        if head is None:
            return GarbageCollected()
        part = self._collect_thread(head, request)
        self._drop_orphans(folder, listed, now)
        used.update(self._refers(folder))
        return part

    def _folders(self) -> dict[str, _Listed]:
        folders: dict[str, _Listed] = defaultdict(dict)
        for key, size, written in self._client.keys("threads/"):
            folder, _, name = key.rpartition("/")
            folders[f"{folder}/"][name] = (size, written)
        return folders

    def _head(self, folder: str) -> tuple[Head | None, float]:
        found = self._client.get(f"{folder}head")
        return (read_head(found.body, "", f"{folder}head in {self._client.place}") if found.body else None), found.now

    def _refers(self, folder: str) -> tuple[str, ...]:
        head, _ = self._head(folder)
        return head.statics if head is not None else ()

    def _collect_thread(self, head: Head, request: CollectGarbage) -> GarbageCollected:
        def expired(head: Head, now: float) -> bool:
            if limit is None or not head.line or head.lease.holder(now) is not None:
                return False
            return head.updated_at < now - limit

        thread_id, checkpoints, size = head.thread_id, 0, 0
        limit, keep = request.limit(thread_id), request.kept(thread_id)
        gone = self._threads.delete(thread_id, only=expired) if limit is not None else Head(thread_id=thread_id)
        if not gone.line and head.line:
            self._client.put(name_key(thread_id), thread_id.encode())
        if not gone.line and keep is not None:
            checkpoints, size = self._fold(thread_id, keep)
        return GarbageCollected(
            threads=int(bool(gone.line)),
            checkpoints=len(gone.line) + checkpoints,
            tombstones=self._forget(thread_id, request.tombstones),
            bytes=max(0, gone.bytes + size),
        )

    def _fold(self, thread_id: str, keep: int) -> tuple[int, int]:
        """Fold all but the newest ``keep`` checkpoints away; how many went, and how many bytes less it takes."""
        gone: tuple[str, ...] = ()

        def decide(head: Head, now: float) -> tuple[Head, int]:
            nonlocal gone
            if len(head.line) <= keep or head.lease.holder(now) is not None:
                return head, 0
            cut = len(head.line) - keep
            after, gone = self._without(head, cut), head.line[: cut + 1]
            return after, head.bytes - after.bytes

        size = self._threads.change(thread_id, decide)
        if not gone:
            return 0, size
        # Of an attempt that somebody overtook, they may count still; a name that has left a head never comes back.
        line = self._threads.head(thread_id)[0].line
        gone = tuple(name for name in gone if name not in line)
        for name in gone:
            self._client.delete(thread_folder(thread_id) + name)
        return max(0, len(gone) - 1), size

    def _without(self, head: Head, cut: int) -> Head:
        """The head without its first ``cut`` checkpoints; the next one becomes a snapshot."""
        first = head.first + cut
        oldest = self._threads.whole(head, first)
        state = oldest.state or b""
        name = new_name(oldest.checkpoint_id or "", len(state))
        self._client.put(thread_folder(head.thread_id) + name, pack(oldest, 0, state, to_json(oldest.metadata)))
        rest = head.line[cut + 1 :]
        states = [state, *(self._state(head.thread_id, one) for one in rest)]
        refers = set().union(*map(references, states))
        return head.evolve(
            first=first,
            line=(name, *rest),
            snapshots=(first, *(at for at in head.snapshots if at > first)),
            bytes=sum(map(len, states)),
            created_at=oldest.created_at,
            statics=tuple(digest for digest in head.statics if digest in refers),
        )

    def _state(self, thread_id: str, name: str) -> bytes:
        body = self._client.get(thread_folder(thread_id) + name).body
        if body is None:
            raise CheckpointError(f"{self._threads.where(thread_id)} is damaged: one of its objects is missing")
        return body.partition(b"\n")[2]

    def _forget(self, thread_id: str, tombstones: float) -> int:
        """Forget a tombstone that is old enough. The head stays, as one that nothing is known of."""

        def decide(head: Head, now: float) -> tuple[Head, int]:
            if head.line or head.journal or not head.lease.is_forgotten(tombstones, now):
                return head, 0
            return head.with_lease(Lease()), 1

        return self._threads.change(thread_id, decide)

    def _drop_orphans(self, folder: str, listed: _Listed, now: float) -> None:
        head, _ = self._head(folder)
        if head is None:
            return
        names = {"head", *head.line}
        for name, (_, written) in listed.items():
            if name not in names and written < now - _ORPHAN_SECONDS:
                self._client.delete(folder + name)

    def _free_texts(self, used: set[str]) -> tuple[int, int]:
        """Empty the texts that no thread refers to; how many, and how many bytes they took. An empty object stays of each."""
        marked: dict[str, tuple[str, int]] = {}
        for key, size, _ in self._client.keys("texts/"):
            digest = key.removeprefix("texts/")
            if size and digest not in used:
                marked |= self._mark(digest)
        if marked:
            for folder in self._folders():
                for digest in self._refers(folder):
                    marked.pop(digest, None)
        sizes = [size for digest, (etag, size) in marked.items() if self._client.replace(f"texts/{digest}", b"", etag)]
        return len(sizes), sum(sizes)

    def _mark(self, digest: str) -> dict[str, tuple[str, int]]:
        """Mark a text: its etag from then on, and its size; nothing when a writer was faster."""
        key = f"texts/{digest}"
        found = self._client.get(key)
        if not found.body or not found.body.startswith((HERE, MARKED)):
            return {}
        text, mark = text_of(found.body), MARKED + uuid4().hex.encode()
        if not self._client.replace(key, mark + text, found.etag):
            return {}
        marked = self._client.get(key)
        if marked.etag is None or marked.body != mark + text:
            return {}
        return {digest: (marked.etag, len(text))}
