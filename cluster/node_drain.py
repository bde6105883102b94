"""A node that is about to go (``ray drain-node``, a SIGTERM to ``ray start``, a preemption notice): its actors leave before.

Ray marks such a node, places nothing on it any more, and lets what is there run on until the deadline; moving is up to the
actors. So each watches its own node. One that sees the mark holds new work, lets what is under way come to an end, and has
itself started again elsewhere (:meth:`Cell.hand_over`); a node without actors is gone at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from .cell import Cell

logger = logging.getLogger("umbel.host")
LOOK_SECONDS = 1.0
NO_DEADLINE = 600.0  # seconds that work is given on a node which is drained without a deadline
SHARE = 0.8  # of the time until the deadline: then the actor must be gone


def deadline_of(node: str) -> float | None:
    """When a node that is drained will go (seconds since the epoch, 0 for no such time); None for any other node."""
    from ray._private.state import state

    drained = state.get_draining_nodes().get(node)
    return None if drained is None else drained / 1e3


async def leave_in_time(
    cell: Cell,
    deadline: Callable[[], float | None],
    restart: Callable[[], Awaitable[None]],
    clock: Callable[[], float] = time.time,
) -> None:
    """Wait until the node is drained, then hand over and start again elsewhere.

    Args:
        cell: what this process hosts.
        deadline: of the node, as :func:`deadline_of`; called in a thread.
        restart: ends this process, for Ray to start it on another node.
        clock: seconds since the epoch.
    """
    ends = None
    while ends is None:
        await asyncio.sleep(LOOK_SECONDS)
        with contextlib.suppress(Exception):  # not a public part of Ray, and the head may be away: then the node just dies
            ends = await asyncio.to_thread(deadline)
    seconds = NO_DEADLINE if not ends else max(0.0, (ends - clock()) * SHARE)
    logger.warning("this node is drained: %s moves to another one within %.0f s", cell.mailbox.name, seconds)
    if not await cell.hand_over(seconds):
        logger.warning("%s leaves its node with work under way, which is broken off", cell.mailbox.name)
    await restart()
