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
