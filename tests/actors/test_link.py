from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from umbel.actors.frames import FRAME_MESSAGES, WINDOW
from umbel.actors.link import WORTH_A_CALL, Link
from umbel.protocol.commands import Define, ForgetRuns, RunsCancelled
from umbel.protocol.errors import DeadlineExceeded, PeerLost, ProtocolError, StaleEpoch

from .conftest import Peer, bad, quick, slow
from .faulty_transport import Fault, FaultyTransport, ticks

LOST_REPLIES = [[Fault.RETURN_LOST], [Fault.ABANDONED], [Fault.RETURN_LOST] * 5, [*Fault]]


async def outcomes(*requests: asyncio.Future[Any]) -> list[Any]:
    return await asyncio.gather(*requests, return_exceptions=True)


# order and batches


async def test_one_burst_is_one_frame(link: Link, wire: FaultyTransport) -> None:
    await asyncio.gather(*(link.request(quick(number)) for number in range(FRAME_MESSAGES)))
    assert wire.calls["deliver"] == 1


async def test_a_frame_is_cut_at_so_many_messages(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    count = 3 * FRAME_MESSAGES + 1
    await asyncio.gather(*(link.request(quick(number)) for number in range(count)))
    assert wire.calls["deliver"] == 4
    assert peer.seen == [str(number) for number in range(count)]


async def test_quick_replies_come_back_with_the_frame(link: Link, wire: FaultyTransport) -> None:
    await asyncio.gather(*(link.request(quick(number)) for number in range(FRAME_MESSAGES)))
    await link.request(quick(FRAME_MESSAGES))
    assert wire.calls["collect"] == 0


async def test_slow_replies_are_collected(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    waiting = [asyncio.ensure_future(link.request(slow(number))) for number in range(10)]
    await peer.begun(10)
    await ticks(10)
    peer.gate.set()
    assert [reply.count for reply in await asyncio.gather(*waiting)] == list(range(10))
    assert wire.calls["deliver"] == 1
    assert wire.calls["collect"] == 1


async def test_an_eager_link_collects_from_the_start(wire: FaultyTransport, peer: Peer) -> None:
    link = Link("eager", 1, "peer", wire, eager=True)
    waiting = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    assert wire.calls["collect"] == 1
    peer.gate.set()
    assert (await waiting).count == 1
    await link.close()


async def test_a_poll_without_news_is_made_again(link: Link, wire: FaultyTransport, peer: Peer, monkeypatch: Any) -> None:
    monkeypatch.setattr("umbel.actors.mailbox.POLL_SECONDS", 0.001)
    waiting = asyncio.ensure_future(link.request(slow(1)))
    while wire.calls["collect"] < 3:
        await ticks(1)
    peer.gate.set()
    assert (await waiting).count == 1


async def test_a_frame_is_cut_at_80_kb(link: Link, wire: FaultyTransport) -> None:
    texts = [str(number) + "x" * 2_000 for number in range(100)]
    await asyncio.gather(*(link.request(bad(text)) for text in texts), return_exceptions=True)
    assert wire.calls["deliver"] == 3


async def test_while_a_frame_is_under_way_messages_gather(link: Link, wire: FaultyTransport) -> None:
    await link.request(quick(0))
    wire.gates["deliver"] = asyncio.Event()
    requests = []
    for number in range(1, WORTH_A_CALL):
        requests.append(link.ask(quick(number))[1])
        await ticks(2)
    assert wire.calls["deliver"] == 2
    wire.gates.pop("deliver").set()
    await asyncio.gather(*requests)
    assert wire.calls["deliver"] == 3


async def test_when_many_gather_further_frames_leave(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    await link.request(quick(0))
    wire.gates["deliver"] = asyncio.Event()
    requests = []
    for number in range(1, 10 * WORTH_A_CALL):
        requests.append(link.ask(quick(number))[1])
        await ticks(2)
    assert wire.calls["deliver"] == 1 + WINDOW
    wire.gates.pop("deliver").set()
    await asyncio.gather(*requests)
    assert wire.calls["deliver"] <= 1 + WINDOW + 2
    assert peer.seen == [str(number) for number in range(10 * WORTH_A_CALL)]


@pytest.mark.parametrize("seed", range(5))
async def test_messages_keep_their_order_under_random_delays(link: Link, wire: FaultyTransport, peer: Peer, seed: int) -> None:
    rng = random.Random(seed)
    wire.delay, wire.chance = 20, 0.2
    waiting = []
    for number in range(1_000):
        if number % 3:
            waiting.append(link.ask(quick(number))[1])
        else:
            link.send(ForgetRuns(run_ids=(str(number),)))
        await ticks(rng.choice([0, 0, 0, 1, 5]))
    await asyncio.gather(*waiting)
    await link.request(quick(1_000))
    assert peer.seen == [str(number) for number in range(1_001)]


# lost frames


@pytest.mark.parametrize("faults", [*LOST_REPLIES, [Fault.CALL_LOST] * 5, [Fault.LATE] * 3])
async def test_a_lost_frame_is_resent_and_runs_once(
    link: Link, wire: FaultyTransport, peer: Peer, faults: list[Fault | None]
) -> None:
    wire.faults["deliver"].extend(faults)
    replies = await asyncio.gather(*(link.request(quick(number)) for number in range(10)))
    assert [reply.count for reply in replies] == list(range(10))
    await ticks(100)  # what is late arrives
    assert peer.seen == [str(number) for number in range(10)]
    assert link.stats["restarts"] == 0


@pytest.mark.parametrize("faults", LOST_REPLIES)
@pytest.mark.parametrize("method", ["deliver", "collect"])
async def test_lost_replies_come_once(
    link: Link, wire: FaultyTransport, peer: Peer, method: str, faults: list[Fault | None]
) -> None:
    wire.faults[method].extend(faults)
    partials: list[Any] = []
    waiting = [asyncio.ensure_future(link.request(slow(number))) for number in range(5)]
    await link.request(bad("partial"), on_partial=partials.append)
    peer.gate.set()
    assert [reply.count for reply in await asyncio.gather(*waiting)] == list(range(5))
    assert [item.progress for item in partials] == [0, 1, 2, 3, 4]


async def test_an_abandoned_poll_does_not_swallow_a_later_reply(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    """The mailbox still serves the first poll when the second one arrives; only the second one's replies reach the link."""
    wire.faults["collect"].extend([Fault.ABANDONED, Fault.ABANDONED, Fault.LATE])
    waiting = asyncio.ensure_future(link.request(slow(1)))
    while wire.calls["collect"] < 4:
        await ticks(1)
    peer.gate.set()
    assert (await waiting).count == 1


async def test_an_abandoned_delivery_does_not_swallow_replies(wire: FaultyTransport, peer: Peer) -> None:
    """The first attempt waits for room in a full mailbox while the second one arrives."""
    assert wire.mailbox is not None
    wire.mailbox.capacity = 1
    link, other = Link("asker", 1, "peer", wire, backoff=0), Link("other", 1, "peer", wire, backoff=0)
    blocking = asyncio.ensure_future(other.request(slow(0)))
    await peer.begun(1)
    wire.faults["deliver"].extend([Fault.ABANDONED, Fault.ABANDONED])
    waiting = [asyncio.ensure_future(link.request(quick(number))) for number in (1, 2)]
    while wire.calls["deliver"] < 4:
        await ticks(1)
    peer.gate.set()
    assert [reply.count for reply in await asyncio.gather(blocking, *waiting)] == [0, 1, 2]
    assert peer.seen == ["0", "1", "2"]
    await link.close()
    await other.close()


async def test_replies_lost_while_nobody_waited_do_not_block_later_ones(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    wire.faults["collect"].append(Fault.RETURN_LOST)
    gone = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    wire.gates["hello"] = asyncio.Event()
    while wire.calls["collect"] < 1:
        await ticks(1)
    peer.gate.set()
    while wire.calls["hello"] < 2:  # the reply was lost, and the link asks whether the peer is there
        await ticks(1)
    gone.cancel()
    await outcomes(gone)
    wire.gates.pop("hello").set()
    await ticks(20)
    assert [(await link.request(quick(number))).count for number in (2, 3)] == [2, 3]


# cancelling


async def test_a_cancel_that_overtakes_its_request(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    await link.request(quick(0))
    wire.gates["deliver"] = asyncio.Event()
    doomed, other = (asyncio.ensure_future(link.request(slow(number))) for number in (1, 2))
    while wire.calls["deliver"] < 2:
        await ticks(1)
    doomed.cancel()
    while wire.calls["control"] < 1:
        await ticks(1)
    await ticks(5)
    wire.gates.pop("deliver").set()
    await peer.begun(2)
    peer.gate.set()
    assert (await other).count == 2
    assert peer.seen == ["0", "2"]


async def test_2000_cancels_that_overtake_their_requests(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    await link.request(quick(0))
    wire.gates["deliver"] = asyncio.Event()
    doomed = [asyncio.ensure_future(link.request(quick(number))) for number in range(1, 2_001)]
    while wire.calls["deliver"] < 2:
        await ticks(1)
    for request in doomed:
        request.cancel()
    await outcomes(*doomed)
    while wire.calls["control"] < 1:
        await ticks(1)
    await ticks(5)
    wire.gates.pop("deliver").set()
    await link.request(quick(3_000))
    assert peer.seen == ["0", "3000"]


async def test_a_request_cancelled_in_the_queue_is_never_sent(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    wire.gates["hello"] = asyncio.Event()
    doomed = asyncio.ensure_future(link.request(quick(1)))
    await ticks(5)
    doomed.cancel()
    await outcomes(doomed)
    wire.gates.pop("hello").set()
    assert (await link.request(quick(2))).count == 2
    assert peer.seen == ["2"]
    assert wire.calls["control"] == 0


@pytest.mark.parametrize("fault", [Fault.CALL_LOST, Fault.RETURN_LOST, Fault.LATE])
async def test_a_lost_cancel_is_sent_again(link: Link, wire: FaultyTransport, peer: Peer, fault: Fault) -> None:
    wire.faults["control"].append(fault)
    doomed = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    doomed.cancel()
    await outcomes(doomed)
    await peer.stopped.wait()
    assert peer.cancelled == ["1"]


async def test_one_can_wait_until_the_peer_was_told(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    doomed = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    wire.delay = 50
    doomed.cancel()
    await outcomes(doomed)
    assert peer.cancelled == []
    await link.told()
    await ticks(2)
    assert peer.cancelled == ["1"]
    await link.told()


async def test_a_cancel_after_the_reply_changes_nothing(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    wire.gates["collect"] = asyncio.Event()
    late = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    peer.gate.set()
    while not peer.finished:
        await ticks(1)
    late.cancel()
    await outcomes(late)
    wire.gates.pop("collect").set()
    assert (await link.request(quick(2))).count == 2


async def test_a_deadline_also_covers_the_wait_for_room(wire: FaultyTransport) -> None:
    link = Link("asker", 1, "peer", wire, capacity=1, backoff=0)
    wire.gates["hello"] = asyncio.Event()
    link.send(ForgetRuns(run_ids=("a",)))
    with pytest.raises(DeadlineExceeded):
        await link.request(quick(1), timeout=0.01)
    await link.close()


# urgent messages


async def test_urgent_requests_overtake(wire: FaultyTransport, peer: Peer) -> None:
    link = Link("asker", 1, "peer", wire, capacity=10, backoff=0)
    await link.request(quick(0))
    wire.gates["deliver"] = asyncio.Event()
    queued = [asyncio.ensure_future(link.request(quick(number))) for number in range(1, 101)]
    await ticks(3)
    assert (await link.request(quick(1_000), urgent=True)).count == 1_000
    assert peer.seen == ["0", "1000"]
    wire.gates.pop("deliver").set()
    await asyncio.gather(*queued)
    await link.close()


@pytest.mark.parametrize("faults", [[Fault.RETURN_LOST] * 3, [Fault.LATE], [Fault.CALL_LOST, Fault.ABANDONED]])
async def test_an_urgent_request_runs_once_whatever_is_lost(
    link: Link, wire: FaultyTransport, peer: Peer, faults: list[Fault | None]
) -> None:
    wire.faults["control"].extend(faults)
    assert (await link.request(quick(1), urgent=True)).count == 1
    await ticks(100)
    assert peer.seen == ["1"]


async def test_a_large_urgent_request(link: Link, wire: FaultyTransport) -> None:
    reply = await link.request(Define(definition="d", blob=bytes(200_000)), urgent=True)
    assert len(reply.state) == 200_000


# large bodies


async def test_large_bodies_travel_beside_the_frame(link: Link, wire: FaultyTransport) -> None:
    blobs = [bytes([number]) * 100_000 for number in range(5)]
    asked = [link.request(Define(definition="d", blob=blob)) for blob in blobs]
    replies = await asyncio.gather(*asked, link.request(quick(1)))
    assert [reply.state for reply in replies[:-1]] == blobs
    assert len(wire.large) == 5


async def test_a_frame_of_very_large_bodies_is_cut_too(link: Link, wire: FaultyTransport) -> None:
    blob = bytes(20_000_000)
    await asyncio.gather(*(link.request(Define(definition="d", blob=blob)) for _ in range(6)))
    assert wire.calls["deliver"] == 2


# the peer restarts


async def test_a_restart_fails_what_was_sent_and_keeps_what_was_queued(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    sent = [asyncio.ensure_future(link.request(slow(number))) for number in (1, 2)]
    await peer.begun(2)
    wire.gates["deliver"] = asyncio.Event()
    under_way = asyncio.ensure_future(link.request(quick(3)))
    while wire.calls["deliver"] < 2:
        await ticks(1)
    queued = [asyncio.ensure_future(link.request(quick(number))) for number in (4, 5)]
    await ticks(3)
    await wire.die()
    wire.restart(peer.mailbox())
    wire.gates.pop("deliver").set()
    for error in await outcomes(*sent):
        assert isinstance(error, PeerLost)
        assert error.delivered == "unknown"
    assert [reply.count for reply in await asyncio.gather(*queued)] == [4, 5]
    (maybe,) = await outcomes(under_way)
    assert isinstance(maybe, PeerLost) or maybe == RunsCancelled(count=3)
    assert link.stats["restarts"] == 1
    assert sorted(peer.cancelled) == ["1", "2"]


async def test_a_frame_that_a_new_incarnation_refused_goes_out_again(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    """The peer restarted while nothing was under way, so the link learns it from the refusal."""
    await link.request(quick(0))
    await wire.die()
    wire.restart(peer.mailbox())
    link.send(ForgetRuns(run_ids=("x",)))
    assert (await link.request(quick(1))).count == 1
    assert peer.seen == ["0", "x", "1"]


async def test_several_frames_that_a_new_incarnation_refused_go_out_again_in_order(
    link: Link, wire: FaultyTransport, peer: Peer
) -> None:
    link.define("a", lambda key: b"")
    await link.request(quick(0))
    await wire.die()
    wire.restart(peer.mailbox())
    wire.delay = 20
    requests = [link.ask(quick(number))[1] for number in range(1, 1_500)]
    replies = await asyncio.gather(*requests, return_exceptions=True)
    kept = [reply.count for reply in replies if isinstance(reply, RunsCancelled)]
    assert all(isinstance(reply, RunsCancelled | PeerLost) for reply in replies)
    assert peer.seen == ["define a", "0", "define a", *map(str, kept)]


async def test_a_frame_whose_first_attempt_may_have_run_is_not_sent_to_a_new_incarnation(
    link: Link, wire: FaultyTransport, peer: Peer
) -> None:
    await link.request(quick(0))
    wire.faults["deliver"].append(Fault.RETURN_LOST)
    lost = asyncio.ensure_future(link.request(quick(1)))
    while len(peer.seen) < 2:
        await ticks(1)
    wire.gates["deliver"] = asyncio.Event()
    while wire.calls["deliver"] < 3:
        await ticks(1)
    await wire.die()
    wire.restart(peer.mailbox())
    wire.gates.pop("deliver").set()
    assert isinstance((await outcomes(lost))[0], PeerLost)
    assert (await link.request(quick(2))).count == 2
    assert peer.seen == ["0", "1", "2"]


async def test_while_the_peer_is_away_requests_wait(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    await link.request(quick(0))
    await wire.die()
    waiting = [asyncio.ensure_future(link.request(quick(number))) for number in (1, 2)]
    await ticks(50)
    later = asyncio.ensure_future(link.request(quick(3)))
    wire.restart(peer.mailbox())
    first, second, third = await outcomes(*waiting, later)
    assert isinstance(first, PeerLost)  # these two were in a frame that failed: nobody knows
    assert isinstance(second, PeerLost)
    assert third.count == 3


async def test_definitions_reach_a_new_incarnation_first(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    link.define("a", lambda key: key.encode())
    link.define("b", lambda key: bytes(100_000))
    link.define("a", lambda key: b"never asked")
    await link.request(quick(0))
    assert peer.seen == ["define a", "define b", "0"]
    await wire.die()
    peer.seen.clear()
    wire.restart(peer.mailbox())
    link.send(ForgetRuns(run_ids=("x",)))
    await link.request(quick(1))
    assert peer.seen == ["define a", "define b", "x", "1"]
    assert [define.blob for define in peer.blobs[2:]] == [b"a", bytes(100_000)]


async def test_a_frame_that_is_refused_after_its_successors_left_is_not_sent_again(
    link: Link, wire: FaultyTransport, peer: Peer
) -> None:
    """The poll has seen the restart before the frame did: sending it now would upset the order."""
    link.define("a", lambda key: b"")
    waiting = asyncio.ensure_future(link.request(slow(0)))
    await peer.begun(2)
    wire.gates["deliver"] = asyncio.Event()
    link.send(ForgetRuns(run_ids=("x",)))
    while wire.calls["deliver"] < 2:
        await ticks(1)
    await wire.die()
    peer.seen.clear()
    wire.restart(peer.mailbox())
    assert isinstance((await outcomes(waiting))[0], PeerLost)
    wire.gates.pop("deliver").set()
    await link.request(quick(1))
    assert peer.seen == ["define a", "1"]


async def test_urgent_requests_sent_to_an_incarnation_that_is_gone_fail(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    await link.request(quick(0))
    await wire.die()
    wire.restart(peer.mailbox())
    with pytest.raises(PeerLost):
        await link.request(quick(1), urgent=True)
    assert (await link.request(quick(2), urgent=True)).count == 2


async def test_ten_restarts(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    for number in range(10):
        lost = asyncio.ensure_future(link.request(slow(number)))
        await peer.begun(2 * number + 1)
        await wire.die()
        wire.restart(peer.mailbox())
        assert isinstance((await outcomes(lost))[0], PeerLost)
        assert (await link.request(quick(number))).count == number
    assert link.stats["restarts"] == 10


# the peer forgets


async def test_a_link_that_was_forgotten_begins_anew(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    assert wire.mailbox is not None
    link.define("a", lambda key: b"")
    await link.request(quick(0))
    for _ in range(2):
        peer.seen.clear()
        lost = asyncio.ensure_future(link.request(slow(9)))
        await peer.begun(1)
        wire.mailbox.forget("asker")
        assert isinstance((await outcomes(lost))[0], PeerLost)
        peer.seen.clear()
        assert [reply.count for reply in await asyncio.gather(*(link.request(quick(number)) for number in (1, 2)))] == [1, 2]
        assert peer.seen == ["define a", "1", "2"]


async def test_a_link_that_was_forgotten_while_it_was_idle_loses_nothing(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    assert wire.mailbox is not None
    for number in range(10):
        wire.mailbox.forget("asker")
        assert (await link.request(quick(number))).count == number
    assert peer.seen == [str(number) for number in range(10)]


async def test_a_frame_that_may_have_run_before_its_sender_was_forgotten_is_not_sent_again(
    link: Link, wire: FaultyTransport, peer: Peer
) -> None:
    assert wire.mailbox is not None
    await link.request(quick(0))
    wire.faults["deliver"].append(Fault.RETURN_LOST)
    lost = asyncio.ensure_future(link.request(quick(1)))
    while len(peer.seen) < 2:
        await ticks(1)
    wire.mailbox.forget("asker")
    assert isinstance((await outcomes(lost))[0], PeerLost)
    assert peer.seen == ["0", "1"]


# the peer dies for good


async def test_a_permanent_death_fails_everything_now_and_later(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    sent = [asyncio.ensure_future(link.request(slow(number))) for number in range(3)]
    await peer.begun(3)
    wire.gates["deliver"] = asyncio.Event()
    under_way = asyncio.ensure_future(link.request(quick(3)))
    while wire.calls["deliver"] < 2:
        await ticks(1)
    queued = asyncio.ensure_future(link.request(quick(4)))
    await ticks(2)
    mailbox = wire.mailbox
    assert mailbox is not None
    wire.end()
    errors = await outcomes(*sent, under_way, queued)
    assert [(type(error), error.delivered) for error in errors] == [(PeerLost, "unknown")] * 4 + [(PeerLost, "no")]
    for _ in range(2):
        with pytest.raises(PeerLost) as caught:
            await link.request(quick(5))
        assert caught.value.delivered == "no"
    link.send(ForgetRuns(run_ids=("nobody",)))
    await mailbox.close()


async def test_a_peer_that_dies_before_it_was_ever_reached(link: Link, wire: FaultyTransport) -> None:
    mailbox = wire.mailbox
    assert mailbox is not None
    wire.end()
    with pytest.raises(PeerLost):
        await link.request(quick(1))
    await mailbox.close()


async def test_a_death_while_the_peer_restarts(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    waiting = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    await wire.die()
    await ticks(20)
    wire.end()
    assert isinstance((await outcomes(waiting))[0], PeerLost)


async def test_a_stale_incarnation_of_the_sender_is_refused(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    old = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    newer = Link("asker", 2, "peer", wire, backoff=0)
    assert (await newer.request(quick(2))).count == 2
    await peer.stopped.wait()  # what the old one had asked for is stopped
    assert isinstance((await outcomes(old))[0], StaleEpoch)
    with pytest.raises(StaleEpoch):
        await link.request(quick(3))
    assert peer.seen == ["1", "2"]
    await newer.close()


async def test_a_stale_incarnation_whose_frame_waits_for_room_never_runs(wire: FaultyTransport, peer: Peer) -> None:
    assert wire.mailbox is not None
    wire.mailbox.capacity = 1
    other, old, new = (Link(name, epoch, "peer", wire, backoff=0) for name, epoch in [("o", 1), ("a", 1), ("a", 2)])
    blocking = asyncio.ensure_future(other.request(slow(0)))
    await peer.begun(1)
    stale = asyncio.ensure_future(old.request(quick(1)))
    while wire.calls["deliver"] < 2:
        await ticks(1)
    await ticks(5)
    fresh = asyncio.ensure_future(new.request(quick(2)))
    while wire.calls["deliver"] < 3:
        await ticks(1)
    await ticks(5)
    peer.gate.set()
    assert (await fresh).count == 2
    assert isinstance((await outcomes(stale))[0], StaleEpoch)
    assert (await blocking).count == 0
    assert peer.seen == ["0", "2"]
    for link in (other, old, new):
        await link.close()


# back-pressure


async def test_senders_wait_for_a_slow_peer_and_nothing_is_lost(wire: FaultyTransport, peer: Peer) -> None:
    assert wire.mailbox is not None
    mailbox = wire.mailbox
    mailbox.capacity = 10
    link = Link("asker", 1, "peer", wire, capacity=20, backoff=0)
    requests = [asyncio.ensure_future(link.request(slow(number, size=20_000))) for number in range(200)]  # four fill a frame
    most_busy = most_queued = 0
    for _ in range(300):
        await ticks(1)
        most_busy, most_queued = max(most_busy, mailbox.busy), max(most_queued, len(link._queue))
    assert 10 <= most_busy <= 15  # full, and the frame that filled it
    assert 20 <= most_queued <= 40
    assert link.full
    peer.gate.set()
    assert [reply.count for reply in await asyncio.gather(*requests)] == list(range(200))
    assert peer.seen == [str(number) for number in range(200)]
    await link.close()


async def test_those_who_wait_for_room_go_in_the_order_they_came(wire: FaultyTransport, peer: Peer) -> None:
    link = Link("asker", 1, "peer", wire, capacity=3, backoff=0)
    await asyncio.gather(*(link.request(quick(number)) for number in range(500)))
    assert peer.seen == [str(number) for number in range(500)]
    await link.close()


async def test_one_who_stops_waiting_for_room_passes_his_turn_on(wire: FaultyTransport, peer: Peer) -> None:
    link = Link("asker", 1, "peer", wire, capacity=1, backoff=0)
    wire.gates["hello"] = asyncio.Event()
    requests = [asyncio.ensure_future(link.request(quick(number))) for number in range(10)]
    await ticks(3)
    wire.gates.pop("hello").set()
    while not requests[0].done():
        for request in requests[1:9]:
            request.cancel()
        await ticks(1)
    assert (await requests[9]).count == 9
    assert peer.seen == ["0", "9"]
    await outcomes(*requests)
    await link.close()


async def test_closing_lets_those_go_who_wait_for_room(wire: FaultyTransport) -> None:
    link = Link("asker", 1, "peer", wire, capacity=1, backoff=0)
    wire.gates["hello"] = asyncio.Event()
    requests = [asyncio.ensure_future(link.request(quick(number))) for number in range(10)]
    await ticks(3)
    await link.close()
    for error in await outcomes(*requests):
        assert isinstance(error, PeerLost)
        assert error.delivered == "no"


# the end


async def test_close_fails_open_requests(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    waiting = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    await link.close()
    (error,) = await outcomes(waiting)
    assert isinstance(error, PeerLost)
    assert "closed" in str(error)
    await link.close()


async def test_a_closed_mailbox_says_so(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    waiting = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    assert wire.mailbox is not None
    await wire.mailbox.close()
    assert len(await outcomes(waiting)) == 1
    with pytest.raises(PeerLost, match="peer is closed"):
        await link.request(quick(2))
    assert peer.seen == ["1"]


async def test_an_observer_that_raises_harms_nobody(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    def observe(message: Any) -> None:
        raise RuntimeError("the caller's loop is closed")

    both = [link.request(bad("partial"), on_partial=observe), link.request(quick(1))]
    assert [reply.count for reply in await asyncio.gather(*both)] == [5, 1]
    assert caplog.text.count("an observer of peer failed") == 1


async def test_a_reply_that_is_no_message_is_an_error(link: Link) -> None:
    with pytest.raises(ProtocolError):
        await link.request(bad("returns a dict"))
    assert (await link.request(quick(1))).count == 1


async def test_what_cannot_be_sent_fails_its_own_request_only(link: Link) -> None:
    with pytest.raises(ProtocolError):
        await link.request(object())  # type: ignore[arg-type]
    assert (await link.request(quick(1))).count == 1


@pytest.mark.parametrize("answer", [b"", b"\xc1", b"\x95\x01\x01\x00\x01\xc0", b"\x95\x01\x01\x00\x01\x91\x05"])
async def test_a_peer_that_answers_nonsense_breaks_the_link_and_nobody_hangs(
    link: Link, wire: FaultyTransport, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    async def deliver(frame: bytes, large: Any) -> Any:
        return answer, ()

    monkeypatch.setattr(wire, "deliver", deliver)
    with pytest.raises(ProtocolError):
        await link.request(quick(1))
    with pytest.raises(ProtocolError):
        await link.request(quick(1))


async def test_errors_of_many_requests_do_not_keep_each_other_alive(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    waiting = [asyncio.ensure_future(link.request(slow(number))) for number in range(10)]
    await peer.begun(10)
    await link.close()
    errors = await outcomes(*waiting)
    assert len({id(error) for error in errors}) == 10


@pytest.mark.case(29)
async def test_nothing_is_kept_of_what_is_over(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    assert wire.mailbox is not None
    peer.gate.set()
    for _ in range(20):
        requests = [link.request(maker(number)) for number in range(50) for maker in (quick, slow)]
        requests += [link.request(bad(how)) for how in ("umbel error", "other error", "partial")]
        await asyncio.gather(*requests, return_exceptions=True)
        doomed = [asyncio.ensure_future(link.request(quick(number))) for number in range(20)]
        await ticks(2)
        for request in doomed:
            request.cancel()
        await outcomes(*doomed)
    for number in range(WINDOW):
        await link.request(quick(number))
    await ticks(5)
    (session,) = wire.mailbox._sessions.values()
    assert wire.mailbox.busy == 0
    assert not session.running
    assert not session.unsent
    assert len(session.unacknowledged) <= 1
    assert not session.withdrawn
    assert not link._requests.by_number
    assert not link._queue
    assert not link._requests._early
    assert link._requests.sent == 0


@pytest.mark.case(26)
async def test_a_peer_that_stays_away_is_not_waited_for_for_ever(wire: FaultyTransport, peer: Peer) -> None:
    link = Link("impatient", 1, "peer", wire, backoff=0, patience=0.05)
    sent = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    await wire.die()
    queued = asyncio.ensure_future(link.request(quick(2)))
    lost = await outcomes(sent, queued)
    assert [error.delivered for error in lost] == ["unknown", "no"]
    assert all(isinstance(error, PeerLost) and "did not come back within 0.05 s" in error.message for error in lost)
    wire.restart(peer.mailbox())
    assert (await link.request(quick(3))).count == 3, "a later request tries anew"
    await link.close()


@pytest.mark.case(26)
async def test_what_a_peer_says_after_it_was_given_up_does_not_count(wire: FaultyTransport, peer: Peer) -> None:
    """It was only out of reach: the same incarnation comes back."""
    link = Link("impatient", 1, "peer", wire, backoff=0, patience=0.05)
    assert (await link.request(quick(1))).count == 1
    gate = wire.gates["hello"] = asyncio.Event()
    wire.faults["deliver"] += [Fault.CALL_LOST]
    with pytest.raises(PeerLost, match="did not come back"):
        await link.request(quick(2))
    gate.set()
    assert [reply.count for reply in await asyncio.gather(*(link.request(quick(number)) for number in range(3, 6)))] == [
        3,
        4,
        5,
    ]
    await link.close()


async def test_a_peer_that_moves_ends_what_runs_and_leaves_the_rest_to_the_next_incarnation(
    link: Link, wire: FaultyTransport, peer: Peer
) -> None:
    running = asyncio.ensure_future(link.request(slow(1)))
    await peer.begun(1)
    mailbox = wire.mailbox
    assert mailbox is not None
    mailbox.hold()
    held = [asyncio.ensure_future(link.request(quick(number))) for number in (2, 3)]
    await ticks(20)
    assert peer.seen == ["1"], "nothing more is started"
    peer.gate.set()
    assert await running and mailbox.told, "what ran has ended, and its reply has left"
    wire.gates["hello"] = asyncio.Event()  # it does not introduce itself any more
    mailbox.release()
    await ticks(50)
    assert not any(request.done() for request in held)
    await wire.die()
    wire.restart(peer.mailbox())
    wire.gates["hello"].set()
    assert [(await request).count for request in held] == [2, 3]
    assert peer.seen == ["1", "2", "3"]


async def test_a_frame_that_never_left_goes_to_the_next_incarnation(link: Link, wire: FaultyTransport, peer: Peer) -> None:
    """As when its connection had broken before: a request that was not sent has no unknown outcome."""
    assert (await link.request(quick(1))).count == 1
    wire.faults["deliver"].append(Fault.UNSENT)
    wire.gates["hello"] = asyncio.Event()
    request = asyncio.ensure_future(link.request(quick(2)))
    await ticks(20)
    await wire.die()
    wire.restart(peer.mailbox())
    wire.gates["hello"].set()
    assert (await request).count == 2 and peer.seen == ["1", "2"]
