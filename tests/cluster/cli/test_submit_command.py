"""What ``umbel submit`` finds out before it speaks to a cluster; jobs themselves are in ``tests/cluster/jobs``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Umbel = Callable[..., Result]
FLEET = "agent: cli_agents:echo\ntasks: tasks.jsonl\n"
NOWHERE = ("--address", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("fleet", "options", "expected"),
    [
        (FLEET, (), "no job server answers at http://127.0.0.1:1"),
        (FLEET.replace("echo", "ecoh"), (), "did you mean 'echo'?"),
        (FLEET.replace("echo", "ecoh"), ("--no-check",), "no job server answers"),
        (FLEET.replace("tasks.jsonl", "nowhere.jsonl"), (), "no such file or folder; check 'tasks'"),
        (FLEET.replace("tasks.jsonl", "'-'"), (), "a job has no standard input"),
        (FLEET + "job: {env_vars: {OPENAI_API_KEY: canary-value}}\n", (), "OPENAI_API_KEY looks like a secret"),
        (FLEET, ("--secret", "OPENAI_API_KEY=canary-value"), "secret OPENAI_API_KEY: expected a reference"),
        (FLEET, ("--secret", "canary-value"), "expected KEY=env:NAME"),
        (FLEET, ("--store", "redis://me:canary-value@host"), "a URL with a password belongs into the file"),
        (FLEET, ("--working-dir", "other"), "fleet.yaml is not in the working directory"),
        (FLEET, ("--working-dir", "nowhere"), "fleet.yaml is not in the working directory"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    umbel: Umbel, workplace: Path, tasks: Path, fleet: str, options: tuple[str, ...], expected: str
) -> None:
    (workplace / "fleet.yaml").write_text(fleet)
    (workplace / "other").mkdir()
    done = umbel("submit", "fleet.yaml", *NOWHERE, *options)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert "canary-value" not in done.output


def test_a_tasks_file_that_is_left_out_is_named(umbel: Umbel, workplace: Path, tasks: Path) -> None:
    (workplace / "fleet.yaml").write_text(FLEET)
    (workplace / ".gitignore").write_text("*.jsonl\n")
    done = umbel("submit", "fleet.yaml", *NOWHERE)
    assert (done.exit_code, "tasks.jsonl, which is left out by .gitignore" in done.stderr) == (2, True)


def test_status_without_a_cluster_looks_into_the_store(umbel: Umbel, workplace: Path) -> None:
    done = umbel("jobs", "status", "triage-1", *NOWHERE)
    assert done.exit_code == 2
    assert "looking into the store only" in done.stderr
    assert "no job is called triage-1" in done.stderr
