"""Frames: what crosses between two processes in one call, and the words both sides share about it. See ``mailbox.py``."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Any, Protocol

from ..protocol.codec import unpack
from ..protocol.commands import Failure
from ..protocol.errors import DecodeError, RemoteError, UmbelError
from ..protocol.messages import Frozen

FRAME_BYTES = 80_000
FRAME_MESSAGES = 64  # so that a burst from one peer does not keep what others sent waiting, and the peer has work early
FRAME_VERSION = 1
WINDOW = 8  # frames of one link under way at once
OK, WRONG_EPOCH, STALE_SENDER, FORGOTTEN = 0, 1, 2, 3

Frames = tuple[bytes, Sequence[bytes]]
Envelope = tuple[int, str, bytes]
Handler = Callable[[Any, "Caller"], Awaitable[Frozen | None]]
Observer = Callable[[Any], None]


class Unreachable(Exception):
    """A transport's word for: this call failed, the peer may come back (never leaves the link)."""


class Unsent(Unreachable):
    """The same, and nothing of this call has left."""


class Transport(Protocol):
    """How frames reach a peer. Any method may raise ``Unreachable``, or ``PeerLost`` when the peer is gone for good."""

    async def hello(self) -> int: ...
    def deliver(self, frame: bytes, large: Sequence[bytes]) -> Awaitable[Frames]: ...
    async def collect(self, frame: bytes) -> Frames: ...
    async def control(self, frame: bytes) -> None: ...
    def close(self) -> None: ...


class Channel(Protocol):
    """What both kinds of link offer."""

    async def request(
        self, message: Frozen, *, timeout: float | None = None, on_partial: Observer | None = None, urgent: bool = False
    ) -> Any: ...
    def send(self, message: Frozen) -> None: ...
    def define(self, definition: str, blob: Callable[[str], bytes]) -> None: ...
    async def close(self) -> None: ...


class Caller(Protocol):
    """The asking side of one request, as its handler sees it."""

    def send(self, message: Frozen) -> None:
        """Send a partial reply."""

    async def flow(self) -> None:
        """Wait while the caller is far behind with what it was sent."""


def failure(error: BaseException) -> Failure:
    """An exception as a reply. What is not an Umbel error becomes ``RemoteError`` with its type and first line."""
    if not isinstance(error, UmbelError):
        error = RemoteError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": "))
    return Failure(**error.to_wire())


def cut(
    queue: deque[Envelope], wanted: Container[int] | None = None, *, by_reference: bool = True
) -> tuple[list[Envelope], list[Any], list[bytes]]:
    """Take envelopes worth one frame off ``queue``: (taken, as they go into the frame, blobs that go beside it).

    Requests whose numbers are not ``wanted`` any more are dropped.
    """
    taken: list[Envelope] = []
    wire: list[Any] = []
    large: list[bytes] = []
    size = 0
    while queue:
        envelope = queue[0]
        number, kind, blob = envelope
        if wanted is not None and number and number not in wanted:
            queue.popleft()
            continue
        length = len(blob)
        if length > FRAME_BYTES and by_reference:
            # So that one frame never keeps more than about 80 MB alive.
            size += 1_000 + length // 1_000
        else:
            size += length + 40
        if taken and (size > FRAME_BYTES or len(taken) >= FRAME_MESSAGES):
            break
        queue.popleft()
        taken.append(envelope)
        if length > FRAME_BYTES and by_reference:
            wire.append((number, kind, len(large)))
            large.append(blob)
        else:
            wire.append(envelope)
    return taken, wire, large


def read_frame(data: bytes, *shape: type) -> list[Any]:
    """The parts of a frame, checked against the types that follow its version."""
    frame = unpack(data)
    if not isinstance(frame, list) or tuple(type(part) for part in frame) != (int, *shape):
        raise DecodeError("this is not a mailbox frame")
    if frame[0] != FRAME_VERSION:
        raise DecodeError(f"frame version {frame[0]}, this process knows {FRAME_VERSION}; run the same Umbel everywhere")
    return frame


def body(part: Any, large: Sequence[bytes]) -> bytes:
    """The blob of an envelope whose third part is ``part``: that itself, or an index of the blobs that came beside it."""
    if isinstance(part, int) and 0 <= part < len(large):
        return bytes(large[part])
    if isinstance(part, bytes):
        return part
    raise DecodeError("an envelope has no body")
