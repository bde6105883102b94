from __future__ import annotations

import copy
import pickle
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, strategies as st

from umbel.protocol.errors import ConfigurationError
from umbel.protocol.markers import AUTOMATED
from umbel.protocol.messages import Message
from umbel.protocol.results import normalise_stop_reason
from umbel.protocol.state import AgentState, ToolExecution
from umbel.protocol.termination import (
    And,
    ConfidenceMet,
    CostLimit,
    CustomCondition,
    MaxIterations,
    Not,
    NoToolCalls,
    Or,
    TerminationCondition,
    TextMention,
    TimeLimit,
    TokenLimit,
    ToolCallCount,
    ToolCalled,
)

START = AgentState()
WRONG: Any = "max_iterations"
COUNTS = (MaxIterations, TokenLimit, ToolCallCount)


class Says(TerminationCondition):
    """Answers what it was told to, and counts what is asked of it."""

    def __init__(self, stop: bool, reason: str | None = None) -> None:
        self.verdict = (stop, reason)
        self.checks = self.resets = 0
        self.elapsed = 0.0

    def check(self, state: AgentState, **context: Any) -> tuple[bool, str | None]:
        self.checks += 1
        return self.verdict

    def reset(self) -> None:
        self.resets += 1

    def carry_on(self, elapsed: float) -> None:
        self.elapsed = elapsed


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def executed(*names: str, **fields: Any) -> AgentState:
    state = START
    for name in names:
        state = state.with_tool_execution(ToolExecution(tool_name=name, tool_call_id=name, **fields))
    return state


def always(state: AgentState, **context: Any) -> tuple[bool, str | None]:
    return True, None


def without_address(condition: TerminationCondition) -> str:
    """An id that is the same in every process."""
    return repr(condition).split(" at 0x")[0]


EXAMPLES: list[TerminationCondition] = [
    MaxIterations(3),
    TokenLimit(100),
    CostLimit(0.5),
    TimeLimit(60),
    TextMention("DONE", case_sensitive=True),
    ToolCalled("submit", require_success=True),
    ToolCallCount(5, "search"),
    ConfidenceMet(0.8),
    NoToolCalls(),
    CustomCondition(always),
    MaxIterations(3) & TokenLimit(100) | ~NoToolCalls(),
]


class TestInterface:
    @pytest.mark.spec("TERM-1")
    @pytest.mark.parametrize("condition", EXAMPLES, ids=without_address)
    def test_check_and_reset(self, condition: TerminationCondition) -> None:
        stop, reason = condition.check(START, last_message="", no_tool_calls=False)
        assert isinstance(stop, bool)
        assert reason is None or stop
        condition.reset()
        condition.check(START)

    @pytest.mark.spec("TERM-1", "TERM-18")
    def test_the_context_reaches_every_condition(self) -> None:
        seen: list[dict[str, Any]] = []

        def look(state: AgentState, **context: Any) -> tuple[bool, str | None]:
            seen.append(context)
            return True, "seen"

        context = {"last_message": "hi", "no_tool_calls": True}
        (CustomCondition(look) & ~~(CustomCondition(look) | NoToolCalls())).check(START, **context)
        assert seen == [context, context]

    @pytest.mark.spec("TERM-6")
    @pytest.mark.parametrize("condition", EXAMPLES, ids=without_address)
    def test_copies_are_equal_and_apart(self, condition: TerminationCondition) -> None:
        for other in (copy.deepcopy(condition), pickle.loads(pickle.dumps(condition))):
            assert other == condition
            assert hash(other) == hash(condition)
            assert repr(other) == repr(condition)

    def test_repr_reads_like_the_code(self) -> None:
        condition = (ToolCalled("refund") & ConfidenceMet(0.9)) | ~MaxIterations(8) | TimeLimit(5)
        assert repr(condition) == (
            "Or(Or(And(ToolCalled(name='refund', require_success=False), ConfidenceMet(threshold=0.9)),"
            " Not(MaxIterations(n=8))), TimeLimit(seconds=5))"
        )

    def test_the_base_class_must_be_overridden(self) -> None:
        with pytest.raises(NotImplementedError):
            TerminationCondition().check(START)


