from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from umbel.protocol.codec import decode, encode
from umbel.protocol.commands import RunFinished
from umbel.protocol.errors import RateLimited, RunError
from umbel.protocol.messages import Message, ToolCall
from umbel.protocol.results import STOP_REASONS, SUCCESSFUL, AgentResult, Metrics, RunOutcome, normalise_stop_reason
from umbel.protocol.state import AgentState, ReasoningStep, ToolExecution

NOW = datetime(2026, 3, 1, tzinfo=UTC)
STATE = AgentState(
    messages=(Message.user("x"), Message.assistant("first"), Message.assistant("answer"), Message.system("note")),
    tool_executions=(ToolExecution(tool_name="t", tool_call_id="c"),),
    reasoning_steps=(ReasoningStep(tool_calls=(ToolCall(name="t"),)),),
    confidence=0.4,
)
OUTCOME = RunOutcome(
    run_id="r",
    thread_id="t",
    message="answer",
    metrics=Metrics(iterations=2, tool_calls=4, tool_errors=1, total_tokens=10),
    state=STATE,
    started_at=NOW,
    completed_at=NOW,
)


class Person(BaseModel):
    name: str


class TestNormalising:
    @pytest.mark.spec("LOOP-118", "LOOP-119")
    @pytest.mark.parametrize("reason", STOP_REASONS)
    def test_members_are_themselves(self, reason: str) -> None:
        assert normalise_stop_reason(reason) == reason

    @pytest.mark.spec("LOOP-118")
    def test_the_set(self) -> None:
        assert set(STOP_REASONS) == {
            "complete", "terminal_tool", "confidence_met", "max_iterations", "tool_loop", "no_tools", "grounding_failed",
            "token_budget", "cost_budget", "time_budget", "context_exhausted", "interrupted", "error", "cancelled",
            "tool_errors", "empty_reply", "suspended",
        }  # fmt: skip

    @pytest.mark.spec("LOOP-117", "LOOP-119", "TERM-20", "TERM-21")
    @pytest.mark.parametrize(
        ("reason", "normalised"),
        [
            ("", "complete"),
            (None, "complete"),
            ("tool_called:submit", "terminal_tool"),
            ("text_mention:DONE", "complete"),
            ("max_iterations AND tool_called:x", "terminal_tool"),
            ("text_mention:a AND tool_called:x", "terminal_tool"),
            ("max_iterations AND text_mention:a", "complete"),
            ("token_budget AND max_iterations", "max_iterations"),
            ("custom AND time_budget", "time_budget"),
            ("error AND cancelled", "error"),
            ("all_conditions_met", "complete"),
            ("mine", "complete"),
            ("tool_call_limit", "max_iterations"),
            ("tool_call_limit:search", "max_iterations"),
            ("tool_call_limit AND cost_budget", "cost_budget"),
        ],
    )
    def test_mapping(self, reason: str | None, normalised: str) -> None:
        assert normalise_stop_reason(reason) == normalised

    @pytest.mark.spec("LOOP-120")
    @pytest.mark.parametrize(
        "reason", ["error_seen", "no_tools_left", "uncancelled", "an error", "incomplete", "not_max_iterations AND x"]
    )
    def test_a_member_inside_a_word_is_not_that_member(self, reason: str) -> None:
        assert normalise_stop_reason(reason) == "complete"

    @pytest.mark.spec("LOOP-119")
    @given(st.text() | st.lists(st.sampled_from([*STOP_REASONS, "x", "tool_called:y"])).map(" AND ".join))
    def test_it_is_total_and_stable(self, reason: str) -> None:
        once = normalise_stop_reason(reason)
        assert once in STOP_REASONS
        assert normalise_stop_reason(once) == once

    @pytest.mark.spec("LOOP-124", "API-51", "OURS-3")
    def test_success(self) -> None:
        assert {"complete", "terminal_tool", "confidence_met"} == SUCCESSFUL
        for reason in STOP_REASONS:
            outcome = OUTCOME.evolve(stop_reason=reason)
            assert AgentResult.from_outcome(outcome).success == outcome.success == (reason in SUCCESSFUL)


class TestMetrics:
    @pytest.mark.spec("API-50")
    def test_derived(self) -> None:
        assert (OUTCOME.metrics.tool_success_rate, OUTCOME.metrics.tokens_per_iteration) == (0.75, 5.0)
        assert (Metrics().tool_success_rate, Metrics().tokens_per_iteration, Metrics().cost_usd) == (1.0, 0.0, None)


