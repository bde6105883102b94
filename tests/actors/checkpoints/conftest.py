from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from umbel.actors.checkpoints import Store, open_store
from umbel.protocol.commands import SaveCheckpoint

pytest.register_assert_rewrite("umbel.actors.checkpoints.conformance")

SaveMaker = Callable[..., SaveCheckpoint]
Start = Callable[..., "subprocess.Popen[str]"]


def _save(checkpoint_id: str, parent_id: str | None = None, **fields: Any) -> SaveCheckpoint:
    fields = {"store": "memory://", "thread_id": "thread", "state": b'{"messages":[]}'} | fields
    return SaveCheckpoint(checkpoint_id=checkpoint_id, parent_id=parent_id, **fields)


@pytest.fixture
def save() -> SaveMaker:
    return _save


@pytest.fixture(params=["memory", "sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every store, one after the other: what a test with this fixture shows holds for all of them."""
    return "memory://" if request.param == "memory" else f"{request.param}:///{tmp_path}/deep/er/checkpoints?synchronous=normal"


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = open_store(url)
    yield store
    await store.close()


@pytest.fixture
def protected(tmp_path: Path) -> Iterator[Path]:
    """A directory in which nobody but root may make a file."""
    tmp_path.chmod(0o500)
    yield tmp_path
    tmp_path.chmod(0o700)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a worker as a process of its own; whatever still runs at the end of the test is killed."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "umbel.actors.checkpoints.conformance.worker", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
