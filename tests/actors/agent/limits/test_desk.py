"""Processes of a cluster share a desk: pace, order and fairness hold over all of them, with it and while it is away."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from tests.actors.agent.models.conftest import VirtualTime
from umbel.actors.agent.limits.desk import Desk
from umbel.actors.agent.models.gate import Gate, wait_until
from umbel.actors.sharing import Share, sharing
from umbel.protocol.config import Limits
from umbel.protocol.errors import RateLimited
from umbel.protocol.limits import LimiterReply, LimiterReport

LATENCY = 0.002


class Cluster:
    """A desk that processes reach over a slow way, and that can die."""

    def __init__(self, virtual: VirtualTime) -> None:
        self.virtual = virtual
        self.epochs = 0
        self.desk: Desk | None = None
        self.alive = True
        self.calls = 0

    async def exchange(self, report: LimiterReport) -> LimiterReply:
        self.calls += 1
        if not self.alive:
            raise ConnectionError("it is gone")
        if self.desk is None:
            self.epochs += 1
            self.desk = Desk(self.epochs, timing=self.virtual.timing)
        desk = self.desk
        await self.virtual.sleep(LATENCY)
        reply = await desk.exchange(report)
        await self.virtual.sleep(LATENCY)
        if desk is not self.desk:
            raise ConnectionError("it died meanwhile")
        return reply

    def kill(self) -> None:
        self.desk, self.alive = None, False

    def revive(self) -> None:
        self.alive = True

    def gate(self, **options: Any) -> Gate:
        return Gate("server", timing=self.virtual.timing, exchange=self.exchange, **options)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(VirtualTime())


def most_in(times: list[float], window: float) -> int:
    """The most arrivals in any half-open window of that length."""
    times, most, first = sorted(times), 0, 0
    for last, time in enumerate(times):
        while time - times[first] >= window - 1e-9:
            first += 1
        most = max(most, last - first + 1)
    return most


async def ask(gate: Gate, arrivals: list[float], virtual: VirtualTime, seconds: float = 0.05) -> None:
    turn = await gate.admit()
    arrivals.append(virtual.now)
    await virtual.sleep(seconds)
    gate.settle(turn)
    gate.finish(turn)


@pytest.mark.case(24)
async def test_no_window_holds_more_than_the_limit_over_all_processes(cluster: Cluster) -> None:
    gates = [cluster.gate(limits=Limits(requests_per_minute=600)) for _ in range(4)]
    arrivals: list[float] = []
    jobs = (ask(gates[n % 4], arrivals, cluster.virtual) for n in range(200))
    await cluster.virtual.run(asyncio.gather(*jobs))
    for window in (1.0, 2.0, 5.0, 10.0, 20.0):
        assert most_in(arrivals, window) <= 10 * window * 1.05, window
    assert max(arrivals) < 200 / 10 * 1.1, "most of the limit is used"


async def test_many_requests_take_few_calls(cluster: Cluster) -> None:
    gates = [cluster.gate(limits=Limits(requests_per_minute=60_000)) for _ in range(2)]
    arrivals: list[float] = []
    await cluster.virtual.run(asyncio.gather(*(ask(gates[n % 2], arrivals, cluster.virtual) for n in range(2_000))))
    assert len(arrivals) == 2_000
    assert max(arrivals) < 2.5
    assert cluster.calls < 2_000 * 0.6


@pytest.mark.case(24)
async def test_a_limit_that_one_process_meets_holds_back_the_others(cluster: Cluster) -> None:
    one, other = cluster.gate(limits=Limits(requests_per_minute=6_000)), cluster.gate(limits=Limits(requests_per_minute=6_000))
    arrivals: list[float] = []

    async def story() -> None:
        await ask(other, arrivals, cluster.virtual)
        one.refuse(await one.admit(), 5.0)
        refused = cluster.virtual.now
        await cluster.virtual.sleep(0.1)
        await asyncio.gather(*(ask(other, arrivals, cluster.virtual) for _ in range(10)))
        assert min(arrivals[1:]) >= refused + 5.0

    await cluster.virtual.run(story())


async def test_the_share_of_a_fleet_follows_its_weight_over_all_processes(cluster: Cluster) -> None:
    gates = [cluster.gate(limits=Limits(requests_per_minute=600)) for _ in range(3)]
    served: list[str] = []

    async def request(gate: Gate, fleet: str, weight: float) -> None:
        with sharing(Share(fleet=fleet, weight=weight)):
            turn = await gate.admit()
        served.append(fleet)
        gate.settle(turn)
        gate.finish(turn)

    heavy = [request(gates[n % 2], "heavy", 3.0) for n in range(90)]
    light = [request(gates[2], "light", 1.0) for n in range(90)]
    await cluster.virtual.run(asyncio.gather(*light, *heavy))
    counted = Counter(served[:80])
    assert counted["heavy"] == pytest.approx(60, abs=3)
    assert Counter(served) == {"heavy": 90, "light": 90}


async def test_processes_with_many_waiting_do_not_starve_one_with_few(cluster: Cluster) -> None:
    busy, idle = (cluster.gate(limits=Limits(requests_per_minute=600)) for _ in range(2))
    served: list[str] = []

    async def agent(gate: Gate, name: str) -> None:
        for _ in range(5):
            gate.finish(await gate.admit())
            served.append(name)

    names = [f"b{n}" for n in range(30)]
    jobs = [*(agent(busy, name) for name in names), agent(idle, "i")]
    await cluster.virtual.run(asyncio.gather(*jobs))
    half = Counter(served[:90])
    assert 2 <= half["i"] <= 4, "one of 31 has its turn as often as the others"


@pytest.mark.case(24)
async def test_the_death_of_the_desk_slows_and_never_stops_nor_bursts(cluster: Cluster) -> None:
    virtual = cluster.virtual
    gates = [cluster.gate(limits=Limits(requests_per_minute=600)) for _ in range(4)]
    arrivals: list[float] = []

    async def death() -> None:
        await virtual.sleep(8.0)
        cluster.kill()
        await virtual.sleep(10.0)
        before = len([time for time in arrivals if time > virtual.now - 5])
        assert before >= 25, "they go on at their shares"
        cluster.revive()

    async def agent(gate: Gate) -> None:
        for _ in range(10):
            await ask(gate, arrivals, virtual)

    await virtual.run(asyncio.gather(death(), *(agent(gates[n % 4]) for n in range(40))))
    assert len(arrivals) == 400
    assert cluster.epochs == 2
    for window in (5.0, 10.0, 30.0):
        assert most_in(arrivals, window) <= 10 * window * 1.05 + 1, window


async def test_what_a_process_had_taken_is_free_again_when_it_is_gone(cluster: Cluster) -> None:
    lost, other = (cluster.gate(limits=Limits(concurrency=1)) for _ in range(2))

    async def story() -> None:
        await lost.admit()
        assert lost._line is not None
        await lost._line.close()
        other.finish(await other.admit())

    await cluster.virtual.run(story())
    assert 10 <= cluster.virtual.now < 15


async def test_one_that_is_not_to_wait_is_refused_with_the_time(cluster: Cluster) -> None:
    gate = cluster.gate(limits=Limits(requests_per_minute=60))

    async def story() -> None:
        waiting = [asyncio.ensure_future(gate.admit()) for _ in range(5)]
        await cluster.virtual.sleep(0.5)
        with wait_until(cluster.virtual.now), pytest.raises(RateLimited) as caught:
            await gate.admit()
        assert 3.0 < (caught.value.retry_after or 0) < 6.0
        assert caught.value.details["sent"] is False
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    await cluster.virtual.run(story())


async def test_given_up_turns_go_to_the_next(cluster: Cluster) -> None:
    gate = cluster.gate(limits=Limits(requests_per_minute=60))
    arrivals: list[float] = []

    async def story() -> None:
        await ask(gate, arrivals, cluster.virtual)
        leaving = [asyncio.ensure_future(gate.admit()) for _ in range(20)]
        await cluster.virtual.sleep(0.2)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await ask(gate, arrivals, cluster.virtual)

    await cluster.virtual.run(story())
    assert arrivals[1] - arrivals[0] < 2.5


@pytest.mark.case(24)
@pytest.mark.parametrize("seed", range(3))
async def test_an_endpoint_that_falls_from_ten_to_two_a_second_and_tells(cluster: Cluster, seed: int) -> None:
    """Its limit is met in every window that begins when the answers tell of it."""
    from umbel.actors.agent.limits.told import Told

    virtual, chance = cluster.virtual, random.Random(seed)
    gates = [cluster.gate() for _ in range(4)]
    arrivals: list[float] = []
    fall = 10.0

    async def request(gate: Gate) -> None:
        turn = await gate.admit()
        arrivals.append(virtual.now)
        told = Told(600.0 if virtual.now < fall else 120.0)
        await virtual.sleep(chance.uniform(0.01, 0.2))
        gate.settle(turn, told)
        gate.finish(turn)

    async def all_of_them() -> None:
        await request(gates[0])
        await virtual.sleep(0.5)
        for gate in gates:
            gate.settle(await gate.admit(), Told(600.0))
        await virtual.sleep(1.5)
        await asyncio.gather(*(request(gates[n % 4]) for n in range(160)))

    await virtual.run(all_of_them())
    early = [time for time in arrivals if 2.0 <= time < fall]
    late = [time for time in arrivals if time >= fall + 0.5]
    assert len(early) > 60
    assert len(late) > 40
    for window in (1.0, 2.0, 5.0, 10.0, 30.0):
        assert most_in(early, window) <= 10 * window * 1.05, window
        assert most_in(late, window) <= 2 * window * 1.05, window
