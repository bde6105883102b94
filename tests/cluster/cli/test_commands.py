from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import umbel as package
from umbel.cluster.cli import doctor
from umbel.cluster.cli.loading import load_agent
from umbel.protocol.errors import ConfigurationError

Umbel = Callable[..., Result]


def test_version(umbel: Umbel) -> None:
    assert umbel("--version").stdout == f"umbel {package.__version__}\n"


@pytest.mark.parametrize(
    "command", [(), ("run",), ("fleet", "run"), ("doctor",), ("demo",), ("runs",), ("attach",), ("cancel",)]
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
    monkeypatch.setattr(doctor, "_ray_starts", lambda: doctor.Check("ray start", "ok", "pretended"))
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
    monkeypatch.setattr(doctor, "_ray_starts", lambda: doctor.Check("ray start", "ok", "pretended"))
    monkeypatch.setenv("UMBEL_HOME", str(workplace / "cli_agents.py" / "home"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    done = umbel("doctor")
    assert done.exit_code == 1
    assert "fail  home:" in done.stdout
    assert "-> set UMBEL_HOME" in done.stdout
    assert "fail  cluster: RAY_ADDRESS=127.0.0.1:1 does not answer" in done.stdout


@pytest.mark.ray
def test_doctor_really_starts_ray_and_leaves_nothing_behind() -> None:
    check = doctor._ray_starts()
    assert check.status == "ok", check.detail


def test_doctor_says_when_ray_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_RAY_PROBE", "raise SystemExit('no ray today')")
    check = doctor._ray_starts()
    assert check.status == "fail"
    assert "no ray today" in check.detail
