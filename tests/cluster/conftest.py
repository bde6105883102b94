from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest


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
