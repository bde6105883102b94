"""Thousands of messages over a bad connection: every request has one outcome, no handler runs twice, order is kept."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from umbel.actors.frames import Caller
from umbel.actors.link import Link
from umbel.actors.mailbox import Mailbox
from umbel.protocol.commands import CancelRun, ForgetRuns, RunsCancelled, ToolProgress
from umbel.protocol.errors import DeadlineExceeded, PeerLost, RateLimited

from .faulty_transport import FaultyTransport, ticks

MESSAGES = 3_000


class RecordingLink(Link):
    """A link that remembers in which order it was given what keeps its order."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.order: list[int] = []

    def ask(self, message: Any, on_partial: Any = None, *, urgent: bool = False) -> tuple[int, asyncio.Future[Any]]:
        if not urgent:
            self.order.append(int(message.run_id))
        return super().ask(message, on_partial, urgent=urgent)

    def send(self, message: Any) -> None:
        self.order.append(int(message.run_ids[0]))
        super().send(message)


class World:
    """One link, one peer, and what became of every message."""

    def __init__(self, seed: int, chance: float) -> None:
        self.random = random.Random(seed)
        self.began: list[int] = []
        self.partials: dict[int, list[float]] = {}
        self.outcomes: dict[int, Any] = {}
        self.epochs = 0
        self.urgent: set[int] = set()
        self.stopped: set[int] = set()
        self.wire = FaultyTransport(self.mailbox(), seed)
        self.wire.chance, self.wire.delay = chance, 8
        self.link = RecordingLink("asker", 1, "peer", self.wire, capacity=200, backoff=0)

    def mailbox(self) -> Mailbox:
        self.epochs += 1
        mailbox = Mailbox("peer", self.epochs, capacity=100)
        mailbox.on(CancelRun, self.handle)
        mailbox.on(ForgetRuns, self.forget)
        return mailbox

    async def handle(self, message: CancelRun, caller: Caller) -> RunsCancelled:
        number = int(str(message.run_id))
        self.began.append(number)
        try:
            for step in range(number % 4):
                caller.send(ToolProgress(tool_call_id="p", progress=step))
                await ticks(self.random.randint(0, 30))
        except asyncio.CancelledError:
            self.stopped.add(number)
            raise
        if number % 7 == 0:
            raise RateLimited("no", number=number)
        return RunsCancelled(count=number)

    async def forget(self, message: ForgetRuns, caller: Caller) -> None:
        self.began.append(int(message.run_ids[0]))

    async def message(self, number: int) -> None:
        if number % 11 == 0:
            self.link.send(ForgetRuns(run_ids=(str(number),)))
            self.outcomes[number] = None
            return
        urgent = number % 13 == 0
        if urgent:
            self.urgent.add(number)
        self.partials[number] = []
        size = 90_000 if number % 97 == 0 else 0
        body = CancelRun(run_id=str(number), thread_id="x" * size)
        request = asyncio.ensure_future(
            self.link.request(body, on_partial=lambda part: self.observe(number, part), urgent=urgent)
        )
        if number % 5 == 0:
            await ticks(self.random.randint(0, 60))
            request.cancel()
        outcome: Any = (await asyncio.gather(request, return_exceptions=True))[0]
        assert number not in self.outcomes
        self.outcomes[number] = outcome

    def observe(self, number: int, part: ToolProgress) -> None:
        self.partials[number].append(part.progress)

    async def restart_now_and_then(self) -> None:
        while True:
            await ticks(self.random.randint(300, 600))
            if self.random.random() < 0.3 and self.wire.mailbox is not None:
                self.wire.mailbox.forget("asker")
                continue
            await self.wire.die()
            await ticks(self.random.randint(0, 50))
            self.wire.restart(self.mailbox())

    def check(self) -> None:
        assert sorted(self.outcomes) == list(range(1, MESSAGES + 1))
        assert max(Counter(self.began).values()) == 1
        place = {number: index for index, number in enumerate(self.link.order)}
        places = [place[number] for number in self.began if number not in self.urgent]
        assert places == sorted(places)
        for number, outcome in self.outcomes.items():
            self.check_outcome(number, outcome)

    def check_outcome(self, number: int, outcome: Any) -> None:
        if outcome is None or isinstance(outcome, asyncio.CancelledError):
            assert number % 11 == 0 or number % 5 == 0
        elif isinstance(outcome, RateLimited):
            assert outcome.details["number"] == number
            assert number % 7 == 0
        elif isinstance(outcome, PeerLost):
            assert self.epochs > 1
        else:
            assert outcome == RunsCancelled(count=number)
        parts = self.partials.get(number, [])
        if isinstance(outcome, RunsCancelled | RateLimited):
            assert parts == list(range(number % 4))
        else:
            assert parts == list(range(len(parts)))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("seed", [1, 2])
async def test_soak(clean_loop: None, seed: int, chance: float, restarts: bool) -> None:
    world = World(seed, chance)
    saboteur = asyncio.ensure_future(world.restart_now_and_then()) if restarts else None
    messages = []
    for number in range(1, MESSAGES + 1):
        messages.append(asyncio.ensure_future(world.message(number)))
        if world.random.random() < 0.1:
            await ticks(world.random.randint(0, 20))
    await asyncio.gather(*messages)
    if saboteur is not None:
        saboteur.cancel()
        await asyncio.gather(saboteur, return_exceptions=True)
    else:
        assert not [number for number, outcome in world.outcomes.items() if isinstance(outcome, PeerLost | DeadlineExceeded)]
        await world.link.request(CancelRun(run_id=str(4 * MESSAGES)))  # all that was sent one way has arrived before it
        assert set(range(11, MESSAGES + 1, 11)) <= set(world.began)
    world.check()
    assert world.link._requests.sent == 0
    assert not world.link._requests.by_number
    await world.link.close()
    if world.wire.mailbox is not None:
        await world.wire.mailbox.close()
    await world.wire.shut_down()
