from __future__ import annotations

from typing import Any

import pytest

from umbel.cluster.fleet.retry import Backoff, as_exception, is_fatal, is_retryable
from umbel.protocol.errors import AuthenticationFailed, BadRequest, DefinitionError, Overloaded, RateLimited, RunLost


@pytest.mark.parametrize("error", [RunLost("x"), Overloaded("x"), RunLost("x").to_wire()])
def test_errors_that_may_go_away_are_worth_another_attempt(error: Any) -> None:
    assert is_retryable(error)


@pytest.mark.parametrize("error", [BadRequest("x"), ValueError("x"), "text", None, {"code": "no such code"}, {}])
def test_others_are_not(error: Any) -> None:
    assert not is_retryable(error)


def test_wrong_configuration_concerns_every_task() -> None:
    assert is_fatal(DefinitionError("x"))
    assert is_fatal(AuthenticationFailed("x").to_wire())
    assert not is_fatal(RunLost("x"))
    assert isinstance(as_exception(AuthenticationFailed("x").to_wire()), AuthenticationFailed)


@pytest.mark.case(24)
def test_waits_grow_are_jittered_and_never_shorter_than_asked() -> None:
    low, high = Backoff(first=1, cap=8, chance=lambda: 0.0), Backoff(first=1, cap=8, chance=lambda: 1.0)
    assert [high.delay(attempt) for attempt in range(1, 6)] == [1, 2, 4, 8, 8]
    assert low.delay(1) == 0
    asked = RateLimited("slow down", retry_after=2)
    assert low.delay(1, asked) == 2
    assert high.delay(1, asked.to_wire()) == 3
    assert low.delay(1, RateLimited("x", retry_after=10_000)) == low.retry_after_cap
    assert low.delay(1, RateLimited("x", retry_after=-1)) == 0
    assert Backoff().delay(10_000) <= Backoff().cap
