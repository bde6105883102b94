"""Fleets of patterns: a failure that nobody raised is a failed task, with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from umbel import Agent, Runtime
from umbel.cluster.fleet import Backoff, Fleet
from umbel.cluster.fleet.retry import is_fatal, is_final, is_loss, is_retryable
from umbel.errors import AuthenticationFailed, MemberFailed, Overloaded, RestartsExceeded, RunLost
from umbel.patterns.functional import ask, entrypoint, task
from umbel.patterns.pipeline import Loop, Parallel, Sequential
from umbel.testing import ScriptedModel, error, text

FAST = Backoff(first=0.0)


def agent(name: str, *turns: Any, **settings: Any) -> Agent:
    return Agent(ScriptedModel(turns or [text(f"{name} is done.")]), name=name, **settings)


@task
async def halve(n: int) -> int:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n // 2


@entrypoint
async def half(n: int) -> int:
    return await halve(n)


@pytest.mark.spec("OURS-25", "PAT-2")
async def test_the_failures_of_patterns_are_failed_tasks_with_their_reason(runtime: Runtime) -> None:
    report = await Fleet(half, runtime=runtime).run(["4", "5", {"prompt": {"n": 6}}, "many", {"id": "odd", "prompt": {"n": 7}}])
    assert [(done.status, done.message) for done in report.results] == [
        ("ok", "2"), ("failed", ""), ("ok", "3"), ("failed", None), ("failed", "")
    ]  # fmt: skip
    assert (report.ok, report.failed, report.exit_code) == (2, 3, 1)
    assert [done.error for done in report.results if done.id == "odd"] == ["member_failed: halve: ValueError: 7 is odd"]
    assert "the input of half does not fit" in str(report.results[3].error)


@pytest.mark.spec("OURS-25")
async def test_whatever_is_no_success_of_a_pattern_is_no_ok() -> None:
    @entrypoint
    async def asks(question: str) -> Any:
        return await ask(question)

    endless = agent("endless", text("draft"))
    cases = [
        (Sequential([]), "nothing_ran"),
        (Loop(endless, until=lambda output: False, max_loops=2), "cap_reached"),
        (Parallel([agent("a"), agent("b", error("no"))], on_error="fail"), "b: ModelError: no"),
        (Sequential([agent("a"), agent("b")], token_budget=1), None),
        (asks, "the run ended with interrupted"),
    ]
    async with Runtime(inline=True) as runtime:
        for pattern, why in cases:
            report = await Fleet(pattern, runtime=runtime, retries=0).run(["go"])
            [done] = report.results
            assert done.status == "failed" and done.error, pattern
            assert why is None or why in done.error


async def test_an_agent_is_not_given_an_object() -> None:
    async with Runtime(inline=True) as runtime:
        report = await Fleet(agent("a"), runtime=runtime).run(["go", {"prompt": {"n": 1}}])
    assert [done.status for done in report.results] == ["ok", "failed"]
    assert "only patterns take an object" in str(report.results[1].error)


async def test_tokens_of_members_count_and_a_member_that_may_recover_is_tried_again() -> None:
    tries = []

    class Overloading(ScriptedModel):
        async def complete(self, messages: Any, tools: Any = None, **settings: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                raise Overloaded("busy")
            return await super().complete(messages, tools, **settings)

    weak = Agent(Overloading([text("fine")]), name="weak", model_retry=False)
    async with Runtime(inline=True) as runtime:
        report = await Fleet(Sequential([agent("a"), weak]), runtime=runtime, backoff=FAST).run(["go"])
    [done] = report.results
    assert (done.status, done.attempts, done.message, len(tries)) == ("ok", 2, "fine", 2)
    assert done.tokens > 0


def test_what_is_behind_a_failed_member_decides() -> None:
    def failed(*codes: str) -> MemberFailed:
        return MemberFailed("x", steps=["x"], codes=list(codes))

    busy, lost, key, gone = Overloaded.code, RunLost.code, AuthenticationFailed.code, RestartsExceeded.code
    assert is_retryable(failed(busy)) and is_retryable(failed(busy, lost)) and not is_retryable(failed(busy, "tool"))
    assert not is_retryable(failed("max_iterations")) and not is_retryable(failed()) and not is_retryable(MemberFailed("x"))
    assert is_loss(failed(lost)) and not is_loss(failed(busy))
    assert is_fatal(failed(key, busy)) and not is_fatal(failed("tool"))
    assert is_final(failed(gone).to_wire()) and not is_final(failed(lost))


async def test_the_codes_of_nested_failures_come_up(runtime: Runtime) -> None:
    inner = Parallel([agent("a", error(Overloaded("busy")), model_retry=False), agent("b", error("no"))], name="inner")
    result = await Sequential([Sequential([inner], name="mid")]).arun("go")
    assert result.error is not None and result.error.details["codes"] == ["model", "overloaded"]
