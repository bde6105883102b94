"""Runs that go on without the caller who began them, and those who read their events and outcomes, then or later.

A reader asks for what is behind its cursor and waits until there is something: how fast it reads is its own business, a
supervisor keeps nothing for it but the run's newest events (``event_log.py``). So several readers, gone ones and slow ones
cost the same as one.

A supervisor that dies is restarted without its memory. What the next incarnation has to know is in the register
(``register.py``): it goes on with durable runs from their checkpoints (``recovery.py``), all by itself, and knows of the
others that they are lost. Before a reader is told the events of a durable run they are noted there, too. So the numbers of
the events that follow go on where readers are, and one whose answer was lost on the way gets it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any, Protocol

from ...protocol.commands import CancelRun, RunFinished, RunsCancelled, StartRun
from ...protocol.config import Topology
from ...protocol.errors import RunError, RunLost, RunNotFound, RuntimeClosed, UmbelError, from_wire
from ...protocol.handles import (
    AwaitOutcome,
    BeginRun,
    EventsRead,
    KeptRun,
    ListRuns,
    ReadEvents,
    RunBegun,
    RunEntry,
    RunsListed,
    ToldEvents,
)
from ...protocol.messages import Frozen
from ...protocol.results import RunOutcome
from ..definitions import Definitions
from ..frames import Caller, Handler, failure
from .begun import Begun, compact, expired, rest, size_of
from .event_log import EventLog, Space
from .recovery import stored_end
from .register import Estate, Records, Register
from .run import Peers, Run

BATCH_BYTES = 500_000  # of events in one answer
TOLD_BYTES = 4_000  # of earlier events, noted for readers that are a little behind when a supervisor dies
logger = logging.getLogger("umbel.supervisor")


class Supervisor(Protocol):
    """What carries runs out (``actor.py``)."""

    def start(self, request: StartRun, caller: Caller) -> Awaitable[RunFinished]: ...
    async def cancel(self, message: CancelRun, caller: Any) -> RunsCancelled: ...


class BegunRuns:
    """The runs of a supervisor that were begun with a handle: those in progress, and for a while those that are over.

    Args:
        supervisor: carries them out.
        definitions: the agents known here.
        peers: where the other actors are.
        shape: how much is kept, and for how long (``Topology.kept_...``).
        register: what outlives this process.
        clock: seconds since the epoch, UTC.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        definitions: Definitions,
        peers: Peers,
        shape: Topology,
        register: Register | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._supervisor = supervisor
        self._definitions = definitions
        self._peers = peers
        self._shape = shape
        self._records = Records(register)
        self._clock = clock
        self._space = Space(shape.kept_bytes, self._drop_finished)
        self._runs: dict[str, Begun] = {}
        self._over: dict[str, asyncio.TimerHandle] = {}
        self._room = asyncio.Semaphore(shape.max_runs)
        self._loading: asyncio.Task[None] | None = None
        self._loaded = register is None
        self._tasks: set[asyncio.Task[None]] = set()

    def handlers(self) -> dict[type[Frozen], Handler]:
        """Who answers which request."""
        return {
            StartRun: self.start,
            BeginRun: self.begin,
            ReadEvents: self.read,
            AwaitOutcome: self.outcome,
            ListRuns: self.listed,
            CancelRun: self.cancel,
        }

    # what is asked

    def start(self, request: StartRun, caller: Caller) -> Awaitable[RunFinished]:
        """Run a turn for a caller who waits, behind those that were in its thread's queue when a supervisor died."""
        return self._supervisor.start(request, caller) if self._loaded else self._start_later(request, caller)

    async def _start_later(self, request: StartRun, caller: Caller) -> RunFinished:
        await self.ready()
        return await self._supervisor.start(request, caller)

    async def begin(self, message: BeginRun, caller: Any) -> RunBegun:
        """Begin a run, or recall one from its thread.

        Raises:
            ThreadBusy: another run has the thread, and this one was told not to wait.
            DefinitionError: the agent is not known here.
        """
        await self.ready()
        start = message.start.evolve(events=True)
        if start.run_id not in self._runs:
            begun = Begun(start, self._definitions.get(start.definition), self._log(start.after_seq + 1), self._clock())
            self._runs[start.run_id] = begun
            try:
                if not (message.recall and await self._recall(begun)):
                    await self._launch(begun)
            except BaseException:  # whatever it was, the run is not one that was begun; it is raised again
                self._drop(start.run_id)
                raise
        return RunBegun(run_id=start.run_id)

    async def read(self, message: ReadEvents, caller: Any) -> EventsRead:
        """The events behind a cursor, once there are any or there will be none.

        Raises:
            RunNotFound: no such run is known here.
            RunLost: its supervisor died, and it is not durable, or died too often.
            EventsExpired: what follows the cursor is not kept any more.
        """
        begun = await self._known(message.run_id)
        log = begun.log
        first = log.oldest if message.after_seq is None else message.after_seq + 1
        while log.next <= first and begun.ended_at is None:
            await begun.change()
        await asyncio.sleep(0)  # what else is told in this moment comes along
        if message.after_seq is None:
            first = log.oldest
        if first < log.oldest:
            raise expired(message, log.oldest)
        lines = log.read(first, BATCH_BYTES)
        ended = begun.ended_at is not None and first + len(lines) >= log.next
        if not lines and isinstance(begun.error, RunLost):
            raise from_wire(begun.error.to_wire())
        if lines and begun.durable and self._records.kept:
            await self._note_told(begun, first, lines)
        return EventsRead(lines=b"\n".join(lines), ended=ended)

    async def outcome(self, message: AwaitOutcome, caller: Any) -> RunFinished:
        """How a run ends, once it does.

        Raises:
            RunNotFound: no such run is known here.
            UmbelError: why it could not be carried out.
        """
        begun = await self._known(message.run_id)
        while begun.ended_at is None:
            await begun.change()
        if begun.error is not None:
            raise from_wire(begun.error.to_wire())
        assert begun.outcome is not None
        return RunFinished(outcome=begun.outcome)

    async def listed(self, message: ListRuns, caller: Any) -> RunsListed:
        """The runs that are known here, or the one that is asked for, if it is."""
        await self.ready()
        return RunsListed(runs=self.entries(message.run_id))

    def entries(self, run_id: str | None = None) -> tuple[RunEntry, ...]:
        """The runs that are known here, the oldest first."""
        chosen = [begun for begun in list(self._runs.values()) if run_id in {None, begun.start.run_id}]
        return tuple([begun.entry(self._clock()) for begun in sorted(chosen, key=lambda begun: begun.began_at)])

    async def cancel(self, message: CancelRun, caller: Any) -> RunsCancelled:
        """Stop runs, also for the incarnation after this one."""
        await self.ready()
        begun = self._runs.get(message.run_id or "")
        if begun is not None and begun.ended_at is None and not message.suspend:
            begun.start = begun.start.evolve(cancelled=True)
            await self._note(begun)
        return await self._supervisor.cancel(message, caller)

    async def close(self) -> None:
        """Stop what runs; durable threads are saved."""
        tasks = [*self._tasks, *([self._loading] if self._loading is not None else [])]
        for timer in self._over.values():
            timer.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # what an incarnation before this one has left

    async def ready(self) -> None:
        """Until the runs of the incarnation before this one are known; asked for the first time, it looks for them."""
        if self._loaded:
            return
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        try:
            estate = await self._records.load()
        except Exception:  # whatever it is, those who begin runs now must not suffer for it
            logger.exception("the runs of an earlier incarnation of this supervisor cannot be read")
            estate = Estate()
        for kept in sorted(estate.runs.values(), key=lambda kept: kept.began_at):  # as they stood in their threads' queues
            try:
                await self._take_over(kept, estate)
            except Exception:  # as above: the others go on
                logger.exception("run %s cannot be taken over", kept.start.run_id)
        self._loaded = True

    async def _take_over(self, kept: KeptRun, estate: Estate) -> None:
        """Go on with a run of the incarnation that died."""
        run_id, told = kept.start.run_id, estate.told.get(kept.start.run_id)
        lines = told.lines.split(b"\n") if told is not None and told.lines else []
        last = told.last if told is not None else kept.start.after_seq
        heard = told.heard if told is not None else {}
        start = kept.start.evolve(recover=True, after_seq=last, heard=heard, events=told is None or not told.ended)
        log = self._log(last + 1 - len(lines), lines)
        begun = self._runs[run_id] = Begun(start, None, log, kept.began_at, kept.deaths, told=last, heard=deepcopy(heard))
        try:
            begun.agent = self._definitions.admit(start.definition, estate.definitions.get(start.definition, b""))
            if not begun.durable:
                raise RunLost(f"run {run_id} was lost: its supervisor died, and it had no thread", run_id=run_id)
            if kept.over:
                begun.stored = True
                self._retain(begun)
                return
            if kept.deaths >= self._shape.max_recoveries or not self._shape.recovery_seconds:
                why = f"run {run_id} was lost: its supervisor died over it {kept.deaths + 1} times (Topology.max_recoveries)"
                raise RunLost(why, run_id=run_id)
            begun.deaths += 1
            logger.warning("run %s: its supervisor died; it is recovered", run_id)
            await self._launch(begun)
        except UmbelError as error:
            begun.error = error
            await self._end(begun)

    async def _recall(self, begun: Begun) -> bool:
        """Have a run's outcome from its thread; False when it has not ended there."""
        begun.outcome = await self._stored(begun)
        if begun.outcome is not None:
            await self._end(begun)
        return begun.outcome is not None

    async def _stored(self, begun: Begun) -> RunOutcome | None:
        """The outcome that a run's thread holds. Nothing runs, and no lease is taken."""
        if not begun.durable:
            return None
        outcome = await stored_end(Run(begun.start, begun.agent, begun, self._peers, lambda *_: None, None))
        return None if outcome is None else compact(outcome)

    # runs

    async def _launch(self, begun: Begun) -> None:
        await self._room.acquire()
        try:
            await self._note(begun)
            running = self._supervisor.start(self._request(begun), begun)
        except BaseException:  # also a cancellation: the place must not stay taken; it is raised again
            self._room.release()
            raise
        begun.task = asyncio.ensure_future(self._carry(begun, running))
        self._keep(begun.task)
        await asyncio.sleep(0)  # it stands in its thread's queue before those who come after it

    def _request(self, begun: Begun) -> StartRun:
        """The run's request as it is now."""
        if not begun.deaths:
            return begun.start
        passed = self._clock() - begun.began_at
        return begun.start.evolve(timeout=rest(begun.start.timeout, passed), on_busy="queue")  # it had the thread already

    async def _carry(self, begun: Begun, running: Awaitable[RunFinished]) -> None:
        try:
            begun.outcome = compact((await running).outcome)
        except asyncio.CancelledError:
            begun.error = RuntimeClosed(f"the runtime was ended while run {begun.start.run_id} was in progress")
            begun.ended_at = self._clock()
            begun.changed.set()
            raise
        except UmbelError as error:
            begun.error = error
        except Exception as error:  # noqa: BLE001 - the border of the actor: whoever asks for the outcome gets it
            begun.error = from_wire(failure(error).model_dump())
        finally:
            self._room.release()
        await self._end(begun)

    async def _end(self, begun: Begun) -> None:
        """A run is over: it is kept for a while."""
        self._space.used += size_of(begun.outcome)
        self._retain(begun)
        if begun.start.run_id in self._over and begun.durable and begun.error is None:
            await self._note(begun)
        else:
            await self._forget(begun)

    def _retain(self, begun: Begun) -> None:
        run_id, shape = begun.start.run_id, self._shape
        begun.ended_at = self._clock()
        begun.changed.set()
        self._over[run_id] = asyncio.get_running_loop().call_later(shape.kept_seconds, self._drop, run_id)
        while self._over and (len(self._over) > shape.kept_runs or self._space.exceeded):
            self._drop_finished()

    def _drop_finished(self) -> bool:
        """Know nothing any more of the run that has been over for longest; False if there is none."""
        if not self._over:
            return False
        self._drop(next(iter(self._over)))
        return True

    def _drop(self, run_id: str) -> None:
        """Know nothing of a run any more."""
        timer = self._over.pop(run_id, None)
        begun = self._runs.pop(run_id, None)
        if timer is not None:
            timer.cancel()
        if begun is not None:
            self._space.used -= size_of(begun.outcome)
            begun.log.clear()
            self._keep(asyncio.ensure_future(self._forget(begun)))

    async def _note(self, begun: Begun) -> None:
        """Have the next incarnation know of a run what there is to know now."""
        async with begun.lock:
            if self._runs.get(begun.start.run_id) is begun:
                await self._records.keep(begun.record(), self._peers.blob)

    async def _forget(self, begun: Begun) -> None:
        async with begun.lock:
            await self._records.forget(begun.start.run_id, begun.start.definition)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _known(self, run_id: str) -> Begun:
        await self.ready()
        begun = self._runs.get(run_id)
        if begun is None:
            kept = f"finished runs are known for {self._shape.kept_seconds:g} s (Topology.kept_seconds, kept_runs)"
            how = "a durable one is found in its thread by agent.attach(run_id)"
            raise RunNotFound(f"no run {run_id!r} was begun here with a handle, or it is over: {kept}; {how}", run_id=run_id)
        if begun.stored:
            await self._fetch(begun)
        return begun

    async def _fetch(self, begun: Begun) -> None:
        """Read the outcome of a run that an earlier incarnation has finished."""
        async with begun.lock:
            if not begun.stored:
                return
            try:
                outcome = await self._stored(begun)
                gone = RunLost(f"run {begun.start.run_id} ended, and its last state was not stored", run_id=begun.start.run_id)
                begun.error = gone if outcome is None else None
            except RunError as error:
                begun.error = error
            else:
                begun.outcome = outcome
                self._space.used += size_of(outcome)
            begun.stored = False

    def _log(self, first: int, lines: list[bytes] | tuple[()] = ()) -> EventLog:
        return EventLog(first, self._shape.kept_events, self._shape.kept_event_bytes, self._space, lines)

    async def _note_told(self, begun: Begun, first: int, lines: list[bytes]) -> None:
        """What a reader is about to get is noted before: the numbers of later events are none that it has seen."""
        last = first + len(lines) - 1
        async with begun.lock:
            if last <= begun.told or self._runs.get(begun.start.run_id) is not begun:
                return
            earlier = begun.log.before(first, TOLD_BYTES)
            ended = begun.end_seq is not None and last >= begun.end_seq
            begun.hear(lines, first)
            told = ToldEvents(last=last, ended=ended, heard=begun.heard, lines=b"\n".join([*earlier, *lines]))
            await self._records.tell(begun.start.run_id, told)
            begun.told = last
