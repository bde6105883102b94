"""Deleting, folding and forgetting in Redis, a thread at a time.

A text that states share lies in another slot than the threads that refer to it, so no script can see both. A collector
therefore marks a text that nobody seems to need, looks at every thread once more, and deletes it only if its mark is still
there; a writer takes the mark away before it saves and puts the text there again after it has saved. Whoever comes second wins.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from uuid import uuid4

from ...protocol.storage import CollectGarbage, GarbageCollected
from . import redis_scripts as scripts
from .redis_client import RedisClient
from .redis_keys import read_checkpoint
from .store import check_keep, passing_over_damage


class RedisGarbage:
    """What makes room in the store of a client; runs in the client's event loop."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def delete(self, thread_id: str, idle: float | None = None) -> tuple[int, int]:
        """Delete a thread and leave a tombstone.

        Args:
            thread_id: the thread.
            idle: only if it was not written for so many seconds and nobody has a lease.

        Returns:
            How many checkpoints went and how many bytes they took.
        """
        limit = "" if idle is None else round(idle * 1000)
        delete = self._client.about(scripts.DELETE, thread_id, thread_id, uuid4().hex, limit)
        [answer] = await self._client.call([delete])
        if not answer:
            return 0, 0
        await self._unlist(thread_id)
        return int(answer[0]), int(answer[1])

    async def collect(self, request: CollectGarbage) -> GarbageCollected:
        """See :meth:`Store.collect`. Also puts threads into the list that are missing there."""
        check_keep(request)
        freed = GarbageCollected()
        used: set[str] = set()
        async for thread_id in self._client.thread_ids():
            part, refers = await self._collect_thread(thread_id, request)
            used |= refers
            freed = freed.evolve(
                threads=freed.threads + part.threads,
                checkpoints=freed.checkpoints + part.checkpoints,
                tombstones=freed.tombstones + part.tombstones,
                bytes=freed.bytes + part.bytes,
            )
        texts, size = await self._free_texts(used)
        return freed.evolve(static_parts=texts, bytes=freed.bytes + size)

    async def _collect_thread(self, thread_id: str, request: CollectGarbage) -> tuple[GarbageCollected, set[str]]:
        """What one thread gave, and the texts that it still refers to."""
        threads = checkpoints = size = folded = 0
        limit, keep = request.limit(thread_id), request.kept(thread_id)
        if limit is not None:
            checkpoints, size = await self.delete(thread_id, limit)
            threads = int(checkpoints > 0)
        [info] = await self._client.call([self._client.about(scripts.INFO, thread_id)])
        if not info:
            await self._unlist(thread_id)
        else:
            await self._client.command("ZADD", self._client.index, 0, thread_id)
            if keep is not None:
                with passing_over_damage():
                    folded, size = await self._fold(thread_id, keep)
        sweep = self._client.about(scripts.SWEEP, thread_id, round(request.tombstones * 1000), "1" if folded else "")
        [[tombstones, used]] = await self._client.call([sweep])
        freed = GarbageCollected(threads=threads, checkpoints=checkpoints + folded, tombstones=tombstones, bytes=max(0, size))
        return freed, {digest.decode() for digest in used}

    async def _fold(self, thread_id: str, keep: int) -> tuple[int, int]:
        """Fold all but the newest ``keep`` checkpoints away; how many went, and how many bytes less it takes."""
        [answer] = await self._client.call([self._client.about(scripts.LOAD, thread_id, f"#{keep}")])
        if len(answer) == 2:
            return 0, 0
        oldest = read_checkpoint(answer[2:], f"thread {thread_id!r} in Redis at {self._client.place}")
        fold = self._client.about(scripts.FOLD, thread_id, answer[2], oldest.checkpoint_id, oldest.state)
        [[count, size]] = await self._client.call([fold])
        return int(count), int(size)

    async def _unlist(self, thread_id: str) -> None:
        await self._client.command("ZREM", self._client.index, thread_id)
        [info] = await self._client.call([self._client.about(scripts.INFO, thread_id)])
        if info:  # begun anew in between
            await self._client.command("ZADD", self._client.index, 0, thread_id)

    async def _free_texts(self, used: AbstractSet[str]) -> tuple[int, int]:
        """Delete texts that no thread refers to; how many, and how many bytes they took."""
        unused = await self._client.text_digests() - used
        if not unused:
            return 0, 0
        mark, about = uuid4().hex, self._client.about_text
        await self._client.call([about(scripts.MARK, digest, mark) for digest in unused])
        async for thread_id in self._client.thread_ids():
            [[_, refers]] = await self._client.call([self._client.about(scripts.SWEEP, thread_id, 2**52, "")])
            unused -= {digest.decode() for digest in refers}
        sizes = await self._client.call([about(scripts.FREE, digest, mark) for digest in unused])
        return sum(size is not None for size in sizes), sum(size or 0 for size in sizes)
