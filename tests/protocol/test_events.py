from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from umbel.protocol import events
from umbel.protocol.codec import decode, encode, message_types
from umbel.protocol.events import (
    AGENT_STREAM,
    UNSTAMPED,
    CustomEvent,
    Event,
    FinalAnswerVerificationEvent,
    GroundingEvent,
    InterruptEvent,
    ModelChunkEvent,
    ModelRetryEvent,
    ReflectEvent,
    RunInfo,
    SubagentEvent,
    TerminateEvent,
    ThinkEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ToolStartEvent,
    event_types,
    read_event,
)
from umbel.protocol.messages import ToolCall

from .strategies import minimal

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVERY = pytest.mark.parametrize("cls", event_types().values(), ids=lambda cls: cls.__name__)
IDENTITY = {"event_type", "timestamp", "agent_name", "run_id", "seq", "thread_id", "parent_run_id", "member"}


def own_fields(cls: type[Event]) -> set[str]:
    return set(cls.model_fields) - IDENTITY


class TestCommonRules:
    @EVERY
    @pytest.mark.spec("EVT-1", "EVT-3")
    def test_a_fixed_type_and_nothing_can_be_assigned(self, cls: type[Event]) -> None:
        event: Any = minimal(cls)
        assert event.event_type == cls.model_fields["event_type"].default
        assert set(cls.model_fields) >= IDENTITY
        for name in cls.model_fields:
            with pytest.raises(ValidationError):
                setattr(event, name, getattr(event, name))
        with pytest.raises(ValidationError):
            cls(**{**dict(event), "event_type": "other"})

    @EVERY
    @pytest.mark.spec("EVT-2")
    def test_json_and_back(self, cls: type[Event]) -> None:
        event: Any = minimal(cls).evolve(
            timestamp=NOW, run_id="r", seq=3, agent_name="a", thread_id="t", parent_run_id="p", member="m"
        )
        data = json.loads(event.to_json())
        assert data["timestamp"] == "2026-03-01T12:00:00Z"
        assert read_event(data) == event
        assert type(read_event(data)) is cls
        assert decode(*encode(event)) == event

    @EVERY
    def test_registered_and_picklable(self, cls: type[Event]) -> None:
        assert cls in message_types()
        assert pickle.loads(pickle.dumps(minimal(cls))) == minimal(cls)
        assert cls.__doc__
        assert getattr(events, cls.__name__) is cls

    @pytest.mark.spec("EVT-1")
    def test_a_time_without_a_zone_is_refused(self) -> None:
        with pytest.raises(ValidationError):
            ThinkEvent(iteration=1, timestamp=datetime(2026, 3, 1))  # noqa: DTZ001 - the point

    @pytest.mark.spec("EVT-1", "EVT-19")
    def test_the_emitter_fills_in_what_is_missing_and_relabels_nothing(self) -> None:
        event = CustomEvent(name="n", data={"x": 1})
        assert event.timestamp == UNSTAMPED
        stamped = event.stamped(timestamp=NOW, run_id="r", seq=4, agent_name="outer", thread_id="t", tool_call_id="c")
        assert (stamped.timestamp, stamped.run_id, stamped.seq) == (NOW, "r", 4)
        assert (stamped.agent_name, stamped.thread_id, stamped.tool_call_id) == ("outer", "t", "c")
        again = stamped.stamped(timestamp=NOW.replace(hour=13), run_id="other", seq=5, agent_name="inner", member="m")
        assert (again.timestamp, again.run_id, again.agent_name, again.member, again.seq) == (NOW, "r", "outer", "m", 5)

    @pytest.mark.spec("EVT-4")
    def test_what_an_agents_run_yields(self) -> None:
        names = {cls.model_fields["event_type"].default for cls in AGENT_STREAM}
        assert names == {
            "think", "model_chunk", "tool_start", "tool_complete", "tool_progress", "subagent", "reflect", "grounding",
            "final_answer_verification", "model_retry", "compaction", "terminate", "interrupt", "custom", "run_lost",
        }  # fmt: skip

    @pytest.mark.parametrize(
        "data", [None, 5, [], {}, {"event_type": None}, {"event_type": ["think"]}, {"event_type": "x" * 999}]
    )
    def test_what_is_no_event_is_refused(self, data: Any) -> None:
        with pytest.raises(ValueError, match="not an event"):
            read_event(data)

    def test_two_classes_cannot_share_a_type(self) -> None:
        with pytest.raises(TypeError, match="think"):
            type("Other", (ThinkEvent,), {"__module__": __name__, "__qualname__": "Other"})


