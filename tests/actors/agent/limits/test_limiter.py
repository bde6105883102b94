"""The limiter by itself, on a clock of numbers: pace, tokens, concurrency, order, and what refusals teach."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from tests.actors.agent.limits.test_desk import most_in
from umbel.actors.agent.limits.limiter import PROBE_SECONDS, Limiter
from umbel.actors.agent.limits.pace import MARGIN, Pace
from umbel.actors.agent.limits.queue import FairQueue
from umbel.actors.agent.limits.told import Told
from umbel.actors.agent.limits.turns import Turn
from umbel.actors.sharing import Share
from umbel.protocol.config import Limits


class Endpoint:
    """Allows ``rate`` requests a second as a bucket of one second's worth, and refuses the others at once."""

    def __init__(self, rate: float) -> None:
        self.rate, self.level, self.at = rate, rate, 0.0

    def takes(self, now: float) -> bool:
        self.level, self.at = min(self.level + (now - self.at) * self.rate, self.rate), now
        if self.level < 1:
            return False
        self.level -= 1
        return True


def play(
    limiter: Limiter, endpoint: Endpoint, seconds: float, *, now: float = 0.0, step: float = 0.01
) -> list[tuple[float, bool]]:
    """More wait than may be sent, answers take 50 ms. Returns when requests were sent, and whether they were let in."""
    sent: list[tuple[float, bool]] = []
    answers: list[tuple[float, Turn, bool]] = []
    end, key = now + seconds, 0
    while now < end:
        while len(limiter.queue) < 50:
            limiter.ask(Turn(key := key + 1))
        for turn in limiter.grant(now):
            let_in = endpoint.takes(max(turn.at, now))
            sent.append((turn.at, let_in))
            answers.append((turn.at + 0.05, turn, let_in))
        while answers and answers[0][0] <= now:
            _, turn, let_in = answers.pop(0)
            if let_in:
                limiter.accept(turn, now)
            else:
                limiter.refuse(turn, now, None)
            limiter.end(turn)
        now += step
    return sent


@settings(deadline=None, max_examples=40)
@given(
    rate=st.floats(30, 6_000),
    asks=st.lists(st.tuples(st.floats(0, 2), st.integers(1, 30)), max_size=40),
)
def test_no_window_ever_holds_more_than_the_limit(rate: float, asks: list[tuple[float, int]]) -> None:
    limiter = Limiter(Limits(requests_per_minute=rate))
    now, sent = 0.0, []
    for number, (pause, count) in enumerate(asks):
        now += pause
        for _ in range(count):
            limiter.ask(Turn(object()))
        granted = limiter.grant(now)
        sent += [turn.at for turn in granted]
        for turn in granted[: number % 3]:
            limiter.withdraw(turn)
    for window in (1.0, 5.0, 60.0):
        assert most_in(sent, window) <= max(rate / 60 * window * 1.05, 1)


@settings(deadline=None, max_examples=40)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=4),
    served=st.integers(50, 300),
)
def test_fleets_are_served_by_weight(weights: list[float], served: int) -> None:
    queue = FairQueue()
    for name, weight in enumerate(weights):
        for _ in range(served):
            queue.push(Turn(None, Share(fleet=str(name), weight=weight)))
    counts = Counter(queue.pop().share.fleet for _ in range(served))
    for name, weight in enumerate(weights):
        assert abs(counts[str(name)] - served * weight / sum(weights)) <= max(weights) / min(weights) + 1


def test_a_fleet_that_was_idle_gets_its_share_and_no_arrears() -> None:
    queue = FairQueue()
    for _ in range(100):
        queue.push(Turn(None, Share(fleet="a")))
    for _ in range(50):
        queue.pop()
    for _ in range(100):
        queue.push(Turn(None, Share(fleet="b")))
    counts = Counter(queue.pop().share.fleet for _ in range(40))
    assert counts == {"a": 20, "b": 20}


def test_a_fleet_serves_by_priority_then_by_age_and_first_who_was_refused() -> None:
    queue = FairQueue()
    for key, priority, again in [
        ("1", 0, False),
        ("2", 0, False),
        ("high", 5, False),
        ("refused", 0, True),
        ("again", 0, True),
    ]:
        queue.push(Turn(key, Share(priority=priority), again=again))
    left = Turn("left", Share(priority=9))
    queue.push(left)
    queue.drop(left)
    assert [queue.pop().key for _ in range(len(queue))] == ["high", "refused", "again", "1", "2"]


