"""Asking the checkpointer, which may die over it."""

from __future__ import annotations

import logging
from typing import Any

from ...protocol.errors import PeerLost
from ...protocol.messages import Frozen
from .run import Peers

logger = logging.getLogger("umbel.supervisor")
ATTEMPTS = 3  # checkpointers asked before the loss of one ends the run


async def ask_checkpointer(peers: Peers, message: Frozen) -> Any:
    """Ask, and ask again if the checkpointer dies over it: every request about a thread is safe to repeat."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await peers.checkpointer().request(message)
        except PeerLost:
            logger.info("the restarted checkpointer is asked again for %s", type(message).__name__)
    return await peers.checkpointer().request(message)
