"""Several checkpointers: a thread is always stored by the same one, and what is on one node's disk by the first."""

from __future__ import annotations

import zlib
from typing import Any

from umbel.actors.checkpoints.by_thread import ByThread
from umbel.protocol.commands import LoadCheckpoint
from umbel.protocol.storage import ListThreads

REDIS, SQLITE = "redis://127.0.0.1:6379/0", "sqlite:////tmp/checkpoints.sqlite"


class Checkpointer:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.closed = False

    async def request(self, message: Any, **_: Any) -> str:
        self.asked.append(message)
        return "done"

    def send(self, message: Any) -> None:
        self.asked.append(message)

    def define(self, definition: str, blob: Any) -> None:
        self.asked.append(definition)

    async def close(self) -> None:
        self.closed = True


def shard_of(key: str, count: int) -> int:
    return zlib.crc32(key.encode()) % count


async def ask(store: str, threads: int) -> list[Checkpointer]:
    several = [Checkpointer() for _ in range(4)]
    channel = ByThread(several, shard_of)
    for _ in range(2):
        for number in range(threads):
            assert await channel.request(LoadCheckpoint(store=store, thread_id=f"t-{number}")) == "done"
    return several


async def test_every_thread_has_one_checkpointer_and_all_of_them_have_some() -> None:
    several = await ask(REDIS, 100)
    threads = [{message.thread_id for message in one.asked} for one in several]
    assert sum(map(len, threads)) == len(set().union(*threads)) == 100
    assert min(map(len, threads)) > 10


async def test_a_file_is_served_by_the_first_alone() -> None:
    several = await ask(SQLITE, 20)
    assert [len(one.asked) for one in several] == [40, 0, 0, 0]


async def test_what_is_about_no_thread_goes_to_the_first() -> None:
    several = [Checkpointer(), Checkpointer()]
    channel = ByThread(several, shard_of)
    await channel.request(ListThreads(store=REDIS))
    channel.define("agent", lambda name: b"")
    await channel.close()
    assert [len(one.asked) for one in several] == [2, 1]
    assert all(one.closed for one in several)
