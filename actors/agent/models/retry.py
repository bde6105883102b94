"""When a failed model call is tried again, and when that is given up.

Source: spec API-11, LOOP-48 to LOOP-50; public case 24.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import isawaitable
from typing import Any, NamedTuple, Self

from pydantic import Field

from ....protocol.errors import ModelError, Overloaded, RateLimited, UmbelError
from ....protocol.messages import Message, ModelChunk, ModelResponse
from ....protocol.settings import SwitchedSettings
from ..timing import SYSTEM, Timing
from .base import ModelProtocol, aclose
from .gate import wait_until

ERROR_CHARS = 500
_JITTER_SHARE = 0.1
_JITTER_MIN, _JITTER_MAX = 0.05, 2.0


class RetryPolicy(SwitchedSettings):
    """How transient failures of a provider are retried: full jitter under a ceiling that doubles, within a total time.

    Attributes:
        enabled: False calls once.
        max_retries: further attempts after the first.
        initial_delay: first ceiling of the wait, seconds.
        max_delay: highest ceiling, seconds.
        budget: seconds from the first attempt within which the last one must start.
        retry_unclassified: also retry exceptions that say nothing about being transient.
    """

    field = "model_retry"
    short_form = dict

    max_retries: int = Field(default=6, ge=0)
    initial_delay: float = Field(default=1.0, ge=0)
    max_delay: float = Field(default=60.0, ge=0)
    budget: float = Field(default=300.0, ge=0)
    retry_unclassified: bool = False

    def for_model(self, model: object) -> Self:
        """This policy with the model's own ``max_retries``, if it has one."""
        own = getattr(model, "max_retries", None)
        return self if own is None else self.model_copy(update={"max_retries": int(own)})

    def ceiling(self, attempt: int) -> float:
        """Longest wait before retry number ``attempt`` (from 1), seconds."""
        return float(min(self.max_delay, self.initial_delay * 2.0 ** min(attempt - 1, 64)))


class RetryNotice(NamedTuple):
    """A retry that is about to be waited for.

    Attributes:
        attempt: number of the retry, from 1; 0 where nothing failed: the call waits for its turn at a rate limit.
        delay_seconds: the wait before it.
        reason: ``rate_limit``, ``overloaded``, ``server_error`` or ``timeout``.
        status_code: of the HTTP response, if there was one.
        error: what failed, at most 500 characters.
        from_retry_after: whether the server named the wait.
    """

    attempt: int
    delay_seconds: float
    reason: str
    status_code: int | None
    error: str
    from_retry_after: bool


OnRetry = Callable[[RetryNotice], Awaitable[None] | None]


