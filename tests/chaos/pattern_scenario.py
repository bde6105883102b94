"""Patterns of every kind, three patterns deep, whose members have real effects and ask a person, while processes are killed."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from umbel import Agent, Runtime, ToolContext, loop, parallel, sequential, tool
from umbel.actors.threads import Threads
from umbel.events import InterruptEvent, TerminateEvent
from umbel.patterns.pattern import Pattern
from umbel.testing import ScriptedModel, text, tool_call, tool_calls

from . import invariants
from .effects import TOOLS, Effects
from .invariants import UNKNOWN, Witness
from .killer import ROLES, Killer, Timeline

SCRIPT = [
    tool_calls(("charge", {"step": 1}), ("look_up", {"step": 1})),
    tool_call("agree"),
    tool_calls(("ship", {"step": 2}), ("render", {"step": 2})),
    tool_call("charge", step=3),
    text("subject is done"),
]
ENDS = (TerminateEvent, InterruptEvent)  # what a stream ends with
STRIDE = (6, 20)  # rows of effects between two kills
Make = Callable[..., Pattern]


@tool(idempotent=True)
async def agree(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(ctx.interrupt("Go on?"))


def deep() -> Pattern:
    """A member that is a pattern of a pattern of a pattern; at the bottom somebody works."""
    worker = Agent(ScriptedModel(SCRIPT, delay=0.02), [*TOOLS, agree], name="subject")
    beside = Agent(ScriptedModel([tool_call("look_up", step=0), text("beside is done")]), TOOLS, name="beside")
    inner = parallel(beside, worker, name="inner")
    return sequential(Agent(ScriptedModel([text("before is done")]), name="before"), loop(inner, until=bool, name="middle"))


@dataclass
class PatternScenario:
    """Runs of these kinds side by side, and kills meanwhile.

    Attributes:
        kinds: by name, what makes a pattern of a member.
        folder: for the store and the effects.
        kills: processes that are killed; runs are begun as long as not all were.
        seed: decides whom and when.
        deadline: seconds after which somebody waits for ever.
        roles, more: whom; see :class:`Killer`.
        unknown: by task and tool, of how many calls nobody knows what they did.
    """

    kinds: Mapping[str, Make]
    folder: Path
    kills: int
    seed: int
    deadline: float
    roles: Sequence[str] = ROLES
    more: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    witness: Witness = field(default_factory=Witness)
    unknown: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    killed: dict[str, int] = field(default_factory=dict)
    runs: int = 0

    @property
    def store(self) -> str:
        """URL of the store."""
        return f"sqlite:///{self.folder / 'threads.db'}"

    async def play(self, runtime: Runtime) -> None:
        """Run, kill, and check every rule. A failure says with which seed, and what happened.

        Raises:
            AssertionError: a rule is broken.
            TimeoutError: somebody waits for ever.
        """
        expected = await self.expected()
        try:
            async with asyncio.timeout(self.deadline):
                effects = await self._play(runtime)
                await self._read_unknown(runtime)
            self._check(effects, expected)
        except BaseException as error:  # whatever it was: it is raised again, with what is needed to see it again
            error.add_note(f"seed {self.seed} (UMBEL_CHAOS_SEED={self.seed}); timeline:\n{self.timeline}\n{self.killed}")
            raise

    async def expected(self) -> dict[str, Counter[str]]:
        """What each kind does when nothing happens: how often each tool begins."""
        effects = Effects(self.folder / "expected.jsonl")
        async with Runtime(inline=True) as quiet:
            await asyncio.gather(*(self._run(quiet, kind, kind, effects.path, "memory://") for kind in self.kinds))
        effects.refresh()
        return {kind: _begun(effects, kind) for kind in self.kinds}

    async def _play(self, runtime: Runtime) -> Effects:
        effects = Effects(self.folder / "effects.jsonl")
        killer = Killer(runtime, random.Random(self.seed), effects.refresh, STRIDE, self.timeline, self.roles, self.more)
        async with asyncio.TaskGroup() as group:  # the failure of one ends the other
            killing = group.create_task(killer.kill(self.kills))
            for kind in self.kinds:
                group.create_task(self._repeat(runtime, kind, effects.path, killing))
        self.killed = killer.killed
        effects.refresh()
        return effects

    async def _repeat(self, runtime: Runtime, kind: str, effects: Path, killing: asyncio.Task[None]) -> None:
        number = 0
        while number == 0 or not killing.done():
            task = f"{kind} {number}"
            result = await self._run(runtime, kind, task, effects, self.store)
            assert result.success, f"{task}: {result.stop_reason} {result.error} {[step.problem for step in result.members]}"
            number, self.runs = number + 1, self.runs + 1

    async def _run(self, runtime: Runtime, kind: str, task: str, effects: Path, store: str) -> Any:
        pattern = self.kinds[kind](deep(), checkpointer=store)
        pattern.callback_handler = lambda event: self.witness.hear(event, time.monotonic_ns())
        metadata, thread = {"task_id": task, "effects": str(effects)}, task.replace(" ", "-")
        result: Any = await pattern.arun("Go.", thread_id=thread, metadata=metadata, runtime=runtime)
        while result.stop_reason == "interrupted":
            answers = {asked["interrupt_id"]: "yes" for asked in result.interrupts}
            result = await pattern.aresume(answers=answers, thread_id=thread, runtime=runtime)
        return result

    async def _read_unknown(self, runtime: Runtime) -> None:
        """What the members' threads say of calls of which nobody knows what they did."""
        threads = Threads(self.store, runtime.ask_checkpointer)
        async for thread in threads.every():
            state = await threads.get_state(thread.thread_id)
            lost = [done.tool_name for done in state.tool_executions if done.code in UNKNOWN | {"cancelled"}]
            self.unknown[thread.thread_id.partition("#")[0].replace("-", " ")] += Counter(lost)

    def _check(self, effects: Effects, expected: Mapping[str, Counter[str]]) -> None:
        invariants.streams_are_gapless(self.witness)
        cut_off = [events for events in self.witness.events.values() if not isinstance(events[-1], ENDS)]
        assert not cut_off, f"{len(cut_off)} streams were lost, one of them after {cut_off[0][-1]}"
        invariants.nothing_final_happens_twice(effects)
        final = {row.tool for row in effects.rows if not row.idempotent}
        for task in sorted({row.task for row in effects.rows}):
            begun, once = _begun(effects, task), expected[task.partition(" ")[0]]
            for name in once:
                unknown = self.unknown[task][name]
                assert begun[name] + unknown >= once[name], f"{task}: {name} was lost: {begun}, {unknown} unknown"
                assert name not in final or begun[name] <= once[name], f"{task}: {name} was repeated: {begun}"


def _begun(effects: Effects, task: str) -> Counter[str]:
    return Counter(row.tool for row in effects.rows if row.task == task and row.phase == "begun")
