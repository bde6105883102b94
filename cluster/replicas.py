"""Which replica of a pool serves a run: of those that are there, the first in the run's own order.

The order comes from the run's id, so that a run stays with its replica, and all have as much to do. A pool may have more
replicas than the cluster has room for: the others do their work until a node joins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..actors.frames import Channel, Observer
from ..actors.link import Link
from ..protocol.messages import Frozen

LOOK_SECONDS = 0.05
STARTING_SECONDS = 5.0  # that a replica which is not there is waited for before another one does its work


class Replicas:
    """Chooses, and remembers since when which of them is away.

    Args:
        patience: seconds to wait while none is there.
        clock: seconds, only going forward.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience = patience
        self._clock = clock
        self._away: dict[int, float] = {}

    def choose(self, replicas: Sequence[Channel]) -> Channel:
        """The replica for a run, in whose order they are given."""
        if len(replicas) == 1 or self.is_there(replicas[0]):
            return replicas[0]
        return self.now(replicas) or FirstThere(replicas, self)

    def now(self, replicas: Sequence[Channel]) -> Channel | None:
        """The first that is there, behind none that may be about to start."""
        for replica in replicas:
            if self.is_there(replica):
                return replica
            if self._clock() - self._away[id(replica)] < STARTING_SECONDS:
                return None
        return None

    def is_there(self, replica: Channel) -> bool:
        """Whether it is known to be reachable; one that is not is looked for from now on."""
        if not isinstance(replica, Link) or replica.met:
            self._away.pop(id(replica), None)
            return True
        replica.meet()
        self._away.setdefault(id(replica), self._clock())
        return False


class FirstThere:
    """A channel to whichever of some replicas is there first. It then stays with that one.

    Args:
        replicas: in the order in which they are wanted.
        choice: decides; after its patience the first one is asked anyway, which says what is wrong.
    """

    def __init__(self, replicas: Sequence[Channel], choice: Replicas) -> None:
        self._replicas = replicas
        self._choice = choice
        self._definitions: dict[str, Callable[[str], bytes]] = {}
        self._chosen: Channel | None = None

    async def request(
        self, message: Frozen, *, timeout: float | None = None, on_partial: Observer | None = None, urgent: bool = False
    ) -> Any:
        """As ``Link.request``, once there is somebody to ask; the wait is not part of ``timeout``."""
        channel = self._chosen or await self._first()
        return await channel.request(message, timeout=timeout, on_partial=on_partial, urgent=urgent)

    def send(self, message: Frozen) -> None:
        """As ``Link.send``; before anybody was asked there is nobody to tell."""
        if self._chosen is not None:
            self._chosen.send(message)

    def define(self, definition: str, blob: Callable[[str], bytes]) -> None:
        """As ``Link.define``."""
        if self._chosen is not None:
            self._chosen.define(definition, blob)
        else:
            self._definitions[definition] = blob

    async def close(self) -> None:
        """The links belong to the directory."""

    async def _first(self) -> Channel:
        looks = int(self._choice.patience / LOOK_SECONDS)
        found = None
        while found is None and looks > 0:
            looks -= 1
            await asyncio.sleep(LOOK_SECONDS)
            found = self._choice.now(self._replicas)
        channel = self._chosen = self._chosen or found or self._replicas[0]
        for definition, blob in self._definitions.items():
            channel.define(definition, blob)
        return channel
