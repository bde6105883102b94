from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import umbel as package
from umbel.actors.checkpoints import MemoryStore, registry
from umbel.cluster.cli import doctor
from umbel.cluster.cli.check import Check
from umbel.cluster.loading import load_agent
from umbel.protocol.errors import ConfigurationError, StoreUnavailable

Umbel = Callable[..., Result]


def test_version(umbel: Umbel) -> None:
    assert umbel("--version").stdout == f"umbel {package.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("run",),
        ("fleet", "run"),
        ("doctor",),
        ("demo",),
        ("runs",),
        ("attach",),
        ("cancel",),
        ("draw",),
        ("submit",),
        *(("fleet", view) for view in ("status", "report", "diff", "rm", "retry-failed")),
        *(("jobs", verb) for verb in ("list", "status", "logs", "stop")),
    ],
)
def test_every_command_has_help_with_an_example(umbel: Umbel, command: tuple[str, ...]) -> None:
    done = umbel(*command, "--help")
    assert done.exit_code == 0
    assert "Example:\n" in done.stdout


def test_the_command_line_starts_without_ray() -> None:
    heavy = {"ray", "pydantic", "httpx", "rich"}
    code = f"import sys, umbel.cluster.cli.main; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_a_command_it_shows_help_and_exits_with_2(umbel: Umbel) -> None:
    done = umbel()
    assert done.exit_code == 2
    assert "Commands:" in done.output


@pytest.mark.parametrize(
    ("source", "spec", "expected"),
    [
        ("", "cli_m", "expected module:name"),
        ("", "cli_m:", "expected module:name"),
        ("", "cli_m.py:agent", "write cli_m:agent"),
        ("", "./pkg/cli_m.py:agent", "write pkg.cli_m:agent"),
        ("import no_such_thing", "cli_m:agent", "cli_m needs the module 'no_such_thing', which is not installed"),
        ("1 / 0", "cli_m:agent", "ZeroDivisionError: division by zero"),
        ("def f(:", "cli_m:agent", "SyntaxError"),
        ("", "cli_n:agent", "did you mean 'cli_m'?"),
        ("", "cli_m:agent", "cli_m has no agents"),
        ("class A:\n    async def arun(self): ...\nbot = A()\n", "cli_m:A", "A is a class, not an instance"),
        ("class A:\n    async def arun(self): ...\nbot = A()\n", "cli_m:agent", "agents there: bot"),
    ],
)
def test_an_agent_that_cannot_be_loaded_says_why(workplace: Path, source: str, spec: str, expected: str) -> None:
    (workplace / "cli_agents.py").unlink()
    (workplace / "cli_m.py").write_text(source)
    with pytest.raises(ConfigurationError) as caught:
        load_agent(spec)
    assert expected in caught.value.message
    assert spec in caught.value.message


def test_an_agent_is_found_in_the_working_directory_and_by_attribute_path(workplace: Path) -> None:
    (workplace / "cli_m.py").write_text("import cli_agents\n")
    assert load_agent("cli_agents:echo") is load_agent("cli_m:cli_agents.echo")


def test_doctor_reports_every_part(umbel: Umbel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ray_starts", lambda: Check("ray start", "ok", "pretended"))
    done = umbel("doctor", "--json")
    report = json.loads(done.stdout)
    names = [check["name"] for check in report["checks"]]
    assert names[:4] == ["python", "umbel", "ray", "pydantic"]
    assert {"cores", "memory", "home", "sqlite", "cluster", "ray start", "extra mcp", "extra lab"} <= set(names)
    assert all(set(check) == {"name", "status", "detail", "remedy"} for check in report["checks"])
    assert all(check["remedy"] for check in report["checks"] if check["status"] != "ok")
    assert done.exit_code == 0
    assert report["ok"] is True


def test_doctor_fails_with_a_remedy(umbel: Umbel, monkeypatch: pytest.MonkeyPatch, workplace: Path) -> None:
    monkeypatch.setattr(doctor, "_ray_starts", lambda: Check("ray start", "ok", "pretended"))
    monkeypatch.setenv("UMBEL_HOME", str(workplace / "cli_agents.py" / "home"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    done = umbel("doctor")
    assert done.exit_code == 1
    assert "fail  home:" in done.stdout
    assert "-> set UMBEL_HOME" in done.stdout
    assert "fail  cluster: RAY_ADDRESS=127.0.0.1:1 does not answer" in done.stdout


class Careless(MemoryStore):
    """A store whose server has settings that lose checkpoints, or, with ``?down``, none at all."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    async def open(self) -> None:
        if "down" in self.url:
            raise StoreUnavailable("the server at host cannot be reached; start it")

    async def warnings(self) -> list[str]:
        return [
            "appendonly is off: a restart loses the last saves; set appendonly yes",
            "it evicts: threads go; set noeviction",
        ]


def stores_in(report: str) -> list[tuple[str, str, str]]:
    checks = json.loads(report)["checks"]
    return [(check["status"], check["detail"], check["remedy"]) for check in checks if check["name"] == "store"]


def test_doctor_opens_the_store(umbel: Umbel, monkeypatch: pytest.MonkeyPatch, workplace: Path) -> None:
    monkeypatch.setattr(doctor, "_ray_starts", lambda: Check("ray start", "ok", "pretended"))
    monkeypatch.setitem(registry._FACTORIES, "careless", Careless)
    done = umbel("doctor", "--store", "careless://user:secret@host/0", "--json")
    assert done.exit_code == 0 and "secret" not in done.output
    assert stores_in(done.stdout) == [
        ("warn", "appendonly is off: a restart loses the last saves", "set appendonly yes"),
        ("warn", "it evicts: threads go", "set noeviction"),
    ]
    down = umbel("doctor", "--store", "careless://host?down", "--json")
    assert down.exit_code == 1 and stores_in(down.stdout)[0][:2] == ("fail", "the server at host cannot be reached; start it")
    for url, status, detail in [
        ("memory://", "ok", "answers"),
        (f"sqlite:///{workplace}/none.db", "ok", "is made by the first run"),
        (f"sqlite:///{workplace}", "fail", str(workplace)),
        ("sqlite:///x.db?colour=red", "fail", "no option 'colour'"),
        ("nosuch://place", "fail", "no store is called nosuch://"),
    ]:
        [(found, told, _)] = stores_in(umbel("doctor", "--store", url, "--json").stdout)
        assert found == status and detail in told, url
    assert not (workplace / "none.db").exists()
    assert [status for status, *_ in stores_in(umbel("doctor", "--json").stdout)] == ["ok"]


@pytest.mark.ray
@pytest.mark.chaos  # 14 s
def test_doctor_really_starts_ray_and_leaves_nothing_behind() -> None:
    check = doctor._ray_starts()
    assert check.status == "ok", check.detail


def test_doctor_says_when_ray_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_RAY_PROBE", "raise SystemExit('no ray today')")
    check = doctor._ray_starts()
    assert check.status == "fail"
    assert "no ray today" in check.detail
