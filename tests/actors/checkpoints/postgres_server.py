"""A real PostgreSQL for the tests: a cluster of its own, on a free port of loopback, ended by pid."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from .redis_server import free_port


def find_program(name: str, require_service: Callable[[str], str]) -> str:
    """A program of the server; Debian keeps them out of PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parent.parent.name))
    return str(versions[-1]) if versions else require_service(name)


class PostgresServer:
    """A server with the database ``postgres`` and the superuser ``umbel``, who needs no password on loopback."""

    def __init__(self, require_service: Callable[[str], str], folder: Path) -> None:
        self._postgres = find_program("postgres", require_service)
        self.port = free_port()
        self.data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._user = _unprivileged()
        folder.mkdir(parents=True, exist_ok=True)
        if self._user:
            shutil.chown(folder, **self._user)
        initdb = find_program("initdb", require_service)
        settings = ["--username=umbel", "--auth=trust", "--encoding=SQL_ASCII", "--no-locale", "--no-sync"]
        self._run([initdb, "-D", str(self.data), *settings]).check_returncode()

    @property
    def url(self) -> str:
        return f"postgresql://umbel@127.0.0.1:{self.port}/postgres"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def start(self, **settings: object) -> PostgresServer:
        fixed = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": 50}
        options = [part for name, value in (fixed | settings).items() for part in ("-c", f"{name}={value}")]
        command = [self._postgres, "-D", str(self.data), *options]
        # Not asked for its log, it would write into the test's output.
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self._as_user())
        deadline = time.monotonic() + 60
        while True:
            try:
                self.command("SELECT 1")
                return self
            except psycopg.OperationalError:
                assert self._process.poll() is None and time.monotonic() < deadline, "postgres did not start"
                time.sleep(0.02)

    def command(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """End it at once, without a checkpoint of its own: what it knows after that it reads from its log."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, stdout=subprocess.DEVNULL, check=False, **self._as_user())

    def _as_user(self) -> dict[str, Any]:
        return {**self._user, "extra_groups": [], "cwd": "/"} if self._user else {"cwd": "/"}


def _unprivileged() -> dict[str, Any]:
    """Root must not run a server of PostgreSQL."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": found.pw_uid, "group": found.pw_gid}
    raise AssertionError("no user postgres or nobody to run the server as")
