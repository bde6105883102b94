"""What holds for both kinds of link, to another process and inside one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from umbel.actors.frames import Channel
from umbel.protocol.commands import CheckpointLoaded, Define, ForgetRuns, Ping, RunsCancelled
from umbel.protocol.errors import DeadlineExceeded, ProtocolError, RateLimited, RemoteError, RequestCancelled, UnknownKind

from .conftest import Peer, bad, quick, slow


async def test_a_request_gets_its_reply(channel: Channel) -> None:
    assert await channel.request(quick(7)) == RunsCancelled(count=7)


async def test_1000_concurrent_requests_get_their_own_replies(channel: Channel) -> None:
    replies = await asyncio.gather(*(channel.request(quick(number)) for number in range(1_000)))
    assert [reply.count for reply in replies] == list(range(1_000))


async def test_requests_one_after_the_other(channel: Channel) -> None:
    for number in range(50):
        assert (await channel.request(quick(number))).count == number


async def test_a_slow_reply_keeps_nobody_else_waiting(channel: Channel, peer: Peer) -> None:
    late = asyncio.ensure_future(channel.request(slow(1)))
    assert (await channel.request(quick(2))).count == 2
    assert not late.done()
    peer.gate.set()
    assert (await late).count == 1


async def test_partial_replies_come_in_order_and_before_the_final_one(channel: Channel) -> None:
    got: list[Any] = []
    got.append(await channel.request(bad("partial"), on_partial=got.append))
    assert [item.progress for item in got[:-1]] == [0, 1, 2, 3, 4]
    assert got[-1] == RunsCancelled(count=5)


async def test_partial_replies_that_nobody_observes_are_dropped(channel: Channel) -> None:
    assert (await channel.request(bad("partial"))).count == 5


async def test_a_deadline_stops_the_handler(channel: Channel, peer: Peer) -> None:
    with pytest.raises(DeadlineExceeded, match=r"peer did not answer CancelRun within 0\.01 s"):
        await channel.request(slow(1), timeout=0.01)
    await peer.stopped.wait()
    assert peer.cancelled == ["1"]
    assert (await channel.request(quick(2), timeout=60)).count == 2


async def test_cancelling_a_request_cancels_its_handler(channel: Channel, peer: Peer) -> None:
    doomed, other = (asyncio.ensure_future(channel.request(slow(number))) for number in (1, 2))
    await peer.begun(2)
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    await peer.stopped.wait()
    peer.gate.set()
    assert (await other).count == 2
    assert peer.cancelled == ["1"]


async def test_a_one_way_message_arrives(channel: Channel, peer: Peer) -> None:
    channel.send(ForgetRuns(run_ids=("a", "b")))
    await channel.request(quick(1))
    assert peer.seen == ["a", "b", "1"]


async def test_a_one_way_message_that_fails_is_logged(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "umbel.mailbox"):
        channel.send(bad("umbel error"))
        channel.send(Ping())
        await channel.request(quick(1))
    assert "one-way CancelRun" in caplog.text
    assert "slow down" in caplog.text
    assert "does not serve Ping" in caplog.text


async def test_an_umbel_error_keeps_its_class_and_details(channel: Channel) -> None:
    with pytest.raises(RateLimited, match="slow down") as caught:
        await channel.request(bad("umbel error"))
    assert caught.value.retry_after == 2.5


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("other error", "KeyError: 'first line"),
        ("exit", "SystemExit: 3"),
        ("times out", "TimeoutError: of its own"),
    ],
)
async def test_any_other_error_becomes_a_remote_error(channel: Channel, how: str, message: str) -> None:
    with pytest.raises(RemoteError, match=message):
        await channel.request(bad(how), timeout=60)
    assert (await channel.request(quick(1))).count == 1


async def test_a_handler_that_ends_cancelled_does_not_look_like_the_callers_own_cancellation(channel: Channel) -> None:
    with pytest.raises(RequestCancelled):
        await channel.request(bad("cancels itself"))


async def test_a_handler_without_a_reply_is_an_error(channel: Channel) -> None:
    with pytest.raises(ProtocolError, match="peer sent no reply to CancelRun"):
        await channel.request(bad("no reply"))


async def test_a_message_that_nobody_serves(channel: Channel) -> None:
    with pytest.raises(UnknownKind, match="peer does not serve Ping"):
        await channel.request(Ping())


@pytest.mark.parametrize("size", [80_001, 5_000_000])
async def test_large_bodies(channel: Channel, size: int) -> None:
    blob = bytes(size)
    assert await channel.request(Define(definition="big", blob=blob)) == CheckpointLoaded(state=blob)


async def test_one_way_messages_end_when_the_link_is_closed(channel: Channel, peer: Peer) -> None:
    channel.send(slow(1))
    await peer.begun(1)  # the clean-up of `channel` closes it; `clean_loop` looks for what is left
