from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Run = Callable[..., subprocess.Popen[str]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A Ray of its own with the job server: (its port, the job server's address)."""
    temp = tmp_path_factory.mktemp("r")
    port, dashboard = free_port(), free_port()
    environment = {
        **os.environ,
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",
    }
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=4"]
    command += [
        f"--port={port}",
        f"--dashboard-port={dashboard}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-agent-listen-port={free_port()}",
    ]
    command += ["--temp-dir", f"/tmp/umbel-{os.getpid()}", "--include-dashboard=true"]
    with (temp / "ray.log").open("w") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield str(port), f"http://127.0.0.1:{dashboard}"
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(60)
        shutil.rmtree(f"/tmp/umbel-{os.getpid()}", ignore_errors=True)


@pytest.fixture
def run(cluster: tuple[str, str], tmp_path: Path) -> Iterator[Run]:
    """Start a script in a process of its own; it gets the cluster's address and what is given."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, f"127.0.0.1:{cluster[0]}", *arguments]
        path = os.pathsep.join(place for place in sys.path if place)
        environment = {**os.environ, "PYTHONPATH": path, "RAY_AUTH_MODE": "disabled"}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
