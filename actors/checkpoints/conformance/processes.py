"""What holds between processes: they share nothing but the store."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from ....protocol.errors import StaleWriter
from ..store import Store
from .requests import a_save, refused, saved, take_when_free

WORKER = "umbel.actors.checkpoints.conformance.worker"


class Processes:
    """Several processes on one store.

    Attributes:
        plugin: a module that registers the scheme of :meth:`address`; None for Umbel's own.
        races: saves of each of the processes that race; fewer where a save takes long.
        turns: saves of each of the processes that wait for a lease.
    """

    plugin: ClassVar[str | None] = None
    races: ClassVar[int] = 80
    turns: ClassVar[int] = 15

    def address(self, store: Any) -> str | None:
        """The URL under which another process opens the same store; None when none can."""
        return None

    async def test_of_several_processes_one_wins_each_parent(self, store: Store) -> None:
        lines = await self._outputs(store, [("a", self.races, "race"), ("b", self.races, "race")])
        assert len(lines) == 2 * self.races
        won = {(parent, child) for kind, parent, child in lines if kind == "saved"}
        history = await store.history("thread", limit=1_000)
        assert {(str(entry.parent_id), entry.checkpoint_id) for entry in history} == won
        assert len({parent for parent, _ in won}) == len(won) == len(history) >= self.races

    async def test_a_lease_lets_processes_write_in_turn(self, store: Store) -> None:
        lines = await self._outputs(store, [("a", self.turns, "lease"), ("b", self.turns, "lease")])
        assert [kind for kind, *_ in lines] == ["saved"] * (2 * self.turns), "nobody ever met another writer"
        assert len(await store.history("thread", limit=1_000)) == 2 * self.turns
        tokens = [int(token) for _, token, _ in lines]
        assert len(set(tokens)) == 2 * self.turns

    async def test_the_lease_of_a_killed_process_ends_and_its_token_is_stale(self, store: Store) -> None:
        with self._worker(store, "a", 1, "hold") as worker:
            kind, token, _ = (await asyncio.to_thread(_line, worker)).split()
            assert kind == "held"
            worker.kill()
        lease = await take_when_free(store, "b")
        assert lease.token > int(token)
        assert isinstance(await refused(store, a_save("late", token=int(token))), StaleWriter)
        await saved(store, a_save("c1", token=lease.token))

    async def _outputs(self, store: Store, jobs: list[tuple[str, int, str]]) -> list[tuple[str, str, str]]:
        """What processes that run at the same time say, as triples."""

        def run(name: str, count: int, mode: str) -> str:
            with self._worker(store, name, count, mode) as worker:
                output, _ = worker.communicate()
                assert worker.returncode == 0
                return output

        outputs = await asyncio.gather(*(asyncio.to_thread(run, *job) for job in jobs))
        lines = [line.split() for output in outputs for line in output.splitlines()]
        return [(kind, first, second) for kind, first, second in lines]

    @contextmanager
    def _worker(self, store: Store, name: str, count: int, mode: str) -> Iterator[subprocess.Popen[str]]:
        url = self.address(store)
        if url is None:
            pytest.skip("no other process can open this store")
        arguments = [url, "thread", name, str(count), mode, *([self.plugin] if self.plugin else [])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", WORKER, *arguments]
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        try:
            yield worker
        finally:
            worker.kill()
            worker.communicate()


def _line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline()
