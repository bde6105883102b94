"""One agent over many tasks, in parallel: the entry point."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...actors import runnable as actors
from ...actors.checkpoints.registry import resolve_url
from ...actors.runtime_port import RuntimePort, current_runtime
from ...actors.sharing import Share
from ...protocol.errors import ConfigurationError, DefinitionError
from ..job_context import STOP_WAIT
from ..loading import load_agent
from .budget import Budget
from .durations import read_deadline
from .hedging import Hedge, check_idempotent
from .ledger import Ledger
from .opening import check_name, open_ledger
from .outputs import Out, check_out, paths_of
from .plan import Plan, make_plan
from .priority import read_priority
from .progress import Reporter, Snapshot, choose_reporter
from .quarantine_file import QuarantineFile
from .results import FleetInterrupted, FleetReport
from .results_file import ResultsFile
from .retry import Backoff, Retries
from .runner import FleetRun
from .settings import Runnable, Settings
from .signals import on_signals
from .sources import Tasks, TaskSource, open_source
from .spec import FleetSpec
from .where import runtime_of

Progress = bool | Reporter | Callable[[Snapshot], Any]
GRACE_SECONDS = 10.0


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
            the members of a pattern, must be idempotent. Refused for tasks with threads.
        quarantine: a file for tasks that end ``quarantined``, with the reason; it can be run as a tasks file.
        name: keeps the fleet in a store: what is done, what it cost, how it goes. ``umbel fleets`` shows it, and any machine
            that reaches the store can go on with it. An agent with a checkpointer then gets ``threads=name``: a fleet that is
            resumed goes on with the turns that were cut off, and takes the outcome of those that had ended. One process at a
            time runs a fleet.
        store: URL of that store; default is ``fleets.sqlite`` in ``UMBEL_HOME``.
        grace: seconds from :meth:`drain`, or the first signal, until what still runs is cancelled and everything is written;
            default is what a cluster job is given, less one, or 10.
        weight: its share of the rate limits of model endpoints, against other fleets.
        spec: what the fleet is started from, for its record; no secrets.

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
        name: str | None = None,
        store: str | None = None,
        grace: float | None = None,
        spec: Mapping[str, Any] | None = None,
        weight: float = 1.0,
    ) -> None:
        if not callable(getattr(agent, "arun", None)):
            raise DefinitionError(f"a fleet runs an Agent or a pattern, not a {type(agent).__name__}")
        if concurrency < 1 or quarantine_after < 2 or weight <= 0 or (timeout is not None and timeout <= 0):
            raise ConfigurationError(
                f"concurrency={concurrency} (1 or more), timeout={timeout} (above 0, or None), weight={weight} (above 0), "
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
        if name is not None:
            check_name(name)
        elif store is not None:
            raise ConfigurationError("store says where a fleet with a name is kept; give it one: name=...")
        self._name = name
        self._store = None if store is None else resolve_url(store)
        self._share = Share(fleet=name or "", weight=weight) if name or weight != 1 else None
        self._spec = spec
        self._grace = _default_grace() if grace is None else grace
        self._threads = name if threads is None and name is not None and _keeps_threads(agent) else threads
        if self._hedge is not None and self._threads is not None:
            raise ConfigurationError(
                "hedge: tasks with threads are not hedged (two attempts would share one); leave hedge out, or threads, "
                "or the agent's checkpointer, which gives a fleet with a name its threads"
            )
        self._backoff = backoff or Backoff()
        self._quarantine_after = quarantine_after
        self._described: FleetSpec | None = None
        self._runs: list[tuple[asyncio.AbstractEventLoop, FleetRun]] = []

    @classmethod
    def from_spec(
        cls,
        source: str | os.PathLike[str] | Mapping[str, Any] | FleetSpec,
        *,
        runtime: RuntimePort | None = None,
        **changes: Any,
    ) -> Fleet:
        """The fleet that a YAML file, a mapping or a :class:`FleetSpec` describes; ``run()`` takes its tasks and files.

        Args:
            source: see ``docs/fleets.md``.
            runtime: where to run; by default where the spec says.
            **changes: fields that win over those of ``source``.

        Raises:
            ConfigurationError: a wrong field, an agent that cannot be imported; with file, line and what to do.
        """
        spec = source if isinstance(source, FleetSpec) else FleetSpec.read(source, **changes)
        agent = load_agent(spec.agent, "agent", spec.folder)
        fleet = cls(agent, runtime=runtime or runtime_of(spec), **spec.settings())
        fleet._described = spec
        return fleet

    @property
    def checkpointer(self) -> str | None:
        """URL of the store that the agent keeps its threads in, if it does."""
        return getattr(self._agent, "checkpointer", None)

    async def plan(self, tasks: Tasks | None = None, *, limit: int | None = None, **choice: int | None) -> Plan:
        """What :meth:`run` would do, as far as can be told without running anything: see :class:`Plan`."""
        spec = self._described
        tasks = tasks if tasks is not None or spec is None else spec.tasks
        source = self._open(tasks, **self._chosen(choice))
        if source.needs_ray:
            self._join_ray(source.name)
        return await make_plan(self._agent, source, limit or getattr(spec, "limit", None))

    def _chosen(self, choice: Mapping[str, int | None]) -> dict[str, int | None]:
        """``sample`` and ``shuffle_seed``, of the call or else of the spec."""
        return {
            name: value if (value := choice.get(name)) is not None else getattr(self._described, name, None)
            for name in ("sample", "shuffle_seed")
        }

    async def run(
        self,
        tasks: Tasks | None = None,
        out: Out | None = None,
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
                mappings (``id``, ``prompt``, ``metadata``) or :class:`Task`; None takes those of the spec.
            out: the results file, one JSON line a task. A fleet with a name may have several, or none: ``.jsonl`` files grow
                while it runs, ``.parquet`` files are written when it ends.
            resume: go on with ``out``, or with the fleet of that name: tasks that are ok are not run again.
            overwrite: replace it.
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
        tasks: Tasks | None = None,
        out: Out | None = None,
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
        """:meth:`run` for programs: the first of these signals drains the fleet (:meth:`drain`), a second one stops it."""
        described = self._described
        if described is not None:
            tasks = described.tasks if tasks is None else tasks
            out = described.out if out is None else out
            limit = described.limit if limit is None else limit
        paths = paths_of(out)
        source = self._open(tasks, **self._chosen({"sample": sample, "shuffle_seed": shuffle_seed}))
        try:
            for path in paths:
                check_out(path, source.path, keep_going=resume or overwrite)
            if source.needs_ray:
                self._join_ray(source.name)
            await source.check()
            self._start_runtime(signals)
            quarantine = None if self._quarantine is None else QuarantineFile(self._quarantine, fresh=overwrite)
            ledger = await self._ledger(paths, resume, overwrite)
        except BaseException:  # also an interrupt must release the input
            await source.close()
            raise
        settings = self._settings(limit, keep, paths, quarantine)
        run = FleetRun(self._agent, source, ledger, choose_reporter(progress), settings)
        entry = (asyncio.get_running_loop(), run)
        self._runs.append(entry)
        try:
            with on_signals([self.drain, self.stop], tuple(signals)):
                return await run.run()
        finally:
            self._runs.remove(entry)

    def run_sync(self, tasks: Tasks | None = None, out: Out | None = None, **options: Any) -> FleetReport:
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

    def drain(self, reason: str = "drained", grace: float | None = None) -> None:
        """End what runs, in order. Safe from signal handlers and other threads.

        No new tasks begin. Runs in flight may end; those with a thread are suspended between two of their steps, so that a
        fleet that is resumed goes on right there. What is left shortly before the grace ends is cancelled.

        Args:
            reason: for the report and the record.
            grace: seconds; default is the fleet's own.
        """
        for loop, run in list(self._runs):
            loop.call_soon_threadsafe(run.drain, reason, self._grace if grace is None else grace)

    async def _ledger(self, paths: Sequence[Path], resume: bool, overwrite: bool) -> Ledger | None:
        if self._name is not None:
            return await open_ledger(self._name, self._store, out=paths, resume=resume, overwrite=overwrite, spec=self._spec)
        if len(paths) > 1:
            raise ConfigurationError(
                "a fleet that writes several files needs a name, under which it keeps its results: name=..."
            )
        if not paths:
            return None
        return await asyncio.to_thread(ResultsFile, paths[0], resume=resume, overwrite=overwrite)

    def _start_runtime(self, signals: Iterable[signal.Signals]) -> None:
        """Before handlers of signals are in place, because the start of Ray installs its own."""
        if signals and isinstance(self._agent, actors.Runnable):
            runtime = self._runtime or current_runtime()
            start = getattr(runtime, "start", None)
            if start is not None:
                start()

    def _of_runtime(self, name: str) -> Callable[[], Awaitable[Any]] | None:
        """What the runtime can be asked, where there are actors."""
        if self._runtime is None and not isinstance(self._agent, actors.Runnable):
            return None
        return getattr(self._runtime or current_runtime(), name, None)

    def _settings(
        self, limit: int | None, keep: bool | None, out: Sequence[Path], quarantine: QuarantineFile | None
    ) -> Settings:
        return Settings(
            concurrency=self._concurrency if limit is None else max(1, min(self._concurrency, limit)),
            retries=self._retries,
            timeout=self._timeout,
            threads=self._threads,
            options={} if self._runtime is None else {"runtime": self._runtime},
            backoff=self._backoff,
            quarantine_after=self._quarantine_after,
            ready=self._of_runtime("ready"),
            waiting=self._of_runtime("waiting"),
            limit=limit,
            keep=not (out or self._name) if keep is None else keep,
            budget=self._budget,
            deadline=self._deadline,
            hedge=self._hedge,
            quarantine=quarantine,
            priority=self._priority if isinstance(self._priority, str) else None,
            share=self._share,
            grace=self._grace,
        )

    def _open(self, tasks: Tasks | None, sample: int | None, shuffle_seed: int | None) -> TaskSource:
        if tasks is None:
            raise ConfigurationError("tasks: there are none; give run() a file, or an iterable of tasks")
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


def _keeps_threads(agent: Runnable) -> bool:
    """Whether its runs can be stored."""
    return isinstance(agent, actors.Runnable) and getattr(agent, "checkpointer", None) is not None


def _default_grace() -> float:
    """What a cluster job is given between SIGTERM and SIGKILL, less a second to end in; elsewhere 10 s."""
    try:
        return max(1.0, float(os.environ[STOP_WAIT]) - 1.0)
    except (KeyError, ValueError):
        return GRACE_SECONDS
