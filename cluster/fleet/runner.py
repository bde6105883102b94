"""One run of a fleet: a fixed set of workers draws tasks, runs the agent on each, hands results to the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ...protocol.errors import DeadlineExceeded, InvalidArguments, NotPaused, UmbelError
from ...protocol.results import Metrics
from .ledger import Ledger, id_hash
from .progress import RateMeter, Reporter, Snapshot
from .quarantine import Quarantine
from .readiness import Readiness
from .results import FleetReport, Status, TaskResult, describe_error
from .retry import Backoff, as_exception, is_fatal, is_final, is_loss, is_retryable
from .sources import TaskSource
from .tally import Attempts, Tally
from .tasks import BadTask, Task, duplicate

_log = logging.getLogger("umbel.fleet")
STOP_GRACE_SECONDS = 5.0
_TIMEOUT_GRACE_SECONDS = 30.0
_TICK_SECONDS = 0.25


class Runnable(Protocol):
    """What a fleet can run: an agent, a pattern, or anything with this method."""

    async def arun(
        self,
        prompt: Any,
        *,
        thread_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = None,
        full: bool = True,
    ) -> Any:
        """Run ``prompt`` to the end; the result has ``message``, ``success``, ``stop_reason``, ``metrics`` and ``error``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run: see :class:`~umbel.cluster.fleet.Fleet`."""

    concurrency: int
    retries: int
    timeout: float | None
    threads: str | None
    options: dict[str, Any]
    backoff: Backoff
    quarantine_after: int
    ready: Callable[[], Awaitable[None]] | None
    limit: int | None
    keep: bool


class FleetRun:
    """The state of one ``Fleet.run``. Memory does not grow with the number of tasks, but for 8-byte hashes of their ids."""

    def __init__(
        self, agent: Runnable, source: TaskSource, ledger: Ledger | None, reporter: Reporter, settings: Settings
    ) -> None:
        self._agent = agent
        self._source = source
        self._ledger = ledger
        self._reporter = reporter
        self._settings = settings
        self._tally = Tally()
        self._quarantine = Quarantine(settings.quarantine_after)
        self._readiness = Readiness(settings.ready)
        self._seen: set[int] = set()
        self._in_flight: dict[int, Attempts] = {}
        self._kept: list[tuple[int, TaskResult]] = []
        self._taken = 0
        self._ordinal = 0
        self._workers: list[asyncio.Task[None]] = []
        self._alive = 0
        self._ended = asyncio.Event()
        self._size: int | None = None
        self._meter = RateMeter()
        self._started = time.monotonic()
        self._stopped: str | None = None
        self._fatal: BaseException | None = None

    def stop(self, reason: str) -> None:
        """Take no more tasks and cancel those in flight; ``run`` then returns within seconds."""
        if self._stopped is None:
            self._stopped = reason
            asyncio.get_running_loop().call_later(STOP_GRACE_SECONDS, self._ended.set)
            for worker in self._workers:
                worker.cancel()

    async def run(self) -> FleetReport:
        """Run every task.

        Raises:
            UmbelError: something that makes going on pointless (wrong configuration, closed runtime, full disk).
            Exception: what the caller's iterable raised; the tasks before it are finished.
        """
        self._started = time.monotonic()
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._settings.concurrency)]
        self._alive = len(self._workers)
        for worker in self._workers:
            worker.add_done_callback(self._worker_ended)
        side = [asyncio.create_task(self._tick()), asyncio.create_task(self._count())]
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self.stop("cancelled")
            await self._ended.wait()
            raise
        finally:
            self._abandon()
            await self._close(side)
        error = self._fatal or self._source.error
        if error is not None:
            raise error
        return self._report()

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        self._alive -= 1
        error = None if worker.cancelled() else worker.exception()
        if error is not None:
            self._fatal = self._fatal or error
            self.stop("error")
        elif worker.cancelled():
            self.stop("cancelled")
        if self._alive == 0:
            self._ended.set()

    async def _work(self) -> None:
        while (item := await self._next()) is not None:
            if isinstance(item, BadTask):
                self._invalid(item)
            else:
                await self._one(item)
            if self._ledger is not None:
                await self._ledger.room()
            if self._taken % 64 == 0:
                await asyncio.sleep(0)  # an agent that answers without waiting must not starve progress and writing

    async def _next(self) -> Task | BadTask | None:
        while self._stopped is None and not self._at_limit():
            item = await self._source.next()
            if item is None:
                return None
            key = id_hash(item.id)
            if key in self._seen:
                item = duplicate(item)
            elif self._ledger is not None and key in self._ledger.done:
                self._seen.add(key)
                self._tally.skipped += 1
                continue
            if self._at_limit():
                return None
            self._seen.add(key)
            self._taken += 1
            return item
        return None

    def _at_limit(self) -> bool:
        return self._settings.limit is not None and self._taken >= self._settings.limit

    def _invalid(self, item: BadTask) -> None:
        self._ordinal += 1
        self._record(TaskResult(id=item.id, status="invalid", error=describe_error(str(item))), self._ordinal)

    async def _one(self, task: Task) -> None:
        self._ordinal += 1
        attempts = Attempts(task, self._ordinal, time.monotonic())
        self._in_flight[attempts.order] = attempts
        try:
            result = await self._attempt_until_done(attempts)
        except asyncio.CancelledError:
            result = attempts.result(
                "cancelled", error=f"the fleet was stopped ({self._stopped})" if self._stopped else "cancelled"
            )
            if self._stopped or _is_cancelled():
                self._land(attempts, result)
                raise
        self._land(attempts, result)

    def _land(self, attempts: Attempts, result: TaskResult) -> None:
        if self._in_flight.pop(attempts.order, None) is not None:
            self._record(result, attempts.order)

    def _record(self, result: TaskResult, order: int) -> None:
        self._tally.add(result)
        if self._ledger is not None:
            self._ledger.put(result)
        if self._settings.keep:
            self._kept.append((order, result))

    async def _attempt_until_done(self, attempts: Attempts) -> TaskResult:
        while True:
            attempts.count += 1
            async with self._quarantine.turn(attempts):
                result, error = await self._attempt(attempts)
            if result.status != "failed":
                return result
            if is_final(error) or (is_fatal(error) and not self._tally.ok):
                self._fatal = self._fatal or as_exception(error)
                self.stop("error")
                return result
            if not self._settings.retries or not is_retryable(error):
                return result
            if is_loss(error):
                if self._quarantine.lost(attempts):
                    return _quarantined(attempts, result)
                await self._readiness.wait()
            elif attempts.count - attempts.losses > self._settings.retries:
                return result
            await self._settings.backoff.sleep(self._settings.backoff.delay(attempts.count, error))

    async def _attempt(self, attempts: Attempts) -> tuple[TaskResult, Any]:
        timeout = self._settings.timeout
        try:
            async with asyncio.timeout(None if timeout is None else timeout + _TIMEOUT_GRACE_SECONDS):
                outcome = await self._call(attempts, timeout)
        except TimeoutError as error:
            late = error if isinstance(error, UmbelError) else DeadlineExceeded(f"the run did not end within its {timeout} s")
            return attempts.result("failed", stop_reason="error", error=describe_error(late)), late
        except Exception as error:  # noqa: BLE001 - a task's failure, whatever it is, belongs into its result line and harms no other task
            attempts.add(_spent(error))
            return attempts.result("failed", stop_reason="error", error=describe_error(error)), error
        attempts.add(getattr(outcome, "metrics", None))
        return self._judge(attempts, outcome)

    async def _call(self, attempts: Attempts, timeout: float | None) -> Any:
        """One attempt. One that has a thread goes on with the turn that the last one began, so that no effect is repeated."""
        task, threads = attempts.task, self._settings.threads
        given = {"metadata": {"task_id": task.id, **task.metadata}, "timeout": timeout, **self._settings.options}
        continue_turn: Callable[..., Awaitable[Any]] | None = getattr(self._agent, "continue_turn", None)
        if attempts.thread is not None and continue_turn is not None:
            with contextlib.suppress(NotPaused):  # nothing of it was stored, or it came to an end
                return await continue_turn(attempts.thread, **given)
        if not isinstance(task.prompt, str) and not getattr(self._agent, "is_pattern", False):
            raise InvalidArguments(f"{task.where}: field 'prompt': an agent takes a text; only patterns take an object")
        attempts.begin(None if threads is None else _thread(threads, attempts))
        run: Callable[..., Awaitable[Any]] = self._agent.arun
        return await run(task.prompt, thread_id=attempts.thread, full=False, **given)

    def _judge(self, attempts: Attempts, outcome: Any) -> tuple[TaskResult, Any]:
        reason, error = getattr(outcome, "stop_reason", None), getattr(outcome, "error", None)
        message = getattr(outcome, "message", None)
        if message is None:
            message = getattr(outcome, "final_output", None)
        said = {"stop_reason": reason, "message": None if message is None else str(message)}
        if outcome.success:
            return attempts.result("ok", **said), None
        status: Status = "cancelled" if reason == "cancelled" else "failed"
        text = describe_error(error) or f"the run ended with {reason or 'no success'}"
        return attempts.result(status, **said, error=text), error

    def _abandon(self) -> None:
        """Account for tasks whose agent did not react to its cancellation in time."""
        for attempts in list(self._in_flight.values()):
            self._land(attempts, attempts.result("cancelled", error=f"{self._stopped}; did not end in time"))

    async def _close(self, side: list[asyncio.Task[None]]) -> None:
        for task in side:
            task.cancel()
        for outcome in await asyncio.gather(*side, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning("progress is not shown any more: %s", describe_error(outcome))
        try:
            await self._source.close()
        finally:
            try:
                if self._ledger is not None:
                    await self._ledger.close()
            finally:
                if self._size is None and self._stopped is None:
                    self._size = self._tally.total + self._tally.skipped  # the last task was done before they were counted
                self._reporter.close(self._snapshot())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._reporter.update(self._snapshot())

    async def _count(self) -> None:
        self._size = await self._source.count()

    def _expected(self) -> int | None:
        limit = self._settings.limit
        if self._size is None or limit is None:
            return self._size
        return min(self._size, limit + self._tally.skipped)

    def _snapshot(self) -> Snapshot:
        expected = self._expected()
        tally, elapsed = self._tally, time.monotonic() - self._started
        rate = self._meter.rate(elapsed, tally.total)
        left = None if expected is None else max(0, expected - tally.total - tally.skipped)
        return Snapshot(
            total=expected,
            done=tally.total,
            ok=tally.ok,
            failed=tally.failed,
            cancelled=tally.cancelled,
            invalid=tally.invalid,
            quarantined=tally.quarantined,
            skipped=tally.skipped,
            running=len(self._in_flight),
            retries=tally.retries,
            tokens=tally.tokens,
            cost_usd=tally.cost_usd,
            elapsed_s=elapsed,
            rate=rate,
            eta_s=left / rate if left and rate > 0 else None,
        )

    def _report(self) -> FleetReport:
        tally, elapsed = self._tally, time.monotonic() - self._started
        kept = tuple(result for _, result in sorted(self._kept, key=_by_order))
        return FleetReport(
            total=tally.total,
            ok=tally.ok,
            failed=tally.failed,
            cancelled=tally.cancelled,
            invalid=tally.invalid,
            quarantined=tally.quarantined,
            skipped=tally.skipped,
            retries=tally.retries,
            duration_s=round(elapsed, 6),
            rate=round(tally.total / elapsed, 3) if elapsed > 0 else 0.0,
            tokens=tally.tokens,
            cost_usd=tally.cost_usd,
            out=None if self._ledger is None else str(self._ledger.path),
            stopped=self._stopped,
            failures=tuple(tally.failures),
            results=kept,
        )


def _quarantined(attempts: Attempts, last: TaskResult) -> TaskResult:
    why = f"in quarantine: an actor died during each of {attempts.losses} attempts, the last one without other suspects"
    return attempts.result("quarantined", stop_reason="error", error=describe_error(f"{why}; {last.error}"))


def _spent(error: Exception) -> Metrics | None:
    """What a failed run had used, as far as its error says so."""
    metrics = error.details.get("metrics") if isinstance(error, UmbelError) else None
    return Metrics.model_validate(metrics) if metrics else None


def _by_order(entry: tuple[int, TaskResult]) -> int:
    return entry[0]


def _is_cancelled() -> bool:
    worker = asyncio.current_task()
    return worker is not None and worker.cancelling() > 0


def _thread(prefix: str, attempts: Attempts) -> str:
    again = f"#{attempts.count}" if attempts.count > 1 else ""
    return f"{prefix}/{attempts.task.id}{again}"
