"""A real Redis for the tests: started on a free port of loopback with a folder of its own, ended by pid."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import redis


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A redis-server; what it keeps on disk outlives :meth:`kill`, and :meth:`start` goes on with it."""

    def __init__(self, program: str, folder: Path, *settings: str) -> None:
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(folder), "--save", ""]
        self._command = [program, *place, *settings]
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def start(self, *settings: str) -> RedisServer:
        self._process = subprocess.Popen([*self._command, *settings], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        log = []
        for line in self._process.stdout:
            log.append(line)
            if "Ready to accept connections" in line:
                return self
        raise AssertionError("redis-server did not start: " + "".join(log))

    def command(self, *command: Any, **options: Any) -> Any:
        with redis.Redis(port=self.port, **options) as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """End it at once, as the kernel does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def interrupt(self) -> str:
        """End it at once, and start it again on what it kept; what was done, in words."""
        self.kill()
        self.start()
        return f"the redis-server of port {self.port}, which is back"


class RedisCluster:
    """Two nodes, each with half of the slots."""

    def __init__(self, program: str, folder: Path) -> None:
        self.nodes = [
            RedisServer(program, folder / str(n), "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
            for n in range(2)
        ]

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def start(self) -> RedisCluster:
        first, second = (node.start() for node in self.nodes)
        first.command("CLUSTER ADDSLOTSRANGE", 0, 8_191)
        second.command("CLUSTER ADDSLOTSRANGE", 8_192, 16_383)
        bus = int(first.command("CONFIG GET", "cluster-port")["cluster-port"])
        second.command("CLUSTER MEET", "127.0.0.1", first.port, bus)
        deadline = time.monotonic() + 60
        while any(node.command("CLUSTER INFO")["cluster_state"] != "ok" for node in self.nodes):
            assert time.monotonic() < deadline, "the nodes do not find each other"
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
