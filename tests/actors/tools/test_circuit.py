"""A tool that keeps failing is left alone."""

from __future__ import annotations

import pytest

from umbel.actors.tools.circuit import OPEN, open_circuits, short_circuited
from umbel.protocol.messages import ToolCall
from umbel.protocol.state import ToolExecution


def history(*steps: str) -> list[ToolExecution]:
    """``"name"`` succeeded, ``"name:code"`` failed."""
    parts = [step.partition(":") for step in steps]
    return [
        ToolExecution(tool_name=name, tool_call_id="c", error="failed" if code else None, code=code or None)
        for name, _, code in parts
    ]


@pytest.mark.spec("TOOL-21")
@pytest.mark.parametrize(
    ("steps", "opened"),
    [
        ([], set()),
        (["a:tool", "a:tool"], set()),
        (["a:tool", "a:tool_timeout", "a:tool_crashed"], {"a"}),
        (["a:tool", "a:tool", "a", "a:tool"], set()),
        (["a:tool", "b", "a:tool", "b:tool", "a:tool"], {"a"}),
        (["a:tool"] * 4 + ["b:tool"] * 3, {"a", "b"}),
        (["a:invalid_arguments"] * 5, set()),
        (["a:tool", "a:invalid_arguments", "a:tool", "a:cancelled", "a:tool"], {"a"}),
        (["a:tool"] * 3 + [f"a:{OPEN}"] * 2, {"a"}),
    ],
)
def test_three_failures_in_a_row_open_it(steps: list[str], opened: set[str]) -> None:
    assert open_circuits(history(*steps)) == opened


@pytest.mark.spec("TOOL-21")
def test_the_threshold_and_the_answer() -> None:
    assert open_circuits(history("a:tool"), threshold=1) == {"a"}
    result = short_circuited(ToolCall(id="c1", name="a"), 1)
    assert (result.tool_call_id, result.code, result.success) == ("c1", OPEN, False)
    assert "failed 1 times in a row" in (result.error or "")
