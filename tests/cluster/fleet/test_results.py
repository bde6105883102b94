from __future__ import annotations

import json
from typing import Any

import pytest

from umbel.cluster.fleet.results import FleetReport, TaskResult, describe_error, one_line, resume_advice
from umbel.protocol.errors import RunLost


@pytest.mark.parametrize(
    "text",
    [
        "401: Authorization: Bearer hunter2-hunter2",
        "header Authorization: Basic hunter2hunter2==",
        "OPENAI_API_KEY=hunter2hunter2 was refused",
        '{"api_key": "hunter2hunter2"}',
        "cannot reach postgres://bob:hunter2@db/x",
        "https://api.example.com/v1?key=1&access_token=hunter2",
        "invalid key sk-hunter2hunter2hunter2",
        "password: hunter2",
    ],
)
def test_secrets_stay_out_of_error_lines(text: Any) -> None:
    line = one_line(text)
    assert "hunter2" not in line
    assert "[REDACTED]" in line or "..." in line


def test_ordinary_text_is_kept() -> None:
    text = "ValueError: the token count 5 at line 3 of /tmp/file.py is wrong; 3 tokens, basic idea"
    assert one_line(text) == text


def test_an_error_is_one_short_line() -> None:
    assert one_line("a\n  b\r\n\tc") == "a b c"
    assert len(one_line("x" * 10_000_000)) == 500


def test_errors_in_all_their_forms() -> None:
    assert describe_error(None) is None
    assert describe_error(RunLost("gone")) == "run_lost: gone"
    assert describe_error(ValueError("no\ngood")) == "ValueError: no good"
    assert describe_error({"code": "run_lost", "message": "gone"}) == "run_lost: gone"
    assert describe_error(RunLost("gone").to_wire()) == "run_lost: gone"
    assert describe_error("just text") == "just text"


def test_exit_codes() -> None:
    assert FleetReport(total=2, ok=2).exit_code == 0
    assert FleetReport().exit_code == 0
    assert FleetReport(total=2, ok=1, failed=1).exit_code == 1
    assert FleetReport(total=1, ok=0, invalid=1).exit_code == 1
    assert FleetReport(total=1, ok=1, stopped="SIGINT").exit_code == 130
    assert FleetReport(stopped="SIGTERM").exit_code == 143
    assert FleetReport(stopped="cancelled").exit_code == 1


def test_the_report_as_json_has_the_exit_code_and_not_the_results() -> None:
    report = FleetReport(total=1, ok=1, results=(TaskResult(id="a", status="ok"),), failures=())
    record = json.loads(report.to_json())
    assert record["exit_code"] == 0
    assert "results" not in record


def test_advice_after_a_stop_names_the_file() -> None:
    assert "results.jsonl" in resume_advice(FleetReport(total=5, cancelled=2, out="results.jsonl", stopped="SIGINT"))
    assert "3 tasks (2 cancelled)" in resume_advice(FleetReport(total=5, cancelled=2, stopped="SIGINT"))
