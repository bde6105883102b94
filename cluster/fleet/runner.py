"""One run of a fleet: a fixed set of workers draws tasks, has each tried (`attempt.py`), hands results to the ledger."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ...protocol.errors import UmbelError
from .attempt import Attempter
from .budget import FleetPurse
from .ledger import Ending, Ledger, id_hash
from .progress import RateMeter, Reporter, Snapshot
from .record import FleetRecord
from .results import FleetReport, TaskResult, describe_error
from .sessions import Sessions
from .settings import Runnable, Settings
from .sources import TaskSource
from .tally import Attempts, Tally
from .tasks import BadTask, Task, duplicate

_log = logging.getLogger("umbel.fleet")
STOP_GRACE_SECONDS = 5.0
_TICK_SECONDS = 0.25


class FleetRun:
    """The state of one ``Fleet.run``. Memory does not grow with the number of tasks, but for 8-byte hashes of their ids."""

    def __init__(
        self, agent: Runnable, source: TaskSource, ledger: Ledger | None, reporter: Reporter, settings: Settings
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._reporter = reporter
        self._settings = settings
        self._tally = Tally()
        earlier = None if ledger is None else ledger.record
        self._earlier = earlier or FleetRecord(name="", sessions=1)
        self._purse = FleetPurse(
            settings.budget,
            settings.concurrency,
            lambda: self._earlier.seconds + self._elapsed(),
            spent_tokens=self._earlier.tokens,
            spent_cost_usd=self._earlier.cost_usd or 0.0,
        )
        any_ok = lambda: self._tally.ok > 0  # noqa: E731 - read at each failure
        self._agent = agent
        sessions = None if earlier is None else Sessions.of(earlier)
        self._attempter = Attempter(agent, settings, self._purse, any_ok=any_ok, give_up=self._give_up, sessions=sessions)
        self._seen: set[int] = set()
        self._in_flight: dict[int, Attempts] = {}
        self._kept: list[tuple[int, TaskResult]] = []
        self._taken = 0
        self._ordinal = 0
        self._workers: list[asyncio.Task[None]] = []
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._alive = 0
        self._ended = asyncio.Event()
        self._size: int | None = None
        self._meter = RateMeter()
        self._started = time.monotonic()
        self._stopped: str | None = None
        self._enough: str | None = None
        self._fatal: BaseException | None = None

    def stop(self, reason: str, within: float = STOP_GRACE_SECONDS) -> None:
        """Take no more tasks and cancel those in flight; ``run`` then returns within seconds."""
        if self._stopped is None:
            self._stopped = reason
            asyncio.get_running_loop().call_later(within, self._ended.set)
            for worker in self._workers:
                worker.cancel()

    def drain(self, reason: str, grace: float) -> None:
        """Take no more tasks; those in flight may end, or are suspended where that can be resumed; then :meth:`stop`."""
        if self._stopped is not None or self._attempter.draining:
            return
        self._attempter.draining = True
        self._enough = reason
        if self._ledger is not None:
            self._ledger.note(draining=reason)
        called = {attempts.order for attempts in self._in_flight.values() if attempts.called}
        busy = {worker for order, worker in self._busy.items() if order in called}
        for worker in self._workers:
            if worker not in busy:  # it waits: for a task, for room, or before another attempt
                worker.cancel()
        self._suspend()
        last = min(STOP_GRACE_SECONDS, grace / 3)
        asyncio.get_running_loop().call_later(grace - last, self.stop, reason, last)

    def _suspend(self) -> None:
        suspend: Callable[..., int] | None = getattr(self._agent, "suspend", None)
        threads = {attempts.thread for attempts in self._in_flight.values() if attempts.called and attempts.thread}
        if suspend is not None and threads:
            suspend(threads)

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
        side = [asyncio.create_task(self._tick()), asyncio.create_task(self._count()), *self._alarms()]
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

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _alarms(self) -> list[asyncio.Task[None]]:
        """What ends the fleet in order when its time is over."""
        times = {"deadline": self._settings.deadline_in(0.0), "budget_seconds": self._purse.seconds_left()}
        return [asyncio.create_task(self._stop_after(left, why)) for why, left in times.items() if left is not None]

    async def _stop_after(self, seconds: float, reason: str) -> None:
        await asyncio.sleep(seconds)
        self.drain(reason, self._settings.grace)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        self._alive -= 1
        error = None if worker.cancelled() else worker.exception()
        if error is not None:
            self._give_up(error)
        elif worker.cancelled() and not self._attempter.draining:
            self.stop("cancelled")
        if self._alive == 0:
            self._ended.set()

    def _give_up(self, error: BaseException) -> None:
        self._fatal = self._fatal or error
        self.stop("error")

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
        while self._stopped is None and not self._attempter.draining and not self._at_limit():
            if (resource := self._purse.used_up) is not None:
                self._enough = f"budget_{resource}"
                return None
            item = await self._source.next()
            if item is None:
                return None
            key = id_hash(item.id)
            if key in self._seen:
                item = duplicate(item)
            elif self._ledger is not None and self._ledger.is_done(key):
                self._seen.add(key)
                self._tally.skipped += 1
                continue
            if self._at_limit() or self._attempter.draining:
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
        self._busy[attempts.order] = asyncio.current_task()  # type: ignore[assignment]  # workers are tasks
        try:
            result = await self._attempter.run(attempts)
            if result is None:  # nothing of it was done
                self._in_flight.pop(attempts.order, None)
                return
        except asyncio.CancelledError:
            why = self._stopped or (self._enough if self._attempter.draining else None)
            result = attempts.result("cancelled", error=f"the fleet was stopped ({why})" if why else "cancelled")
            if self._stopped or _is_cancelled():
                self._land(attempts, result)
                raise
        finally:
            del self._busy[attempts.order]
        self._land(attempts, result)

    def _land(self, attempts: Attempts, result: TaskResult) -> None:
        if self._in_flight.pop(attempts.order, None) is not None:
            self._record(result, attempts.order, includes_earlier=attempts.includes_earlier)
            self._note_quarantine(attempts, result)

    def _note_quarantine(self, attempts: Attempts, result: TaskResult) -> None:
        file = self._settings.quarantine
        if file is None:
            return
        if result.status == "quarantined":
            file.put(attempts.task, result.error, attempts.deaths)
        elif result.status == "ok":
            file.clear(result.id)

    def _record(self, result: TaskResult, order: int, *, includes_earlier: bool = False) -> None:
        self._tally.add(result)
        if self._ledger is not None:
            self._ledger.put(result, includes_earlier=includes_earlier)
        if self._settings.keep:
            self._kept.append((order, result))

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
        whole = not (self._stopped or self._enough or self._at_limit())
        if self._size is None and whole:
            self._size = self._tally.total + self._tally.skipped  # the last task was done before they were counted
        if self._ledger is not None:
            self._ledger.note(total=self._size)
        try:
            await self._source.close()
        finally:
            try:
                if self._ledger is not None:
                    await self._ledger.close(self._ending())
            finally:
                if self._settings.quarantine is not None:
                    self._settings.quarantine.close()
                self._reporter.close(self._snapshot())

    def _ending(self) -> Ending:
        error = self._fatal or self._source.error
        if error is not None:
            return Ending(state="failed", reason=describe_error(error), exit_code=1)
        reason = self._stopped or self._enough or ("limit" if self._at_limit() else None)
        return Ending(state="stopped" if reason else "finished", reason=reason, exit_code=self._report().exit_code)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._watch_ledger()
            if self._attempter.draining:
                self._suspend()  # what had not quite begun before
            self._reporter.update(self._snapshot())

    def _watch_ledger(self) -> None:
        """A fleet whose results cannot be recorded any more must not go on, however long its runs take."""
        if self._ledger is None or self._stopped is not None:
            return
        try:
            self._ledger.check()
        except UmbelError as error:
            self._give_up(error)

    async def _count(self) -> None:
        self._size = await self._source.count()
        if self._ledger is not None:
            self._ledger.note(total=self._size)

    def _expected(self) -> int | None:
        limit = self._settings.limit
        if self._size is None or limit is None:
            return self._size
        return min(self._size, limit + self._tally.skipped)

    def _snapshot(self) -> Snapshot:
        expected = self._expected()
        tally, elapsed = self._tally, self._elapsed()
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
            budget=self._purse.describe(),
            deadline_s=self._settings.deadline_in(elapsed),
        )

    def _report(self) -> FleetReport:
        tally, elapsed = self._tally, self._elapsed()
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
            name=self._earlier.name or None,
            out=", ".join(map(str, self._ledger.files)) or None if self._ledger is not None else None,
            stopped=self._stopped or self._enough,
            failures=tuple(tally.failures),
            results=kept,
        )


def _by_order(entry: tuple[int, TaskResult]) -> int:
    return entry[0]


def _is_cancelled() -> bool:
    worker = asyncio.current_task()
    return worker is not None and worker.cancelling() > 0
