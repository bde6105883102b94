"""The mailbox alone: what arrives at it need not come from a well-behaved link."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from umbel.actors.frames import FORGOTTEN, FRAME_VERSION, OK, STALE_SENDER, WINDOW, WRONG_EPOCH, Caller
from umbel.actors.link import Link
from umbel.actors.mailbox import Mailbox
from umbel.protocol.codec import encode
from umbel.protocol.commands import CancelRun, RunsCancelled, ToolProgress
from umbel.protocol.errors import DecodeError, ProtocolError, UmbelError

from .conftest import Peer, quick, slow
from .faulty_transport import FaultyTransport, ticks


@pytest.fixture
async def mailbox(peer: Peer, clean_loop: None) -> AsyncIterator[Mailbox]:
    mailbox = peer.mailbox()
    yield mailbox
    await mailbox.close()


def delivery(*envelopes: Any, frame: int = 1, attempt: int = 1, cursor: int = 0, epoch: int = 1) -> bytes:
    return bytes(msgpack.packb([FRAME_VERSION, "asker", 1, epoch, frame, attempt, cursor, list(envelopes)]))


def envelope(number: int, message: Any) -> tuple[int, str, bytes]:
    return (number, *encode(message))


def answer(frames: Any) -> list[Any]:
    """(status, cursor of the first reply, numbers that are answered)."""
    _, _, status, first, envelopes = msgpack.unpackb(frames[0])
    return [status, first, [number for number, _, _ in envelopes]]


async def is_working(mailbox: Mailbox) -> bool:
    """Whether a new link gets replies from it."""
    wire = FaultyTransport(mailbox)
    link = Link("someone else", 1, "peer", wire)
    replies = await asyncio.gather(*(link.request(quick(number)) for number in range(3)))
    await link.close()
    await wire.shut_down()
    return [reply.count for reply in replies] == [0, 1, 2]


NESTED = b"\x91" * 100_000 + b"\xc0"
GOOD = envelope(1, quick(1))
HOSTILE = [
    b"",
    b"\xc1",
    b"not msgpack at all",
    NESTED,
    msgpack.packb(None),
    msgpack.packb({}),
    msgpack.packb([]),
    msgpack.packb([1, "asker"]),
    msgpack.packb([FRAME_VERSION, "asker", 1, 1, 1, 1, 0, {}]),
    msgpack.packb([FRAME_VERSION, b"asker", 1, 1, 1, 1, 0, []]),
    msgpack.packb([FRAME_VERSION, "asker", 1.0, 1, 1, 1, 0, []]),
    msgpack.packb([FRAME_VERSION, "asker", 1, 1, 1, True, 0, []]),
    msgpack.packb([FRAME_VERSION, "asker", 1, 1, 1, 1, 0, [], "more"]),
    b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
    b"\xc6\xff\xff\xff\xff",  # 4 GiB of bytes
    delivery(GOOD)[:-5],
    delivery(GOOD) + b"\x00",
    msgpack.packb([FRAME_VERSION + 1, "asker", 1, 1, 1, 1, 0, []]),
]
HOSTILE_ENVELOPES: list[Any] = [
    None,
    5,
    "abc",
    [],
    [1],
    [1, "x", b"", b""],
    {"a": 1, "b": 2, "c": 3},
    [None, *GOOD[1:]],
    ["1", *GOOD[1:]],
    [1.0, *GOOD[1:]],
    [True, *GOOD[1:]],
    [-1, *GOOD[1:]],
    [2**63, *GOOD[1:]],
    [[], *GOOD[1:]],
]
HOSTILE_BODIES: list[Any] = [
    [1, "NoSuchMessage@1", b"{}"],
    [1, "CancelRun@999", b"{}"],
    [1, None, b"{}"],
    [1, [], b"{}"],
    [1, GOOD[1], b"{"],
    [1, GOOD[1], b"[" * 100_000],
    [1, GOOD[1], b'{"run_id": 5}'],
    [1, GOOD[1], b"\xff\xfe"],
    [1, GOOD[1], None],
    [1, GOOD[1], "{}"],
    [1, GOOD[1], 0],
    [1, GOOD[1], -1],
    [1, GOOD[1], True],
    [1, GOOD[1], []],
]


@pytest.mark.parametrize("data", HOSTILE)
async def test_a_hostile_frame_is_a_decode_error(mailbox: Mailbox, data: bytes) -> None:
    with pytest.raises(DecodeError):
        await mailbox.deliver(data)
    with pytest.raises(DecodeError):
        await mailbox.collect(data)
    with pytest.raises(DecodeError):
        mailbox.control(data)
    assert mailbox.busy == 0
    assert await is_working(mailbox)


@pytest.mark.parametrize("hostile", HOSTILE_ENVELOPES)
async def test_a_hostile_envelope_is_a_decode_error(mailbox: Mailbox, hostile: Any) -> None:
    with pytest.raises(DecodeError):
        await mailbox.deliver(delivery(hostile))
    with pytest.raises(DecodeError):
        mailbox.control(msgpack.packb([FRAME_VERSION, "asker", 1, 1, 1, [], [hostile]]))
    with pytest.raises(DecodeError):
        mailbox.control(msgpack.packb([FRAME_VERSION, "asker", 1, 1, 2, [hostile], []]) if hostile != 5 else b"")
    await ticks(3)
    assert mailbox.busy == 0
    assert answer(await mailbox.deliver(delivery(GOOD, frame=2))) == [OK, 1, [1]]
    assert await is_working(mailbox)


@pytest.mark.parametrize("hostile", HOSTILE_BODIES)
async def test_a_hostile_body_fails_its_own_request_only(mailbox: Mailbox, hostile: Any) -> None:
    frames = await mailbox.deliver(delivery(hostile, envelope(2, quick(2))))
    assert answer(frames) == [OK, 1, [1, 2]]
    assert msgpack.unpackb(frames[0])[4][0][1].startswith("Failure@")
    assert mailbox.busy == 0


async def test_a_request_number_that_is_in_use_is_refused(mailbox: Mailbox) -> None:
    await mailbox.deliver(delivery(envelope(1, slow(1))))
    with pytest.raises(DecodeError, match="runs already"):
        await mailbox.deliver(delivery(envelope(1, slow(1)), frame=2))
    assert mailbox.busy == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)
numbers = st.integers(-(2**63), 2**64 - 1)
headers = st.tuples(st.tuples(numbers, numbers, numbers), st.lists(values)).map(
    lambda parts: [FRAME_VERSION, "asker", 1, 1, *parts[0], parts[1]]
)


@given(st.binary(max_size=200) | values.map(msgpack.packb) | headers.map(msgpack.packb))
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_get_past_a_typed_error(data: bytes) -> None:
    async def feed() -> None:
        mailbox = Peer().mailbox()
        for method in (mailbox.deliver, mailbox.control):
            try:
                result = method(data)
                if asyncio.iscoroutine(result):
                    await asyncio.wait_for(result, 0.1)
            except (UmbelError, TimeoutError):
                pass  # a frame that is ahead of its turn waits for those before it
        assert await is_working(mailbox)
        await mailbox.close()

    asyncio.run(feed())


@pytest.mark.parametrize("seed", range(3))
async def test_mutations_of_a_good_frame(mailbox: Mailbox, peer: Peer, seed: int) -> None:
    rng = random.Random(seed)
    good = delivery(*(envelope(number, quick(number)) for number in range(1, 5)))
    for _ in range(500):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(ProtocolError):
            await mailbox.deliver(bytes(data[: rng.choice([None, rng.randrange(len(data))])]))
    peer.gate.set()
    await ticks(5)
    assert mailbox.busy == 0
    assert await is_working(mailbox)


# what a link relies on


async def test_a_frame_runs_once_and_its_replies_are_repeated_until_acknowledged(mailbox: Mailbox, peer: Peer) -> None:
    assert answer(await mailbox.deliver(delivery(GOOD))) == [OK, 1, [1]]
    assert answer(await mailbox.deliver(delivery(GOOD, attempt=2))) == [OK, 1, [1]]
    second = envelope(2, quick(2))
    assert answer(await mailbox.deliver(delivery(second, frame=2, cursor=1))) == [OK, 2, [2]]
    assert answer(await mailbox.deliver(delivery(second, frame=2, attempt=2, cursor=1))) == [OK, 2, [2]]
    assert answer(await mailbox.deliver(delivery(second, frame=2, attempt=3, cursor=2)))[2] == []
    assert peer.seen == ["1", "2"]


async def test_an_attempt_that_a_later_one_overtook_gets_no_replies(mailbox: Mailbox, peer: Peer) -> None:
    assert answer(await mailbox.deliver(delivery(GOOD, attempt=2))) == [OK, 1, [1]]
    assert answer(await mailbox.deliver(delivery(GOOD, attempt=1)))[2] == []
    assert peer.seen == ["1"]


async def test_a_copy_of_a_frame_that_is_long_over_gets_no_replies(mailbox: Mailbox, peer: Peer) -> None:
    for number in range(1, 2 * WINDOW + 1):
        await mailbox.deliver(delivery(envelope(number, quick(number)), frame=number))
    assert answer(await mailbox.deliver(delivery(GOOD, attempt=9)))[2] == []
    assert len(peer.seen) == 2 * WINDOW


async def test_a_frame_from_the_far_future_is_refused(mailbox: Mailbox) -> None:
    await mailbox.deliver(delivery(GOOD))
    with pytest.raises(DecodeError, match=f"frame {WINDOW + 2} came when 1 was the last one"):
        await mailbox.deliver(delivery(GOOD, frame=WINDOW + 2))


@pytest.mark.parametrize("seed", range(10))
async def test_frames_that_overtook_each_other_start_in_their_order(mailbox: Mailbox, peer: Peer, seed: int) -> None:
    frames = [delivery(envelope(number, quick(number)), frame=number) for number in range(1, WINDOW + 1)]
    random.Random(seed).shuffle(frames)
    waiting = [asyncio.ensure_future(mailbox.deliver(frame)) for frame in frames]
    answers = [answer(frames) for frames in await asyncio.gather(*waiting)]
    assert peer.seen == [str(number) for number in range(1, WINDOW + 1)]
    assert sorted(number for _, _, numbers in answers for number in numbers) == list(range(1, WINDOW + 1))


async def test_another_epoch_is_refused_unread(mailbox: Mailbox, peer: Peer) -> None:
    assert answer(await mailbox.deliver(delivery(GOOD, epoch=7))) == [WRONG_EPOCH, 0, []]
    assert peer.seen == []


async def test_an_older_incarnation_of_the_sender_is_refused(mailbox: Mailbox, peer: Peer) -> None:
    newer = msgpack.packb([FRAME_VERSION, "asker", 2, 1, 1, 1, 0, []])
    assert answer(await mailbox.deliver(newer)) == [OK, 1, []]
    assert answer(await mailbox.deliver(delivery(GOOD))) == [STALE_SENDER, 0, []]
    mailbox.control(msgpack.packb([FRAME_VERSION, "asker", 1, 1, 1, [], [GOOD]]))
    await ticks(3)
    assert peer.seen == []


async def test_a_new_incarnation_of_the_sender_ends_what_the_old_one_had_asked_for(mailbox: Mailbox, peer: Peer) -> None:
    first = asyncio.ensure_future(mailbox.deliver(delivery(envelope(1, slow(1)), envelope(2, slow(2)))))
    await ticks(1)  # the requests are accepted, their handlers have not begun
    await mailbox.deliver(msgpack.packb([FRAME_VERSION, "asker", 2, 1, 1, 1, 0, []]))
    await ticks(5)
    assert answer(await first) == [STALE_SENDER, 0, []]
    assert mailbox.busy == 0
    assert peer.finished == []


async def test_a_forgotten_peer_is_told_so_and_what_it_asked_for_is_cancelled(mailbox: Mailbox, peer: Peer) -> None:
    await mailbox.deliver(delivery(envelope(1, slow(1))))
    collecting = asyncio.ensure_future(mailbox.collect(msgpack.packb([FRAME_VERSION, "asker", 1, 1, 1, 0, False])))
    await ticks(3)
    mailbox.forget("asker")
    mailbox.forget("nobody")
    assert answer(await collecting) == [OK, 0, []]
    assert peer.cancelled == ["1"]
    assert answer(await mailbox.deliver(delivery(GOOD, frame=2))) == [FORGOTTEN, 0, []]
    newer = msgpack.packb([FRAME_VERSION, "asker", 2, 1, 1, 1, 0, [envelope(1, quick(5))]])
    assert answer(await mailbox.deliver(newer)) == [OK, 1, [1]]
    assert answer(await mailbox.deliver(delivery(GOOD, frame=2))) == [STALE_SENDER, 0, []]
    assert peer.seen == ["1", "5"]


async def test_a_full_mailbox_keeps_deliver_waiting_and_its_urgent_door_open(peer: Peer, clean_loop: None) -> None:
    mailbox = peer.mailbox(capacity=2)
    await mailbox.deliver(delivery(envelope(1, slow(1)), envelope(2, slow(2))))
    waiting = asyncio.ensure_future(mailbox.deliver(delivery(envelope(3, quick(3)), frame=2)))
    await ticks(20)
    assert not waiting.done()
    mailbox.control(msgpack.packb([FRAME_VERSION, "asker", 1, 1, 1, [1], [envelope(4, quick(4))]]))
    assert answer(await waiting)[2] == [4, 3]  # the cancelled one made room, and nobody wants its reply
    await mailbox.close()


async def test_frames_that_wait_for_room_start_in_their_order(peer: Peer, clean_loop: None) -> None:
    mailbox = peer.mailbox(capacity=1)
    await mailbox.deliver(delivery(envelope(1, slow(1))))
    frames = [delivery(envelope(number, quick(number)), frame=number) for number in range(2, WINDOW + 2)]
    waiting = [asyncio.ensure_future(mailbox.deliver(frame)) for frame in reversed(frames)]
    await ticks(5)
    again = asyncio.ensure_future(mailbox.deliver(delivery(envelope(2, quick(2)), frame=2, attempt=2)))
    await ticks(5)
    peer.gate.set()
    await asyncio.gather(*waiting, again)
    assert peer.seen == [str(number) for number in range(1, WINDOW + 2)]
    await mailbox.close()


async def test_lingering_takes_a_reply_along_that_needs_a_hop(peer: Peer, clean_loop: None) -> None:
    mailbox = peer.mailbox(linger=60)
    waiting = asyncio.ensure_future(mailbox.deliver(delivery(envelope(1, slow(1)))))
    await ticks(20)
    assert not waiting.done()
    peer.gate.set()
    assert answer(await waiting) == [OK, 1, [1]]
    await mailbox.close()


async def test_lingering_ends_without_a_reply(peer: Peer, clean_loop: None) -> None:
    mailbox = peer.mailbox(linger=0.001)
    assert answer(await mailbox.deliver(delivery(envelope(1, slow(1)))))[2] == []
    await mailbox.close()


async def test_flow_waits_while_the_asker_is_far_behind(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umbel.actors.session.OUTBOX", 10)
    sent: list[int] = []

    async def stream(message: CancelRun, caller: Caller) -> RunsCancelled:
        for step in range(100):
            await caller.flow()
            caller.send(ToolProgress(tool_call_id="p", progress=step))
            sent.append(step)
        return RunsCancelled(count=100)

    mailbox.on(CancelRun, stream)
    frames = await mailbox.deliver(delivery(GOOD))
    await ticks(50)
    received = len(answer(frames)[2])
    assert len(sent) == received + 10
    call = 1
    while received < 101:
        call += 1
        header = [FRAME_VERSION, "asker", 1, 1, call, received, False]
        received += len(answer(await mailbox.collect(msgpack.packb(header)))[2])
    assert len(sent) == 100


async def test_close_cancels_what_runs_and_what_has_not_begun(mailbox: Mailbox, peer: Peer) -> None:
    await mailbox.deliver(delivery(envelope(1, slow(1))))
    late = asyncio.ensure_future(mailbox.deliver(delivery(envelope(2, slow(2)), frame=2)))
    await ticks(1)
    await mailbox.close()
    await late
    assert mailbox.busy == 0
    assert peer.seen == ["1"]
    assert peer.cancelled == ["1"]
