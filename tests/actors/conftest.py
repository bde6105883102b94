from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from umbel.actors.frames import Caller, Channel
from umbel.actors.link import Link, LocalLink
from umbel.actors.mailbox import Mailbox
from umbel.protocol.commands import CancelRun, CheckpointLoaded, Define, ForgetRuns, Ping, RunsCancelled, ToolProgress
from umbel.protocol.errors import RateLimited
from umbel.protocol.messages import Frozen

from .faulty_transport import FaultyTransport


def quick(number: int) -> CancelRun:
    """A request that is answered with its number at once."""
    return CancelRun(run_id=str(number))


def slow(number: int, size: int = 0) -> CancelRun:
    """A request of at least ``size`` bytes that is answered with its number when the peer's gate opens."""
    return CancelRun(thread_id=str(number).ljust(size))


def bad(how: str) -> CancelRun:
    """A request whose handler misbehaves."""
    return CancelRun(definition=how)


class Peer:
    """The actors behind a mailbox, in every incarnation, and what they saw.

    Requests are made by ``quick``, ``slow`` and ``bad``; ``Define`` is answered with its blob.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.finished: list[str] = []
        self.cancelled: list[str] = []
        self.gate = asyncio.Event()
        self.arrived = asyncio.Event()
        self.stopped = asyncio.Event()
        self.epochs = 0
        self.blobs: list[Define] = []

    def mailbox(self, **options: Any) -> Mailbox:
        """The mailbox of a new incarnation."""
        self.epochs += 1
        mailbox = Mailbox("peer", self.epochs, **options)
        mailbox.on(CancelRun, self.cancel_run)
        mailbox.on(ForgetRuns, self.forget)
        mailbox.on(Define, self.define)
        return mailbox

    async def begun(self, count: int) -> None:
        """Until ``count`` requests have arrived."""
        while len(self.seen) < count:
            self.arrived.clear()
            await self.arrived.wait()

    async def cancel_run(self, message: CancelRun, caller: Caller) -> Any:
        if message.run_id is not None:
            self.seen.append(message.run_id)
            return RunsCancelled(count=int(message.run_id))
        if message.definition is not None:
            return await self.misbehave(message.definition, caller)
        key = str(message.thread_id).strip()
        self.seen.append(key)
        self.arrived.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(key)
            self.stopped.set()
            raise
        self.finished.append(key)
        return RunsCancelled(count=int(key))

    async def misbehave(self, how: str, caller: Caller) -> Any:
        match how:
            case "umbel error":
                raise RateLimited("slow down", retry_after=2.5)
            case "other error":
                raise KeyError("first line\nsecond line")
            case "exit":
                raise SystemExit(3)
            case "cancels itself":
                raise asyncio.CancelledError
            case "times out":
                raise TimeoutError("of its own")
            case "no reply":
                return None
            case "partial":
                for step in range(5):
                    caller.send(ToolProgress(tool_call_id="p", progress=step))
                    if step % 2:
                        await asyncio.sleep(0)
                return RunsCancelled(count=5)
            case _:
                return {"not": "a message"}

    async def forget(self, message: ForgetRuns, caller: Caller) -> None:
        self.seen += message.run_ids
        caller.send(Ping())  # nobody listens, nothing happens

    async def define(self, message: Define, caller: Caller) -> Frozen | None:
        self.blobs.append(message)
        self.seen.append(f"define {message.definition}")
        return CheckpointLoaded(state=message.blob)


@pytest.fixture
async def peer() -> Peer:
    return Peer()


@pytest.fixture
async def clean_loop() -> AsyncIterator[None]:
    """Fails a test that leaves a task behind, or an exception that nobody has seen."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    gc.freeze()  # so that the collection below looks at this test's objects only
    yield
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    gc.unfreeze()
    assert not complaints
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
async def wire(peer: Peer, clean_loop: None) -> AsyncIterator[FaultyTransport]:
    """A transport to a mailbox of ``peer``."""
    transport = FaultyTransport(peer.mailbox())
    yield transport
    if transport.mailbox is not None:
        await transport.mailbox.close()
    await transport.shut_down()


@pytest.fixture
async def link(wire: FaultyTransport) -> AsyncIterator[Link]:
    link = Link("asker", 1, "peer", wire, backoff=0)
    yield link
    await link.close()


@pytest.fixture(params=["remote", "local"])
async def channel(request: pytest.FixtureRequest, peer: Peer, clean_loop: None) -> AsyncIterator[Channel]:
    """Both kinds of link to ``peer``: what a test with this fixture shows holds for both."""
    mailbox = peer.mailbox()
    wire = FaultyTransport(mailbox)
    channel: Channel = LocalLink(mailbox) if request.param == "local" else Link("asker", 1, "peer", wire, backoff=0)
    yield channel
    await channel.close()
    await mailbox.close()
    await wire.shut_down()
