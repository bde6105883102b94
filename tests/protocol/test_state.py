from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from umbel.protocol.codec import decode, encode
from umbel.protocol.markers import AUTOMATED, EPHEMERAL, ITERATION_SAVES, MCP_HEADERS, MEMORY_BLOCK, TURN_ONLY
from umbel.protocol.messages import Message, ToolCall, ToolResult, Usage
from umbel.protocol.state import AgentState, ReasoningStep, ToolExecution, estimate_tokens

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EMPTY = AgentState(run_id="r")
PRICED = AgentState(input_price_per_million=2.0, output_price_per_million=10.0)


def calling(*names: str) -> Message:
    return Message.assistant(tool_calls=tuple(ToolCall(id=f"call_{name}", name=name) for name in names))


def done(name: str, **fields: Any) -> ToolExecution:
    return ToolExecution(tool_name=name, tool_call_id=f"call_{name}", result="r", **fields)


class TestFields:
    @pytest.mark.spec(
        "STATE-10", "STATE-11", "STATE-12", "STATE-13", "STATE-14", "STATE-15", "STATE-16", "STATE-17", "STATE-18"
    )
    def test_defaults(self) -> None:
        state = AgentState().model_dump()
        assert len(state.pop("tool_loop_read_only_tools")) == 13
        assert state.pop("terminal_tools") == {"submit", "done", "finish", "complete"}
        assert state.pop("turn") == {"elapsed_seconds": 0.0, "interrupts": (), "stop_reason": None, "model_calls": 0}
        assert state == {
            **dict.fromkeys(["agent_id", "tool_loop_read_only_threshold", "token_budget", "cost_budget_usd", "provider_state"]),
            **dict.fromkeys(["input_price_per_million", "output_price_per_million", "started_at", "updated_at"]),
            **dict.fromkeys(
                [
                    "messages",
                    "tool_executions",
                    "thread_executions",
                    "reasoning_steps",
                    "tool_history",
                    "errors",
                    "tool_loop_warnings",
                ],
                (),
            ),
            **dict.fromkeys(["iteration", "total_tokens_used", "prompt_tokens_used", "completion_tokens_used"], 0),
            **dict.fromkeys(["cache_creation_tokens", "cache_read_tokens", "cached_tokens", "cache_write_tokens"], 0),
            **dict.fromkeys(["confidence", "reported_cost_usd", "reported_cost_calls", "cost_usd_used"], 0),
            "run_id": "",
            "max_iterations": 20,
            "confidence_threshold": 0.85,
            "confidence_history": (),
            "tool_loop_threshold": 3,
            "completion_mode": "auto",
            "metadata": {},
        }

    def test_immutable(self) -> None:
        state: Any = AgentState()
        with pytest.raises(ValidationError):
            state.iteration = 3

    @pytest.mark.spec("STATE-7")
    def test_an_execution_succeeds_without_an_error(self) -> None:
        execution = done("t")
        assert (execution.error, execution.duration_ms, execution.idempotent_cache_hit, execution.arguments) == (
            None,
            0.0,
            False,
            {},
        )
        assert execution.success
        assert done("t", idempotent_cache_hit=True).success
        assert not done("t", error="broke").success

    @pytest.mark.spec("STATE-8")
    def test_a_call_that_a_hook_cancelled_did_not_succeed(self) -> None:
        assert not done("t", code="cancelled").success

    @pytest.mark.spec("STATE-9")
    def test_a_reasoning_step(self) -> None:
        call, result = ToolCall(name="t"), ToolResult(tool_call_id="c", name="t")
        step = ReasoningStep(iteration=2, thought="hm", tool_calls=(call,), tool_results=(result,), timestamp=NOW)
        assert (step.reflection, step.confidence_delta) == (None, 0.0)

    def test_a_time_needs_a_zone(self) -> None:
        with pytest.raises(ValidationError):
            AgentState(started_at=datetime(2026, 3, 1))  # noqa: DTZ001 - the point


