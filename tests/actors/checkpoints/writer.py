"""A process that writes checkpoints and says on stdout what was acknowledged: ``writer.py URL THREAD NAME COUNT MODE``.

Modes: ``append`` goes on from its own last checkpoint, ``race`` loads the newest one before each save.
"""

from __future__ import annotations

import asyncio
import sys

from umbel.actors.checkpoints import CheckpointerActor
from umbel.protocol.commands import LoadCheckpoint, SaveCheckpoint
from umbel.protocol.errors import CheckpointConflict


async def main(url: str, thread_id: str, name: str, count: int, mode: str) -> None:
    actor = CheckpointerActor()
    parent: str | None = None
    for number in range(count):
        if mode == "race":
            parent = (await actor.load(LoadCheckpoint(store=url, thread_id=thread_id))).checkpoint_id
        save = SaveCheckpoint(
            store=url,
            thread_id=thread_id,
            checkpoint_id=f"{name}-{number}",
            parent_id=parent,
            kind="snapshot" if parent is None else "delta",
            base=number if mode == "append" else 0,
            state=b'{"messages":[{"role":"user","content":"%d"}]}' % number,
        )
        try:
            await actor.save(save)
        except CheckpointConflict as conflict:
            sys.stdout.write(f"lost {conflict.details['expected']} {conflict.details['found']}\n")
        else:
            sys.stdout.write(f"saved {parent} {save.checkpoint_id}\n")
            parent = save.checkpoint_id
        sys.stdout.flush()
    await actor.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]))
