"""One rate limit holds back every request to its endpoint, and they come back spread out (public case 24)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import httpx
import pytest

from umbel.actors.agent.limits.turns import Turn
from umbel.actors.agent.models import Gate, OpenAICompatibleModel, RetryingModel, RetryPolicy
from umbel.actors.agent.models.gate import shared_gate, wait_until
from umbel.protocol.errors import RateLimited
from umbel.protocol.messages import Message, ModelResponse

AGENTS = 20
DONE = {"choices": [{"message": {"content": "done"}, "finish_reason": "stop"}]}


class Limited:
    """Refuses everything until ``until``, asking for ``wait`` seconds each time."""

    def __init__(self, virtual: Any, until: float, headers: Callable[[float], dict[str, str]]) -> None:
        self.virtual, self.until, self.headers = virtual, until, headers
        self.arrivals: list[tuple[float, int]] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        now = self.virtual.now
        status = 429 if now < self.until else 200
        self.arrivals.append((now, status))
        await self.virtual.sleep(0.05)
        if status == 200:
            return httpx.Response(200, json=DONE)
        return httpx.Response(429, headers=self.headers(self.virtual.epoch + now), json={"error": {"message": "slow down"}})


FORMS: dict[str, Callable[[float], dict[str, str]]] = {
    "seconds": lambda now: {"retry-after": "2"},
    "date": lambda now: {"retry-after": formatdate(now + 2.9, usegmt=True), "date": formatdate(now, usegmt=True)},
    "milliseconds": lambda now: {"retry-after-ms": "2000"},
    "reset": lambda now: {"x-ratelimit-reset-requests": "2s", "x-ratelimit-remaining-requests": "0"},
}


@pytest.mark.case(24)
@pytest.mark.parametrize("form", FORMS)
async def test_twenty_agents_meet_a_limit(virtual: Any, form: str) -> None:
    server = Limited(virtual, 5.0, FORMS[form])
    gate = Gate("server", timing=virtual.timing)
    transport = httpx.MockTransport(server)

    def agent() -> RetryingModel:
        model = OpenAICompatibleModel("m", base_url="http://h/v1", transport=transport, gate=gate, timing=virtual.timing)
        return RetryingModel(model, timing=virtual.timing)

    async def all_agents() -> list[ModelResponse]:
        return await asyncio.gather(*(agent().complete([Message.user("hi")]) for _ in range(AGENTS)))

    replies = await virtual.run(all_agents())
    assert [reply.content for reply in replies] == ["done"] * AGENTS

    refusals = [time for time, status in server.arrivals if status == 429]
    assert refusals[:AGENTS] == [0.0] * AGENTS
    for refused in refusals:
        assert not [time for time, _ in server.arrivals if refused < time < refused + 2.05], "asked before the stated time"
    # The first burst, one probe per further refusal, and one success each.
    assert len(refusals) <= AGENTS + 3
    assert len(server.arrivals) == len(refusals) + AGENTS
    successes = [time for time, status in server.arrivals if status == 200]
    assert max(successes) < 10.0
    assert max(successes) - min(successes) > 0.3
    assert len({round(time, 2) for time in successes}) > AGENTS / 2


@pytest.mark.case(24)
async def test_a_new_request_waits_for_a_limit_that_another_met(virtual: Any) -> None:
    gate = Gate("server", timing=virtual.timing)
    await gate.admit()
    gate.close(3.0)
    await virtual.run(gate.admit())
    assert 3.0 <= virtual.now <= 4.0


@pytest.mark.case(24)
async def test_only_one_request_tries_after_the_stated_time(virtual: Any) -> None:
    gate = Gate("server", timing=virtual.timing)
    gate.close(1.0)
    admitted: list[tuple[int, Turn]] = []

    async def request(number: int) -> None:
        admitted.append((number, await gate.admit()))

    async def probe() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(request(number))
            while not admitted:
                await virtual.sleep(0.05)
            await virtual.sleep(0.5)
            assert len(admitted) == 1
            gate.abandon(admitted[0][1])  # it died on the way: the next one tries
            while len(admitted) < 2:
                await virtual.sleep(0.05)
            assert len(admitted) == 2
            gate.settle(admitted[1][1])

    await virtual.run(probe())
    assert len(admitted) == 5


@pytest.mark.case(24)
async def test_a_probe_that_takes_long_does_not_hold_back_the_others(virtual: Any) -> None:
    gate = Gate("server", timing=virtual.timing)
    gate.close(1.0)
    await virtual.run(gate.admit())
    await virtual.run(gate.admit())
    assert virtual.now < 5


async def test_an_answer_from_before_the_limit_does_not_open_the_gate(virtual: Any) -> None:
    gate = Gate("server", timing=virtual.timing)
    early = await gate.admit()
    gate.close(5.0)
    gate.settle(early)
    await virtual.run(gate.admit())
    assert virtual.now >= 5


@pytest.mark.case(24)
async def test_a_wait_beyond_the_deadline_is_refused_without_a_request(virtual: Any) -> None:
    gate = Gate("server", timing=virtual.timing, patience=10.0)
    gate.close(20.0)
    with pytest.raises(RateLimited, match="server") as caught:
        await gate.admit()
    assert caught.value.retry_after == 20.0
    with wait_until(15.0), pytest.raises(RateLimited):
        await gate.admit()
    with wait_until(25.0):
        await virtual.run(gate.admit())
    assert virtual.now >= 20


@pytest.mark.case(24)
async def test_the_retry_budget_holds_at_the_gate_too(virtual: Any) -> None:
    server = Limited(virtual, 1e9, lambda now: {"retry-after": "50"})
    gate = Gate("server", timing=virtual.timing)
    model = OpenAICompatibleModel(
        "m", base_url="http://h/v1", transport=httpx.MockTransport(server), gate=gate, timing=virtual.timing
    )
    gate.close(30.0)
    with pytest.raises(RateLimited):
        await virtual.run(RetryingModel(model, RetryPolicy(budget=60), timing=virtual.timing).complete([]))
    assert 30 <= virtual.now <= 32
    assert len(server.arrivals) == 1


def test_models_of_one_account_share_a_gate() -> None:
    assert shared_gate("http://h/v1", "a") is shared_gate("http://h/v1", "a")
    assert shared_gate("http://h/v1", "a") is not shared_gate("http://h/v1", "b")
    one, two, other = (
        OpenAICompatibleModel("m", base_url="http://h/v1", api_key=key) for key in ("sk-aaaa", "sk-aaaa", "sk-bbbb")
    )
    assert one._gate is two._gate
    assert one._gate is not other._gate


@pytest.mark.case(24)
async def test_twenty_agents_over_real_connections(server: Any, answers: Any, model_at: Any) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def answer(request: Any, writer: Any) -> None:
        limited = request.time < start + 0.7
        refuse = answers.json({"error": {"message": "slow"}}, 429, retry_after_ms="300", retry_after="1")
        await (refuse if limited else answers.json(DONE))(request, writer)

    server.default = answer
    models = [model_at(server.url, gate=None) for _ in range(AGENTS)]  # None: the gate that the process shares
    replies = await asyncio.gather(*(RetryingModel(model).complete([Message.user("hi")]) for model in models))
    assert {reply.content for reply in replies} == {"done"}
    times = [request.time - start for request in server.requests]
    first = times[:AGENTS]
    assert not [time for time in times if max(first) < time < min(first) + 0.3]
    assert len(times) <= 2 * AGENTS + 5
