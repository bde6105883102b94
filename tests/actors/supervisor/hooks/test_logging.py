from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import cloudpickle
import pytest

from umbel.actors.supervisor.hooks import Hook, LoggingHook, StructuredLoggingHook
from umbel.testing import text, tool_call

from .tiny_loop import START, TinyLoop


def later() -> Any:
    return START + timedelta(seconds=2.5)


def fail(path: str) -> str:
    raise ValueError("no such file")


async def course(hook: Hook, prompt: str = "read it") -> None:
    replies = [tool_call("read", path="/private/a", depth=2), tool_call("fail", path="/b"), text("done")]
    await TinyLoop([hook], replies, read=lambda path, depth: "secret content " * 20, fail=fail).run(prompt)


@pytest.mark.spec("HOOK-32")
async def test_it_tells_a_runs_course_without_values(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "umbel.agent")
    await course(LoggingHook(clock=later))
    lines = [record.getMessage() for record in caplog.records if record.name == "umbel.agent"]
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert lines[0] == "run r1 started: read it"
    assert lines[1] == "run r1 iteration 0 started"
    assert lines[2].startswith("run r1 tool read started (") and lines[2].endswith("): ['depth', 'path']")
    assert lines[3].startswith("run r1 tool read ended (")
    assert any(line.startswith("run r1 tool fail failed (") for line in lines)
    assert lines[-1] == "run r1 completed: iterations=3, confidence=0.0, tool_calls=2, errors=0, duration_s=2.5"
    assert "/private/a" not in caplog.text and "secret content" not in caplog.text


@pytest.mark.spec("HOOK-32")
async def test_values_and_previews_are_written_on_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "umbel.agent")
    await course(LoggingHook(level=logging.DEBUG, log_arguments=True, log_results=True), "p" * 300)
    assert f"started: {'p' * 100}...\n" in f"{caplog.text}\n" and "p" * 101 not in caplog.text
    assert "/private/a" in caplog.text
    (result,) = [line for line in caplog.text.splitlines() if "tool read ended" in line]
    shown = result.rpartition("): ")[2]
    assert shown.startswith("secret content") and len(shown) == 203


async def test_a_failed_run_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "umbel.agent")
    with pytest.raises(ValueError, match="down"):
        await TinyLoop([LoggingHook(clock=later)], [ValueError("down")]).run("go")
    assert "run r1 failed: iterations=1" in caplog.text and "errors=1" in caplog.text


@pytest.mark.spec("HOOK-33")
async def test_structured_records_are_dictionaries(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "umbel.agent.structured")
    await course(StructuredLoggingHook(clock=later))
    records: list[Any] = [record.msg for record in caplog.records if record.name == "umbel.agent.structured"]
    slugs = [record["event"] for record in records]
    rounds = ["iteration_start", "tool_start", "tool_end", "iteration_end"]
    assert slugs == ["invocation_start", *rounds, *rounds, "iteration_start", "iteration_end", "invocation_end"]
    assert {record["run_id"] for record in records} == {"r1"}
    assert {record["timestamp"] for record in records} == {"2026-01-02T03:04:07.500000+00:00"}
    assert [record["success"] for record in records if record["event"] == "tool_end"] == [True, False]
    assert records[-1]["duration_s"] == 2.5 and records[-1]["iterations"] == 3
    assert not any(key in record for record in records for key in ("arguments", "result", "prompt"))
    assert "/private/a" not in repr(records) and "secret content" not in repr(records)


@pytest.mark.spec("HOOK-33")
async def test_timestamps_are_optional(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "umbel.agent.structured")
    await course(StructuredLoggingHook(timestamps=False))
    messages: list[Any] = [record.msg for record in caplog.records]
    assert messages and not any("timestamp" in message for message in messages)


@pytest.mark.parametrize("hook", [LoggingHook(log_results=True), StructuredLoggingHook(timestamps=False)])
def test_they_travel(hook: Hook) -> None:
    assert vars(cloudpickle.loads(cloudpickle.dumps(hook))) == vars(hook)
