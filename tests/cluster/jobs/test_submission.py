from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from umbel.cluster.fleet.record import FleetRecord
from umbel.cluster.job_context import JOB_CONFIG, current_job_id
from umbel.cluster.jobs import submission as module
from umbel.cluster.jobs.environment import looks_secret
from umbel.cluster.jobs.outcome import standing_of
from umbel.cluster.jobs.server import JobServer
from umbel.cluster.jobs.submission import Submission, entrypoint, is_local, next_id, runtime_environment, submit
from umbel.protocol.errors import ConfigurationError


class Server:
    """Ray's job table as a list; ``taken`` are ids that somebody else submitted in between."""

    def __init__(self, *taken: str) -> None:
        self.address, self.version = "http://10.0.0.1:8265", "2.60.0"
        self.table: list[Any] = []
        self.taken = set(taken)

    def jobs(self) -> list[Any]:
        return list(self.table)

    def submit(self, **job: Any) -> bool:
        if job["submission_id"] in self.taken:
            return False
        status = SimpleNamespace(value="RUNNING")
        self.table.insert(
            0, SimpleNamespace(submission_id=job["submission_id"], status=status, metadata=job["metadata"], job=job)
        )
        return True


def fleet(folder: Path, **fields: Any) -> Submission:
    return Submission(
        **{"name": "triage", "arguments": ("fleet", "run", "f.yaml"), "working_dir": folder, "ship": False, **fields}
    )


def test_a_fleet_that_runs_is_not_submitted_again_and_one_that_was_stopped_is(tmp_path: Path) -> None:
    server: Any = Server()
    first = submit(server, fleet(tmp_path))
    assert (first.job_id, first.new) == ("triage-1", True)
    assert submit(server, fleet(tmp_path)) == replace(first, new=False)
    with pytest.raises(
        ConfigurationError, match="runs already as job triage-1, with other settings: 'umbel jobs stop triage-1'"
    ):
        submit(server, fleet(tmp_path, arguments=("fleet", "run", "f.yaml", "--limit", "3")))
    server.table[0].status.value = "STOPPED"
    assert submit(server, fleet(tmp_path)).job_id == "triage-2"


def test_of_two_that_submit_at_once_one_wins(tmp_path: Path) -> None:
    server: Any = Server("triage-1")
    done = submit(server, fleet(tmp_path))
    assert (done.job_id, done.new) == ("triage-1", False)


@pytest.mark.parametrize(
    ("name", "taken", "expected"),
    [
        ("a", [], "a-1"),
        ("a", ["a-1", "a-9", "b-20", "a-x"], "a-10"),
        ("my fleet/1", [], "my-fleet-1-1"),
        ("...", [], "fleet-1"),
    ],
)
def test_ids(name: str, taken: list[str], expected: str) -> None:
    assert next_id(name, taken) == expected


def test_the_command_is_quoted_and_replaces_its_shell(tmp_path: Path) -> None:
    arguments = ("fleet", "run", "my fleet.yaml", "--name", "$(reboot)")
    assert entrypoint(fleet(tmp_path, arguments=arguments), "python") == (
        "exec python -m umbel fleet run 'my fleet.yaml' --name '$(reboot)'"
    )


def test_the_environment_has_references_and_the_time_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    given = fleet(tmp_path, secrets={"OPENAI_API_KEY": "file:/run/openai"}, grace=12.5, pip=("httpx",), ship=True)
    environment = runtime_environment(given, tmp_path, local=False)
    assert json.loads(environment["env_vars"].pop("UMBEL_SECRETS")) == {"OPENAI_API_KEY": "file:/run/openai"}
    assert environment["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "18"}
    assert environment["py_modules"] == [str(tmp_path / "umbel")]
    assert environment["pip"] == ["httpx"]
    here = runtime_environment(fleet(tmp_path), tmp_path, local=True)
    assert here["env_vars"]["UMBEL_HOME"] == str(tmp_path / "home")


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("OPENAI_API_KEY", "abcdefgh", True),
        ("GITHUB_TOKEN", "abcdefgh", True),
        ("DB_PASSWORD", "hunter", True),
        ("DATABASE", "postgres://me:secret@host/db", True),
        ("ANYTHING", "sk-abcdefghijklmnop", True),
        ("OPENAI_API_KEY_FILE", "/run/secrets/openai", False),
        ("MAX_TOKEN", "4000", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("MODE", "fast", False),
        ("DATA", "/home/me/data", False),
    ],
)
def test_secrets_are_told_by_name_or_value(name: str, value: str, secret: bool) -> None:
    assert looks_secret(name, value) is secret


def test_secrets_in_the_environment_are_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"OPENAI_API_KEY looks like a secret.*--secret OPENAI_API_KEY=env") as caught:
        submit(Server(), fleet(tmp_path, env_vars={"OPENAI_API_KEY": "canary"}))  # type: ignore[arg-type]
    assert "canary" not in str(caught.value)


def test_the_store_is_in_the_metadata_unless_it_has_a_password(tmp_path: Path) -> None:
    server: Any = Server()
    submit(server, fleet(tmp_path, store="redis://store:6379"))
    submit(server, fleet(tmp_path, name="other", store="redis://me:canary@store:6379"))
    assert [job.metadata[module.STORE] for job in server.table] == ["", "redis://store:6379"]


@pytest.mark.parametrize(
    ("record", "ray", "expected", "exit_code"),
    [
        ({"state": "finished", "exit_code": 1}, "FAILED", "finished", 1),
        ({"state": "stopped", "exit_code": 143}, "STOPPED", "stopped", 143),
        ({"state": "running", "owner": "somebody"}, "RUNNING", "running", None),
        ({"state": "running", "owner": "somebody"}, "FAILED", "lost", 1),  # killed: the lease has not ended yet
        ({"state": "running", "owner": None}, None, "lost", 1),  # the head is gone
        (None, "PENDING", "pending", None),
        (None, "FAILED", "failed", 7),
        (None, "STOPPED", "stopped", 7),
        (None, "SUCCEEDED", "finished", 7),
    ],
)
def test_our_record_says_how_a_job_stands(
    record: dict[str, Any] | None, ray: str | None, expected: str, exit_code: int | None
) -> None:
    records = {} if record is None else {"j": FleetRecord(name="triage", job_id="j", **record)}
    job = None if ray is None else SimpleNamespace(status=SimpleNamespace(value=ray), message="said", driver_exit_code=7)
    standing = standing_of("j", job, records)
    assert standing.state == expected
    assert standing.exit_code == exit_code


def test_the_job_of_a_process() -> None:
    assert current_job_id({}) is None
    assert current_job_id({JOB_CONFIG: "no json"}) is None
    assert current_job_id({JOB_CONFIG: '{"metadata": {"job_submission_id": "triage-1"}}'}) == "triage-1"


@pytest.mark.parametrize(
    ("address", "local"),
    [("http://127.0.0.1:8265", True), ("http://localhost:1", True), ("http://[::1]:1", True), ("http://10.0.0.1:8265", False)],
)
def test_which_clusters_are_on_this_machine(address: str, local: bool) -> None:
    assert is_local(address) is local


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://127.0.0.1:1", "no job server answers at http://127.0.0.1:1"),
        ("127.0.0.1:6379", "expected the dashboard's address, http://host:8265"),
        ("redis://x", "expected the dashboard's address"),
    ],
)
def test_an_address_that_does_not_answer_is_said_at_once(address: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        JobServer(address)
