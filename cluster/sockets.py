"""Frames over TCP, from one actor process straight to another.

A Ray call costs about a millisecond and hundreds of microseconds of CPU, whatever it carries; a socket costs a tenth. So
Ray does what it is good at (placing, naming, restarting and watching actors), and tells two processes about each other;
their frames then go directly. Where no connection can be made, they go as Ray calls instead (``host.RayTransport``).

    length (4 bytes) | msgpack [call number, what, frame, large blobs]

Both ends prove that they know the runtime's secret before anything else is read. A connection that breaks fails the calls
on it with ``Unreachable``; the link then meets its peer again, by way of Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..actors.frames import Frames, Unreachable, Unsent
from ..actors.mailbox import Mailbox
from ..protocol.codec import MAX_MESSAGE_BYTES, pack, unpack
from ..protocol.errors import ProtocolError, UmbelError, from_wire

DELIVER, COLLECT, CONTROL, ANSWER, ERROR = range(5)
CONNECT_SECONDS = 5.0
# A machine that loses its power says goodbye to nobody: a silent peer is probed after 5 s, and given up 6 s later; one that
# does not acknowledge what it was sent, after 10 s.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
GONE_SECONDS = 30.0
_LENGTH = struct.Struct("!I")
_LIMIT = 2 * MAX_MESSAGE_BYTES
_NONCE = 32
_PROOF = 32

logger = logging.getLogger("umbel.sockets")


def prove(secret: bytes, nonce: bytes, side: bytes) -> bytes:
    """What shows a peer's nonce that this side knows the secret."""
    return hmac.new(secret, side + nonce, hashlib.sha256).digest()


class Wire(asyncio.Protocol):
    """One connection: first a handshake of plain bytes, then length-prefixed messages in both directions.

    Args:
        lost: called when the connection has ended, however it ended.
    """

    def __init__(self, lost: Callable[[], None]) -> None:
        self._lost = lost
        self._received: Callable[[Any], None] | None = None
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._more: asyncio.Future[None] | None = None

    async def read(self, length: int) -> bytes:
        """Bytes of the handshake. Raises ``ConnectionError`` when the peer ends it."""
        while len(self._buffer) < length:
            if self._transport is None:
                raise ConnectionError("the peer closed the connection")
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        data = bytes(self._buffer[:length])
        del self._buffer[:length]
        return data

    def write(self, data: bytes) -> None:
        """Bytes of the handshake."""
        if self._transport is not None:
            self._transport.write(data)

    def begin(self, received: Callable[[Any], None]) -> None:
        """The handshake is over: every message from now on goes to ``received``."""
        self._received = received
        self._read_messages()

    def send(self, call: int, what: int, frame: bytes, large: Sequence[bytes]) -> None:
        if self._transport is None or self._transport.is_closing():
            raise Unsent
        message = pack((call, what, frame, tuple(large)))
        self._transport.write(_LENGTH.pack(len(message)) + message)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        raw = transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in KEEPALIVE.items():
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._received is not None:
            self._read_messages()
        else:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._wake()
        self._lost()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def _read_messages(self) -> None:
        buffer, start = self._buffer, 0
        while len(buffer) - start >= _LENGTH.size:
            length = _LENGTH.unpack_from(buffer, start)[0]
            if length > _LIMIT:
                self._give_up(f"a peer announced a message of {length} bytes")
                return
            first = start + _LENGTH.size
            if len(buffer) - first < length:
                break
            start = first + length
            try:
                self._received(unpack(bytes(memoryview(buffer)[first:start])))  # type: ignore[misc]  # begun
            except (UmbelError, ValueError, TypeError) as error:
                self._give_up(f"a message that makes no sense: {error}")
                return
        if start:
            del buffer[:start]

    def _give_up(self, why: str) -> None:
        logger.error("%s; the connection is closed", why)
        self._buffer.clear()
        self.close()


