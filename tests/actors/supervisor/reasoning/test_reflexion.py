from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from umbel.actors.supervisor.reasoning.reflexion import REPLAN_REQUEST, Reflection, Reflector
from umbel.protocol.messages import ToolCall, ToolResult
from umbel.protocol.reasoning import ReflexionConfig
from umbel.protocol.state import AgentState, CompletionMode, ReasoningStep, ToolExecution

Make = Callable[..., ToolExecution]
REFLECTOR = Reflector(ReflexionConfig())


def reflect(executions: Sequence[ToolExecution], state: AgentState | None = None) -> Reflection:
    return REFLECTOR.reflect(state or AgentState(), executions)


def batch(successes: int, errors: int) -> list[ToolExecution]:
    return [
        *(ToolExecution(tool_name="t", tool_call_id=f"s{n}", result="") for n in range(successes)),
        *(ToolExecution(tool_name="t", tool_call_id=f"e{n}", error=f"error {n}") for n in range(errors)),
    ]


def after_steps(*steps: tuple[str, Any, str], **settings: Any) -> AgentState:
    """A state that recorded one step per (tool, argument, result)."""
    state = AgentState(**settings)
    for number, (name, argument, result) in enumerate(steps):
        call = ToolCall(id=f"c{number}", name=name, arguments={"q": argument})
        answer = ToolResult(tool_call_id=call.id, name=name, content=result)
        step = ReasoningStep(iteration=number + 1, tool_calls=(call,), tool_results=(answer,))
        state = state.next_iteration().with_reasoning_step(step)
    return state


class TestDelta:
    @pytest.mark.spec("REAS-3", "REAS-4")
    @pytest.mark.parametrize(
        ("successes", "errors", "delta"),
        [(0, 0, 0.05), (1, 0, 0.15), (0, 1, -0.20), (2, 1, 0.10), (3, 2, 0.05), (4, 3, 0.0), (7, 0, 1.0), (0, 6, -1.0)],
    )
    def test_it_weighs_successes_and_errors(self, successes: int, errors: int, delta: float) -> None:
        assert reflect(batch(successes, errors)).confidence_delta == delta

    @pytest.mark.spec("REAS-4")
    @given(st.integers(0, 30), st.integers(0, 30))
    def test_it_is_bounded_and_monotone(self, successes: int, errors: int) -> None:
        delta = reflect(batch(successes, errors)).confidence_delta
        assert -1 <= delta <= 1
        if successes + errors:
            assert reflect(batch(successes + 1, errors)).confidence_delta >= delta
            assert reflect(batch(successes, errors + 1)).confidence_delta <= delta

    def test_a_call_that_a_hook_cancelled_is_neither_success_nor_error(self, ran: Make) -> None:
        reflection = reflect([ran("stopped", code="cancelled")])
        assert (reflection.confidence_delta, reflection.assessment) == (0.0, "on_track")


class TestConfidence:
    @pytest.mark.spec("REAS-5", "REAS-6", "REAS-7", "OURS-12")
    def test_a_gain_is_damped_once(self, ran: Make) -> None:
        state = AgentState()
        assert state.confidence == 0
        for _ in range(3):
            reflection = reflect([ran()], state)
            assert reflection.confidence_delta == 0.15
            state = REFLECTOR.apply(state, reflection)
        assert state.confidence_history == pytest.approx([0.15, 0.2775, 0.385875])

    @pytest.mark.spec("REAS-5", "REAS-7")
    def test_a_loss_is_never_damped_and_confidence_stays_in_range(self, failed: Make) -> None:
        state = AgentState().with_confidence(0.5)
        state = REFLECTOR.apply(state, reflect([failed()], state))
        assert state.confidence == pytest.approx(0.3)
        assert REFLECTOR.apply(state, reflect([failed(), failed()], state)).confidence == 0

    @pytest.mark.spec("REAS-1", "REAS-5")
    def test_damping_can_be_switched_off(self, ran: Make) -> None:
        reflector, state = Reflector(ReflexionConfig(diminishing_returns=False)), AgentState()
        for _ in range(2):
            state = reflector.apply(state, reflector.reflect(state, [ran()]))
        assert state.confidence == pytest.approx(0.3)

    @pytest.mark.spec("REAS-16")
    @pytest.mark.parametrize(("mode", "reason"), [("auto", "confidence_met"), ("explicit", None)])
    def test_enough_of_it_ends_the_run_only_in_auto_mode(self, ran: Make, mode: CompletionMode, reason: str | None) -> None:
        state = AgentState(confidence_threshold=0.4, completion_mode=mode)
        for _ in range(3):
            state = REFLECTOR.apply(state, reflect([ran()], state))
            assert state.should_terminate() is None
        assert REFLECTOR.apply(state, reflect([ran()], state)).should_terminate() == reason

    def test_the_time_is_stamped_where_it_is_given(self) -> None:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        assert REFLECTOR.apply(AgentState(), reflect([]), now=now).updated_at == now


