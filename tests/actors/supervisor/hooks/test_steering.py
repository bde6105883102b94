from __future__ import annotations

import asyncio
from typing import Any

import cloudpickle
import pytest

from umbel.actors.supervisor.hooks import AfterToolCall, BeforeToolCall, SteeringHook
from umbel.errors import ConfigurationError, ModelError
from umbel.events import RunInfo
from umbel.protocol.messages import Message, ModelResponse, Usage
from umbel.protocol.state import AgentState
from umbel.testing import ScriptedModel, text, tool_call, tool_calls

from .tiny_loop import TinyLoop


class Judge:
    """Answers from a list, and writes down what it was asked."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.settings: list[dict[str, Any]] = []

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        self.asked.append("\n".join(message.content or "" for message in messages))
        self.settings.append(settings)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return text(answer, usage=Usage(prompt_tokens=5, completion_tokens=1))


def event(tool_name: str = "pay", run_id: str = "r1", call_id: str = "c1", **arguments: Any) -> BeforeToolCall:
    return BeforeToolCall(tool_name=tool_name, tool_call_id=call_id, arguments=arguments, run=RunInfo(run_id=run_id))


@pytest.mark.spec("HOOK-42")
@pytest.mark.parametrize(
    ("answer", "verdict", "cancelled"),
    [
        ("PROCEED", "proceed", None),
        ("**proceed** - looks fine", "proceed", None),
        ("GUIDE: ask for the Invoice first", "guide", "pay was not run. ask for the Invoice first"),
        ("guide", "guide", "pay was not run. Do something else."),
        ("INTERRUPT: over 100 EUR", "interrupt", "pay was not run: it requires approval by a person (over 100 EUR)."),
        ("I think it is fine", "unclear", "pay was not run: it could not be checked (the judge gave no verdict)."),
        ("", "unclear", "pay was not run: it could not be checked (the judge gave no verdict)."),
        (ModelError("down"), "unclear", "pay was not run: it could not be checked (the judge failed (ModelError))."),
    ],
)
async def test_what_follows_from_a_verdict(answer: str | Exception, verdict: str, cancelled: str | None) -> None:
    hook = SteeringHook(Judge(answer), "pay little")
    asked = event(amount=200)
    await hook.on_before_tool_call(asked)
    assert asked.cancel_reason == cancelled
    (decision,) = hook.decisions("r1")
    assert (decision.verdict, decision.tool_name, decision.tool_call_id) == (verdict, "pay", "c1")


@pytest.mark.spec("HOOK-42")
@pytest.mark.parametrize("answer", ["no idea", ModelError("down")])
async def test_an_unclear_judge_may_be_passed_over(answer: str | Exception) -> None:
    asked = event()
    await SteeringHook(Judge(answer), on_failure="proceed").on_before_tool_call(asked)
    assert asked.cancel_reason is None


async def test_a_slow_judge_counts_as_unclear() -> None:
    class Stuck:
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    asked = event()
    await SteeringHook(Stuck(), timeout=0.01).on_before_tool_call(asked)
    assert "the judge failed (TimeoutError)" in str(asked.cancel_reason)


@pytest.mark.spec("HOOK-42")
async def test_named_tools_require_approval_without_asking_the_judge() -> None:
    judge = Judge()
    asked = event("transfer")
    await SteeringHook(judge, interrupt_tools=["transfer"]).on_before_tool_call(asked)
    assert "requires approval" in str(asked.cancel_reason)
    assert judge.asked == []


async def test_a_call_that_is_cancelled_already_is_not_judged() -> None:
    judge = Judge()
    asked = event()
    asked.cancel = "no"
    await SteeringHook(judge).on_before_tool_call(asked)
    assert asked.cancel == "no" and judge.asked == []


@pytest.mark.spec("HOOK-42")
async def test_the_judge_sees_the_policy_and_the_last_five_calls_and_its_tokens_count() -> None:
    judge = Judge(*["PROCEED"] * 7)
    calls = tool_calls(*[("pay", {"n": n}) for n in range(7)])
    loop = TinyLoop([SteeringHook(judge, "be thrifty")], [calls, text("done")], pay=lambda n: "ok")
    await loop.run("go")
    assert judge.settings == [{"max_tokens": 100}] * 7
    assert "be thrifty" in judge.asked[0] and "Recent calls:\nnone" in judge.asked[0]
    recent = judge.asked[6].partition("Recent calls:\n")[2].partition("\n\nCall to judge:\n")
    assert recent[0].splitlines() == [f'pay({{"n": {n}}}) -> ok' for n in range(1, 6)]
    assert recent[2] == 'pay({"n": 6})'
    assert loop.counted == [Usage(prompt_tokens=5, completion_tokens=1)] * 7


@pytest.mark.spec("HOOK-42")
async def test_runs_do_not_share_what_was_seen_and_it_is_dropped_at_their_end() -> None:
    judge = Judge("PROCEED", "GUIDE: no", "PROCEED")
    hook = SteeringHook(judge)
    await hook.on_before_tool_call(event(run_id="a"))
    done = AfterToolCall(tool_name="pay", arguments={"n": 1}, error="x", run=RunInfo(run_id="a"))
    await hook.on_after_tool_call(done)
    await hook.on_before_tool_call(event(run_id="b"))
    assert "Recent calls:\nnone" in judge.asked[1]
    await hook.on_before_tool_call(event(run_id="a"))
    assert 'pay({"n": 1}) -> failed' in judge.asked[2]
    assert [decision.verdict for decision in hook.decisions("a")] == ["proceed", "proceed"]
    assert [decision.verdict for decision in hook.decisions("b")] == ["guide"]
    await hook.on_after_invocation(AgentState(run_id="a"), True)
    assert hook.decisions("a") == () and len(hook.decisions("b")) == 1


async def test_a_judge_is_named_like_any_model_and_resolved_where_it_is_used() -> None:
    hook = cloudpickle.loads(cloudpickle.dumps(SteeringHook("offline:reviewer", on_failure="proceed")))
    asked = event()
    await hook.on_before_tool_call(asked)
    assert type(hook._model).__name__ == "OfflineModel"
    assert cloudpickle.loads(cloudpickle.dumps(hook))._model is None


async def test_a_wrong_judge_is_the_users_mistake_and_no_verdict() -> None:
    with pytest.raises(ConfigurationError, match="unknown provider"):
        await SteeringHook("nobody:x", on_failure="proceed").on_before_tool_call(event())


def test_on_failure_is_one_of_two() -> None:
    wrong: Any = "retry"
    with pytest.raises(ConfigurationError, match="'proceed' or 'cancel', not 'retry'"):
        SteeringHook(ScriptedModel([]), on_failure=wrong)


async def test_the_agent_reads_the_reason_as_the_calls_result() -> None:
    loop = TinyLoop([SteeringHook(Judge("GUIDE: use cash"))], [tool_call("pay"), text("fine")], pay=lambda: "paid")
    state = await loop.run("go")
    assert state.tool_executions[0].result == "pay was not run. use cash"
