from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

AGENTS = '''
import asyncio
import os
from types import SimpleNamespace


class Echo:
    """Answers its prompt; ``fail`` fails, ``raise`` raises, and after FREE answers it waits for ever."""

    def __init__(self):
        self.free = int(os.environ.get("FREE", "1000000"))

    async def arun(self, prompt, **options):
        if not self.free:
            os.write(int(os.environ["READY_FD"]), b"x")
            await asyncio.Event().wait()
        self.free -= 1
        if prompt == "raise":
            raise ValueError("no luck")
        metrics = SimpleNamespace(total_tokens=5, cost_usd=None)
        success = prompt != "fail"
        reason = "complete" if success else "max_iterations"
        return SimpleNamespace(message=prompt.upper(), success=success, stop_reason=reason, metrics=metrics, error=None)


echo = Echo()
not_an_agent = 3
'''


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory with a module ``cli_agents``, forgotten again afterwards."""
    (tmp_path / "cli_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("cli_")]:
        del sys.modules[name]


@pytest.fixture
def umbel(workplace: Path) -> Callable[..., Result]:
    """Call the command in this process."""
    from umbel.cluster.cli.main import app

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="umbel")

    return call


class Command:
    """The command in a process of its own, and a pipe on which its agent says that it waits."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "umbel.cluster.cli.main", *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[writer],
            env={**os.environ, **environment, "READY_FD": str(writer)},
        )
        os.close(writer)
        self._reader = os.fdopen(reader, "rb", buffering=0)

    def wait_until_waiting(self) -> None:
        assert self._reader.read(1) == b"x", self.process.communicate()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self, stdin: str = "") -> tuple[int, str, str]:
        out, err = self.process.communicate(stdin, timeout=120)
        return self.process.returncode, out, err

    def close(self) -> None:
        self._reader.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def start(workplace: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(*arguments: object, **environment: str) -> Command:
        started.append(Command(*arguments, **environment))
        return started[-1]

    yield start
    for command in started:
        command.close()


@pytest.fixture
def tasks(workplace: Path) -> Path:
    path = workplace / "tasks.jsonl"
    path.write_text("".join(json.dumps({"id": f"t{n}", "prompt": f"p{n}"}) + "\n" for n in range(10)))
    return path


@pytest.fixture
def read_results(workplace: Path) -> Callable[[], dict[str, Any]]:
    def read() -> dict[str, Any]:
        lines = [json.loads(line) for line in (workplace / "results.jsonl").read_text().splitlines()]
        assert len({line["id"] for line in lines}) == len(lines)
        return {line["id"]: line for line in lines}

    return read
