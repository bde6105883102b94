"""A completion after writes that nobody checked."""

from __future__ import annotations

import pytest

from umbel.actors.tools.verification import (
    REMINDER,
    UNVERIFIED,
    blocked,
    unverified_writes,
    wrote,
)
from umbel.protocol.config import VERIFICATION_TOOLS, WRITE_TOOLS
from umbel.protocol.messages import Message, ToolCall
from umbel.protocol.state import ToolExecution


def ran(name: str, error: str | None = None, code: str | None = None, cached: bool = False) -> ToolExecution:
    return ToolExecution(tool_name=name, tool_call_id="c", error=error, code=code, idempotent_cache_hit=cached)


@pytest.mark.spec("TOOL-33")
def test_the_default_names() -> None:
    assert frozenset({"write_file", "write", "save", "create_file", "update_file"}) == WRITE_TOOLS
    assert frozenset({"run_command", "run_tests", "run", "execute", "pytest", "test"}) == VERIFICATION_TOOLS


@pytest.mark.spec("TOOL-32", "TOOL-33")
@pytest.mark.parametrize(
    ("executions", "pending"),
    [
        ([], False),
        ([ran("read_file")], False),
        ([ran("write_file")], True),
        ([ran("write_file"), ran("run_tests")], False),
        ([ran("run_tests"), ran("write_file")], True),
        ([ran("write_file"), ran("run_tests"), ran("save")], True),
        ([ran("write_file"), ran("read_file")], True),
        ([ran("write", error="disk full")], True),
        ([ran("write", code="cancelled")], True),
        ([ran("write"), ran("pytest", error="1 failed", code="tool_reported")], False),
        ([ran("write"), ran("pytest", error="no such tool", code="unknown_tool")], True),
        ([ran("write"), ran("pytest", error="stopped", code="cancelled")], True),
        ([ran("write"), ran("pytest", cached=True)], True),
        ([ran("write"), ran("task_complete", error="BLOCKED", code=UNVERIFIED)], False),
        ([ran("write"), ran("task_complete", error="BLOCKED", code=UNVERIFIED), ran("write")], True),
    ],
)
def test_pending(executions: list[ToolExecution], pending: bool) -> None:
    assert unverified_writes(executions) is pending


@pytest.mark.spec("TOOL-33")
def test_other_names() -> None:
    names = {"write_tools": {"deploy"}, "verification_tools": {"smoke"}}
    assert not unverified_writes([ran("write_file")], **names)
    assert unverified_writes([ran("deploy"), ran("run_tests")], **names)
    assert not unverified_writes([ran("deploy"), ran("smoke")], **names)
    assert unverified_writes([ran("run")], write_tools={"run"}), "a tool that does both must be checked by another"


def test_a_batch_with_a_write_is_due_a_reminder() -> None:
    assert wrote([ran("read_file"), ran("save", error="failed")])
    assert not wrote([ran("read_file"), ran("run_tests")])
    assert not wrote([ran("save")], write_tools=())
    assert "erify" in REMINDER


@pytest.mark.spec("TOOL-32")
def test_a_blocked_completion_is_an_error_that_says_what_to_do() -> None:
    result = blocked(ToolCall(id="c1", name="task_complete"), {"smoke", "check"})
    assert (result.success, result.code, result.tool_call_id, result.name) == (False, UNVERIFIED, "c1", "task_complete")
    shown = Message.tool(result).content or ""
    assert "BLOCKED" in shown and "check, smoke" in shown