class TestAssessment:
    @pytest.mark.spec("REAS-8", "REAS-9")
    def test_more_than_a_hundred_characters_are_new_findings(self, ran: Make, failed: Make) -> None:
        assert reflect([ran("x" * 100)]).assessment == "on_track"
        reflection = reflect([ran("x" * 60), ran("y" * 400), failed(), failed(), failed()])
        assert reflection.assessment == "new_findings"
        assert reflection.guidance
        assert reflection.findings == ("x" * 60 + "\n" + "y" * 400)[:200]

    @pytest.mark.spec("REAS-8")
    def test_a_failed_call_brings_no_findings(self, failed: Make) -> None:
        assert reflect([failed("x" * 500)]).assessment == "stuck"

    @pytest.mark.spec("REAS-8")
    @pytest.mark.parametrize(("successes", "errors"), [(0, 0), (1, 0), (3, 2)])
    def test_enough_progress_is_on_track_without_advice(self, successes: int, errors: int) -> None:
        reflection = reflect(batch(successes, errors))
        assert (reflection.assessment, reflection.guidance) == ("on_track", None)

    @pytest.mark.spec("REAS-8")
    @pytest.mark.parametrize(("successes", "errors"), [(0, 1), (1, 2), (4, 4)])
    def test_errors_are_stuck_and_the_last_one_is_cited(self, successes: int, errors: int) -> None:
        reflection = reflect(batch(successes, errors))
        assert reflection.assessment == "stuck"
        assert f"error {errors - 1}" in (reflection.guidance or "")

    @pytest.mark.spec("REAS-8")
    @pytest.mark.parametrize(("successes", "errors"), [(1, 1), (4, 3)])
    def test_little_progress_is_on_track_but_slow(self, successes: int, errors: int) -> None:
        reflection = reflect(batch(successes, errors))
        assert reflection.assessment == "on_track"
        assert "slow" in (reflection.guidance or "")


class TestLoop:
    @pytest.mark.spec("REAS-4", "OURS-12")
    def test_the_third_equal_step_is_a_loop_whatever_it_returned(self, ran: Make) -> None:
        long = "x" * 300
        two, three = (after_steps(*[("search", "a", long)] * times) for times in (2, 3))
        assert reflect([ran(long)], two).assessment == "new_findings"
        reflection = reflect([ran(long)], three)
        assert (reflection.assessment, reflection.confidence_delta) == ("loop_detected", -0.3)
        assert "search" in (reflection.guidance or "")

    @pytest.mark.spec("REAS-12", "STATE-36", "OURS-12", "BUG-26")
    def test_the_same_tool_with_other_arguments_or_results_is_no_loop(self, ran: Make) -> None:
        queries = after_steps(*(("search", f"query {n}", "r") for n in range(6)))
        polling = after_steps(*(("status", "job", f"{n} %") for n in range(6)))
        for state in (queries, polling):
            reflection = reflect([ran()], state)
            assert (reflection.assessment, reflection.confidence_delta) == ("on_track", 0.15)

    @pytest.mark.spec("REAS-13", "STATE-34")
    def test_alternating_steps_are_a_loop_by_the_same_rule(self) -> None:
        state = after_steps(*[("a", 1, "r"), ("b", 1, "r")] * 3)
        reflection = reflect([], state)
        assert (reflection.assessment, reflection.confidence_delta) == ("loop_detected", -0.3)

    @pytest.mark.spec("REAS-3")
    def test_the_threshold_is_the_agents(self) -> None:
        steps = [("a", 1, "r")] * 4
        assert reflect([], after_steps(*steps, tool_loop_threshold=5)).assessment == "on_track"
        assert reflect([], after_steps(*steps[:2], tool_loop_threshold=2)).assessment == "loop_detected"

    @pytest.mark.spec("REAS-12", "STATE-35", "STATE-38")
    def test_it_agrees_with_the_rule_that_stops_runs(self) -> None:
        state = after_steps(*[("read_file", "f", "r")] * 3)
        assert state.find_loop() is None
        assert reflect([], state).assessment == "on_track"


class TestWhenAndWhatIsSaid:
    @pytest.mark.parametrize(("every", "due"), [(1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (3, [3, 6])])
    def test_it_is_due_every_n_iterations(self, every: int, due: list[int]) -> None:
        reflector = Reflector(ReflexionConfig(evaluate_every_n_iterations=every))
        assert [iteration for iteration in range(1, 7) if reflector.is_due(iteration)] == due

    def test_it_is_never_due_when_it_is_switched_off(self) -> None:
        assert not Reflector(ReflexionConfig(enabled=False)).is_due(1)

    def test_planning_agents_are_asked_for_a_new_plan_only_when_it_helps(self, ran: Make, failed: Make) -> None:
        stuck, found = reflect([failed()]), reflect([ran("x" * 150)])
        loop = reflect([], after_steps(*[("a", 1, "r")] * 3))
        for reflection in (stuck, loop):
            assert REFLECTOR.note(reflection, planning=True) == f"{reflection.guidance}\n{REPLAN_REQUEST}"
            assert REFLECTOR.note(reflection) == reflection.guidance
        assert REPLAN_REQUEST not in (REFLECTOR.note(found, planning=True) or "")

    @pytest.mark.spec("REAS-9")
    def test_a_note_on_findings_holds_their_summary(self, ran: Make) -> None:
        note = REFLECTOR.note(reflect([ran("x" * 300)])) or ""
        assert note.endswith("x" * 200)
        assert "x" * 201 not in note

    @pytest.mark.spec("REAS-1")
    def test_nothing_is_said_without_guidance_or_when_notes_are_off(self, ran: Make, failed: Make) -> None:
        assert REFLECTOR.note(reflect([ran()])) is None
        quiet = Reflector(ReflexionConfig(include_guidance=False))
        reflection = quiet.reflect(AgentState(), [failed()])
        assert reflection.guidance
        assert quiet.note(reflection, planning=True) is None

    @pytest.mark.spec("REAS-2")
    def test_no_model_is_called(self, ran: Make) -> None:
        class Untouchable:
            def __getattr__(self, name: str) -> Any:
                raise AssertionError(f"the model was touched: {name}")

        reflector = Reflector(ReflexionConfig(model=Untouchable()))
        assert reflector.reflect(AgentState(), [ran()]).assessment == "on_track"
