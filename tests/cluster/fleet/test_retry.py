from __future__ import annotations

from typing import Any

import pytest

from umbel.cluster.fleet import Fleet
from umbel.cluster.fleet.retry import Backoff, Retries, as_exception, is_fatal, is_retryable
from umbel.protocol.errors import (
    AuthenticationFailed,
    BadRequest,
    ContextOverflow,
    DefinitionError,
    MemberFailed,
    Overloaded,
    RateLimited,
    RunLost,
)


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


async def test_retries_go_by_the_kind_of_failure(make_agent: Any, outcome: Any) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        match prompt:
            case "busy":
                raise RateLimited("slow down")
            case "long":
                raise ContextOverflow("too long")
            case "wrong":
                raise BadRequest("no")
            case "lost" if attempt == 1:
                raise RunLost("gone")
            case "loop":
                return outcome(success=False, stop_reason="max_iterations")
            case "mixed":
                raise RateLimited("x") if attempt % 2 else RunLost("gone")
        return outcome()

    agent = make_agent(reply=reply)
    retries = {"default": 1, "rate_limit": 4, "context_overflow": 0, "max_iterations": 2}
    report = await Fleet(agent, retries=retries, backoff=Backoff(first=0), quarantine_after=9).run(
        ["busy", "long", "wrong", "lost", "loop", "fine"]
    )
    assert agent.attempts == {"busy": 5, "long": 1, "wrong": 1, "lost": 2, "loop": 3, "fine": 1}
    assert report.ok == 2


def test_timeout_is_one_name_for_everything_that_did_not_end_in_time() -> None:
    retries = Retries.of({"default": 0, "timeout": 1})
    failures: dict[str, int] = {}
    assert retries.allows(None, "time_budget", failures)
    assert not retries.allows({"code": "deadline_exceeded", "message": "", "details": {}}, "error", failures)


@pytest.mark.parametrize(
    ("codes", "attempts"),
    [
        (["rate_limit"], 4),
        (["rate_limit", "overloaded"], 1),  # the stricter one counts
        (["rate_limit", "bad_request"], 0),  # no attempt mends the second
        (["context_overflow", "overloaded"], 0),
        (["overloaded", "server_error"], 1),
    ],
)
def test_every_failed_member_of_a_pattern_must_allow_another_attempt(codes: list[str], attempts: int) -> None:
    retries = Retries.of({"default": 1, "rate_limit": 4, "context_overflow": 0})
    failures: dict[str, int] = {}
    error = MemberFailed("x", codes=codes)
    assert [retries.allows(error, "error", failures) for _ in range(6)] == [n < attempts for n in range(6)]


def test_losses_are_allowed_by_default_or_by_name() -> None:
    assert Retries.of(1).allows_losses(RunLost("x"))
    assert not Retries.of(0).allows_losses(RunLost("x"))
    assert Retries.of({"default": 0, "run_lost": 1}).allows_losses(RunLost("x"))
    assert not Retries.of(1).allows_losses(ValueError("x"))
