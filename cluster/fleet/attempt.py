"""What happens to one task: its attempts, their timeout, what follows a failure, and how an outcome becomes a result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from ...protocol.errors import DeadlineExceeded, InvalidArguments, NotPaused, UmbelError
from ...protocol.results import Metrics
from .quarantine import Quarantine
from .readiness import Readiness
from .results import Status, TaskResult, describe_error
from .retry import as_exception, is_fatal, is_final, is_loss, is_retryable
from .settings import Runnable, Settings
from .tally import Attempts

_TIMEOUT_GRACE_SECONDS = 30.0


class Attempter:
    """Runs tasks, one call of :meth:`run` each, any number at once.

    Args:
        agent: what is run.
        settings: how.
        any_ok: whether some task has succeeded; before that, an error that every task would meet ends the fleet.
        give_up: ends the fleet for an error that no task can escape.
    """

    def __init__(
        self,
        agent: Runnable,
        settings: Settings,
        *,
        any_ok: Callable[[], bool],
        give_up: Callable[[BaseException], None],
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._any_ok = any_ok
        self._give_up = give_up
        self._quarantine = Quarantine(settings.quarantine_after)
        self._readiness = Readiness(settings.ready)

    async def run(self, attempts: Attempts) -> TaskResult:
        """Try the task until it is done, or nothing is left to try."""
        while True:
            attempts.count += 1
            async with self._quarantine.turn(attempts):
                result, error = await self._attempt(attempts)
            if result.status != "failed":
                return result
            if is_final(error) or (is_fatal(error) and not self._any_ok()):
                self._give_up(as_exception(error))
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