class TestUpdates:
    @pytest.mark.spec("STATE-20")
    def test_messages_and_iterations(self) -> None:
        one, two, three = Message.user("1"), Message.assistant("2"), Message.user("3")
        state = EMPTY.with_message(one).with_messages([two, three])
        assert state.messages == (one, two, three)
        assert state.with_iteration(7).next_iteration().iteration == 8
        assert state.with_provider_state({"id": 1}).with_provider_state({"id": 2}).provider_state == {"id": 2}
        assert EMPTY.messages == ()

    @pytest.mark.spec("STATE-20")
    @pytest.mark.parametrize(
        ("method", "arguments"),
        [
            ("with_message", (Message.user("x"),)),
            ("with_messages", ([Message.user("x")],)),
            ("with_iteration", (3,)),
            ("next_iteration", ()),
            ("with_provider_state", ({"a": 1},)),
            ("with_tool_execution", (done("t"),)),
            ("with_reasoning_step", (ReasoningStep(),)),
            ("with_confidence", (0.5,)),
            ("adjust_confidence", (0.5,)),
            ("with_error", ("e",)),
            ("with_metadata", ("k", 1)),
            ("with_token_usage", (Usage(prompt_tokens=1),)),
            ("with_response_usage", ({"prompt_tokens": 1}, 0.5)),
        ],
    )
    def test_every_update_is_stamped_with_the_time_given(self, method: str, arguments: tuple[Any, ...]) -> None:
        later = NOW.replace(hour=13)
        state = AgentState(started_at=NOW, updated_at=NOW)
        assert getattr(state, method)(*arguments).updated_at == NOW
        changed = getattr(state, method)(*arguments, now=later)
        assert (changed.updated_at, changed.started_at) == (later, NOW)
        assert changed == AgentState.model_validate(changed.model_dump())

    @pytest.mark.spec("STATE-21")
    def test_executions_and_their_names(self) -> None:
        state = EMPTY.with_tool_execution(done("a")).with_tool_execution(done("b")).with_tool_execution(done("a"))
        assert state.tool_history == ("a", "b", "a")
        assert state.tool_executions == (done("a"), done("b"), done("a"))

    @pytest.mark.spec("STATE-22")
    @pytest.mark.parametrize(("value", "kept"), [(0.4, 0.4), (-3, 0.0), (7.5, 1.0), (float("nan"), 0.0), (float("inf"), 1.0)])
    def test_confidence_is_clamped_and_remembered(self, value: float, kept: float) -> None:
        state = EMPTY.with_confidence(0.2).with_confidence(value)
        assert (state.confidence, state.confidence_history) == (kept, (0.2, kept))

    @pytest.mark.spec("STATE-22")
    def test_gains_diminish_and_losses_do_not(self) -> None:
        state = EMPTY.with_confidence(0.5)
        assert state.adjust_confidence(0.2).confidence == pytest.approx(0.6)
        assert state.adjust_confidence(0.2, diminishing=False).confidence == pytest.approx(0.7)
        assert state.adjust_confidence(-0.2).confidence == pytest.approx(0.3)
        assert state.adjust_confidence(-0.9).confidence == 0.0
        assert state.adjust_confidence(9, diminishing=False).confidence == 1.0

    @given(st.lists(st.floats(-2, 2), max_size=30))
    @pytest.mark.spec("STATE-22")
    def test_confidence_stays_in_range(self, deltas: list[float]) -> None:
        state = EMPTY
        for delta in deltas:
            state = state.adjust_confidence(delta)
        assert all(0 <= value <= 1 for value in state.confidence_history)
        assert len(state.confidence_history) == len(deltas)

    @pytest.mark.spec("STATE-23")
    def test_errors_metadata_and_steps(self) -> None:
        state = EMPTY.with_error("a").with_error("b").with_metadata("k", 1).with_metadata("l", 2).with_metadata("k", 3)
        assert (state.errors, state.metadata) == (("a", "b"), {"k": 3, "l": 2})
        assert state.with_reasoning_step(ReasoningStep(iteration=1)).reasoning_steps == (ReasoningStep(iteration=1),)
        assert EMPTY.metadata == {}

    @pytest.mark.spec("STATE-26")
    def test_a_loop_warning_is_not_a_change_of_time(self) -> None:
        state = AgentState(updated_at=NOW).with_reasoning_step(ReasoningStep()).with_reasoning_step(ReasoningStep())
        warned = state.with_tool_loop_warning("sig")
        assert (warned.tool_loop_warnings, warned.updated_at) == ((("sig", 2),), NOW)