class RetryingModel:
    """A model that calls another one again when that fails in passing.

    Cheap to make: one per call is fine, with that call's ``on_retry``.

    Args:
        model: the model to call.
        policy: when to retry; the model's own ``max_retries`` wins.
        timing: clock, sleep and randomness.
        on_retry: told of every retry before its wait.
        may_retry: asked before every retry; False (a cancelled run) raises the failure instead.
    """

    __slots__ = ("_may_retry", "_model", "_on_retry", "_policy", "_timing")

    def __init__(
        self,
        model: ModelProtocol,
        policy: RetryPolicy | None = None,
        *,
        timing: Timing = SYSTEM,
        on_retry: OnRetry | None = None,
        may_retry: Callable[[], bool] | None = None,
    ) -> None:
        self._model = model
        self._policy = (policy or RetryPolicy()).for_model(model)
        self._timing = timing
        self._on_retry = on_retry
        self._may_retry = may_retry

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> ModelResponse:
        """The reply, after as many attempts as the policy allows."""
        recovery: _Recovery | None = None
        allowance = self._allowance()
        while True:
            try:
                with allowance:
                    return await self._model.complete(messages, tools, **kwargs)
            except Exception as error:  # noqa: BLE001 - the policy decides which are retried, and re-raises the others
                recovery = recovery or self._recovery(allowance)
                await recovery.after(error)

    async def stream(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> AsyncIterator[ModelChunk]:
        """The reply in pieces. Nothing is retried once a piece was handed on."""
        allowance = self._allowance()
        recovery = self._recovery(allowance)
        while True:
            chunks = self._model.stream(messages, tools, **kwargs)
            forwarded = False
            try:
                with allowance:
                    chunk = await anext(chunks, None)
                while chunk is not None:
                    forwarded = True
                    yield chunk
                    chunk = await anext(chunks, None)
                return
            except Exception as error:  # the policy decides which are retried, and re-raises the others
                if forwarded:
                    raise
                failure = error
            finally:
                await aclose(chunks)
            await recovery.after(failure)

    async def aclose(self) -> None:
        """Release the connections of the model underneath."""
        await aclose(self._model)

    def _allowance(self) -> wait_until:
        on_wait = self._tell_wait if self._on_retry is not None else None
        return wait_until(self._timing.monotonic() + self._policy.budget, on_wait)

    def _tell_wait(self, seconds: float, why: str) -> Awaitable[None] | None:
        """Nothing failed, so nothing of the policy is used up: the call waits for its turn."""
        notice = RetryNotice(0, seconds, RateLimited.code, None, why[:ERROR_CHARS], False)
        return self._on_retry(notice) if self._on_retry is not None else None

    def _recovery(self, allowance: wait_until) -> _Recovery:
        return _Recovery(self._policy, self._timing, self._on_retry, self._may_retry, allowance)


class _Recovery:
    """The retries of one call: counts them, and waits or raises."""

    __slots__ = ("_allowance", "_may_retry", "_on_retry", "_policy", "_retries", "_timing")

    def __init__(
        self,
        policy: RetryPolicy,
        timing: Timing,
        on_retry: OnRetry | None,
        may_retry: Callable[[], bool] | None,
        allowance: wait_until,
    ) -> None:
        self._allowance = allowance
        self._policy = policy
        self._timing = timing
        self._on_retry = on_retry
        self._may_retry = may_retry
        self._retries = 0

    async def after(self, error: Exception) -> None:
        """Wait before the next attempt, or raise ``error`` if there must not be one."""
        reason = self._reason(error)
        if reason is None or self._retries >= self._policy.max_retries or not self._policy.enabled:
            raise error
        if self._may_retry is not None and not self._may_retry():
            raise error
        delay, stated = self._delay(error)
        if delay is None:
            raise error
        if not (isinstance(error, ModelError) and error.details.get("sent") is False):
            self._retries += 1  # where nothing was sent, nothing was tried
        if self._on_retry is not None:
            status = error.status_code if isinstance(error, ModelError) else None
            text = (str(error) or type(error).__name__)[:ERROR_CHARS]
            told = self._on_retry(RetryNotice(self._retries, delay, reason, status, text, stated))
            if isawaitable(told):
                await told
        await self._timing.sleep(delay)

    def _reason(self, error: Exception) -> str | None:
        if isinstance(error, RateLimited | Overloaded):
            return error.code
        if isinstance(error, UmbelError):
            if not (isinstance(error, ModelError) and error.retryable):
                return None
            return "timeout" if isinstance(error, TimeoutError) else "server_error"
        if isinstance(error, TimeoutError):
            return "timeout"
        if isinstance(error, ConnectionError) or self._policy.retry_unclassified:
            return "server_error"
        return None

    def _delay(self, error: Exception) -> tuple[float | None, bool]:
        """Seconds to wait (None: that would end beyond the budget), and whether the server named them."""
        left = self._allowance.deadline - self._timing.monotonic()
        stated = error.retry_after if isinstance(error, ModelError) else None
        if stated:  # zero is no time at all: back off as usual
            jitter = min(max(stated * _JITTER_SHARE, _JITTER_MIN), _JITTER_MAX) * self._timing.random()
            return (min(stated + jitter, left) if stated <= left else None), True
        delay = self._timing.random() * self._policy.ceiling(self._retries + 1)
        return (delay if delay <= left else None), False