class FrameServer:
    """Serves a mailbox to whoever knows the secret.

    Args:
        mailbox: what is served.
        secret: the runtime's.
        host: address to listen on.
    """

    def __init__(self, mailbox: Mailbox, secret: bytes, host: str) -> None:
        self._mailbox = mailbox
        self._secret = secret
        self._host = host
        self._server: asyncio.Server | None = None
        self._peers: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wires: set[Wire] = set()

    async def start(self) -> tuple[str, int]:
        """Listen on a free port; the address."""
        self._server = await asyncio.get_running_loop().create_server(self._accept, self._host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return self._host, port

    async def close(self) -> None:
        """End every connection, and take no more."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for wire in self._wires:
            wire.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> Wire:
        peer: list[str] = []
        wire = Wire(lambda: self._left(wire, peer))
        self._wires.add(wire)
        self._keep(asyncio.ensure_future(self._welcome(wire, peer)))
        return wire

    async def _welcome(self, wire: Wire, peer: list[str]) -> None:
        await asyncio.sleep(0)  # until the connection is made
        nonce = os.urandom(_NONCE)
        wire.write(nonce)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                hello = await wire.read(_PROOF + _NONCE + 1)
                name = (await wire.read(hello[-1])).decode()
        except (OSError, UnicodeDecodeError):  # also a timeout
            wire.close()
            return
        if not hmac.compare_digest(hello[:_PROOF], prove(self._secret, nonce, b"asker")):
            logger.warning("a connection without the secret was refused")
            wire.close()
            return
        wire.write(prove(self._secret, hello[_PROOF:-1], b"server"))
        peer.append(name)
        self._peers[name] = self._peers.get(name, 0) + 1
        wire.begin(lambda message: self._serve(wire, *message))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _serve(self, wire: Wire, call: int, what: int, frame: bytes, large: Sequence[bytes]) -> None:
        if what == CONTROL:
            self._mailbox.control(frame)
            wire.send(call, ANSWER, b"", ())
            return
        mailbox = self._mailbox
        job = mailbox.deliver(frame, large) if what == DELIVER else mailbox.collect(frame)
        self._keep(asyncio.ensure_future(self._answer(wire, call, job)))

    async def _answer(self, wire: Wire, call: int, job: Awaitable[Frames]) -> None:
        with contextlib.suppress(Unreachable):  # the asker has gone; it will ask again, or not
            try:
                frame, large = await job
            except UmbelError as error:
                wire.send(call, ERROR, pack(error.to_wire()), ())
            else:
                wire.send(call, ANSWER, frame, large)

    def _left(self, wire: Wire, peer: list[str]) -> None:
        """A peer that does not come back within half a minute is forgotten, and what it asked for is cancelled."""
        self._wires.discard(wire)
        for name in peer:
            self._peers[name] -= 1
            asyncio.get_running_loop().call_later(GONE_SECONDS, self._forget, name)

    def _forget(self, peer: str) -> None:
        if self._peers.get(peer) == 0:
            del self._peers[peer]
            self._mailbox.forget(peer)


class Connection:
    """The asking end of a connection: calls that may overlap, each with its answer."""

    def __init__(self) -> None:
        self._wire = Wire(self._lost)
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[Frames]] = {}
        self.alive = False

    async def connect(self, address: tuple[str, int], secret: bytes, me: str) -> None:
        """Reach the server and exchange proofs.

        Raises:
            OSError: nobody listens there, or it does not know the secret.
        """
        wire, mine, name = self._wire, os.urandom(_NONCE), me.encode()[:255]
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().create_connection(lambda: wire, *address)
            nonce = await wire.read(_NONCE)
            wire.write(prove(secret, nonce, b"asker") + mine + bytes([len(name)]) + name)
            proof = await wire.read(_PROOF)
        if not hmac.compare_digest(proof, prove(secret, mine, b"server")):
            wire.close()
            raise ConnectionError("the peer does not know this runtime's secret")
        self.alive = True
        wire.begin(self._settle)

    def call(self, what: int, frame: bytes, large: Sequence[bytes] = ()) -> asyncio.Future[Frames]:
        """One call, sent before this returns.

        The future raises ``Unreachable`` if the connection breaks before the answer, ``Unsent`` if it had before this call.
        """
        answer: asyncio.Future[Frames] = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        try:
            if not self.alive:
                raise Unsent
            self._wire.send(number, what, frame, large)
        except Unreachable as error:
            answer.set_exception(error)
        else:
            self._open[number] = answer
        return answer

    def close(self) -> None:
        self.alive = False
        self._wire.close()

    def _settle(self, message: Any) -> None:
        number, what, frame, large = message
        answer = self._open.pop(number, None)
        if answer is None or answer.done():
            return
        if what == ERROR:
            answer.set_exception(from_wire(unpack(frame)))
        elif what == ANSWER:
            answer.set_result((frame, large))
        else:
            raise ProtocolError(f"a server does not send {what}")

    def _lost(self) -> None:
        self.alive = False
        answers, self._open = self._open, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(Unreachable())
