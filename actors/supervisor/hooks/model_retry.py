"""A hook that asks again when a model replies with nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ....protocol.errors import ConfigurationError
from .base import Hook, PerRun, Priority

if TYPE_CHECKING:
    from ....protocol.state import AgentState
    from .events import AfterModelCall, BeforeModelCall


class ModelRetryHook(Hook):
    """Retries replies without text and without calls. The agent's ``model_retry`` is for requests that fail.

    Args:
        max_retries: in one iteration; the loop itself ends at five calls.
        initial_delay: seconds before the first retry; each further one waits twice as long.
        max_delay: seconds at most.
        sleep: how to wait.

    Raises:
        ConfigurationError: a number is negative.

    Source: HOOK-35.
    """

    priority = Priority.BUSINESS

    def __init__(
        self,
        max_retries: int = 3,
        initial_delay: float = 1.0,
        max_delay: float = 30.0,
        *,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        if min(max_retries, initial_delay, max_delay) < 0:
            raise ConfigurationError("ModelRetryHook: max_retries, initial_delay and max_delay must not be negative")
        self.max_retries = max_retries
        self.initial_delay = initial_delay
        self.max_delay = max_delay
        self.sleep = sleep
        self._retries = PerRun(int)

    async def on_before_model_call(self, event: BeforeModelCall) -> None:
        self._retries.pop(event.run_id)

    async def on_after_model_call(self, event: AfterModelCall) -> None:
        response = event.response
        if response.tool_calls or (response.content or "").strip():
            self._retries.pop(event.run_id)
            return
        done = self._retries[event.run_id]
        if done < self.max_retries:
            self._retries.put(event.run_id, done + 1)
            await self.sleep(min(self.max_delay, self.initial_delay * 2**done))
            event.retry = True

    async def on_after_invocation(self, state: AgentState, success: bool) -> None:
        self._retries.pop(state.run_id)
