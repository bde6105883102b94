"""One agent over many tasks, in parallel: the entry point."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from ...actors import runnable as actors
from ...actors.runtime_port import RuntimePort, current_runtime
from ...protocol.errors import ConfigurationError, DefinitionError
from .budget import Budget
from .durations import read_deadline
from .hedging import Hedge, check_idempotent
from .ledger import OUT_EXISTS, Ledger
from .priority import read_priority
from .progress import Reporter, Snapshot, choose_reporter
from .quarantine_file import QuarantineFile
from .results import FleetInterrupted, FleetReport
from .retry import Backoff, Retries
from .runner import FleetRun
from .settings import Runnable, Settings
from .sources import Tasks, TaskSource, open_source

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
            also rules out another attempt after the loss of an actor. A mapping says it by code of error or stop reason:
            ``{"default": 2, "rate_limit": 10, "context_overflow": 0}``.
        quarantine_after: how often the loss of an actor may cost the task an attempt (2 or more). Those do not count as
            ``retries``: the actors are waited for, and the task runs again. The last of these attempts is made while no
            other suspect runs; a task that is lost then, too, ends ``quarantined``, and the fleet goes on.
        timeout: seconds that one attempt may take.
        runtime: where to run; by default the current runtime, started on first use.
        threads: with a checkpointer, the prefix of a thread for each task (``"<threads>/<task id>"``); None runs without
            threads. Another attempt goes on with the turn that was cut off, so that what was done is not done again; where
            nothing can go on it begins anew on a thread of its own (``#2`` for a second attempt).
        backoff: waits between attempts.
        deadline: seconds from the start of a run (``"2h"``), or a time; what runs then is stopped, the rest stays undone.
        budget: what all tasks may spend: :class:`Budget` or ``{"tokens": ..., "cost_usd": ..., "seconds": ...}``. Once it is
            spent nothing begins any more. Runs in flight have leases on what is left, so together they overspend by at most
            one model call each; a task that its lease cuts short is tried again with more, or stays undone.
        priority: ``"metadata.<field>"``: of the next thousand tasks, those with higher numbers there come first.
        hedge: second attempts beside stragglers (:class:`Hedge`, True for its defaults); every tool of the agent, and of
            the members of a pattern, must be idempotent. Tasks with threads are not hedged.
        quarantine: a file for tasks that end ``quarantined``, with the reason; it can be run as a tasks file.

    Raises:
        ConfigurationError: a number out of range.
        DefinitionError: ``agent`` cannot be run.
    """

    def __init__(
        self,
        agent: Runnable,
        *,
        concurrency: int = 100,
        retries: int | Mapping[str, int] | Retries = 2,
        timeout: float | None = None,
        runtime: RuntimePort | None = None,
        threads: str | None = None,
        backoff: Backoff | None = None,
        quarantine_after: int = 3,
        deadline: float | str | datetime | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        priority: str | float = 0,
        hedge: Hedge | Mapping[str, Any] | bool = False,
        quarantine: str | os.PathLike[str] | None = None,
    ) -> None:
        if not callable(getattr(agent, "arun", None)):
            raise DefinitionError(f"a fleet runs an Agent or a pattern, not a {type(agent).__name__}")
        if concurrency < 1 or quarantine_after < 2 or (timeout is not None and timeout <= 0):
            raise ConfigurationError(
                f"concurrency={concurrency} (1 or more), timeout={timeout} (above 0, or None), "
                f"quarantine_after={quarantine_after} (2 or more: the first loss may be another task's doing)"
            )
        self._agent = agent
        self._concurrency = concurrency
        with _field("retries"):
            self._retries = Retries.of(retries)
        with _field("deadline"):
            self._deadline = None if deadline is None else read_deadline(deadline)
        with _field("budget"):
            self._budget = Budget.model_validate(budget or {})
        with _field("priority"):
            self._priority = read_priority(priority)
        with _field("hedge"):
            self._hedge = Hedge.model_validate({} if hedge is True else hedge) if hedge else None
        if self._hedge is not None:
            check_idempotent(agent)
        self._quarantine = None if quarantine is None else Path(quarantine)
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
        sample: int | None = None,
        shuffle_seed: int | None = None,
    ) -> FleetReport:
        """Run every task.

        Args:
            tasks: a .jsonl, .csv (also .gz) or .parquet file, a folder of text files, ``"-"`` for JSON lines on standard
                input, a :class:`TaskInput` that says more, a Ray Data dataset, or an iterable or async iterable of prompts,
                mappings (``id``, ``prompt``, ``metadata``) or :class:`Task`.
            out: the results file, one JSON line a task.
            resume: go on with ``out``: tasks that are ok there are not run again.
            overwrite: replace ``out``.
            progress: True shows it on stderr; or a function that gets a :class:`Snapshot` a few times a second.
            limit: run at most that many tasks now.
            keep: hold all results in the report too (default: only without ``out``).
            sample: only a random choice of that many tasks, the same for the same ``shuffle_seed``; held in memory.
            shuffle_seed: run them in a random order, the same for the same number. All are read before the first runs, into
                a temporary file; 8 bytes of memory a task.

        Returns:
            Counts, rate, spend and a sample of failures. Lines that are no tasks count as ``invalid``.

        Raises:
            ConfigurationError: wrong arguments, files, or first task, before any work starts; or the agent's own
                configuration, as soon as its first run says so.
            StoreUnavailable: ``out`` cannot be written.
        """
        return await self.run_until_signal(
            tasks,
            out,
            signals=(),
            resume=resume,
            overwrite=overwrite,
            progress=progress,
            limit=limit,
            keep=keep,
            sample=sample,
            shuffle_seed=shuffle_seed,
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
        sample: int | None = None,
        shuffle_seed: int | None = None,
    ) -> FleetReport:
        """:meth:`run` for programs: the first of these signals stops the fleet cleanly, and the report says so."""
        path = None if out is None else Path(out)
        source = self._open(tasks, sample, shuffle_seed)
        try:
            _check_out(path, source.path, keep_going=resume or overwrite)
            if source.needs_ray:
                self._join_ray(source.name)
            await source.check()
            self._start_runtime(signals)
            quarantine = None if self._quarantine is None else QuarantineFile(self._quarantine, fresh=overwrite)
            ledger = None if path is None else await asyncio.to_thread(Ledger, path, resume=resume, overwrite=overwrite)
        except BaseException:  # also an interrupt must release the input
            await source.close()
            raise
        run = FleetRun(self._agent, source, ledger, choose_reporter(progress), self._settings(limit, keep, path, quarantine))
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

    def _settings(self, limit: int | None, keep: bool | None, out: Path | None, quarantine: QuarantineFile | None) -> Settings:
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
            budget=self._budget,
            deadline=self._deadline,
            hedge=self._hedge,
            quarantine=quarantine,
        )

    def _open(self, tasks: Tasks, sample: int | None, shuffle_seed: int | None) -> TaskSource:
        source = open_source(tasks)
        if sample is not None or shuffle_seed is not None:
            source.reorder(sample=sample, seed=shuffle_seed)
        if isinstance(self._priority, str):
            source.prefer(self._priority)
        return source

    def _join_ray(self, name: str) -> None:
        """Ray Data reads with the Ray that the runtime joins; it would start one of its own."""
        runtime = self._runtime or current_runtime()
        if getattr(runtime, "inline", False):
            raise ConfigurationError(f"{name}: Ray Data needs a runtime on Ray, this one is inline; run with --runtime local")
        start = getattr(runtime, "start", None)
        if start is not None:
            start()


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


@contextmanager
def _field(name: str) -> Iterator[None]:
    """What a setting is refused for, with its name."""
    try:
        yield
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False))
        raise ConfigurationError(f"{name}: {problems}") from None
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None


def _check_out(out: Path | None, tasks: Path | None, *, keep_going: bool) -> None:
    if out is None:
        return
    if tasks is not None and out.exists() and out.samefile(tasks):
        raise ConfigurationError(f"{out} is the tasks file; choose another file for the results")
    if not keep_going and out.is_file() and out.stat().st_size:
        raise ConfigurationError(f"{out} {OUT_EXISTS}")
