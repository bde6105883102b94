from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from umbel.cluster.fleet import Budget, Fleet, FleetSpec, Hedge, Retries
from umbel.cluster.fleet.durations import read_count, read_deadline, read_seconds
from umbel.protocol.errors import ConfigurationError

FULL = """
name: triage
agent: my_agents:support
tasks: {path: tickets.csv, id: key, prompt: question}
out: [results.jsonl, more/results.parquet]
concurrency: 200
timeout: 90s
retries: {default: 1, rate_limit: 10, context_overflow: 0}
deadline: 2h
budget: {tokens: 1e6, cost_usd: 20, seconds: 2h}
priority: metadata.urgency
hedge: {after: p90, limit: 0.1}
quarantine: quarantine.jsonl
limits: {openai: {requests_per_minute: 600}}
topology: {agents: 2}
secrets: {OPENAI_API_KEY: env:OPENAI_API_KEY}
store: redis://user:hidden@localhost:6379
job: {working_dir: ., env_vars: {TOKEN: hidden}}
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "nightly.yaml"
        path.write_text(text)
        return path

    return write


def test_a_file_says_everything_and_options_win(write: Any, tmp_path: Path) -> None:
    spec = FleetSpec.read(write(FULL), concurrency=7, out="here.jsonl", timeout=None)
    assert (spec.name, spec.agent, spec.concurrency, spec.timeout, spec.deadline) == (
        "triage",
        "my_agents:support",
        7,
        90,
        7200,
    )
    assert (spec.tasks.path, spec.tasks.id, spec.tasks.prompt) == (str(tmp_path / "tickets.csv"), "key", "question")
    assert spec.out == ("here.jsonl",)
    assert spec.quarantine == str(tmp_path / "quarantine.jsonl")
    assert spec.budget == Budget(tokens=1_000_000, cost_usd=20, seconds=7200)
    assert spec.retries == Retries(1, {"rate_limit": 10, "context_overflow": 0})
    assert spec.hedge == Hedge(after="p90", factor=1.5, limit=0.1)
    assert spec.topology is not None and spec.topology.agents == 2


def test_a_file_needs_little(write: Any, tmp_path: Path) -> None:
    spec = FleetSpec.read(write("agent: m:a\ntasks: tasks.jsonl\nout: r.jsonl"))
    assert (spec.name, spec.concurrency, spec.out) == ("nightly", 100, (str(tmp_path / "r.jsonl"),))
    assert FleetSpec.read({"agent": "m:a", "tasks": "t.jsonl"}).name is None


def test_what_is_recorded_holds_no_secrets(write: Any) -> None:
    record = FleetSpec.read(write(FULL)).record()
    assert "hidden" not in str(record) and "secrets" not in record
    assert (record["store"], record["budget"]["tokens"]) == ("redis://localhost:6379", 1_000_000)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("concurency: 5", "nightly.yaml:4: field 'concurency': there is no such field; did you mean 'concurrency'?"),
        ("budget: {token: 5}", "nightly.yaml:4: field 'budget.token': there is no such field; did you mean 'tokens'?"),
        (
            "budget:\n  cost_usd: 1\n  tokens: many",
            "nightly.yaml:6: field 'budget.tokens': expected a whole number, found 'many'",
        ),
        ("timeout: soon", "nightly.yaml:4: field 'timeout': expected seconds, or a duration like 90s"),
        ("timeout: 0", "nightly.yaml:4: field 'timeout': Input should be greater than 0, found 0"),
        ("retries: {rate_limits: 3}", "field 'retries': no error has the code 'rate_limits'; did you mean 'rate_limit'?"),
        ("priority: urgency", "field 'priority': expected a number, or a field like metadata.priority, found 'urgency'"),
        ("hedge: {after: p100}", "field 'hedge.after': expected a percentile like p95, or a duration like 30s, found 'p100'"),
        ("deadline: 2026-12-01", "field 'deadline': expected a time of day, too, like 2026-12-01T18:00"),
        ("limits: {openai: {rpm: 6}}", "field 'limits': openai: no limit is called 'rpm'; there are requests_per_minute"),
        ("runtime: here", "field 'runtime': Input should be 'auto', 'inline' or 'local', found 'here'"),
        ("out: a.jsonl\nout: b.jsonl", "nightly.yaml:5: field 'out' is there twice, also in line 4; remove one"),
        ("out: [a", "not YAML"),
        (
            "secrets: {KEY: sk-123}",
            "field 'secrets.KEY': expected a reference, env:NAME or file:/path, never the secret itself",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_line_and_what_to_do(write: Any, change: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FleetSpec.read(write(f"# a fleet\nagent: m:a\ntasks: tasks.jsonl\n{change}\n"))
    assert expected in caught.value.message
    assert "sk-123" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tasks: t.jsonl", "field 'agent': missing; write for example 'agent: my_agents:support'"),
        ("agent: m\ntasks: t.jsonl", "nightly.yaml:1: field 'agent': expected module:name"),
        ("agent: m:a\ntasks: {glob: '*.md'}", "nightly.yaml:2: field 'tasks': expected one of path"),
        ("- agent", "expected fields like 'agent: my_agents:support', found list"),
    ],
)
def test_what_must_be_there_is_asked_for(write: Any, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FleetSpec.read(write(text))
    assert expected in caught.value.message


def test_every_wrong_field_is_told_at_once(write: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FleetSpec.read(write("agent: m:a\ntasks: t.jsonl\nconcurrency: 0\ntimeout: x\n"))
    assert [line.split(": ")[0].rpartition(":")[2] for line in caught.value.message.splitlines()] == ["3", "4"]


@pytest.mark.parametrize(
    ("value", "seconds"), [(90, 90), ("90", 90), ("90s", 90), ("1h30m", 5400), ("2 h", 7200), ("500ms", 0.5), ("1.5d", 129600)]
)
def test_durations(value: Any, seconds: float) -> None:
    assert read_seconds(value) == seconds


@pytest.mark.parametrize("value", ["", "h", "5x", "1h30", None, True, [1]])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="expected seconds, or a duration"):
        read_seconds(value)


def test_counts_and_deadlines() -> None:
    assert [read_count(value) for value in (5, "1e6", "1_000", 2.0)] == [5, 1_000_000, 1_000, 2]
    for wrong in (2.5, "x", True, None):
        with pytest.raises(ValueError, match="expected a whole number"):
            read_count(wrong)
    assert read_deadline("2026-12-01T18:00:00+01:00") == datetime(2026, 12, 1, 17, tzinfo=UTC)
    assert read_deadline("2h") == 7200
    with pytest.raises(ValueError, match="more than 0"):
        read_deadline(0)


async def test_a_fleet_is_made_from_a_file(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spec_agents.py").write_text(
        "from types import SimpleNamespace\n"
        "class Echo:\n"
        "    async def arun(self, prompt, **options):\n"
        "        said = {'message': prompt.upper(), 'success': True, 'stop_reason': 'complete'}\n"
        "        return SimpleNamespace(**said, metrics=None, error=None)\n"
        "echo = Echo()\n"
    )
    (tmp_path / "tasks.csv").write_text("key,question\n7,why\n8,how\n9,who\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write("agent: spec_agents:echo\ntasks: {path: tasks.csv, id: key, prompt: question}\nout: r.jsonl\nlimit: 2\n")
    fleet = Fleet.from_spec(path)
    plan = await fleet.plan()
    assert (plan.total, plan.first, plan.problems) == (2, ("7", "8"), ())
    assert not (tmp_path / "r.jsonl").exists()
    report = await fleet.run()
    assert (report.ok, report.out) == (2, str(tmp_path / "r.jsonl"))
    assert [line.split(",")[0] for line in (tmp_path / "r.jsonl").read_text().splitlines()] == ['{"id":"7"', '{"id":"8"']
