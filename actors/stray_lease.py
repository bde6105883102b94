"""A lease whose owner was cancelled while it asked for it: it may have been granted all the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from ..protocol.errors import UmbelError
from ..protocol.messages import Frozen
from ..protocol.storage import LeaseTaken, ReleaseLease, TakeLease

SECONDS = 1.0  # that a cancel may take longer for it


async def let_go(ask: Callable[[Frozen], Awaitable[Any]], store: str, thread_id: str, owner: str) -> None:
    """Give it back, so that the thread is free at once. Where that fails, it ends by itself.

    Args:
        ask: sends a request to the checkpointer.
        store: URL of the store.
        thread_id: the thread.
        owner: who asked for the lease, and nobody else.
    """
    thread = {"store": store, "thread_id": thread_id, "owner": owner}
    with contextlib.suppress(UmbelError, TimeoutError):
        async with asyncio.timeout(SECONDS):
            # Its owner gets the same token again; whoever did not get it is told that somebody else has it.
            taken: LeaseTaken = await ask(TakeLease(**thread, seconds=SECONDS))
            await ask(ReleaseLease(**thread, token=taken.token))
