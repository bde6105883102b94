"""What happens to one task: its attempts, their timeout, what follows a failure, and how an outcome becomes a result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from ...actors.charter import Charter, chartered
from ...actors.sharing import sharing
from ...protocol.errors import DeadlineExceeded, InvalidArguments, NotPaused, UmbelError
from ...protocol.results import Metrics
from .budget import FleetPurse, Resource, RunLease
from .hedging import Hedging
from .quarantine import Quarantine
from .race import Race
from .readiness import Readiness
from .results import Status, TaskResult, describe_error
from .retry import as_exception, is_fatal, is_final, is_loss, is_retryable
from .sessions import Sessions
from .settings import Runnable, Settings
from .tally import Attempts

_TIMEOUT_GRACE_SECONDS = 30.0
_RESOURCES: dict[str, Resource] = {"token_budget": "tokens", "cost_budget": "cost_usd"}


class Attempter:
    """Runs tasks, one call of :meth:`run` each, any number at once.

    Args:
        agent: what is run.
        settings: how.
        purse: what the fleet may spend.
        any_ok: whether some task has succeeded; before that, an error that every task would meet ends the fleet.
        give_up: ends the fleet for an error that no task can escape.
        sessions: of a fleet with a name: how it goes on with what an earlier session has begun.

    Attributes:
        draining: the fleet is being ended: no further attempts.
    """

    def __init__(
        self,
        agent: Runnable,
        settings: Settings,
        purse: FleetPurse,
        *,
        any_ok: Callable[[], bool],
        give_up: Callable[[BaseException], None],
        sessions: Sessions | None = None,
    ) -> None:
        self.draining = False
        self._sessions = sessions
        self._agent = agent
        self._settings = settings
        self._purse = purse
        self._any_ok = any_ok
        self._give_up = give_up
        self._quarantine = Quarantine(settings.quarantine_after)
        self._readiness = Readiness(settings.ready)
        hedges = settings.hedge is not None and settings.threads is None
        self._race = Race(Hedging(settings.hedge), settings.concurrency) if hedges and settings.hedge is not None else None

    async def run(self, attempts: Attempts) -> TaskResult | None:
        """Try the task until it is done, or nothing is left to try. None: a budget was used up before it began."""
        while True:
            lease = await self._purse.lease(attempts.outgrown)
            if lease is None:
                return _out_of_budget(attempts, self._purse.used_up) if attempts.count else None
            attempts.count += 1
            before = attempts.tokens, attempts.cost_usd or 0.0
            try:
                async with self._quarantine.turn(attempts):
                    result, error = await self._attempt(attempts, lease)
            finally:
                self._purse.give_back(lease, attempts.tokens - before[0], (attempts.cost_usd or 0.0) - before[1])
            if result.status != "failed" or self.draining:
                return result
            if self._outgrew(result, lease, attempts.tokens - before[0]):
                if lease.largest:
                    return _out_of_budget(attempts, _RESOURCES[result.stop_reason or ""])
                attempts.outgrown = lease
                continue
            if is_final(error) or (is_fatal(error) and not self._any_ok()):
                self._give_up(as_exception(error))
                return result
            ending = await self._after(attempts, result, error)
            if ending is not None:
                return ending
            await self._settings.backoff.sleep(self._settings.backoff.delay(attempts.count, error))

    async def _after(self, attempts: Attempts, result: TaskResult, error: Any) -> TaskResult | None:
        """What a failed attempt means for the task; None: it is tried again."""
        retries = self._settings.retries
        if not is_loss(error):
            return None if retries.allows(error, result.stop_reason, attempts.failures) else result
        attempts.deaths.append(result.error or "")
        if not retries.default or not is_retryable(error):
            return result
        if self._quarantine.lost(attempts):
            return _quarantined(attempts, result)
        await self._readiness.wait()
        return None

    def _outgrew(self, result: TaskResult, lease: RunLease, tokens: int) -> bool:
        """Whether the attempt was stopped by its share of the fleet's budget, not by a budget of the agent's own."""
        lease = self._share(lease)
        if result.stop_reason == "token_budget":
            return lease.tokens is not None and tokens >= lease.tokens
        if result.stop_reason == "cost_budget" and lease.cost_usd is not None:
            own = getattr(getattr(self._agent, "blank_state", None), "cost_budget_usd", None)
            return own is None or own > lease.cost_usd
        return False

    async def _attempt(self, attempts: Attempts, lease: RunLease) -> tuple[TaskResult, Any]:
        timeout = self._settings.timeout
        attempts.called = True
        try:
            async with asyncio.timeout(None if timeout is None else timeout + _TIMEOUT_GRACE_SECONDS):
                with sharing(self._settings.share_of(attempts.task)):
                    outcome = await self._call_or_race(attempts, lease)
        except TimeoutError as error:
            late = error if isinstance(error, UmbelError) else DeadlineExceeded(f"the run did not end within its {timeout} s")
            return attempts.result("failed", stop_reason="error", error=describe_error(late)), late
        except Exception as error:  # noqa: BLE001 - a task's failure, whatever it is, belongs into its result line and harms no other task
            attempts.add(_spent(error))
            return attempts.result("failed", stop_reason="error", error=describe_error(error)), error
        finally:
            attempts.called = False
        attempts.add(getattr(outcome, "metrics", None))
        return self._judge(attempts, outcome)

    async def _call_or_race(self, attempts: Attempts, lease: RunLease) -> Any:
        if self._race is None:
            limited = lease.tokens is not None or lease.cost_usd is not None
            return await self._call(attempts, self._charter(lease) if limited else None)
        charters = self._charter(lease), self._charter(lease)

        def cancel(which: int) -> bool:
            stop = getattr(self._agent, "cancel_run", None)
            return stop is not None and bool(stop(charters[which].run_id))

        def lost(outcome: Any) -> None:
            attempts.add_other(_spent(outcome) if isinstance(outcome, Exception) else getattr(outcome, "metrics", None))

        def begun() -> None:
            attempts.count += 1

        return await self._race.run(
            lambda: self._call(attempts, charters[0]),
            lambda: self._call(attempts, charters[1]),
            cancel=cancel,
            lost=lost,
            begun=begun,
        )

    def _charter(self, lease: RunLease) -> Charter:
        share = self._share(lease)
        return Charter(lease_tokens=share.tokens, lease_cost_usd=share.cost_usd)

    def _share(self, lease: RunLease) -> RunLease:
        """What one call of an attempt may spend: a call and its hedge together no more than the lease."""
        return lease if self._race is None else _half(lease)

    async def _call(self, attempts: Attempts, charter: Charter | None) -> Any:
        """One call of the agent. One with a thread goes on with the turn that the last one began: no effect is repeated."""
        task, threads = attempts.task, self._settings.threads
        given = {"metadata": {"task_id": task.id, **task.metadata}, "timeout": self._settings.timeout, **self._settings.options}
        continue_turn: Callable[..., Awaitable[Any]] | None = getattr(self._agent, "continue_turn", None)
        if attempts.thread is not None and continue_turn is not None:
            with contextlib.suppress(NotPaused), chartered(charter):  # nothing of it was stored, or it came to an end
                return await continue_turn(attempts.thread, **given)
        if not isinstance(task.prompt, str) and not getattr(self._agent, "is_pattern", False):
            raise InvalidArguments(f"{task.where}: field 'prompt': an agent takes a text; only patterns take an object")
        if threads is not None and self._sessions is not None and self._sessions.resumed:
            return await self._sessions.take_up(self._agent, f"{threads}/{task.id}", attempts, charter, **given)
        attempts.begin(None if threads is None else _thread(threads, attempts))
        if attempts.thread is not None and self._sessions is not None:
            charter = self._sessions.charter(attempts.thread, charter)
        run: Callable[..., Awaitable[Any]] = self._agent.arun
        with chartered(charter):
            return await run(task.prompt, thread_id=attempts.thread, full=False, **given)

    def _judge(self, attempts: Attempts, outcome: Any) -> tuple[TaskResult, Any]:
        reason, error = getattr(outcome, "stop_reason", None), getattr(outcome, "error", None)
        message = getattr(outcome, "message", None)
        if message is None:
            message = getattr(outcome, "final_output", None)
        said = {"stop_reason": reason, "message": None if message is None else str(message)}
        if outcome.success:
            return attempts.result("ok", **said), None
        status: Status = "cancelled" if reason in {"cancelled", "suspended"} else "failed"
        text = describe_error(error) or f"the run ended with {reason or 'no success'}"
        return attempts.result(status, **said, error=text), error


def _half(lease: RunLease) -> RunLease:
    return RunLease(
        tokens=None if lease.tokens is None else max(1, lease.tokens // 2),
        cost_usd=None if lease.cost_usd is None else lease.cost_usd / 2,
    )


def _out_of_budget(attempts: Attempts, resource: Resource | None) -> TaskResult:
    return attempts.result("cancelled", error=f"the fleet's budget ({resource}) is used up; it runs again with a larger one")


def _quarantined(attempts: Attempts, last: TaskResult) -> TaskResult:
    why = f"in quarantine: an actor died during each of {attempts.losses} attempts, the last one without other suspects"
    return attempts.result("quarantined", stop_reason="error", error=describe_error(f"{why}; {last.error}"))


def _spent(error: Exception) -> Metrics | None:
    """What a failed run had used, as far as its error says so."""
    metrics = error.details.get("metrics") if isinstance(error, UmbelError) else None
    return Metrics.model_validate(metrics) if metrics else None


def _thread(prefix: str, attempts: Attempts) -> str:
    again = f"#{attempts.count}" if attempts.count > 1 else ""
    return f"{prefix}/{attempts.task.id}{again}"
