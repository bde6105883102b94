"""One agent over many tasks, in parallel: the entry point."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ...actors import runnable as actors
from ...actors.runtime_port import RuntimePort, current_runtime
from ...protocol.errors import ConfigurationError, DefinitionError
from .progress import Reporter, Snapshot, choose_reporter
from .results import FleetInterrupted, FleetReport
from .results_file import OUT_EXISTS, ResultsFile
from .retry import Backoff
from .runner import FleetRun
from .settings import Runnable, Settings
from .sources import Tasks, open_source

Progress = bool | Reporter | Callable[[Snapshot], Any]


class Fleet:
    """Runs one agent (or pattern) over many tasks.

    A bounded number is in flight; tasks are read and results written as streams, so memory stays flat for any number of
    tasks. A task that fails harms no other. Tasks are run at least once: one that is retried without a thread (see
    ``threads``) starts again, and so does one of a fleet that is resumed.

    Args:
        agent: an ``Agent``, a pattern, or anything with its ``arun``.
        concurrency: tasks in flight at once.
        retries: further attempts after errors that another attempt can mend (overload, time-out...), with back-off; 0
            also rules out another attempt after the loss of an actor.
        quarantine_after: how often the loss of an actor may cost the task an attempt (2 or more). Those do not count as
            ``retries``: the actors are waited for, and the task runs again. The last of these attempts is made while no
            other suspect runs; a task that is lost then, too, ends ``quarantined``, and the fleet goes on.
        timeout: seconds that one attempt may take.
        runtime: where to run; by default the current runtime, started on first use.
        threads: with a checkpointer, the prefix of a thread for each task (``"<threads>/<task id>"``); None runs without
            threads. Another attempt goes on with the turn that was cut off, so that what was done is not done again; where
            nothing can go on it begins anew on a thread of its own (``#2`` for a second attempt).
        backoff: waits between attempts.

    Raises:
        ConfigurationError: a number out of range.
        DefinitionError: ``agent`` cannot be run.
    """

    def __init__(
        self,
        agent: Runnable,
        *,
        concurrency: int = 100,
        retries: int = 2,
        timeout: float | None = None,
        runtime: RuntimePort | None = None,
        threads: str | None = None,
        backoff: Backoff | None = None,
        quarantine_after: int = 3,
    ) -> None:
        if not callable(getattr(agent, "arun", None)):
            raise DefinitionError(f"a fleet runs an Agent or a pattern, not a {type(agent).__name__}")
        if concurrency < 1 or retries < 0 or quarantine_after < 2 or (timeout is not None and timeout <= 0):
            raise ConfigurationError(
                f"concurrency={concurrency} (1 or more), retries={retries} (0 or more), timeout={timeout} (above 0, or None), "
                f"quarantine_after={quarantine_after} (2 or more: the first loss may be another task's doing)"
            )
        self._agent = agent
        self._concurrency = concurrency
        self._retries = retries
        self._timeout = timeout
        self._runtime = runtime
        self._threads = threads
        self._backoff = backoff or Backoff()
        self._quarantine_after = quarantine_after
        self._runs: list[tuple[asyncio.AbstractEventLoop, FleetRun]] = []

    async def run(
        self,
        tasks: Tasks,
        out: str | os.PathLike[str] | None = None,
        *,
        resume: bool = False,
        overwrite: bool = False,
        progress: Progress = False,
        limit: int | None = None,
        keep: bool | None = None,
    ) -> FleetReport:
        """Run every task.

        Args:
            tasks: a .jsonl or .csv file (also .gz), ``"-"`` for JSON lines on standard input, or an iterable or async
                iterable of prompts, mappings (``id``, ``prompt``, ``metadata``) or :class:`Task`.
            out: the results file, one JSON line a task.
            resume: go on with ``out``: tasks that are ok there are not run again.
            overwrite: replace ``out``.
            progress: True shows it on stderr; or a function that gets a :class:`Snapshot` a few times a second.
            limit: run at most that many tasks now.
            keep: hold all results in the report too (default: only without ``out``).

        Returns:
            Counts, rate, spend and a sample of failures. Lines that are no tasks count as ``invalid``.

        Raises:
            ConfigurationError: wrong arguments, files, or first task, before any work starts; or the agent's own
                configuration, as soon as its first run says so.
            StoreUnavailable: ``out`` cannot be written.
        """
        return await self.run_until_signal(
            tasks, out, signals=(), resume=resume, overwrite=overwrite, progress=progress, limit=limit, keep=keep
        )

    async def run_until_signal(
        self,
        tasks: Tasks,
        out: str | os.PathLike[str] | None = None,
        *,
        signals: Iterable[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
        resume: bool = False,
        overwrite: bool = False,
        progress: Progress = False,
        limit: int | None = None,
        keep: bool | None = None,
    ) -> FleetReport:
        """:meth:`run` for programs: the first of these signals stops the fleet cleanly, and the report says so."""
        path = None if out is None else Path(out)
        source = open_source(tasks)
        try:
            _check_out(path, source.path, keep_going=resume or overwrite)
            await source.check()
            self._start_runtime(signals)
            ledger = None if path is None else await asyncio.to_thread(Ledger, path, resume=resume, overwrite=overwrite)
        except BaseException:  # also an interrupt must release the input
            await source.close()
            raise
        run = FleetRun(self._agent, source, ledger, choose_reporter(progress), self._settings(limit, keep, path))
        entry = (asyncio.get_running_loop(), run)
        self._runs.append(entry)
        try:
            with stop_on_signals(self, *signals):
                return await run.run()
        finally:
            self._runs.remove(entry)

    def run_sync(self, tasks: Tasks, out: str | os.PathLike[str] | None = None, **options: Any) -> FleetReport:
        """:meth:`run` for callers that are not async; inside a running event loop it works in a thread.

        Raises:
            FleetInterrupted: Ctrl-C; what was finished is in its ``report`` and in ``out``.
        """
        from ..runtime import Runtime

        runtime = self._runtime or Runtime.current()
        report = runtime.run_sync(self.run_until_signal(tasks, out, signals=(signal.SIGINT,), **options))
        if report.stopped == "SIGINT":
            raise FleetInterrupted(report)
        return report

    def stop(self, reason: str = "stopped") -> None:
        """Stop what runs: no new tasks, those in flight are cancelled. Safe from signal handlers and other threads."""
        for loop, run in list(self._runs):
            loop.call_soon_threadsafe(run.stop, reason)

    def _start_runtime(self, signals: Iterable[signal.Signals]) -> None:
        """Before handlers of signals are in place, because the start of Ray installs its own."""
        if signals and isinstance(self._agent, actors.Runnable):
            runtime = self._runtime or current_runtime()
            start = getattr(runtime, "start", None)
            if start is not None:
                start()

    def _ready(self) -> Callable[[], Awaitable[None]] | None:
        """How to wait for the actors, where there are any."""
        if self._runtime is None and not isinstance(self._agent, actors.Runnable):
            return None
        return getattr(self._runtime or current_runtime(), "ready", None)

    def _settings(self, limit: int | None, keep: bool | None, out: Path | None) -> Settings:
        return Settings(
            concurrency=self._concurrency if limit is None else max(1, min(self._concurrency, limit)),
            retries=self._retries,
            timeout=self._timeout,
            threads=self._threads,
            options={} if self._runtime is None else {"runtime": self._runtime},
            backoff=self._backoff,
            quarantine_after=self._quarantine_after,
            ready=self._ready(),
            limit=limit,
            keep=out is None if keep is None else keep,
        )


class Stoppable(Protocol):
    """Something that a signal can stop."""

    def stop(self, reason: str = ...) -> None:
        """End soon; ``reason`` is the signal's name."""


@contextmanager
def stop_on_signals(fleet: Stoppable, *signals: signal.Signals) -> Iterator[None]:
    """The first of these signals stops ``fleet`` cleanly; a second one acts as it would have without this.

    Only the main thread can handle signals; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def stop(number: signal.Signals) -> None:
        restore()
        fleet.stop(number.name)

    for number in signals:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        restore()


def _check_out(out: Path | None, tasks: Path | None, *, keep_going: bool) -> None:
    if out is None:
        return
    if tasks is not None and out.exists() and out.samefile(tasks):
        raise ConfigurationError(f"{out} is the tasks file; choose another file for the results")
    if not keep_going and out.is_file() and out.stat().st_size:
        raise ConfigurationError(f"{out} {OUT_EXISTS}")
