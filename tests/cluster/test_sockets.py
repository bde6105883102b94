"""Frames over TCP: the handshake, what a stranger can do (nothing), and what happens when a connection breaks."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from umbel import Runtime
from umbel.actors.frames import Frames, Unreachable
from umbel.actors.link import Link
from umbel.actors.mailbox import Mailbox
from umbel.cluster import sockets
from umbel.cluster.host import Identity, RayTransport
from umbel.cluster.sockets import COLLECT, CONTROL, DELIVER, Connection, FrameServer
from umbel.errors import DecodeError, PeerLost
from umbel.protocol.commands import Define, Ping, Pong

SECRET = b"s" * 32
EPOCH = 7


class Socket:
    """A transport over a connection, to a mailbox of this process."""

    def __init__(self, address: tuple[str, int], secret: bytes = SECRET) -> None:
        self.address, self.secret = address, secret
        self.connection = Connection()

    async def hello(self) -> int:
        self.connection = Connection()
        await self.connection.connect(self.address, self.secret, "asker")
        return EPOCH

    async def deliver(self, frame: bytes, large: Sequence[bytes]) -> Frames:
        return await self.connection.call(DELIVER, frame, large)

    async def collect(self, frame: bytes) -> Frames:
        return await self.connection.call(COLLECT, frame)

    async def control(self, frame: bytes) -> None:
        await self.connection.call(CONTROL, frame)

    def close(self) -> None:
        self.connection.close()


class Served:
    """A mailbox behind a server, and what it was asked."""

    def __init__(self) -> None:
        self.mailbox = Mailbox("served", EPOCH)
        self.server = FrameServer(self.mailbox, SECRET, "127.0.0.1")
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = asyncio.Event()
        self.began = asyncio.Event()
        self.sizes: list[int] = []
        self.mailbox.on(Ping, self.ping)
        self.mailbox.on(Define, self.define)

    async def ping(self, message: Ping, caller: Any) -> Pong:
        self.began.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Pong(epoch=EPOCH, pid=os.getpid())

    async def define(self, message: Define, caller: Any) -> Define:
        self.sizes.append(len(message.blob))
        return message


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served()
    made.address = await made.server.start()  # type: ignore[attr-defined]
    yield made
    await made.mailbox.close()
    await made.server.close()
    await asyncio.sleep(0.01)  # the loop closes sockets on its next turns


def address(served: Served) -> tuple[str, int]:
    return served.address  # type: ignore[attr-defined, no-any-return]


async def link_to(served: Served) -> tuple[Link, Socket]:
    transport = Socket(address(served))
    return Link("asker", time.time_ns(), "served", transport), transport


async def test_requests_of_every_size(served: Served) -> None:
    link, _ = await link_to(served)
    assert (await link.request(Ping())).epoch == EPOCH
    blobs = [os.urandom(size) for size in (0, 1, 79_000, 81_000, 5_000_000)]
    answers = await asyncio.gather(*(link.request(Define(definition=str(i), blob=blob)) for i, blob in enumerate(blobs)))
    assert [answer.blob for answer in answers] == blobs
    await asyncio.gather(*(link.request(Ping()) for _ in range(2_000)))
    await link.close()


async def test_a_stranger_is_refused(served: Served) -> None:
    connection = Connection()
    with pytest.raises(OSError, match="closed"):
        await connection.connect(address(served), b"w" * 32, "stranger")
    assert not served.sizes and not served.mailbox.busy


async def test_a_server_that_does_not_know_the_secret_is_refused() -> None:
    gone = asyncio.Event()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(os.urandom(32))
        await reader.read(1_000)
        writer.write(os.urandom(32))
        await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    server = await asyncio.start_server(impostor, "127.0.0.1", 0)
    connection = Connection()
    with pytest.raises(OSError, match="secret"):
        await connection.connect(server.sockets[0].getsockname()[:2], SECRET, "asker")
    await gone.wait()
    server.close()


@pytest.mark.parametrize(
    "junk",
    [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(200), b"\0" * 64 + b"\xff" + b"\xff" * 255],
    ids=["nothing", "http", "random", "not-text"],
)
async def test_junk_instead_of_a_handshake_does_no_harm(served: Served, junk: bytes) -> None:
    reader, writer = await asyncio.open_connection(*address(served))
    writer.write(junk)
    writer.write_eof()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    link, _ = await link_to(served)
    assert (await link.request(Ping())).epoch == EPOCH
    await link.close()


@pytest.mark.parametrize(
    "junk",
    [struct.pack("!I", 2**32 - 1), struct.pack("!I", 3) + b"\xc1\xc1\xc1", struct.pack("!I", 1) + b"\x01"],
    ids=["huge", "not-msgpack", "not-a-message"],
)
async def test_nonsense_after_the_handshake_closes_that_connection_only(served: Served, junk: bytes) -> None:
    _, first = await link_to(served)
    await first.hello()
    first.connection._wire.write(junk)
    with pytest.raises(Unreachable):
        await first.connection.call(DELIVER, b"x" * 10)
    link, _ = await link_to(served)
    assert (await link.request(Ping())).epoch == EPOCH
    await link.close()


async def test_a_frame_that_makes_no_sense_is_an_error_of_its_call(served: Served) -> None:
    _, transport = await link_to(served)
    await transport.hello()
    with pytest.raises(DecodeError):
        await transport.deliver(b"junk", ())
    transport.close()


async def test_a_broken_connection_is_made_again_and_nothing_runs_twice(served: Served) -> None:
    link, transport = await link_to(served)
    served.gate.clear()
    request = asyncio.ensure_future(link.request(Ping()))
    await served.began.wait()
    transport.connection.close()
    await asyncio.sleep(0)
    served.gate.set()
    assert (await request).epoch == EPOCH, "the request went on meanwhile, and its answer is fetched over the new connection"
    assert link.stats["restarts"] == 0
    await link.close()


async def test_a_peer_that_stays_away_is_forgotten_and_its_requests_are_cancelled(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "GONE_SECONDS", 0.05)
    link, _ = await link_to(served)
    served.gate.clear()
    request = asyncio.ensure_future(link.request(Ping()))
    await served.began.wait()
    await link.close()
    with pytest.raises(PeerLost):
        await request
    await asyncio.wait_for(served.cancelled.wait(), 10)
    assert not served.mailbox._sessions


@pytest.mark.ray
@pytest.mark.parametrize("direct", [True, False], ids=["sockets", "ray-calls"])
async def test_an_actor_is_reached_both_ways(ray_runtime: Runtime, direct: bool) -> None:
    actors = ray_runtime.backend._actors  # type: ignore[attr-defined]
    me = Identity(actors.namespace, f"test-{direct}", actors.secret)
    transport = RayTransport(me, "tools/default/0", direct=direct)
    link = Link(me.name, time.time_ns(), "tools/default/0", transport, eager=True)
    pongs = await asyncio.gather(*(link.request(Ping()) for _ in range(500)))
    assert len({pong.pid for pong in pongs}) == 1 and pongs[0].pid != os.getpid()
    assert (transport._connection is not None) is direct
    await link.close()


@pytest.mark.ray
async def test_without_the_secret_frames_go_as_ray_calls(ray_runtime: Runtime) -> None:
    actors = ray_runtime.backend._actors  # type: ignore[attr-defined]
    transport = RayTransport(Identity(actors.namespace, "stranger", b"?" * 32), "tools/default/0")
    link = Link("stranger", time.time_ns(), "tools/default/0", transport)
    assert (await link.request(Ping())).pid
    assert transport._connection is None
    await link.close()