class TestUsage:
    USAGE = Usage(
        prompt_tokens=100,
        completion_tokens=10,
        cache_creation_tokens=40,
        cache_read_tokens=50,
        cached_tokens=7,
        cache_write_tokens=8,
    )

    @pytest.mark.spec("STATE-24", "STATE-16")
    def test_counters_add_up_and_caches_stay_out_of_the_total(self) -> None:
        state = EMPTY.with_token_usage(self.USAGE).with_token_usage(self.USAGE)
        assert (state.total_tokens_used, state.prompt_tokens_used, state.completion_tokens_used) == (220, 200, 20)
        assert (state.cache_creation_tokens, state.cache_read_tokens) == (80, 100)
        assert (state.cached_tokens, state.cache_write_tokens) == (14, 16)
        assert state.cost_usd_used == 0.0

    @pytest.mark.spec("STATE-24", "STATE-27")
    def test_cost_by_price(self) -> None:
        state = PRICED.with_token_usage(self.USAGE)
        expected = ((100 + 1.25 * 40 + 0.1 * 50) * 2.0 + 10 * 10.0) / 1e6
        assert state.cost_usd_used == pytest.approx(expected)
        assert state.with_token_usage(self.USAGE).cost_usd_used == pytest.approx(2 * expected)

    @pytest.mark.spec("STATE-27")
    def test_tokens_cached_inside_the_prompt_cost_in_full(self) -> None:
        assert PRICED.with_token_usage(Usage(prompt_tokens=100, cached_tokens=90)).cost_usd_used == PRICED.cost_of(100, 0)

    @pytest.mark.spec("STATE-27")
    def test_without_both_prices_there_is_no_cost(self) -> None:
        assert PRICED.priced
        for state in (EMPTY, PRICED.evolve(input_price_per_million=None), PRICED.evolve(output_price_per_million=None)):
            assert not state.priced
            assert state.cost_of(10, 10) is None
        assert AgentState(input_price_per_million=0.0, output_price_per_million=0.0).cost_of(10, 10) == 0.0

    @pytest.mark.spec("STATE-25")
    @pytest.mark.parametrize("odd", [True, "12", 3.5, None, [1], -5, float("nan")])
    def test_odd_counts_are_zero(self, odd: Any) -> None:
        state = EMPTY.with_response_usage({"prompt_tokens": odd, "completion_tokens": 4, "unknown": 9})
        assert (state.prompt_tokens_used, state.completion_tokens_used, state.total_tokens_used) == (0, 4, 4)

    @pytest.mark.spec("STATE-25")
    @pytest.mark.parametrize("odd", [True, "0.5", None, float("nan"), float("inf"), [], -1.0])
    def test_a_reported_cost_must_be_a_number(self, odd: Any) -> None:
        for state in (EMPTY.with_response_usage({"cost_usd": odd}), EMPTY.with_response_usage(None, odd)):
            assert (state.reported_cost_usd, state.reported_cost_calls) == (0.0, 0)

    @pytest.mark.spec("STATE-25", "STATE-17")
    def test_reported_costs_add_up(self) -> None:
        state = EMPTY.with_response_usage({"prompt_tokens": 3, "cost_usd": 0.25}).with_response_usage(self.USAGE, 0)
        assert (state.reported_cost_usd, state.reported_cost_calls, state.prompt_tokens_used) == (0.25, 2, 103)
        assert EMPTY.with_response_usage(None) is EMPTY


