"""The supervisor actor: owns runs, starts them, stops them. What a run does is in ``loop.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from ...protocol.commands import (
    CancelRun,
    ForgetRuns,
    InterruptsLoaded,
    LoadInterrupts,
    RunFinished,
    RunsCancelled,
    StartRun,
)
from ...protocol.errors import ThreadBusy
from ..ambient import enter as inside
from ..definitions import Definitions
from ..frames import Caller, Channel
from ..tools.context import enter as enter_tool
from .loop import run_turn
from .moving import may_leave
from .pause import listed
from .run import LONG_CONVERSATION, Peers, Run
from .thread import read

FORGET_BATCH = 64


@dataclass(slots=True)
class Queued:
    """A run that waits until the one before it has left the thread.

    Attributes:
        request: the run.
        key: of the thread.
        waiter: gets the thread.
        cancelled: it shall not run any more.
    """

    request: StartRun
    key: tuple[str, str]
    waiter: asyncio.Future[Any]
    cancelled: bool = False


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
        self._queued: dict[str, Queued] = {}
        self._over: dict[Channel, list[str]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moving = False

    def move(self) -> None:
        """This process is about to end in good order: durable runs wait at their next boundary for the one that follows."""
        self._moving = True
        for run in self._runs.values():
            run.moving = True

    @property
    def may_leave(self) -> bool:
        """Whether no run would lose anything now."""
        return may_leave(self._runs.values())

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
        if request.depth and request.member is None and key in self._threads:
            raise ThreadBusy(
                f"thread {request.thread_id!r} is in use, and a run that another run waits for must not wait for it, too"
            )
        if request.on_busy != "queue" and key in self._threads:
            self._make_way(key, request)
        return self._in_turn(key, request, agent, caller)

    def _make_way(self, key: tuple[str, str], request: StartRun) -> None:
        """A run that does not want to wait for the thread: those before it are cancelled, or it is refused.

        Raises:
            ThreadBusy: it shall not cancel them.
        """
        runs = [run for run in self._runs.values() if (run.config.checkpointer, run.request.thread_id) == key]
        if request.on_busy == "reject":
            owner = ", ".join(run.id for run in runs) or "a run that is about to start"
            why = f"thread {request.thread_id!r} is held by run {owner}; wait until it is done, or cancel it"
            raise ThreadBusy(why, owner=owner, thread_id=request.thread_id)
        for run in runs:
            run.stop("cancelled")
        for entry in self._queued.values():
            if entry.key == key:
                entry.cancelled = True
                entry.waiter.cancel()

    async def _in_turn(self, key: tuple[str, str], request: StartRun, agent: Any, caller: Caller) -> RunFinished:
        lock, waiting = self._threads.get(key, (asyncio.Lock(), 0))
        self._threads[key] = (lock, waiting + 1)
        try:
            if not waiting:
                await lock.acquire()  # nobody is there: at once
            elif not await self._turn_comes(lock, key, request):
                return await self._run(request.evolve(cancelled=True), agent, caller)  # it never opens the thread
            try:
                return await self._run(request, agent, caller)
            finally:
                lock.release()
        finally:
            lock, waiting = self._threads.pop(key)
            if waiting > 1:
                self._threads[key] = (lock, waiting - 1)

    async def _turn_comes(self, lock: asyncio.Lock, key: tuple[str, str], request: StartRun) -> bool:
        """Wait for the thread; False, and without the thread, when the run was cancelled before its turn came."""
        queued = self._queued[request.run_id] = Queued(request, key, asyncio.ensure_future(lock.acquire()))
        try:
            await asyncio.wait({queued.waiter})
        finally:
            del self._queued[request.run_id]
            acquired = queued.waiter.done() and not queued.waiter.cancelled()
            if not acquired:
                queued.waiter.cancel()
        if acquired and queued.cancelled:
            lock.release()
        return not queued.cancelled

    async def cancel(self, message: CancelRun, caller: Any) -> RunsCancelled:
        """Stop runs; each ends with an outcome that says ``cancelled``."""
        return RunsCancelled(count=self.stop_runs(message))

    def stop_runs(self, message: CancelRun) -> int:
        """Tell the matching runs to stop; how many there were."""
        chosen = [run for run in self._runs.values() if _matches(run.request, message)]
        if message.suspend:
            return sum([run.suspend() for run in chosen])
        for run in chosen:
            run.stop("cancelled")
        queued = [entry for entry in self._queued.values() if _matches(entry.request, message)]
        for entry in queued:
            entry.cancelled = True
            entry.waiter.cancel()
        return len(chosen) + len(queued)

    async def interrupts(self, message: LoadInterrupts, caller: Any) -> InterruptsLoaded:
        """What a thread waits for, whichever process saw it pause."""
        stored = await read(self._peers, message.store, message.thread_id)
        if stored is None:
            return InterruptsLoaded()
        return InterruptsLoaded(run_id=stored.state.run_id, interrupts=listed(stored.state.interrupts))

    async def _run(self, request: StartRun, agent: Any, caller: Caller) -> RunFinished:
        enter_tool(None)  # of the call that may have asked for this run, if that is in the same process
        inside(f"inside the supervisor of run {request.run_id}")
        self._loop = self._loop or asyncio.get_running_loop()  # kept: with Python 3.11 asking costs a system call
        task = asyncio.current_task(self._loop)
        run = self._runs[request.run_id] = Run(request, agent, caller, self._peers, self._forget, task)
        run.moving = self._moving
        run.set_deadline()
        try:
            return RunFinished.trusted(outcome=await run_turn(run))
        finally:
            run.clear_deadline()
            if run.lease is not None:
                await run.lease.give_back()
            del self._runs[request.run_id]  # a resumed run has the id that it began with

    def _forget(self, channel: Channel, run_id: str, messages: int) -> None:
        """Tell an agent actor, a batch at a time, which conversations it may drop; a long one is not kept waiting."""
        over = self._over.setdefault(channel, [])
        over.append(run_id)
        if len(over) >= FORGET_BATCH or messages > LONG_CONVERSATION:
            channel.send(ForgetRuns(run_ids=tuple(over)))
            del self._over[channel]


def _matches(request: StartRun, message: CancelRun) -> bool:
    wanted = (message.run_id, message.thread_id, message.definition)
    return wanted != (None, None, None) and all(
        value is None or value == having
        for value, having in zip(wanted, (request.run_id, request.thread_id, request.definition), strict=True)
    )
