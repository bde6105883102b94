"""Requests that share a message: each gets its own reply, its own error, and none waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from umbel.actors.bundling import LONG, MOST, Bundling
from umbel.actors.frames import failure
from umbel.errors import DecodeError, PeerLost, ProtocolError, StaleWriter, UmbelError
from umbel.protocol.bundle import Bundle
from umbel.protocol.codec import decode, encode
from umbel.protocol.commands import CheckpointSaved, SaveCheckpoint
from umbel.protocol.messages import Frozen
from umbel.protocol.storage import LeaseTaken, TakeLease


class Peer:
    """Answers saves as a checkpointer would, and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[Frozen] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def request(self, message: Frozen, **options: Any) -> Any:
        self.sent.append(message)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if isinstance(message, Bundle):
            return Bundle.of([self._answer(part) for part in message.messages()])
        reply = self._answer(message)
        if not isinstance(reply, CheckpointSaved | LeaseTaken):
            raise StaleWriter("too late")
        return reply

    def _answer(self, message: Frozen) -> Frozen:
        if isinstance(message, SaveCheckpoint):
            late = message.checkpoint_id == "late"
            return failure(StaleWriter("too late")) if late else CheckpointSaved(checkpoint_id=message.checkpoint_id)
        return LeaseTaken(token=1)

    def send(self, message: Frozen) -> None:
        self.sent.append(message)

    def define(self, definition: str, blob: Any) -> None:
        self.sent.append(CheckpointSaved(checkpoint_id=definition))

    async def close(self) -> None:
        self.error = PeerLost("closed")
        self.gate.set()


def save(name: str, state: bytes = b"{}") -> SaveCheckpoint:
    return SaveCheckpoint(store="memory://", thread_id="t", checkpoint_id=name, state=state)


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def channel(peer: Peer) -> Bundling:
    return Bundling(peer, (SaveCheckpoint,))


async def ask(channel: Bundling, *messages: Frozen) -> list[Any]:
    return await asyncio.gather(*(channel.request(message) for message in messages), return_exceptions=True)


async def test_requests_of_one_tick_travel_as_one_and_are_answered_each(peer: Peer, channel: Bundling) -> None:
    replies = await ask(channel, save("a"), save("late"), save("b"))
    assert [type(message) for message in peer.sent] == [Bundle]
    assert [replies[0].checkpoint_id, type(replies[1]), replies[2].checkpoint_id] == ["a", StaleWriter, "b"]


async def test_one_alone_needs_no_bundle(peer: Peer, channel: Bundling) -> None:
    [reply] = await ask(channel, save("a"))
    assert (reply.checkpoint_id, [type(message) for message in peer.sent]) == ("a", [SaveCheckpoint])


async def test_other_kinds_and_long_ones_travel_alone(peer: Peer, channel: Bundling) -> None:
    lease = TakeLease(store="memory://", thread_id="t", owner="me", seconds=1.0)
    await ask(channel, lease, save("long", b"x" * (LONG + 1)), save("a"), save("b"))
    assert [type(message) for message in peer.sent] == [TakeLease, SaveCheckpoint, Bundle]


async def test_a_bundle_holds_only_so_many(peer: Peer, channel: Bundling) -> None:
    replies = await ask(channel, *(save(f"c{n}") for n in range(2 * MOST + 1)))
    assert [reply.checkpoint_id for reply in replies] == [f"c{n}" for n in range(2 * MOST + 1)]
    assert [len(message.messages()) for message in peer.sent[:2] if isinstance(message, Bundle)] == [MOST, MOST]


async def test_when_the_peer_dies_everybody_hears_of_it(peer: Peer, channel: Bundling) -> None:
    peer.error = PeerLost("gone", delivered="unknown")
    replies = await ask(channel, save("a"), save("b"))
    assert [type(reply) for reply in replies] == [PeerLost, PeerLost]
    assert replies[0] is not replies[1]
    assert replies[0].delivered == "unknown"


async def test_one_that_is_cancelled_leaves_the_others_alone(peer: Peer, channel: Bundling) -> None:
    peer.gate.clear()
    asked = [asyncio.ensure_future(channel.request(save(name))) for name in "abc"]
    await asyncio.sleep(0.01)
    asked[1].cancel()
    peer.gate.set()
    replies: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(replies[1], asyncio.CancelledError)
    assert [replies[0].checkpoint_id, replies[2].checkpoint_id] == ["a", "c"]


async def test_closing_leaves_nobody_waiting(peer: Peer, channel: Bundling) -> None:
    peer.gate.clear()
    asked = [asyncio.ensure_future(channel.request(save(name))) for name in "ab"]
    await asyncio.sleep(0.01)
    await channel.close()
    assert [type(reply) for reply in await asyncio.gather(*asked, return_exceptions=True)] == [PeerLost, PeerLost]


async def test_a_wrong_number_of_replies_is_an_error_for_all(peer: Peer, channel: Bundling) -> None:
    peer._answer = lambda message: CheckpointSaved(checkpoint_id="x")  # type: ignore[method-assign]
    answer = peer.request

    async def short(message: Frozen, **options: Any) -> Any:
        reply = await answer(message)
        return Bundle.of(reply.messages()[:1])

    peer.request = short  # type: ignore[method-assign]
    assert [type(reply) for reply in await ask(channel, save("a"), save("b"))] == [ProtocolError, ProtocolError]


def test_a_bundle_comes_back_as_it_was() -> None:
    messages: list[Frozen] = [save("a", b'{"n":1}'), TakeLease(store="s", thread_id="ü", owner="o", seconds=2.0)]
    received = decode(*encode(Bundle.of(messages)))
    assert isinstance(received, Bundle)
    assert received.messages() == messages


@pytest.mark.parametrize("parts", [b"", b"\xc1", b"\x01", b"\x91\x01", b"\x91\x92\xa1x\xc4\x00"])
def test_a_damaged_bundle_is_an_error(parts: bytes) -> None:
    with pytest.raises(UmbelError) as raised:
        Bundle(parts=parts).messages()
    assert isinstance(raised.value, DecodeError | ProtocolError)