class TestQueries:
    @pytest.mark.spec("STATE-28")
    def test_the_worst_case_of_one_more_call(self) -> None:
        state = PRICED.with_message(Message.user("x" * 4000)).evolve(cost_budget_usd=0.01)
        assert state.cost_of(1000, 800) == pytest.approx(0.01)
        assert not state.would_exceed_cost_budget(799)
        assert state.would_exceed_cost_budget(801)
        assert state.evolve(cost_usd_used=0.001).would_exceed_cost_budget(799)
        assert not state.evolve(cost_budget_usd=None).would_exceed_cost_budget(10**9)
        assert not state.evolve(input_price_per_million=None).would_exceed_cost_budget(10**9)

    @pytest.mark.spec("STATE-28", "STATE-31")
    def test_the_estimate_counts_text_and_arguments(self) -> None:
        call = ToolCall(name="t", arguments={"q": "y" * 92})
        assert estimate_tokens([Message.user("x" * 400)]) == 100
        assert estimate_tokens([Message.user("x" * 400), Message.assistant(tool_calls=(call,))]) == 125

    @pytest.mark.spec("STATE-31")
    def test_total_tokens_are_tracked_or_else_estimated(self) -> None:
        state = EMPTY.with_message(Message.user("x" * 400))
        assert state.total_tokens == 100
        assert state.with_token_usage(Usage(prompt_tokens=7)).total_tokens == 7

    @pytest.mark.spec("STATE-29", "BUG-27")
    def test_last_tool_calls_are_those_of_this_turn(self) -> None:
        state = EMPTY.with_messages([Message.user("x"), calling("a")])
        assert [call.name for call in state.last_tool_calls] == ["a"]
        result = Message(role="tool", content="r", tool_call_id="call_a")
        assert [call.name for call in state.with_messages([result, Message.system("note")]).last_tool_calls] == ["a"]
        for message in (Message.user("next"), Message.user("note", **{AUTOMATED: True})):
            assert state.with_message(message).last_tool_calls == ()
        assert state.with_message(Message.assistant("text")).last_tool_calls == ()
        assert EMPTY.last_tool_calls == ()

    @pytest.mark.spec("STATE-30")
    def test_a_terminal_tool_that_succeeded(self) -> None:
        state = EMPTY.with_messages([Message.user("x"), calling("look", "submit")])
        assert not state.called_terminal_tool
        assert not state.with_tool_execution(done("look")).called_terminal_tool
        assert state.with_tool_execution(done("submit")).called_terminal_tool
        assert state.with_tool_execution(done("submit")).with_message(Message.system("note")).called_terminal_tool
        assert not state.with_tool_execution(done("submit")).with_message(Message.user("next")).called_terminal_tool
        assert not state.with_tool_execution(done("submit")).evolve(terminal_tools=frozenset()).called_terminal_tool

    @pytest.mark.spec("OURS-4")
    @pytest.mark.parametrize(
        "fields", [{"error": "broke"}, {"code": "cancelled"}, {"error": "no such tool", "code": "unknown_tool"}]
    )
    def test_a_terminal_tool_that_did_not_succeed_does_not_count(self, fields: dict[str, str]) -> None:
        state = EMPTY.with_messages([Message.user("x"), calling("submit")]).with_tool_execution(done("submit", **fields))
        assert not state.called_terminal_tool
        assert state.should_terminate() is None

    @pytest.mark.spec("OURS-4")
    def test_an_earlier_success_of_the_tool_does_not_count_for_a_later_call(self) -> None:
        again = Message.assistant(tool_calls=(ToolCall(id="call_2", name="submit"),))
        state = EMPTY.with_messages([calling("submit"), Message.user("more"), again]).with_tool_execution(done("submit"))
        assert not state.called_terminal_tool


