"""The retry policy under a driven clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from umbel.actors.agent.models import RetryingModel, RetryNotice, RetryPolicy, collect
from umbel.protocol.errors import (
    AuthenticationFailed,
    BadRequest,
    ConfigurationError,
    ContextOverflow,
    MalformedResponse,
    ModelConnectionError,
    ModelError,
    ModelServerError,
    ModelTimeout,
    Overloaded,
    RateLimited,
)
from umbel.protocol.messages import Message, ModelChunk, ModelResponse

OK = ModelResponse(message=Message.assistant("ok"))


class Failing:
    """Fails as scripted, then answers. ``before`` chunks are streamed ahead of each failure."""

    def __init__(self, *failures: Exception, before: int = 0, max_retries: int | None = None) -> None:
        self.failures = list(failures)
        self.before = before
        self.attempts = 0
        self.max_retries = max_retries

    async def complete(self, messages: list[Message], tools: Any = None, **kwargs: Any) -> ModelResponse:
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)
        return OK

    async def stream(self, messages: list[Message], tools: Any = None, **kwargs: Any) -> AsyncIterator[ModelChunk]:
        self.attempts += 1
        if self.failures:
            for _ in range(self.before):
                yield ModelChunk(content="half")
            raise self.failures.pop(0)
        yield ModelChunk(content="ok")
        yield ModelChunk(done=True, stop_reason="stop")


@pytest.mark.spec("API-11", "LOOP-48")
def test_defaults() -> None:
    policy = RetryPolicy()
    assert policy.model_dump() == {
        "enabled": True,
        "max_retries": 6,
        "initial_delay": 1.0,
        "max_delay": 60.0,
        "budget": 300.0,
        "retry_unclassified": False,
    }
    assert [policy.ceiling(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_settings_that_mean_a_policy() -> None:
    assert RetryPolicy.of(None) == RetryPolicy.of(True) == RetryPolicy()
    assert not RetryPolicy.of(False).enabled
    assert RetryPolicy.of({"max_retries": 2}).max_retries == 2
    with pytest.raises(ConfigurationError, match="max_tries"):
        RetryPolicy.of({"max_tries": 2})
    with pytest.raises(ConfigurationError, match="str"):
        RetryPolicy.of("often")


@pytest.mark.spec("LOOP-48")
@pytest.mark.parametrize(
    "error", [RateLimited, Overloaded, ModelServerError, ModelTimeout, ModelConnectionError, MalformedResponse]
)
async def test_transient_failures_are_retried_with_full_jitter(virtual: Any, error: type[ModelError]) -> None:
    model = Failing(*(error("x") for _ in range(6)))
    virtual.random = lambda: 0.999
    assert await virtual.run(RetryingModel(model, timing=virtual.timing).complete([])) == OK
    assert virtual.slept == pytest.approx([0.999 * c for c in (1, 2, 4, 8, 16, 32)])
    assert model.attempts == 7


@pytest.mark.spec("LOOP-48")
async def test_retries_end(virtual: Any) -> None:
    model = Failing(*(Overloaded(str(n)) for n in range(20)))
    with pytest.raises(Overloaded, match="6"):
        await virtual.run(RetryingModel(model, timing=virtual.timing).complete([]))
    assert model.attempts == 7


@pytest.mark.parametrize(
    "error", [AuthenticationFailed("x"), BadRequest("x"), ContextOverflow("x"), ModelError("x"), ConfigurationError("x")]
)
async def test_lasting_failures_are_raised_at_once(virtual: Any, error: Exception) -> None:
    model = Failing(error)
    with pytest.raises(type(error)):
        await virtual.run(RetryingModel(model, RetryPolicy(retry_unclassified=True), timing=virtual.timing).complete([]))
    assert model.attempts == 1


@pytest.mark.spec("LOOP-48")
async def test_unclassified_errors_need_the_opt_in(virtual: Any) -> None:
    with pytest.raises(KeyError):
        await virtual.run(RetryingModel(Failing(KeyError("x")), timing=virtual.timing).complete([]))
    policy = RetryPolicy(retry_unclassified=True)
    assert await virtual.run(RetryingModel(Failing(KeyError("x")), policy, timing=virtual.timing).complete([])) == OK
    assert await virtual.run(RetryingModel(Failing(TimeoutError()), timing=virtual.timing).complete([])) == OK


async def test_disabled_policy_calls_once(virtual: Any) -> None:
    model = Failing(Overloaded("x"))
    with pytest.raises(Overloaded):
        await virtual.run(RetryingModel(model, RetryPolicy(enabled=False), timing=virtual.timing).complete([]))


async def test_the_models_own_max_retries_wins(virtual: Any) -> None:
    model = Failing(*(Overloaded("x") for _ in range(9)), max_retries=1)
    with pytest.raises(Overloaded):
        await virtual.run(RetryingModel(model, timing=virtual.timing).complete([]))
    assert model.attempts == 2


@pytest.mark.spec("LOOP-48")
@pytest.mark.case(24)
async def test_retry_after_is_obeyed_with_jitter_upwards_only(virtual: Any) -> None:
    for _ in range(50):
        start = virtual.now
        await virtual.run(RetryingModel(Failing(RateLimited("x", retry_after=20)), timing=virtual.timing).complete([]))
        assert 20 <= virtual.now - start <= 22
    assert len(set(virtual.slept)) > 40


@pytest.mark.spec("LOOP-48")
@pytest.mark.case(24)
async def test_retry_after_beyond_the_budget_is_raised_at_once(virtual: Any) -> None:
    model = Failing(RateLimited("a", retry_after=299), RateLimited("b", retry_after=3))
    virtual.random = lambda: 0.0
    with pytest.raises(RateLimited, match="b"):
        await virtual.run(RetryingModel(model, timing=virtual.timing).complete([]))
    assert virtual.now == 299
    assert model.attempts == 2
    with pytest.raises(RateLimited):
        await virtual.run(RetryingModel(Failing(RateLimited("c", retry_after=301)), timing=virtual.timing).complete([]))
    assert virtual.now == 299


@pytest.mark.case(24)
async def test_retry_after_zero_still_backs_off(virtual: Any) -> None:
    virtual.random = lambda: 0.5
    notices: list[RetryNotice] = []
    model = RetryingModel(Failing(RateLimited("x", retry_after=0)), timing=virtual.timing, on_retry=notices.append)
    await virtual.run(model.complete([]))
    assert virtual.slept == [0.5]
    assert not notices[0].from_retry_after


@pytest.mark.spec("EVT-15")
async def test_notices_come_before_the_wait(virtual: Any) -> None:
    notices: list[tuple[float, RetryNotice]] = []
    virtual.random = lambda: 0.5
    failures = (
        RateLimited("slow " + "x" * 900, retry_after=4, status_code=429),
        Overloaded("o", status_code=529),
        ModelTimeout("t"),
        ModelConnectionError("c"),
    )

    async def note(notice: RetryNotice) -> None:
        notices.append((virtual.now, notice))

    await virtual.run(RetryingModel(Failing(*failures), timing=virtual.timing, on_retry=note).complete([]))
    times, found = zip(*notices, strict=True)
    assert times[0] == 0
    assert [(n.attempt, n.reason, n.status_code, n.from_retry_after) for n in found] == [
        (1, "rate_limit", 429, True),
        (2, "overloaded", 529, False),
        (3, "timeout", None, False),
        (4, "server_error", None, False),
    ]
    assert [n.delay_seconds for n in found] == pytest.approx([4.2, 1, 2, 4])
    assert len(found[0].error) == 500


@pytest.mark.spec("LOOP-49")
async def test_a_stream_is_retried_only_before_its_first_chunk(virtual: Any) -> None:
    model = Failing(Overloaded("x"))
    reply = await virtual.run(collect(RetryingModel(model, timing=virtual.timing).stream([])))
    assert (reply.content, model.attempts) == ("ok", 2)
    model = Failing(Overloaded("x"), before=1)
    with pytest.raises(Overloaded):
        await virtual.run(collect(RetryingModel(model, timing=virtual.timing).stream([])))
    assert model.attempts == 1


@pytest.mark.spec("LOOP-49")
async def test_nothing_is_retried_once_the_run_is_cancelled(virtual: Any) -> None:
    model = Failing(Overloaded("x"))
    with pytest.raises(Overloaded):
        await virtual.run(RetryingModel(model, timing=virtual.timing, may_retry=lambda: False).complete([]))
    assert model.attempts == 1


async def test_closing_the_stream_closes_the_models_stream() -> None:
    closed = []

    class Endless:
        async def complete(self, messages: list[Message], tools: Any = None, **kwargs: Any) -> ModelResponse:
            return OK

        async def stream(self, messages: list[Message], tools: Any = None, **kwargs: Any) -> AsyncIterator[ModelChunk]:
            try:
                while True:
                    yield ModelChunk(content="x")
            finally:
                closed.append(True)

    stream = RetryingModel(Endless()).stream([])
    assert (await anext(stream)).content == "x"
    await stream.aclose()  # type: ignore[attr-defined]
    assert closed == [True]
