"""The supervisor actor: owns runs, starts them, stops them. What a run does is in ``loop.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from ...protocol.commands import CancelRun, ForgetRuns, RunFinished, RunsCancelled, StartRun
from ...protocol.errors import ThreadBusy
from ..ambient import enter as inside
from ..definitions import Definitions
from ..frames import Caller, Channel
from ..tools.context import enter as enter_tool
from .loop import run_turn
from .run import Peers, Run

FORGET_BATCH = 64


class SupervisorActor:
    """Answers :class:`StartRun` with the run's outcome, and its events in between.

    Turns on one thread take their turn: the second waits for the first. (A thread always comes to the same shard.)

    Args:
        definitions: the agents known here.
        peers: where the other actors are.
    """

    def __init__(self, definitions: Definitions, peers: Peers) -> None:
        self._definitions = definitions
        self._peers = peers
        self._runs: dict[str, Run] = {}
        self._threads: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}
        self._over: dict[Channel, list[str]] = {}

    @property
    def active(self) -> int:
        """Runs in progress."""
        return len(self._runs)

    def start(self, request: StartRun, caller: Caller) -> Awaitable[RunFinished]:
        """Run one turn."""
        agent = self._definitions.get(request.definition)
        if request.thread_id is None or agent.config.checkpointer is None:
            return self._run(request, agent, caller)
        key = (agent.config.checkpointer, request.thread_id)
        if request.depth and key in self._threads:
            raise ThreadBusy(
                f"thread {request.thread_id!r} is in use, and a run that another run waits for must not wait for it, too"
            )
        return self._in_turn(key, request, agent, caller)

    async def _in_turn(self, key: tuple[str, str], request: StartRun, agent: Any, caller: Caller) -> RunFinished:
        lock, waiting = self._threads.get(key, (asyncio.Lock(), 0))
        self._threads[key] = (lock, waiting + 1)
        try:
            async with lock:
                return await self._run(request, agent, caller)
        finally:
            lock, waiting = self._threads.pop(key)
            if waiting > 1:
                self._threads[key] = (lock, waiting - 1)

    async def cancel(self, message: CancelRun, caller: Any) -> RunsCancelled:
        """Stop runs; each ends with an outcome that says ``cancelled``."""
        return RunsCancelled(count=self.stop_runs(message))

    def stop_runs(self, message: CancelRun) -> int:
        """Tell the matching runs to stop; how many there were."""
        chosen = [run for run in self._runs.values() if _matches(run.request, message)]
        for run in chosen:
            run.stop("cancelled")
        return len(chosen)

    async def _run(self, request: StartRun, agent: Any, caller: Caller) -> RunFinished:
        enter_tool(None)  # of the call that may have asked for this run, if that is in the same process
        inside(f"inside the supervisor of run {request.run_id}")
        run = self._runs[request.run_id] = Run(request, agent, caller, self._peers, self._forget)
        deadline = _deadline(run)
        try:
            return RunFinished.trusted(outcome=await run_turn(run))
        finally:
            if deadline is not None:
                deadline.cancel()
            del self._runs[request.run_id]  # a resumed run has the id that it began with

    def _forget(self, channel: Channel, run_id: str) -> None:
        """Tell an agent actor, a batch at a time, which conversations it may drop."""
        over = self._over.setdefault(channel, [])
        over.append(run_id)
        if len(over) >= FORGET_BATCH:
            channel.send(ForgetRuns(run_ids=tuple(over)))
            del self._over[channel]


def _deadline(run: Run) -> asyncio.TimerHandle | None:
    limits = [seconds for seconds in (run.request.timeout, run.config.time_budget_seconds) if seconds is not None]
    if not limits:
        return None
    run.time_limit = min(limits)
    return asyncio.get_running_loop().call_later(run.time_limit, run.stop, "time_budget")


def _matches(request: StartRun, message: CancelRun) -> bool:
    wanted = (message.run_id, message.thread_id, message.definition)
    return wanted != (None, None, None) and all(
        value is None or value == having
        for value, having in zip(wanted, (request.run_id, request.thread_id, request.definition), strict=True)
    )
