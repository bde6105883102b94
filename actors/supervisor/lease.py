"""The lease of a durable run: one thread, one writer, in whatever process. Source: OURS-15.

A run takes its thread's lease in the request that loads the thread, prolongs it at a third of its time for as long as it
is open, and gives it back in the request that stores its end. Everything that it writes carries the lease's token, so that
a store refuses it once somebody else has the thread. Whoever loses a lease ends with ``StaleWriter``.

An owner is a run's request *and* an incarnation of it. So a run that is recovered knows the lease of the incarnation that
died, and steals it: if that one is alive after all, it is fenced out. Every other run waits until a dead owner's lease ends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ...protocol.commands import CheckpointLoaded, LoadCheckpoint
from ...protocol.errors import StaleWriter, ThreadBusy, UmbelError
from ...protocol.storage import LeaseTaken, ReleaseLease, TakeLease
from .asking import ask_checkpointer
from .run import Run, new_id

logger = logging.getLogger("umbel.supervisor")
FIRST_DELAY = 0.05
LAST_DELAY = 1.0
SHARE = 1 / 3  # of a lease's time, after which it is prolonged


async def take(run: Run) -> CheckpointLoaded:
    """Load the thread as its only writer, once it is free.

    Raises:
        ThreadBusy: another run has it, and this one was told not to wait.
    """
    message = LoadCheckpoint(
        store=run.config.checkpointer or "",
        thread_id=run.request.thread_id or "",
        owner=f"{run.request.run_id}:{new_id(32)}",
        seconds=run.config.lease_seconds,
        steal=run.request.on_busy == "interrupt",
    )
    delay = FIRST_DELAY
    while True:
        try:
            loaded: CheckpointLoaded = await ask_checkpointer(run.peers, message)
            break
        except ThreadBusy as busy:
            if is_own(run, busy):
                message = message.evolve(steal=True)
                continue
            if run.request.on_busy == "reject":
                raise
        await asyncio.sleep(delay)
        delay = min(2 * delay, LAST_DELAY)
    run.token = loaded.token
    run.lease = Lease(run, message.owner or "")
    return loaded


def is_own(run: Run, busy: ThreadBusy) -> bool:
    """Whether the holder is the incarnation of this very run that died."""
    return str(busy.details.get("owner", "")).partition(":")[0] == run.request.run_id


class Lease:
    """The lease that a run holds, prolonged until it is given back.

    Args:
        run: whose.
        owner: as whom the run took it.
    """

    __slots__ = ("_run", "_task", "_timer", "owner")

    def __init__(self, run: Run, owner: str) -> None:
        self.owner = owner
        self._run = run
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def over(self) -> None:
        """It is not held any more."""
        self._run.lease = None
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def give_back(self) -> None:
        """Release it, for a run that ends without a last save."""
        self.over()
        await self._release(self._run.token)

    def _arm(self) -> None:
        after = self._run.config.lease_seconds * SHARE
        self._timer = asyncio.get_running_loop().call_later(after, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._prolong())

    async def _prolong(self) -> None:
        run = self._run
        message = TakeLease(**self._thread(), owner=self.owner, seconds=run.config.lease_seconds)
        try:
            taken: LeaseTaken = await run.peers.checkpointer().request(message)
        except ThreadBusy as busy:
            self._lost(str(busy.details.get("owner")))
        except UmbelError as error:  # the store is away: the token still keeps others' writes and ours apart
            logger.info("run %s: its lease could not be prolonged (%s); it is tried again", run.id, error.message)
            self._arm()
        else:
            if taken.token == run.token:
                self._arm()
                return
            await self._release(taken.token)  # it was somebody else's meanwhile, or the thread was deleted
            self._lost("another writer")

    def _lost(self, holder: str) -> None:
        run = self._run
        why = f"thread {run.request.thread_id!r} is not this run's any more: {holder} has taken it, or it was deleted"
        run.lose(StaleWriter(why, thread_id=run.request.thread_id, token=run.token, owner=holder))

    async def _release(self, token: int) -> None:
        try:
            await self._run.peers.checkpointer().request(ReleaseLease(**self._thread(), owner=self.owner, token=token))
        except UmbelError as error:  # it ends by itself
            logger.info("run %s: its lease could not be given back: %s", self._run.id, error.message)

    def _thread(self) -> dict[str, Any]:
        return {"store": self._run.config.checkpointer or "", "thread_id": self._run.request.thread_id or ""}