def test_tokens_are_paced_by_what_was_really_used() -> None:
    limiter = Limiter(Limits(tokens_per_minute=60_000 / MARGIN))  # 1,000 a second
    first, second, third = (Turn(n, tokens=2_000) for n in range(3))
    for turn in (first, second, third):
        limiter.ask(turn)
    assert limiter.grant(0.0) == [first]
    assert limiter.next_at(0.0) == pytest.approx(2.0)
    limiter.end(first, tokens=500)
    assert limiter.next_at(0.1) == pytest.approx(0.5)
    assert limiter.grant(0.5) == [second]
    limiter.end(second, tokens=5_000)
    assert limiter.next_at(1.0) == pytest.approx(5.5)


def test_concurrency_counts_until_the_answer_is_read() -> None:
    limiter = Limiter(Limits(concurrency=2))
    turns = [Turn(n) for n in range(3)]
    for turn in turns:
        limiter.ask(turn)
    assert limiter.grant(0.0) == turns[:2]
    limiter.accept(turns[0], 1.0)
    assert limiter.grant(1.0) == []
    limiter.end(turns[0])
    assert limiter.grant(1.0) == turns[2:]


def test_what_an_endpoint_tells_bounds_the_pace_at_once() -> None:
    limiter = Limiter()
    assert limiter.is_free
    limiter.tell(Told(requests=600))
    assert limiter.pace.rate == pytest.approx(10 * MARGIN)
    limiter.tell(Told(requests=120))
    assert limiter.pace.rate == pytest.approx(2 * MARGIN)
    assert not limiter.is_free


def test_refusals_of_one_round_trip_lower_the_pace_once() -> None:
    limiter = Limiter(Limits(requests_per_minute=6_000 / MARGIN))
    turns = [Turn(n) for n in range(5)]
    for turn in turns:
        limiter.ask(turn)
    assert limiter.grant(0.0) == turns
    for turn in turns:
        limiter.refuse(turn, 0.1, None)
    assert limiter.pace.rate == pytest.approx(70)
    for _ in range(20):  # sent before anything was known, by processes that did not ask
        limiter.refuse(None, 0.2, None, age=0.15)
    assert limiter.pace.rate == pytest.approx(70)


def test_after_a_refusal_that_names_a_time_one_request_tries() -> None:
    limiter = Limiter()
    limiter.refuse(None, 0.0, 5.0)
    turns = [Turn(n) for n in range(4)]
    for turn in turns:
        limiter.ask(turn)
    assert limiter.grant(4.9) == []
    assert limiter.grant(5.0) == turns[:1]
    assert limiter.grant(5.9) == []
    limiter.end(turns[0])  # it said nothing: the next one tries
    assert limiter.grant(5.95) == turns[1:2]
    limiter.accept(turns[1], 6.0)
    assert limiter.grant(6.5) == turns[2:3]
    assert limiter.next_at(6.5) == pytest.approx(6.5 + 1 / limiter.pace.rate)  # type: ignore[operator]


def test_a_probe_that_takes_long_has_been_let_in() -> None:
    limiter = Limiter()
    limiter.refuse(None, 0.0, 5.0)
    turns = [Turn(n) for n in range(2)]
    for turn in turns:
        limiter.ask(turn)
    limiter.grant(5.0)
    assert limiter.grant(5.0 + PROBE_SECONDS) == turns[1:]


@pytest.mark.parametrize("rate", [5.0, 20.0, 100.0])
def test_a_limit_that_nobody_tells_is_found_and_probed_gently(rate: float) -> None:
    limiter = Limiter()
    limiter.refuse(None, 0.0, None)
    endpoint = Endpoint(rate)
    play(limiter, endpoint, 20.0)
    sent = play(limiter, endpoint, 60.0, now=20.0)
    accepted = sum(let_in for _, let_in in sent) / 60
    assert accepted > 0.8 * rate
    assert len(sent) / 60 < 1.05 * rate
    assert sum(not let_in for _, let_in in sent) < 0.03 * len(sent)


def test_a_fall_that_nobody_tells_is_followed() -> None:
    limiter, endpoint = Limiter(), Endpoint(10.0)
    limiter.refuse(None, 0.0, None)
    play(limiter, endpoint, 30.0)
    endpoint.rate = endpoint.level = 2.0
    play(limiter, endpoint, 10.0, now=30.0)
    sent = play(limiter, endpoint, 60.0, now=40.0)
    assert 60 < sum(let_in for _, let_in in sent) <= 125
    assert len(sent) < 2 * 60 * 1.07


def test_an_endpoint_without_a_limit_is_free_again_after_a_while() -> None:
    pace = Pace()
    pace.refuse(0.0)
    for second in range(1, 125):
        pace.accept(float(second))
    assert pace.is_free