class TestComposition:
    @pytest.mark.spec("TERM-2")
    def test_operators_and_classes(self) -> None:
        a, b, c = Says(True, "a"), Says(False), Says(True, "c")
        assert (a & c).check(START) == And(a, c).check(START) == (True, "a AND c")
        assert (b | c).check(START) == Or(b, c).check(START) == (True, "c")
        assert And(a, c, a, c).check(START) == (True, "a AND c AND a AND c")
        assert Or(b, And(a, Or(b, c))).check(START) == (True, "a AND c")
        assert Or(b, b).check(START) == (False, None)

    @pytest.mark.spec("TERM-3")
    def test_or_takes_the_first_and_asks_no_further(self) -> None:
        children = Says(False), Says(True, "b"), Says(True, "c")
        assert Or(*children).check(START) == (True, "b")
        assert [child.checks for child in children] == [1, 1, 0]

    @pytest.mark.spec("TERM-3")
    def test_a_child_that_is_not_asked_does_not_start_its_clock(self) -> None:
        clock, late = Clock(), TimeLimit(10)
        late = TimeLimit(10, clock)
        condition = Or(first := Says(True, "a"), late)
        condition.check(START)
        clock.now += 100
        first.verdict = (False, None)
        assert condition.check(START) == (False, None)

    @pytest.mark.spec("TERM-4")
    def test_and_stops_at_the_first_that_does_not_hold(self) -> None:
        children = Says(True, "a"), Says(False), Says(True, "c")
        assert And(*children).check(START) == (False, None)
        assert [child.checks for child in children] == [1, 1, 0]

    @pytest.mark.spec("TERM-4")
    def test_reasons_are_joined(self) -> None:
        assert And(Says(True, "a"), Says(True, None), Says(True, ""), Says(True, "d")).check(START) == (True, "a AND d")
        assert And(Says(True), Says(True)).check(START) == (True, "all_conditions_met")

    @pytest.mark.spec("TERM-5")
    def test_reset_and_carrying_on_reach_every_child(self) -> None:
        children = [Says(True) for _ in range(4)]
        condition = (children[0] & ~children[1]) | And(children[2], children[3])
        condition.reset()
        condition.carry_on(5.0)
        assert [(child.resets, child.elapsed) for child in children] == [(1, 5.0)] * 4

    @pytest.mark.spec("TERM-19")
    def test_negation(self) -> None:
        assert (~Says(True, "a")).check(START) == (False, None)
        stop, reason = (~MaxIterations(5)).check(START)
        assert (stop, reason) == (True, "not:MaxIterations(n=5)")
        assert normalise_stop_reason(reason) == "complete"
        assert (~~Says(True, "a")).check(START)[0] is True

    @given(st.lists(st.booleans(), min_size=1, max_size=5))
    @pytest.mark.spec("TERM-2", "TERM-19")
    def test_it_is_boolean_algebra(self, truths: list[bool]) -> None:
        children = [Says(truth, "r") for truth in truths]
        assert And(*children).check(START)[0] is all(truths)
        assert Or(*children).check(START)[0] is any(truths)
        assert Not(And(*children)).check(START)[0] is Or(*[Not(child) for child in children]).check(START)[0]

    @pytest.mark.parametrize("make", [And, Or, lambda: And(MaxIterations(1), WRONG), lambda: Or(WRONG), lambda: Not(WRONG)])
    def test_only_conditions_are_combined(self, make: Any) -> None:
        with pytest.raises(ConfigurationError):
            make()

    def test_operators_refuse_anything_else(self) -> None:
        with pytest.raises(TypeError):
            MaxIterations(1) & WRONG
        with pytest.raises(TypeError):
            MaxIterations(1) | WRONG


