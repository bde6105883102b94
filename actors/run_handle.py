"""``RunHandle``: a run that goes on without whoever began it, to be read, awaited and stopped from wherever its runtime is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from ..protocol.commands import CancelRun, RunFinished, RunsCancelled, StartRun
from ..protocol.errors import PeerLost, RunLost, RunNotFound, ThreadBusy, UmbelError, from_wire
from ..protocol.event import Event, read_event_json
from ..protocol.handles import AwaitOutcome, EventsRead, ListRuns, ReadEvents, RunEntry, RunsListed
from ..protocol.messages import Frozen
from ..protocol.patterns import PatternResult
from ..protocol.results import AgentResult, RunOutcome
from .runtime_port import RuntimePort, current_runtime


class RunHandle:
    """A run that was begun with ``agent.start``. Any number of handles, in any number of processes, may be on one run.

    What a run survives depends on its runtime: on a detached one (``Runtime(namespace=..., detached=True)``) the end of its
    driver; on another Ray runtime, and inline, it ends with the process (inline: with the event loop) that began it. The
    death of its supervisor it survives if it is durable, that is if it has a thread and its agent a checkpointer that is
    not ``memory://`` inline; then it goes on by itself from its newest checkpoint, without ``ephemeral``.

    Attributes:
        run_id: of the run; whoever has it can attach.
        seq: the cursor: number of the last event that was read here, None while it shall begin with the oldest there is.
    """

    def __init__(self, run_id: str, runtime: RuntimePort, *, after_seq: int | None = -1, runnable: Any = None) -> None:
        self.run_id = run_id
        self.seq = after_seq
        self._runtime = runtime
        self._view: Callable[[RunOutcome], AgentResult] = getattr(runnable, "result_of", result_of)

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r}, seq={self.seq})"

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events behind the cursor, in order and without a gap, those that are still to come, too, to the run's last.

        Leaving early leaves the run alone; the next call reads on. A run that was begun with ``stream_tokens`` also gives
        its text as it is written. How the run ended is said by :meth:`result`. After the death of a supervisor a
        ``CustomEvent`` named ``recovered`` follows what was told, and what had not been stored is done, and told, again.

        Raises:
            EventsExpired: events behind the cursor are not kept any more: a run keeps the newest
                (``Topology.kept_events``, ``kept_event_bytes``), after the death of its supervisor only the last that were
                read by anyone. ``details["oldest"]`` is the oldest that there is.
            RunNotFound: it has ended and was forgotten meanwhile (``Topology.kept_seconds``, ``kept_runs``).
            RunLost: its supervisor died, and it is not durable.
        """
        ended = False
        while not ended:
            events, ended = await self._read()
            for event in events:
                self.seq = event.seq
                yield event

    def events_sync(self) -> Iterator[Event]:
        """:meth:`events` for synchronous code."""
        ended = False
        while not ended:
            events, ended = self._runtime.run_sync(self._read())
            for event in events:
                self.seq = event.seq
                yield event

    async def result(self) -> AgentResult:
        """Wait for the end of the run: its result, as ``arun`` gives it (of a pattern a :class:`PatternResult`).

        Raises:
            UmbelError: what ended the run; ``RunLost`` and ``RunNotFound`` as for :meth:`events`.
        """
        finished: RunFinished = await self._ask(AwaitOutcome(run_id=self.run_id))
        if finished.outcome.error is not None:
            raise failed(finished.outcome)
        return self._view(finished.outcome)

    def result_sync(self) -> AgentResult:
        """:meth:`result` for synchronous code."""
        return self._runtime.run_sync(self.result())

    async def status(self) -> RunEntry:
        """What is known of the run now.

        Raises:
            RunNotFound: nothing.
        """
        listed: RunsListed = await self._ask(ListRuns(run_id=self.run_id))
        if not listed.runs:
            raise unknown(self.run_id)
        return listed.runs[0]

    def status_sync(self) -> RunEntry:
        """:meth:`status` for synchronous code."""
        return self._runtime.run_sync(self.status())

    async def cancel(self) -> bool:
        """Stop the run; it ends with a result that says ``cancelled``. Whether it was in progress."""
        told: RunsCancelled = await self._ask(CancelRun(run_id=self.run_id))
        return told.count > 0

    def cancel_sync(self) -> bool:
        """:meth:`cancel` for synchronous code."""
        return self._runtime.run_sync(self.cancel())

    async def _read(self) -> tuple[list[Event], bool]:
        read: EventsRead = await self._ask(ReadEvents(run_id=self.run_id, after_seq=self.seq))
        return [read_event_json(line) for line in read.lines.split(b"\n") if line], read.ended

    async def _ask(self, message: Frozen) -> Any:
        try:
            return await self._runtime.ask_run(message, self.run_id)
        except PeerLost as error:
            raise RunLost(f"run {self.run_id} cannot be reached: {error.message}", run_id=self.run_id) from error


