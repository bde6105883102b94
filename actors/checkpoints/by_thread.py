"""A channel to several checkpointers, each of which stores its own share of the threads.

Which one it is matters for speed alone: whoever asks another one (``umbel threads``, a run that was started with another
topology) finds the same threads, because the store is the same and decides who may write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ...protocol.messages import Frozen
from ..frames import Channel, Observer
from .registry import is_shared


class ByThread:
    """Hands what is about a thread to the checkpointer of that thread, everything else to the first one.

    Args:
        channels: to the checkpointers.
        shard_of: which of so many serves a thread.
    """

    def __init__(self, channels: Sequence[Channel], shard_of: Callable[[str, int], int]) -> None:
        self._channels = channels
        self._shard_of = shard_of
        self._shared: dict[str, bool] = {}

    async def request(
        self, message: Frozen, *, timeout: float | None = None, on_partial: Observer | None = None, urgent: bool = False
    ) -> Any:
        """As ``Link.request``."""
        return await self._of(message).request(message, timeout=timeout, on_partial=on_partial, urgent=urgent)

    def send(self, message: Frozen) -> None:
        """As ``Link.send``."""
        self._of(message).send(message)

    def define(self, definition: str, blob: Callable[[str], bytes]) -> None:
        """As ``Link.define``, for all."""
        for channel in self._channels:
            channel.define(definition, blob)

    async def close(self) -> None:
        """Close all."""
        await asyncio.gather(*(channel.close() for channel in self._channels))

    def _of(self, message: Any) -> Channel:
        thread_id = getattr(message, "thread_id", None)
        store = getattr(message, "store", None)
        if thread_id is None or store is None:
            return self._channels[0]
        shared = self._shared.get(store)
        if shared is None:
            shared = self._shared[store] = is_shared(store)
        return self._channels[self._shard_of(thread_id, len(self._channels)) if shared else 0]