class TestConditions:
    @pytest.mark.spec("TERM-10")
    def test_max_iterations(self) -> None:
        assert MaxIterations(3).check(START.with_iteration(2)) == (False, None)
        assert MaxIterations(3).check(START.with_iteration(3)) == (True, "max_iterations")

    @pytest.mark.spec("TERM-11")
    def test_token_limit(self) -> None:
        assert TokenLimit(100).check(START.evolve(total_tokens_used=99)) == (False, None)
        assert TokenLimit(100).check(START.evolve(total_tokens_used=100)) == (True, "token_budget")

    def test_cost_limit(self) -> None:
        assert CostLimit(0.5).check(START.evolve(cost_usd_used=0.49)) == (False, None)
        assert CostLimit(0.5).check(START.evolve(cost_usd_used=0.5)) == (True, "cost_budget")

    @pytest.mark.spec("TERM-15")
    def test_tool_called(self) -> None:
        assert ToolCalled("submit").check(executed("look")) == (False, None)
        assert ToolCalled("submit").check(executed("submit", "look")) == (True, "tool_called:submit")
        assert ToolCalled("submit").check(executed("submit", error="broke")) == (True, "tool_called:submit")

    @pytest.mark.spec("TERM-15", "TERM-24", "STATE-8")
    @pytest.mark.parametrize("fields", [{"error": "broke"}, {"code": "cancelled"}])
    def test_a_call_that_failed_or_was_cancelled_is_no_success(self, fields: dict[str, str]) -> None:
        condition = ToolCalled("submit", require_success=True)
        assert condition.check(executed("submit", **fields)) == (False, None)
        assert condition.check(executed("submit")) == (True, "tool_called:submit")

    @pytest.mark.spec("TERM-19")
    def test_tool_call_count(self) -> None:
        state = executed("a", "b", "a")
        assert ToolCallCount(3).check(state) == (True, "tool_call_limit")
        assert ToolCallCount(4).check(state) == (False, None)
        assert ToolCallCount(2, "a").check(state) == (True, "tool_call_limit:a")
        assert ToolCallCount(2, "b").check(state) == (False, None)

    @pytest.mark.spec("TERM-16")
    def test_confidence_met(self) -> None:
        assert ConfidenceMet().check(START.with_confidence(0.89)) == (False, None)
        assert ConfidenceMet().check(START.with_confidence(0.9)) == (True, "confidence_met")
        assert ConfidenceMet(0).check(START) == (True, "confidence_met")

    @pytest.mark.spec("TERM-17")
    def test_no_tool_calls(self) -> None:
        assert NoToolCalls().check(START) == (False, None)
        assert NoToolCalls().check(START, no_tool_calls=True) == (True, "no_tools")

    @pytest.mark.spec("TERM-18")
    def test_custom_conditions(self) -> None:
        assert CustomCondition(always).check(START) == (True, "complete")
        assert CustomCondition(lambda state, **_: (True, "")).check(START) == (True, "complete")
        assert CustomCondition(lambda state, **_: (True, "mine")).check(START) == (True, "mine")
        assert CustomCondition(lambda state, **_: (state.iteration > 0, "mine")).check(START) == (False, None)

    @pytest.mark.spec("TERM-18", "TERM-9")
    @pytest.mark.parametrize("answer", [True, None, (1, "x"), (True,), (True, 5), "yes", [True, None, None]])
    def test_a_custom_condition_that_answers_nonsense_is_an_error(self, answer: Any) -> None:
        with pytest.raises(ConfigurationError, match="must return"):
            CustomCondition(lambda state, **_: answer).check(START)

    @pytest.mark.spec("TERM-9")
    def test_an_exception_in_a_condition_is_not_hidden(self) -> None:
        def broken(state: AgentState, **context: Any) -> tuple[bool, str | None]:
            raise LookupError("mine")

        with pytest.raises(LookupError):
            (MaxIterations(5) | ~CustomCondition(broken)).check(START)

    @pytest.mark.parametrize(
        "make",
        [
            *[lambda n=n, cls=cls: cls(n) for n in (0, -1, True, 2.0, "3", None) for cls in COUNTS],
            *[lambda n=n, cls=cls: cls(n) for n in (0, -1, True, "3", None, nan, inf) for cls in (TimeLimit, CostLimit)],
            *[lambda n=n: ConfidenceMet(n) for n in (-0.1, 1.1, True, "1", None, float("nan"))],
            *[lambda n=n, cls=cls: cls(n) for n in ("", None, 5) for cls in (TextMention, ToolCalled)],
            lambda: ToolCallCount(1, ""),
            lambda: CustomCondition(None),  # type: ignore[arg-type]
        ],
    )
    def test_bad_arguments(self, make: Any) -> None:
        with pytest.raises(ConfigurationError):
            make()

    def test_an_async_function_is_no_condition(self) -> None:
        async def later(state: AgentState, **context: Any) -> tuple[bool, str | None]:
            return True, None

        fn: Any = later
        with pytest.raises(ConfigurationError, match="async"):
            CustomCondition(fn)


