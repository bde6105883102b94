"""A store that counts what reaches it, may be slow, and may fail: for runs on the inline runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from umbel.actors.checkpoints import MemoryStore, SaveOutcome, register_store
from umbel.protocol.commands import SaveCheckpoint
from umbel.protocol.errors import StoreUnavailable


class CountedStore(MemoryStore):
    """Checkpoints in memory.

    Args:
        seconds: that every transaction takes.
        fail_at: the number of the save that fails; none does by default.
        max_bytes: the largest state that it takes.

    Attributes:
        saves: every save that was asked for.
        at_once, most_at_once: saves under way, now and at most.
    """

    def __init__(self, *, seconds: float = 0.0, fail_at: int | None = None, max_bytes: int = 10**9) -> None:
        super().__init__(max_bytes=max_bytes)
        self.seconds = seconds
        self.fail_at = fail_at
        self.saves: list[SaveCheckpoint] = []
        self.at_once = self.most_at_once = 0

    def register(self, scheme: str) -> str:
        """Make it the store of a scheme; the URL."""
        register_store(scheme, lambda url: self)
        return f"{scheme}://"

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        self.saves += saves
        self.at_once += len(saves)
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
            if self.fail_at is not None and len(self.saves) >= self.fail_at:
                raise StoreUnavailable("the disk is gone")
            return await super().save(saves)
        finally:
            self.at_once -= len(saves)
