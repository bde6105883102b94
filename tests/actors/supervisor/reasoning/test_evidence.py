from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from umbel.actors.supervisor.reasoning.evidence import evidence_of, facts_of, failures_of, put_to_judge
from umbel.protocol.errors import JudgeFailed, RateLimited
from umbel.protocol.state import ToolExecution

Make = Callable[..., ToolExecution]


@pytest.mark.spec("REAS-19")
def test_it_is_one_line_per_result_with_the_tools_name(ran: Make, failed: Make) -> None:
    executions = [ran("two\n  lines", "read"), failed(), ran("x" * 900, "dump"), ran("", "empty"), ran(None, "nothing")]
    assert evidence_of(executions) == ("read: two lines", "dump: " + "x" * 500)


def test_equal_results_count_once_and_cancelled_calls_never(ran: Make) -> None:
    assert evidence_of([ran("a"), ran("a"), ran("b", code="cancelled")]) == ("lookup: a",)


@pytest.mark.spec("REAS-38")
def test_reused_results_can_be_left_out(ran: Make) -> None:
    executions = [ran("a"), ran("b", idempotent_cache_hit=True)]
    assert evidence_of(executions) == ("lookup: a", "lookup: b")
    assert evidence_of(executions, cached=False) == ("lookup: a",)


def test_failures_are_the_facts_where_nothing_succeeded(ran: Make, failed: Make) -> None:
    assert failures_of([failed("no route"), failed("no route")]) == ("lookup failed: no route",)
    assert facts_of([failed("no route")]) == ("lookup failed: no route",)
    assert facts_of([failed("no route"), ran("a")]) == ("lookup: a",)


class TestTheCall:
    async def test_it_is_one_message_and_gives_the_text(self, judge_of: Any) -> None:
        judge = judge_of("  yes ")
        assert await put_to_judge("well?", judge) == "yes"
        assert judge.prompts == ["well?"]

    @pytest.mark.parametrize("error", [RateLimited("too many"), ValueError("broken")])
    async def test_what_the_model_raises_is_the_judges_failure(self, judge_of: Any, error: Exception) -> None:
        with pytest.raises(JudgeFailed, match=f"{type(error).__name__}: {error}") as caught:
            await put_to_judge("well?", judge_of(error))
        assert caught.value.__cause__ is error
        assert caught.value.details["cause"] == f"{type(error).__name__}: {error}"

    @pytest.mark.parametrize("reply", [None, "", " \n"])
    async def test_a_reply_without_text_is_one_too(self, judge_of: Any, reply: str | None) -> None:
        with pytest.raises(JudgeFailed, match="without text"):
            await put_to_judge("well?", judge_of(reply))

    async def test_a_reply_that_was_cut_off_is_one_too(self, judge_of: Any) -> None:
        with pytest.raises(JudgeFailed, match="cut off"):
            await put_to_judge("well?", judge_of("1: 0.9\n2: 0.", stop_reason="length"))

    async def test_being_cancelled_is_not(self, judge_of: Any) -> None:
        with pytest.raises(asyncio.CancelledError):
            await put_to_judge("well?", judge_of(asyncio.CancelledError()))