class TestTimeLimit:
    @pytest.mark.spec("TERM-12")
    def test_it_counts_from_its_first_check(self) -> None:
        clock = Clock()
        limit = TimeLimit(10, clock)
        clock.now += 1000
        assert limit.check(START) == (False, None)
        clock.now += 9.9
        assert limit.check(START) == (False, None)
        clock.now += 0.1
        assert limit.check(START) == (True, "time_budget")
        limit.reset()
        assert limit.check(START) == (False, None)

    @pytest.mark.spec("TERM-12")
    def test_the_runtimes_clock(self) -> None:
        clock, limit = Clock(), TimeLimit(10)
        assert limit.check(START, clock=clock) == (False, None)
        clock.now += 10
        assert limit.check(START, clock=clock) == (True, "time_budget")

    @pytest.mark.spec("TERM-12")
    def test_by_default_it_is_a_real_and_monotonic_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("time.time", lambda: pytest.fail("wall time can jump"))
        limit = TimeLimit(1e-9)
        limit.check(START)
        while not limit.check(START)[0]:
            pass

    @pytest.mark.spec("TERM-6", "TERM-7")
    def test_a_copy_starts_afresh(self) -> None:
        clock = Clock()
        limit = TimeLimit(10, clock)
        limit.check(START)
        clock.now += 10
        other = copy.deepcopy(limit)
        other.clock = clock
        assert limit.check(START)[0]
        assert not other.check(START)[0]
        assert limit.check(START)[0]

    @pytest.mark.spec("TERM-7")
    def test_a_further_segment_of_the_turn_carries_on(self) -> None:
        clock = Clock()
        limit = TimeLimit(10, clock)
        limit.carry_on(7.0)
        assert limit.check(START) == (False, None)
        clock.now += 3
        assert limit.check(START) == (True, "time_budget")
        limit.reset()
        assert limit.check(START) == (False, None)


class TestTextMention:
    @pytest.mark.spec("TERM-13")
    def test_the_last_reply(self) -> None:
        condition = TextMention("Done")
        assert condition.check(START, last_message="all DONE now") == (True, "text_mention:Done")
        assert condition.check(START, last_message="not yet") == (False, None)
        assert TextMention("Done", case_sensitive=True).check(START, last_message="DONE") == (False, None)
        assert TextMention("Done", case_sensitive=True).check(START, last_message="Done.") == (True, "text_mention:Done")

    @pytest.mark.spec("TERM-14", "BUG-28")
    def test_an_earlier_turns_reply_does_not_count(self) -> None:
        state = START.with_messages([Message.user("x"), Message.assistant("DONE"), Message.user("more")])
        assert TextMention("DONE").check(state, last_message="") == (False, None)
        assert TextMention("DONE").check(state) == (False, None)

    @pytest.mark.spec("TERM-14")
    def test_this_turns_reply_does_even_behind_notes_of_the_runtime(self) -> None:
        note = Message.user("go on", **{AUTOMATED: True})
        state = START.with_messages([Message.user("x"), Message.assistant("DONE"), Message.system("note"), note])
        assert TextMention("DONE").check(state, last_message="") == (True, "text_mention:DONE")
        assert TextMention("DONE").check(START) == (False, None)


class TestNormalisedReasons:
    @pytest.mark.spec("TERM-20", "TERM-21")
    def test_what_conditions_report_becomes_a_stop_reason(self) -> None:
        state = executed("a").with_iteration(5)
        composite = ToolCalled("a") & MaxIterations(5)
        stop, reason = composite.check(state)
        assert (stop, reason) == (True, "tool_called:a AND max_iterations")
        assert normalise_stop_reason(reason) == "terminal_tool"
        assert normalise_stop_reason((TextMention("x") & MaxIterations(5)).check(state, last_message="x")[1]) == "complete"
        limits = (TokenLimit(1) & MaxIterations(5)).check(state.evolve(total_tokens_used=1))[1]
        assert limits == "token_budget AND max_iterations"
        assert normalise_stop_reason(limits) == "max_iterations"
        assert normalise_stop_reason(ToolCallCount(1).check(state)[1]) == "max_iterations"


@pytest.mark.spec("TERM-2")
def test_the_worked_example() -> None:
    condition = (ToolCalled("issue_refund") & ConfidenceMet(0.9)) | MaxIterations(8)
    state = executed("lookup_order", "issue_refund").with_confidence(0.15)
    assert condition.check(state.with_iteration(2)) == (False, None)
    assert condition.check(state.with_confidence(0.95)) == (True, "tool_called:issue_refund AND confidence_met")
    assert condition.check(state.with_iteration(8)) == (True, "max_iterations")
