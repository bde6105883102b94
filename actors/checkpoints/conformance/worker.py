"""A process that writes checkpoints and says on stdout what was acknowledged.

    python -m umbel.actors.checkpoints.conformance.worker URL THREAD NAME COUNT MODE [PLUGIN]

Modes: ``append`` goes on from its own last checkpoint; ``race`` loads the newest one before each save; ``lease`` does that
under a lease of its own for each save; ``hold`` takes a short lease and waits to be killed.
"""

from __future__ import annotations

import asyncio
import importlib
import sys

from ....protocol.commands import LoadCheckpoint, SaveCheckpoint
from ....protocol.errors import CheckpointConflict, StaleWriter, ThreadBusy
from ....protocol.storage import LeaseTaken, ReleaseLease, TakeLease
from ..actor import CheckpointerActor


class Worker:
    """One writer of one thread."""

    def __init__(self, url: str, thread_id: str, name: str) -> None:
        self.url = url
        self.thread_id = thread_id
        self.name = name
        self.actor = CheckpointerActor()

    async def run(self, count: int, mode: str) -> None:
        """Save ``count`` checkpoints."""
        parent: str | None = None
        for number in range(count):
            if mode == "hold":
                await self.hold()
            elif mode == "lease":
                await self.save_under_lease(number)
            else:
                if mode == "race":
                    parent = await self.newest()
                parent = await self.save(number, parent, number if mode == "append" else 0)
        await self.actor.close()

    async def newest(self) -> str | None:
        """The thread's newest checkpoint."""
        return (await self.actor.load(LoadCheckpoint(store=self.url, thread_id=self.thread_id))).checkpoint_id

    async def save(self, number: int, parent: str | None, base: int) -> str | None:
        """Save once and say how it went."""
        save = self.make(number, parent, base)
        try:
            await self.actor.save(save)
        except CheckpointConflict as conflict:
            say("lost", conflict.details["expected"], conflict.details["found"])
            return parent
        say("saved", parent, save.checkpoint_id)
        return save.checkpoint_id

    def make(self, number: int, parent: str | None, base: int, token: int = 0) -> SaveCheckpoint:
        """A checkpoint with one message more."""
        return SaveCheckpoint(
            store=self.url,
            thread_id=self.thread_id,
            checkpoint_id=f"{self.name}-{number}",
            parent_id=parent,
            kind="snapshot" if parent is None else "delta",
            base=base,
            state=b'{"messages":[{"role":"user","content":"%d"}]}' % number,
            token=token,
        )

    async def save_under_lease(self, number: int) -> None:
        """Wait for the lease, save, give it back."""
        lease = await self.take(60.0)
        save = self.make(number, await self.newest(), 0, lease.token)
        try:
            await self.actor.save(save)
        except (CheckpointConflict, StaleWriter) as error:
            say("lost", lease.token, type(error).__name__)
        else:
            say("saved", lease.token, save.checkpoint_id)
        await self.actor.release(ReleaseLease(store=self.url, thread_id=self.thread_id, owner=self.name, token=lease.token))

    async def take(self, seconds: float) -> LeaseTaken:
        """The lease, once nobody else has it."""
        while True:
            try:
                return await self.actor.lease(
                    TakeLease(store=self.url, thread_id=self.thread_id, owner=self.name, seconds=seconds)
                )
            except ThreadBusy:
                await asyncio.sleep(0.002)

    async def hold(self) -> None:
        """Take the lease and wait for the end."""
        lease = await self.take(1.0)
        say("held", lease.token, lease.expires_at)
        await asyncio.to_thread(sys.stdin.read)


def say(*words: object) -> None:
    """A line on stdout, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    address, thread, who, often, how, *plugins = sys.argv[1:]
    for plugin in plugins:
        importlib.import_module(plugin)
    asyncio.run(Worker(address, thread, who).run(int(often), how))
