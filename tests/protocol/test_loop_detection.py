from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from umbel.protocol import loop_detection
from umbel.protocol.loop_detection import READ_ONLY_TOOLS, find_loop, step_identity
from umbel.protocol.messages import ToolCall, ToolResult
from umbel.protocol.state import AgentState, ReasoningStep

_ids = itertools.count()


def step(*calls: Any) -> ReasoningStep:
    """A step of calls given as (name, argument, result) or (name, argument, result, error)."""
    made, results = [], []
    for name, argument, content, *error in calls:
        call = ToolCall(id=f"c{next(_ids)}", name=name, arguments={"x": argument})
        made.append(call)
        results.append(ToolResult(tool_call_id=call.id, name=name, content=content, error=error[0] if error else None))
    return ReasoningStep(tool_calls=tuple(made), tool_results=tuple(results))


def same(times: int, name: str = "work") -> list[ReasoningStep]:
    return [step((name, 1, "r")) for _ in range(times)]


def cycle(names: str, length: int) -> list[ReasoningStep]:
    return [step((name, 1, "r")) for name in itertools.islice(itertools.cycle(names), length)]


def identity(one: ReasoningStep) -> Any:
    return step_identity(one.tool_calls, one.tool_results)


class TestIdentity:
    @pytest.mark.spec("STATE-33")
    def test_order_and_repetition_within_a_step_do_not_matter(self) -> None:
        a, b = ("a", 1, "r"), ("b", 2, "s")
        assert identity(step(a, b)) == identity(step(b, a)) == identity(step(a, b, a))
        assert identity(step(a)) != identity(step(a, b))

    @pytest.mark.spec("STATE-33")
    def test_arguments_are_compared_as_canonical_json(self) -> None:
        one = step(("a", {"p": 1, "q": [1, {"x": 2, "y": 3}]}, "r"))
        other = step(("a", {"q": [1, {"y": 3, "x": 2}], "p": 1}, "r"))
        assert identity(one) == identity(other)
        assert identity(one) != identity(step(("a", {"p": 1.5}, "r")))
        assert identity(step(("a", 1, "r"))) != identity(step(("a", "1", "r")))

    @pytest.mark.spec("STATE-33", "STATE-36")
    def test_result_and_error_are_part_of_it(self) -> None:
        kinds = [
            step(("a", 1, "r")),
            step(("a", 1, "s")),
            step(("a", 1, "r", "e")),
            step(("a", 1, "", "r")),
            step(("b", 1, "r")),
        ]
        assert len({identity(kind) for kind in kinds}) == len(kinds)

    def test_text_does_not_run_together(self) -> None:
        assert identity(step(("a", 1, "xy", "z"))) != identity(step(("a", 1, "x", "yz")))

    def test_malformed_arguments_count_as_they_were_written(self) -> None:
        one, other = (ToolCall(id="c", name="a", malformed_arguments=text) for text in ('{"x', '{"y'))
        assert step_identity([one], []) != step_identity([other], [])
        assert step_identity([one], []) == step_identity([one], [])

    def test_a_step_without_calls_is_empty(self) -> None:
        assert identity(ReasoningStep(thought="hm")) == ()