class TestShouldTerminate:
    """Every stop, all at once; taking the winner away shows the next."""

    def everything(self) -> AgentState:
        call = ToolCall(id="call_submit", name="submit")
        step = ReasoningStep(tool_calls=(call,), tool_results=(ToolResult(tool_call_id=call.id, name="submit", content="r"),))
        return AgentState(
            iteration=20,
            total_tokens_used=50,
            token_budget=50,
            cost_usd_used=2.0,
            cost_budget_usd=2.0,
            messages=(Message.user("x"), calling("submit")),
            tool_executions=(done("submit"),),
            confidence=0.85,
            reasoning_steps=(step,) * 4,
        )

    @pytest.mark.spec("STATE-32", "STATE-38")
    def test_order(self) -> None:
        state, seen = self.everything(), []
        steps: list[dict[str, Any]] = [
            {"iteration": 19},
            {"token_budget": 51},
            {"cost_budget_usd": 2.01},
            {"terminal_tools": frozenset()},
            {"confidence": 0.84},
            {"reasoning_steps": state.reasoning_steps[:3], "messages": (*state.messages, Message.assistant("text"))},
            {"messages": (*state.messages, Message.assistant("text"), Message.user("go on"))},
        ]
        for changes in steps:
            seen.append(state.should_terminate())
            state = state.evolve(**changes)
        stops = ["max_iterations", "token_budget", "cost_budget", "terminal_tool", "confidence_met", "tool_loop", "no_tools"]
        assert seen == stops
        assert state.should_terminate() is None

    @pytest.mark.spec("STATE-32", "STATE-18")
    def test_explicit_mode_stops_for_limits_and_terminal_tools_only(self) -> None:
        state = self.everything().evolve(completion_mode="explicit")
        assert state.should_terminate() == "max_iterations"
        assert state.evolve(iteration=1, token_budget=None, cost_budget_usd=None).should_terminate() == "terminal_tool"
        quiet = state.evolve(iteration=1, token_budget=None, cost_budget_usd=None, terminal_tools=frozenset())
        assert quiet.should_terminate() is None

    @pytest.mark.spec("STATE-32")
    @pytest.mark.parametrize("budget", [None, 0])
    def test_no_token_budget(self, budget: int | None) -> None:
        assert AgentState(total_tokens_used=10**9, token_budget=budget).should_terminate() is None

    def test_a_reply_without_calls_needs_an_iteration(self) -> None:
        state = AgentState(messages=(Message.assistant("text"),))
        assert state.should_terminate() is None
        assert state.next_iteration().should_terminate() == "no_tools"
        assert AgentState(iteration=1).should_terminate() is None


class TestStoring:
    def full(self) -> AgentState:
        state = EMPTY.with_messages([Message.user("x"), calling("a")]).with_tool_execution(done("a", timestamp=NOW), now=NOW)
        return state.with_confidence(0.3).with_metadata("k", {"x": [1, None]}).with_tool_loop_warning("sig").with_error("e")

    @pytest.mark.spec("STATE-45")
    def test_types_come_back(self) -> None:
        state = self.full()
        back = decode(*encode(state))
        assert back == state
        assert isinstance(back, AgentState)
        assert isinstance(back.terminal_tools, frozenset)
        assert (back.updated_at, back.tool_loop_warnings) == (NOW, (("sig", 0),))
        stored = state.model_dump(mode="json")
        assert stored["terminal_tools"] == sorted(state.terminal_tools)
        assert stored["updated_at"] == "2026-03-01T12:00:00Z"

    @pytest.mark.spec("STATE-46")
    def test_a_state_of_another_version(self) -> None:
        assert AgentState.model_validate({"run_id": "r", "of_tomorrow": 1}) == EMPTY

    @pytest.mark.spec("STATE-47", "STATE-19", "STATE-49")
    def test_the_durable_form(self) -> None:
        keep = Message.user("x", **{AUTOMATED: True})
        drop = [Message.system("facts", **{MEMORY_BLOCK: True}), Message.user("note", **{TURN_ONLY: True})]
        state = EMPTY.with_messages([drop[0], keep, drop[1]])
        for key in ("kept", EPHEMERAL, MCP_HEADERS, "x-token", ITERATION_SAVES):
            state = state.with_metadata(key, "v")
        durable = state.durable(ephemeral=["x-token"])
        assert durable.messages == (keep,)
        assert set(durable.metadata) == {"kept", ITERATION_SAVES}
        assert set(state.durable(ephemeral=["x-token"], final=True).metadata) == {"kept"}
        assert len(state.messages) == 3

    @pytest.mark.spec("STATE-47")
    def test_a_state_with_nothing_to_drop_is_its_own_durable_form(self) -> None:
        state = self.full()
        assert state.durable(final=True) is state
