from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from umbel import Fleet

Umbel = Callable[..., Result]


@pytest.fixture
def fleets(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a named fleet of echoing agents in the default store."""
    monkeypatch.syspath_prepend(str(workplace))
    echo: Any = importlib.import_module("cli_agents").echo

    def run(name: str, *prompts: str, resume: bool = False) -> None:
        tasks = [{"id": f"t{n}", "prompt": prompt} for n, prompt in enumerate(prompts)]
        asyncio.run(Fleet(echo, name=name, retries=0).run(tasks, resume=resume))

    return run


def test_status_lists_fleets_and_shows_one(umbel: Umbel, fleets: Callable[..., None]) -> None:
    fleets("good", "a", "b")
    fleets("bad", "a", "fail", "raise")
    listed = json.loads(umbel("fleet", "status", "--json").stdout)["fleets"]
    assert [(each["name"], each["state"], each["done"]) for each in listed] == [("bad", "finished", 3), ("good", "finished", 2)]
    shown = umbel("fleet", "status", "bad", "--watch")
    assert shown.exit_code == 0
    assert "finished" in shown.stdout and "2 failed" in shown.stdout and "3" in shown.stdout
    missing = umbel("fleet", "status", "goood")
    assert missing.exit_code == 2
    assert "there is good" in missing.stderr


def test_report_of_a_fleet_and_of_the_file_it_exported(umbel: Umbel, fleets: Callable[..., None], workplace: Path) -> None:
    fleets("triage", *["fine"] * 8, "raise", "fail")
    told = umbel("fleet", "report", "triage", "--export", "out.jsonl")
    assert told.exit_code == 0, told.stderr
    assert "triage: 10 tasks, 8 ok, 2 failed; 45 tokens" in told.stdout
    assert "finished, 1 session" in told.stdout
    assert "1 failed: ValueError: no luck\n      for example t8" in told.stdout
    facts = json.loads(umbel("fleet", "report", "out.jsonl", "--json").stdout)
    assert (facts["total"], facts["counts"], facts["fleet"]) == (10, {"ok": 8, "failed": 2}, None)
    assert {error["examples"][0] for error in facts["errors"]} == {"t8", "t9"}
    assert umbel("fleet", "report", "out.jsonl", "--export", "again.jsonl").exit_code == 2
    assert umbel("fleet", "report", "nowhere.jsonl").exit_code == 2


def test_diff_says_what_changed_and_exits_with_1(umbel: Umbel, fleets: Callable[..., None]) -> None:
    fleets("before", "a", "b", "fail")
    fleets("after", "a", "c", "mended", "more")
    same = umbel("fleet", "diff", "before", "before")
    assert (same.exit_code, same.stdout.splitlines()[0]) == (0, "3 the same; changed: nothing")
    done = umbel("fleet", "diff", "before", "after")
    assert done.exit_code == 1
    assert "1 the same; changed: 1 status, 1 answer, 1 added" in done.stdout
    assert "status t2: failed -> ok" in done.stdout
    changes = json.loads(umbel("fleet", "diff", "before", "after", "--json").stdout)["changes"]
    assert {(change["id"], change["kind"]) for change in changes} == {("t2", "status"), ("t1", "answer"), ("t3", "added")}


def test_rm_deletes_a_fleet(umbel: Umbel, fleets: Callable[..., None]) -> None:
    fleets("old", "a")
    assert umbel("fleet", "rm", "old").stdout == "old: deleted\n"
    again = umbel("fleet", "rm", "old", "--json")
    assert (again.exit_code, json.loads(again.stdout)) == (1, {"deleted": {"old": False}})


MENDED = """
from types import SimpleNamespace


class Mended:
    async def arun(self, prompt, **options):
        metrics = SimpleNamespace(total_tokens=1, cost_usd=None)
        return SimpleNamespace(message="mended", success=True, stop_reason="complete", metrics=metrics, error=None)


mended = Mended()
"""


def test_retry_failed_runs_what_is_not_ok_and_nothing_else(umbel: Umbel, workplace: Path) -> None:
    (workplace / "cli_mended.py").write_text(MENDED)
    prompts = ["fine", "raise", "fail", "fine", "raise"]
    lines = [json.dumps({"id": f"t{n}", "prompt": prompt}) + "\n" for n, prompt in enumerate(prompts)]
    (workplace / "tasks.jsonl").write_text("".join(lines))
    (workplace / "triage.yaml").write_text("agent: cli_agents:echo\ntasks: tasks.jsonl\nruntime: inline\nretries: 0\n")
    assert umbel("fleet", "run", "triage.yaml", "-q").exit_code == 1
    (workplace / "cli_agents.py").write_text(MENDED.replace("mended = ", "echo = "))
    options = ("--agent", "cli_mended:mended", "--runtime", "inline", "--json")
    first = umbel("fleet", "retry-failed", "triage", "--error", "no luck", *options)
    assert (first.exit_code, json.loads(first.stdout)["total"]) == (0, 2), first.output
    facts = json.loads(umbel("fleet", "report", "triage", "--json").stdout)
    assert facts["counts"] == {"ok": 4, "failed": 1}
    assert umbel("fleet", "report", "triage", "--export", "results.jsonl").exit_code == 0
    without = umbel("fleet", "retry-failed", "results.jsonl", *options)
    assert (without.exit_code, "give --tasks and --agent" in without.stderr) == (2, True)
    second = umbel("fleet", "retry-failed", "results.jsonl", "--tasks", "tasks.jsonl", *options)
    assert (second.exit_code, json.loads(second.stdout)["total"]) == (0, 1), second.output
    answers = [json.loads(line) for line in (workplace / "results.jsonl").read_text().splitlines()]
    assert sorted((line["id"], line["message"]) for line in answers) == [
        ("t0", "FINE"), ("t1", "mended"), ("t2", "mended"), ("t3", "FINE"), ("t4", "mended"),
    ]  # fmt: skip
    nothing = umbel("fleet", "retry-failed", "results.jsonl", "--tasks", "tasks.jsonl", *options)
    assert (nothing.exit_code, "nothing of results.jsonl is to be retried" in nothing.stderr) == (0, True)
    assert umbel("fleet", "retry-failed", "triage", "--status", "ok").exit_code == 2
    assert umbel("fleet", "retry-failed", "triage", "--error", "(").exit_code == 2