class TestFindLoop:
    @pytest.mark.spec("STATE-34", "STATE-35")
    def test_the_third_equal_step_is_a_loop(self) -> None:
        assert find_loop(same(2)) is None
        loop = find_loop(same(3))
        assert loop is not None
        assert (loop.period, loop.repeats, loop.threshold, loop.tools) == (1, 3, 3, ("work",))

    @pytest.mark.spec("STATE-38")
    def test_one_more_is_past_the_warning(self) -> None:
        third, fourth = find_loop(same(3)), find_loop(same(4))
        assert third is not None
        assert fourth is not None
        assert (third.past_warning, fourth.past_warning) == (False, True)

    @pytest.mark.spec("STATE-34")
    @pytest.mark.parametrize(("names", "period"), [("ab", 2), ("abc", 3), ("aab", 3)])
    def test_cycles_of_two_and_three(self, names: str, period: int) -> None:
        assert find_loop(cycle(names, 3 * period - 1)) is None
        loop = find_loop(cycle(names, 3 * period))
        if names == "aab":  # its steps are not distinct
            assert loop is None
        else:
            assert loop is not None
            assert (loop.period, loop.repeats, loop.tools) == (period, 3, tuple(names))

    @pytest.mark.spec("STATE-34")
    def test_cycles_of_four_are_not_looked_for(self) -> None:
        assert find_loop(cycle("abcd", 40)) is None

    @pytest.mark.spec("STATE-34")
    def test_the_shortest_period_wins(self) -> None:
        loop = find_loop(same(12))
        assert loop is not None
        assert (loop.period, loop.repeats) == (1, 12)

    @pytest.mark.spec("STATE-34")
    def test_only_what_ends_at_the_newest_step_counts(self) -> None:
        assert find_loop([*same(9), step(("other", 1, "r"))]) is None

    @pytest.mark.spec("STATE-35")
    def test_reading_the_same_needs_one_more(self) -> None:
        assert {"read_file", "grep", "ls", "todo_read"} < READ_ONLY_TOOLS
        assert len(READ_ONLY_TOOLS) == 13
        assert find_loop(same(3, "read_file"), 3, None, READ_ONLY_TOOLS) is None
        assert find_loop(same(4, "read_file"), 3, None, READ_ONLY_TOOLS) is not None
        assert find_loop(same(3, "read_file"), 3, 3, READ_ONLY_TOOLS) is not None
        assert find_loop(same(5, "read_file"), 3, 6, READ_ONLY_TOOLS) is None
        mixed = [step(("read_file", 1, "r"), ("write", 1, "r")) for _ in range(3)]
        assert find_loop(mixed, 3, None, READ_ONLY_TOOLS) is not None

    def test_a_read_only_threshold_below_the_other_works_too(self) -> None:
        assert find_loop(same(2, "ls"), 5, 2, READ_ONLY_TOOLS) is not None
        assert find_loop(same(4, "write"), 5, 2, READ_ONLY_TOOLS) is None

    @pytest.mark.spec("STATE-36")
    @pytest.mark.parametrize(
        "other",
        [
            step(("work", 2, "r")),
            step(("work", 1, "new")),
            step(("work", 1, "r", "broke")),
            step(("work", 1, "r"), ("more", 1, "r")),
            ReasoningStep(thought="hm"),
        ],
    )
    def test_anything_else_breaks_the_streak(self, other: ReasoningStep) -> None:
        assert find_loop([*same(2), other, *same(2)]) is None
        assert find_loop([*same(2), other]) is None
        assert find_loop([*same(2), other, *same(3)]) is not None

    @pytest.mark.spec("STATE-36")
    def test_steps_without_calls_are_no_loop(self) -> None:
        assert find_loop([ReasoningStep(thought="hm")] * 9) is None

    @pytest.mark.spec("STATE-37")
    @pytest.mark.parametrize("names", ["ab", "abc"])
    def test_a_cycle_has_one_signature_wherever_it_is_seen_from(self, names: str) -> None:
        steps = cycle(names, 20)
        signatures = {loop.signature for end in range(len(steps)) if (loop := find_loop(steps[:end])) is not None}
        assert len(signatures) == 1
        reverse = find_loop(cycle(names[::-1], 12))
        assert reverse is not None
        assert (reverse.signature in signatures) == (len(names) == 2)

    @pytest.mark.spec("STATE-39")
    def test_a_reused_result_is_the_same_step(self) -> None:
        call = ToolCall(id="c1", name="pay", arguments={})
        first = ReasoningStep(
            tool_calls=(call,), tool_results=(ToolResult(tool_call_id="c1", name="pay", content="ok", duration_ms=9),)
        )
        again = call.evolve(id="c2")
        hit = ReasoningStep(tool_calls=(again,), tool_results=(ToolResult(tool_call_id="c2", name="pay", content="ok"),))
        assert find_loop([first, hit, hit]) is not None

    def test_it_can_be_shown(self) -> None:
        loop = find_loop(same(3))
        assert loop is not None
        assert loop.to_dict() == {"signature": loop.signature, "period": 1, "repeats": 3, "threshold": 3, "tools": ["work"]}

    def test_nothing_is_digested_unless_a_loop_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def never(texts: Any) -> str:
            raise AssertionError

        monkeypatch.setattr(loop_detection, "_hash", never)
        steps = [step(("work", number, "r" * 1000)) for number in range(50)]
        assert find_loop(steps) is None

    @given(st.lists(st.sampled_from("ab"), max_size=14), st.integers(2, 4))
    def test_it_agrees_with_the_definition(self, names: list[str], threshold: int) -> None:
        loop = find_loop([step((name, 1, "r")) for name in names], threshold)
        expected = None
        for period in (1, 2, 3):
            unit, repeats = names[-period:], 0
            while len(unit) == period and names[len(names) - (repeats + 1) * period : len(names) - repeats * period] == unit:
                repeats += 1
            if repeats >= threshold and len(set(unit)) == period:
                expected = (period, repeats)
                break
        assert expected == (None if loop is None else (loop.period, loop.repeats))


def test_the_state_uses_the_same_rule() -> None:
    state = AgentState()
    for one in same(3):
        state = state.with_reasoning_step(one)
    assert state.find_loop() == find_loop(state.reasoning_steps)
