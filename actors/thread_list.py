"""What a store holds: its threads in pages, deleted, and tidied up. Those of a pattern's members go with the pattern's."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from ..protocol.errors import PeerLost
from ..protocol.messages import Frozen
from ..protocol.storage import (
    LEDGER_PREFIX,
    CollectGarbage,
    DeleteThread,
    GarbageCollected,
    ListThreads,
    LoadHistory,
    ThreadInfo,
    ThreadsListed,
)
from .checkpoints.facts import MEMBER_OF

Ask = Callable[[Frozen], Awaitable[Any]]
SEPARATOR = "#"  # between a pattern's thread and those of its members
ATTEMPTS = 3  # checkpointers asked before the loss of one is an error
PAGE, SMALL_PAGE = 500, 100
logger = logging.getLogger("umbel.threads")


class ThreadList:
    """The threads of one store, whatever is in them. See :class:`Threads`."""

    def __init__(self, store: str, ask: Ask, *, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._ask_once = ask
        self._clock = clock

    async def delete(self, thread_id: str) -> bool:
        """Delete a thread whole; whether there was one. A write that comes late cannot bring it back. Source: OURS-23.

        The threads of its members go with it, where it is a pattern's.
        """
        existed = bool((await self._ask(DeleteThread(store=self.store, thread_id=thread_id))).existed)
        await self.delete_members(thread_id)
        return existed

    async def delete_members(self, thread_id: str) -> None:
        """Delete the threads of a pattern's members, and not the pattern's own."""
        async for thread in self.every(f"{thread_id}{SEPARATOR}", where={MEMBER_OF: thread_id}):
            await self._ask(DeleteThread(store=self.store, thread_id=thread.thread_id))

    async def exists(self, thread_id: str) -> bool:
        """Whether the thread holds anything."""
        return bool((await self._ask(LoadHistory(store=self.store, thread_id=thread_id, limit=1))).checkpoints)

    async def page(
        self,
        prefix: str = "",
        *,
        where: Mapping[str, Any] | None = None,
        after: str = "",
        limit: int = 100,
        members: bool = False,
    ) -> list[ThreadInfo]:
        """Conversations in the order of their ids; fewer than ``limit`` are the last. The ledgers of fleets are not shown.

        Args:
            prefix: only ids that begin with it.
            where: only threads whose newest checkpoint's metadata has all of these values.
            after: only ids behind this one.
            limit: at most so many.
            members: those of patterns' members, too.
        """
        if limit < 1:  # which the store refuses
            return await self._page(prefix, where, after, limit)
        found: list[ThreadInfo] = []
        size = max(min(limit, PAGE), SMALL_PAGE)
        while len(found) < limit:
            page = await self._page(prefix, where, after, size)
            shown = [thread for thread in page if not thread.thread_id.startswith(LEDGER_PREFIX)]
            found += [thread for thread in shown if members or MEMBER_OF not in thread.metadata]
            if len(page) < size:
                break
            after = page[-1].thread_id
        return found[:limit]

    async def _page(self, prefix: str, where: Mapping[str, Any] | None, after: str, limit: int) -> list[ThreadInfo]:
        message = ListThreads(store=self.store, prefix=prefix, where=dict(where or {}), after=after, limit=limit)
        listed: ThreadsListed = await self._ask(message)
        return list(listed.threads)

    async def every(self, prefix: str = "", *, where: Mapping[str, Any] | None = None) -> AsyncIterator[ThreadInfo]:
        """All conversations, those of members too, however many there are; the ledgers of fleets are none."""
        after = ""
        while True:
            page = await self._page(prefix, where, after, PAGE)
            for thread in page:
                if not thread.thread_id.startswith(LEDGER_PREFIX):
                    yield thread
            if len(page) < PAGE:
                return
            after = page[-1].thread_id

    async def collect(self, *, keep: int | None = None, older_than: float | None = None) -> GarbageCollected:
        """Free space.

        Args:
            keep: of each thread so many of its newest checkpoints; None keeps all.
            older_than: delete threads that were not written for so many seconds; None deletes none. Those of a pattern's
                members are as old as the pattern's.
        """
        spare = () if older_than is None else tuple([one async for one in self.needed_members(self._clock() - older_than)])
        request = CollectGarbage(store=self.store, keep=keep, older_than=older_than, spare=spare)
        reply: GarbageCollected = await self._ask(request)
        return reply

    async def needed_members(self, before: float) -> AsyncIterator[str]:
        """Threads of members last written before that time (seconds since the epoch), while their pattern's was not."""
        written: dict[str, float] = {}
        async for thread in self.every():
            pattern = thread.metadata.get(MEMBER_OF)
            if pattern is None or thread.updated_at >= before:
                continue
            if pattern not in written:
                found = await self._page(pattern, None, "", 1)
                known = bool(found) and found[0].thread_id == pattern
                written = {pattern: found[0].updated_at if known else 0.0}  # in the order of ids a pattern's come together
            if written[pattern] >= before:
                yield thread.thread_id

    async def _ask(self, message: Frozen) -> Any:
        """Ask, and ask again if the checkpointer dies over it: each of these requests is safe to repeat."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._ask_once(message)
            except PeerLost:
                logger.info("the restarted checkpointer is asked again for %s", type(message).__name__)
        return await self._ask_once(message)