class TestTypes:
    @pytest.mark.parametrize(
        ("name", "fields"),
        [
            pytest.param("think", "iteration reasoning tool_calls", marks=pytest.mark.spec("EVT-6")),
            pytest.param(
                "model_chunk",
                "content model reasoning tool_calls done usage stop_reason cost_usd",
                marks=pytest.mark.spec("EVT-7"),
            ),
            pytest.param("tool_start", "tool_name tool_call_id arguments", marks=pytest.mark.spec("EVT-8")),
            pytest.param(
                "tool_complete",
                "tool_name tool_call_id result error code duration_ms structured_content content_blocks",
                marks=pytest.mark.spec("EVT-9"),
            ),
            pytest.param("tool_progress", "tool_name tool_call_id progress total message", marks=pytest.mark.spec("EVT-10")),
            pytest.param("subagent", "tool_call_id tool_name task_id event", marks=pytest.mark.spec("EVT-11")),
            ("step_start", "step step_member child_run_id"),
            ("step_complete", "step step_member status stop_reason result error duration_ms"),
            ("member", "step event"),
            ("pattern", "kind step data"),
            pytest.param(
                "reflect", "iteration assessment confidence_delta new_confidence guidance", marks=pytest.mark.spec("EVT-12")
            ),
            pytest.param(
                "grounding",
                "score claims_evaluated ungrounded_claims requires_replan error",
                marks=pytest.mark.spec("EVT-13"),
            ),
            pytest.param(
                "final_answer_verification",
                "passed attempt replanning feedback error replaced continuation reason",
                marks=pytest.mark.spec("EVT-14"),
            ),
            pytest.param(
                "model_retry",
                "attempt delay_seconds reason status_code error from_retry_after",
                marks=pytest.mark.spec("EVT-15"),
            ),
            pytest.param(
                "compaction",
                "iteration stage tokens_before tokens_after threshold context_window messages_before messages_after summary"
                " exhausted detail",
                marks=pytest.mark.spec("EVT-16"),
            ),
            pytest.param(
                "terminate",
                "reason iterations_used final_confidence total_tool_calls final_message usage cost_usd reported_cost_usd error",
                marks=pytest.mark.spec("EVT-17"),
            ),
            pytest.param("interrupt", "question options fields interrupt_id metadata", marks=pytest.mark.spec("EVT-18")),
            pytest.param("custom", "name data tool_call_id", marks=pytest.mark.spec("EVT-19")),
            pytest.param("run_lost", "reason"),
            pytest.param("model_complete", "content tool_calls usage stop_reason", marks=pytest.mark.spec("EVT-20")),
            pytest.param("specialist_start", "specialist_id specialist_type task", marks=pytest.mark.spec("EVT-21")),
            pytest.param(
                "specialist_complete",
                "specialist_id specialist_type result confidence duration_ms",
                marks=pytest.mark.spec("EVT-21"),
            ),
            pytest.param("orchestrator_decision", "decision specialists_selected reasoning", marks=pytest.mark.spec("EVT-21")),
            pytest.param("handoff", "source target reason context_summary", marks=pytest.mark.spec("EVT-21")),
            pytest.param("causal_node", "node_id label node_type evidence", marks=pytest.mark.spec("EVT-22")),
            pytest.param("causal_edge", "source target relationship confidence", marks=pytest.mark.spec("EVT-22")),
            pytest.param("before_invocation", "prompt", marks=pytest.mark.spec("EVT-23")),
            pytest.param("after_invocation", "success", marks=pytest.mark.spec("EVT-23")),
            pytest.param("before_tool_call", "tool_name tool_call_id arguments", marks=pytest.mark.spec("EVT-23")),
            pytest.param("after_tool_call", "tool_name tool_call_id result error", marks=pytest.mark.spec("EVT-23")),
            pytest.param("iteration_start", "iteration", marks=pytest.mark.spec("EVT-23")),
            pytest.param("iteration_end", "iteration", marks=pytest.mark.spec("EVT-23")),
            pytest.param("graph_stream", "mode node_id data", marks=pytest.mark.spec("EVT-24")),
        ],
    )
    def test_fields(self, name: str, fields: str) -> None:
        assert own_fields(event_types()[name]) == set(fields.split())

    def test_that_is_all(self) -> None:
        assert len(event_types()) == 33

    @pytest.mark.spec("EVT-6")
    def test_think(self) -> None:
        event = ThinkEvent(iteration=1, reasoning="hm", tool_calls=(ToolCall(name="t"),))
        assert event.content == "hm"

    @pytest.mark.spec("EVT-7", "STATE-44")
    def test_a_chunk_may_be_empty(self) -> None:
        chunk = ModelChunkEvent()
        assert (chunk.done, chunk.usage, chunk.content, chunk.stop_reason) == (False, None, None, None)

    @pytest.mark.spec("EVT-8")
    def test_a_started_call_keeps_its_arguments(self) -> None:
        arguments = {"a": [1]}
        event = ToolStartEvent(tool_name="t", tool_call_id="c", arguments=arguments)
        arguments["a"].append(2)
        assert event.arguments == {"a": [1]}

    @pytest.mark.spec("EVT-9")
    def test_success_is_derived(self) -> None:
        assert ToolCompleteEvent(tool_name="t", tool_call_id="c", result="r").success
        assert not ToolCompleteEvent(tool_name="t", tool_call_id="c", error="e").success

    @pytest.mark.spec("EVT-10")
    def test_progress_may_have_no_total(self) -> None:
        event = ToolProgressEvent(tool_name="t", tool_call_id="c", progress=3)
        assert (event.total, event.message) == (None, None)

    @pytest.mark.spec("EVT-2", "EVT-11")
    def test_a_wrapped_event_keeps_its_class_at_any_depth(self) -> None:
        end = TerminateEvent(reason="complete", timestamp=NOW, agent_name="child")
        inner = SubagentEvent(tool_call_id="c2", tool_name="t2", task_id="task_1", event=end)
        outer = SubagentEvent(tool_call_id="c1", tool_name="t1", event=inner, agent_name="parent")
        back = read_event(json.loads(outer.to_json()))
        assert back == outer
        assert isinstance(back, SubagentEvent)
        assert isinstance(back.event, SubagentEvent)
        assert isinstance(back.event.event, TerminateEvent)
        assert back.event.event.agent_name == "child"

    @pytest.mark.spec("EVT-12")
    @pytest.mark.parametrize("assessment", ["on_track", "stuck", "new_findings", "loop_detected"])
    def test_assessments(self, assessment: Any) -> None:
        assert ReflectEvent(iteration=1, assessment=assessment, confidence_delta=0.15, new_confidence=0.15).guidance is None
        with pytest.raises(ValidationError):
            ReflectEvent(iteration=1, assessment="fine", confidence_delta=0.15, new_confidence=0.15)

    @pytest.mark.spec("EVT-13")
    def test_nothing_to_ground_is_grounded(self) -> None:
        event = GroundingEvent()
        assert (event.score, event.claims_evaluated, event.ungrounded_claims, event.requires_replan) == (1.0, 0, (), False)

    @pytest.mark.spec("EVT-14")
    def test_attempts_count_from_zero(self) -> None:
        assert FinalAnswerVerificationEvent(passed=True).attempt == 0

    @pytest.mark.spec("EVT-15")
    def test_a_retrys_error_is_capped(self) -> None:
        assert len(ModelRetryEvent(attempt=1, delay_seconds=2.0, reason="overloaded", error="x" * 9000).error) == 500

    @pytest.mark.spec("EVT-17", "STATE-44")
    def test_terminate(self) -> None:
        event = TerminateEvent(reason="tool_called:x AND time_budget", final_message="bye")
        assert (event.content, event.reason) == ("bye", "tool_called:x AND time_budget")
        assert (event.usage, event.cost_usd, event.reported_cost_usd, event.error) == (None, None, None, None)

    @pytest.mark.spec("EVT-18")
    def test_interrupt(self) -> None:
        event = InterruptEvent(question="sure?", interrupt_id="c", options=["yes", "no"])
        assert (event.options, event.fields, event.metadata) == (("yes", "no"), None, {})


class TestRunInfo:
    @pytest.mark.spec("EVT-25")
    def test_read_only(self) -> None:
        metadata = {"user": "u"}
        info: Any = RunInfo("r", thread_id="t", metadata=metadata, agent_name="a")
        metadata["user"] = "other"
        assert (info.run_id, info.thread_id, info.agent_name, dict(info.metadata)) == ("r", "t", "a", {"user": "u"})
        with pytest.raises(TypeError):
            info.metadata["user"] = "v"
        with pytest.raises(AttributeError):
            info.run_id = "s"
        assert pickle.loads(pickle.dumps(info)) == info
