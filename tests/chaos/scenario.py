"""A fleet of durable runs with real effects, while its processes are killed."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from umbel import Agent, Fleet, Runtime
from umbel.cluster.fleet import Backoff, FleetReport
from umbel.testing import ScriptedModel, text, tool_calls

from . import invariants
from .effects import TOOLS, Effects, summary
from .invariants import UNKNOWN, Witness
from .killer import ROLES, Killer, Timeline

MODEL_SECONDS = 0.02
STRIDE = (4, 24)  # rows of effects between two kills
ENOUGH = 1_000_000
SCRIPT = [
    tool_calls(("charge", {"step": 1}), ("look_up", {"step": 1})),
    tool_calls(("ship", {"step": 2}), ("render", {"step": 2})),
    tool_calls(("charge", {"step": 3}), ("render", {"step": 3})),
    text("all done"),
]


def seed_of(default: int | None = None) -> int:
    """``UMBEL_CHAOS_SEED``, or the default, or a fresh one."""
    given = os.environ.get("UMBEL_CHAOS_SEED")
    if given:
        return int(given)
    return int.from_bytes(os.urandom(4)) if default is None else default


@dataclass
class Scenario:
    """So many runs, so many kills.

    Attributes:
        folder: for results, effects and the store.
        runs: tasks of the fleet, at least: there are more as long as not all kills are done.
        kills: processes that are killed meanwhile.
        concurrency: runs in flight.
        seed: decides whom and when.
        deadline: seconds after which somebody waits for ever.
        store: URL of the checkpoints; None is a SQLite file in the folder.
        roles: kinds of processes that are killed.
        more: other kinds of victims, see :class:`Killer`.
    """

    folder: Path
    runs: int
    kills: int
    concurrency: int
    seed: int
    deadline: float
    store: str | None = None
    roles: Sequence[str] = ROLES
    more: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    witness: Witness = field(default_factory=Witness)
    facts: dict[str, Any] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)

    async def play(self, runtime: Runtime) -> None:
        """Run, kill, and check every rule. A failure says with which seed, and what happened.

        Raises:
            AssertionError: a rule is broken.
            TimeoutError: somebody waits for ever.
        """
        try:
            async with asyncio.timeout(self.deadline):
                await self._play(runtime)
        except BaseException as error:  # whatever it was: it is raised again, with what is needed to see it again
            error.add_note(f"seed {self.seed} (UMBEL_CHAOS_SEED={self.seed}); timeline:\n{self.timeline}\n{self.facts}")
            raise

    async def _play(self, runtime: Runtime) -> None:
        effects = Effects(self.folder / "effects.jsonl")
        chance = random.Random(self.seed)
        killer = Killer(runtime, chance, effects.refresh, STRIDE, self.timeline, self.roles, self.more)
        async with asyncio.TaskGroup() as group:  # the failure of one ends the other
            killing = group.create_task(killer.kill(self.kills))
            fleet = group.create_task(self._fleet(runtime, self._work(effects.path, killing)))
        report = fleet.result()
        effects.refresh()
        losses = sum(1 for run in self.witness.events if run not in self.witness.ended)
        self.facts |= {
            "tasks": len(self.tasks),
            "killed": killer.killed,
            "retries": report.retries,
            "runs lost": losses,
            "outcomes unknown": sum(event.code in UNKNOWN for _, event in self.witness.completed.values()),
            **summary(effects),
        }
        self._check(effects)

    async def _work(self, effects: Path, killing: asyncio.Task[None]) -> AsyncIterator[dict[str, Any]]:
        while len(self.tasks) < self.runs or not killing.done():
            self.tasks.append(f"task-{len(self.tasks)}")
            yield {"id": self.tasks[-1], "prompt": "Go.", "metadata": {"effects": str(effects)}}

    async def _fleet(self, runtime: Runtime, tasks: AsyncIterator[dict[str, Any]]) -> FleetReport:
        agent = Agent(
            ScriptedModel(SCRIPT, delay=MODEL_SECONDS),
            TOOLS,
            checkpointer=self.store or f"sqlite:///{self.folder / 'threads.db'}",
            callback_handler=lambda event: self.witness.hear(event, time.monotonic_ns()),
        )
        fleet = Fleet(
            agent,
            runtime=runtime,
            concurrency=self.concurrency,
            threads=f"chaos-{self.seed}",
            retries=ENOUGH,
            quarantine_after=ENOUGH,  # here it is not the tasks that kill
            backoff=Backoff(first=0.05, cap=0.5),
        )
        return await fleet.run(tasks, self.folder / "results.jsonl")

    def table(self) -> str:
        """What was killed how often, and what became of the rest."""
        rows = [(f"killed: {kind}", count) for kind, count in self.facts["killed"].items()]
        rows += [(name, value) for name, value in self.facts.items() if name != "killed"]
        return "\n".join([f"seed {self.seed}", *(f"  {name:<22}{value:>8,}" for name, value in rows)])

    def _check(self, effects: Effects) -> None:
        invariants.every_task_has_one_result(self.folder / "results.jsonl", self.tasks)
        invariants.streams_are_gapless(self.witness)
        invariants.no_run_is_lost(self.witness)
        invariants.nothing_final_happens_twice(effects)
        asked = Counter(call.name for reply in SCRIPT for call in reply.message.tool_calls)
        invariants.no_task_has_more_effects_than_it_asks_for(effects, asked)
        invariants.nothing_happens_after_it_was_told(effects, self.witness)
        invariants.unknown_outcomes_are_reported(effects, self.witness)
        invariants.nothing_told_is_taken_back(self.witness)
