"""Which replica of a pool serves a run, when not all of them are there."""

from __future__ import annotations

import asyncio
from typing import Any

from umbel.actors.link import Link
from umbel.cluster import replicas as module
from umbel.cluster.replicas import FirstThere, Replicas
from umbel.protocol.commands import CancelRun


class Replica(Link):
    """A link whose peer is there when the test says so; it answers with its name."""

    def __init__(self, name: str) -> None:
        self.peer = name
        self.there = False
        self.looked_for = 0
        self.defined: list[str] = []

    @property
    def met(self) -> bool:
        return self.there

    def meet(self) -> None:
        self.looked_for += 1

    def define(self, definition: str, blob: Any) -> None:
        self.defined.append(definition)

    async def request(self, message: Any, **options: Any) -> Any:
        return self.peer


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_run_has_its_own_replica_and_takes_the_next_one_while_that_is_away() -> None:
    clock = Clock()
    one, two = Replica("one"), Replica("two")
    choice = Replicas(5, clock)
    one.there = two.there = True
    assert choice.choose([one, two]) is one and choice.choose([two, one]) is two
    one.there = False
    assert isinstance(choice.choose([one, two]), FirstThere), "it may be about to start"
    assert choice.choose([two, one]) is two
    clock.now += module.STARTING_SECONDS
    assert choice.choose([one, two]) is two and one.looked_for
    one.there = True
    assert choice.choose([one, two]) is one
    one.there = False
    assert isinstance(choice.choose([one, two]), FirstThere), "it is away anew"


async def test_who_finds_nobody_waits_for_the_first_and_stays_with_it() -> None:
    clock = Clock()
    one, two = Replica("one"), Replica("two")
    channel = Replicas(600, clock).choose([one, two])
    channel.define("agent", lambda _: b"")
    asked = asyncio.ensure_future(channel.request(CancelRun()))
    await asyncio.sleep(0.1)
    assert not asked.done()
    two.there = True
    await asyncio.sleep(0.1)
    assert not asked.done(), "the first one may be about to start"
    clock.now += module.STARTING_SECONDS
    assert await asked == "two" and two.defined == ["agent"] and not one.defined
    one.there = True
    assert await channel.request(CancelRun()) == "two"


async def test_after_its_patience_it_asks_the_first_which_says_what_is_wrong() -> None:
    channel = Replicas(0, Clock()).choose([Replica("one"), Replica("two")])
    assert await channel.request(CancelRun()) == "one"