class TestResult:
    @pytest.mark.spec("API-47", "API-48")
    def test_what_the_caller_reads(self) -> None:
        result = AgentResult.from_outcome(OUTCOME)
        assert (result.run_id, result.thread_id, result.stop_reason, result.reason) == ("r", "t", "complete", "complete")
        assert result.message == result.text == "answer"
        assert (result.success, result.error, result.interrupts, result.hook_errors) == (True, None, (), ())
        assert (result.state, result.messages, result.confidence) == (STATE, STATE.messages, 0.4)
        assert (result.tool_executions, result.reasoning_steps) == (STATE.tool_executions, STATE.reasoning_steps)
        assert result.last_assistant_message == Message.assistant("answer")
        assert (result.metrics, result.iterations) == (OUTCOME.metrics, 2)
        assert (result.started_at, result.completed_at) == (NOW, NOW)
        assert (result.grounding_score, result.ungrounded_claims, result.parsed, result.parse_error) == (None, (), None, None)
        assert (result.gsar_score, result.gsar_decision, result.gsar_judgement) == (None, None, None)

    @pytest.mark.spec("API-47")
    def test_verdicts_of_judges_reach_the_caller(self) -> None:
        said = {"status": "resolved", "decision": "replan"}
        verdicts = {"grounding_score": 0.4, "ungrounded_claims": ("c",), "gsar_score": 0.3, "gsar_decision": "replan"}
        outcome = RunOutcome.model_validate_json(OUTCOME.evolve(**verdicts, gsar_judgement=said).model_dump_json())
        result = AgentResult.from_outcome(outcome)
        assert {name: getattr(result, name) for name in verdicts} == verdicts
        assert result.gsar_judgement == said

    def test_the_raw_reason_is_kept(self) -> None:
        outcome = OUTCOME.evolve(reason="tool_called:x", stop_reason="terminal_tool")
        assert AgentResult.from_outcome(outcome).reason == "tool_called:x"

    def test_an_error_comes_back_as_its_class(self) -> None:
        outcome = OUTCOME.evolve(stop_reason="error", error=RateLimited("slow down", retry_after=2).to_wire())
        error = AgentResult.from_outcome(outcome).error
        assert isinstance(error, RateLimited)
        assert error.retry_after == 2.0

    @pytest.mark.parametrize(
        "name", ["state", "messages", "tool_executions", "reasoning_steps", "confidence", "last_assistant_message"]
    )
    def test_a_summary_says_what_it_lacks(self, name: str) -> None:
        result = AgentResult.from_outcome(OUTCOME.evolve(state=None))
        with pytest.raises(RunError, match="summary"):
            getattr(result, name)
        assert (result.message, result.iterations, result.success) == ("answer", 2, True)

    @pytest.mark.spec("API-48")
    def test_to_dict_is_json(self) -> None:
        data = AgentResult.from_outcome(OUTCOME).to_dict()
        assert json.loads(json.dumps(data)) == data
        assert (data["success"], data["message"], data["stop_reason"], data["metrics"]["iterations"]) == (
            True,
            "answer",
            "complete",
            2,
        )
        assert len(data["state"]["messages"]) == 4

    def test_it_can_be_pickled(self) -> None:
        result = AgentResult.from_outcome(OUTCOME.evolve(error={"code": "tool", "message": "m"}))
        assert result.error is not None
        assert pickle.loads(pickle.dumps(result)) == result

    def test_nothing_can_be_assigned(self) -> None:
        result: Any = AgentResult.from_outcome(OUTCOME)
        for name in ("outcome", "message", "parsed"):
            with pytest.raises(AttributeError):
                setattr(result, name, None)

    def test_the_outcome_crosses_actors(self) -> None:
        finished = RunFinished(outcome=OUTCOME)
        arrived = decode(*encode(finished))
        assert isinstance(arrived, RunFinished)
        assert AgentResult.from_outcome(arrived.outcome).state == AgentResult.from_outcome(OUTCOME).state
        assert arrived.outcome.evolve(state_json=None) == OUTCOME.evolve(state=None)


class TestParsed:
    @pytest.mark.spec("API-49")
    def test_the_instance_comes_back(self) -> None:
        result = AgentResult.from_outcome(OUTCOME.evolve(parsed={"name": "Ada"}), Person)
        assert result.parsed_as(Person) == Person(name="Ada")
        with pytest.raises(TypeError, match="Person"):
            result.parsed_as(dict)

    @pytest.mark.spec("API-49", "API-44")
    def test_nothing_was_parsed(self) -> None:
        result = AgentResult.from_outcome(OUTCOME.evolve(parse_error="no JSON found"), Person)
        assert (result.parsed, result.parse_error, result.success) == (None, "no JSON found", True)
        with pytest.raises(ValueError, match="no JSON found"):
            result.parsed_as(Person)
        with pytest.raises(ValueError, match="none was asked for"):
            AgentResult.from_outcome(OUTCOME).parsed_as(Person)

    def test_a_value_of_another_version_of_the_class(self) -> None:
        result = AgentResult.from_outcome(OUTCOME.evolve(parsed={"nom": "Ada"}), Person)
        assert result.parsed is None
        assert "name" in (result.parse_error or "")