async def attach(
    run_id: str,
    *,
    after_seq: int | None = -1,
    agent: Any = None,
    thread_id: str | None = None,
    runtime: RuntimePort | None = None,
) -> RunHandle:
    """A handle on a run that was begun with ``agent.start``, by this program or another one of the same runtime.

    Args:
        run_id: of the run.
        after_seq: number of the last event that is not wanted any more; -1 wants all, None the oldest kept and on.
        agent: whose run it is: then a durable run that the runtime does not know (any more) is found in the agent's store.
            One that has ended gives its result; one that was cut off, because its whole runtime ended, goes on here.
        thread_id: of the run, so that it need not be searched for among all threads of that store.
        runtime: where it runs; default is the current runtime.

    Raises:
        RunNotFound: nobody knows the run.
        RunLost: its supervisor died and it was not durable, or its thread has gone on without it.
        ThreadBusy: the store says that the run is in progress, but not in this runtime; or it was, less than
            ``lease_seconds`` ago.
    """
    runtime = runtime or current_runtime()
    handle = RunHandle(run_id, runtime, after_seq=after_seq, runnable=agent)
    try:
        entry = await handle.status()
    except RunNotFound:
        if getattr(agent, "checkpointer", None) is None:
            raise
        await recall(agent, run_id, thread_id, after_seq, runtime)
        return handle
    if entry.status == "lost":
        await handle.result()  # raises why
    return handle


def attach_sync(run_id: str, *, runtime: RuntimePort | None = None, **options: Any) -> RunHandle:
    """:func:`attach` for synchronous code."""
    runtime = runtime or current_runtime()
    return runtime.run_sync(attach(run_id, runtime=runtime, **options))


async def recall(agent: Any, run_id: str, thread_id: str | None, after_seq: int | None, runtime: RuntimePort) -> None:
    """Make a run known to the runtime that only its thread knows."""
    found = await agent.threads_in(runtime).page(thread_id or "", where={"run_id": run_id}, limit=1, members=True)
    if found and found[0].owner is not None:
        why = f"run {run_id} is in progress elsewhere ({found[0].owner} has thread {found[0].thread_id!r})"
        wait = "attach in the runtime that it was begun in; if that is gone, wait until the lease has ended (lease_seconds)"
        raise ThreadBusy(f"{why}: {wait}", owner=found[0].owner, thread_id=found[0].thread_id)
    thread_id = found[0].thread_id if found else thread_id
    if thread_id is None:
        raise unknown(run_id, f", and no thread of {agent.checkpointer} has it as its newest run")
    after = -1 if after_seq is None else after_seq
    start = StartRun(
        run_id=run_id, definition=runtime.register(agent), prompt="", thread_id=thread_id, recover=True, after_seq=after
    )
    await runtime.begin(agent, start, recall=True)


def result_of(outcome: RunOutcome) -> AgentResult:
    """The caller's view of an outcome of nobody knows which agent or pattern."""
    return AgentResult.from_outcome(outcome) if outcome.pattern is None else PatternResult.of(outcome)


def unknown(run_id: str, more: str = "") -> RunNotFound:
    """The error about a run that is not known."""
    return RunNotFound(
        f"no run {run_id!r} is known in this runtime{more}: it was begun elsewhere or without a handle, or it ended long ago "
        "(Topology.kept_seconds, kept_runs); a durable run is found in its thread with agent.attach(run_id)",
        run_id=run_id,
    )


def failed(outcome: RunOutcome) -> UmbelError:
    """The error that ended a run; ``details["metrics"]`` says what the run had used until then."""
    error = from_wire(outcome.error or {})
    error.details["metrics"] = outcome.metrics.model_dump()
    return error
