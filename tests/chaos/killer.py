"""SIGKILL to the processes of a runtime, and to what it stands on, at moments and in an order that a seed decides."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
from ray.exceptions import RayError

from umbel import Runtime

ROLES = ("supervisor", "agent", "tools", "checkpointer", "worker")
POLL_SECONDS = 0.005


@dataclass
class Timeline:
    """What happened when, for the report of a failure."""

    started: float = field(default_factory=time.monotonic)
    entries: list[str] = field(default_factory=list)

    def add(self, what: str) -> None:
        self.entries.append(f"{time.monotonic() - self.started:8.3f} s  {what}")

    def __str__(self) -> str:
        return "\n".join(self.entries)


class Killer:
    """Kills a number of processes while something makes progress.

    Args:
        runtime: whose processes.
        chance: decides whom and when; nothing else does.
        progress: a number that grows as the work goes on.
        stride: how far it grows between two kills: at least, at most.
        timeline: where kills are noted.
        roles: kinds of processes that are killed.
        more: other kinds of victims: each is killed, and replaced where it must be, by a blocking call that says who it was.
    """

    def __init__(
        self,
        runtime: Runtime,
        chance: random.Random,
        progress: Callable[[], int],
        stride: tuple[int, int],
        timeline: Timeline,
        roles: Sequence[str],
        more: Mapping[str, Callable[[], str]],
    ) -> None:
        self._more = more
        self.killed: dict[str, int] = dict.fromkeys((*roles, *more), 0)
        self._backend: Any = runtime.backend
        self._chance = chance
        self._progress = progress
        self._stride = stride
        self._timeline = timeline

    @property
    def total(self) -> int:
        return sum(self.killed.values())

    async def kill(self, count: int) -> None:
        """Kill that many processes; every role gets its turn, in a random order."""
        while self.total < count:
            turn = self._chance.sample([*self.killed], len(self.killed))
            for role in turn[: count - self.total]:
                goal = self._progress() + self._chance.randint(*self._stride)
                while self._progress() < goal:
                    await asyncio.sleep(POLL_SECONDS)
                await asyncio.sleep(self._chance.random() * 0.05)  # anywhere between two effects
                await self._kill(role)

    async def _kill(self, role: str) -> None:
        """Find a process that plays the role, and end it; one that is gone meanwhile is looked for again."""
        if role in self._more:
            rows = self._progress()
            self._timeline.add(f"{role}: {await asyncio.to_thread(self._more[role])} at {rows} rows")
            self.killed[role] += 1
            return
        self._timeline.add(f"looks for a {role}")
        while True:
            for name, pid in await self._processes(role):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.killed[role] += 1
                self._timeline.add(f"SIGKILL {name} (pid {pid}) at {self._progress()} rows")
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _processes(self, role: str) -> Sequence[tuple[str, int]]:
        try:
            reports = await asyncio.to_thread(self._backend.reports)
        except RayError as error:  # one is being restarted
            self._timeline.add(f"finds none: {type(error).__name__}")
            return ()
        actor = "tools" if role == "worker" else role
        actors = [(name, report["pid"]) for name, report in reports.items() if name.startswith(f"{actor}/")]
        found = [worker for each in actors for worker in workers_of(*each)] if role == "worker" else actors
        return self._chance.sample(found, len(found))


def workers_of(name: str, pid: int) -> list[tuple[str, int]]:
    """The worker processes of a tool executor."""
    try:
        children = psutil.Process(pid).children()
        return [(f"worker of {name}", child.pid) for child in children if child.name() == "umbel-tool"]
    except psutil.NoSuchProcess:
        return []
