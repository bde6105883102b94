"""Straggler hedging: a second attempt beside one that takes much longer than others. Opt-in, for idempotent tools only.

Source: Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ...actors.runnable import Runnable
from ...actors.tools.decorator import Tool
from ...protocol.errors import ConfigurationError
from ...protocol.settings import Settings
from .durations import read_seconds

LEAST_SEEN = 20
_WINDOW = 1_000


def _read_after(value: Any) -> float | str:
    if isinstance(value, str) and value[:1] == "p" and value[1:].isdigit() and 1 <= int(value[1:]) <= 99:
        return value
    try:
        return read_seconds(value)
    except ValueError:
        raise ValueError(f"expected a percentile like p95, or a duration like 30s, found {value!r}") from None


class Hedge(Settings):
    """When a task gets a second attempt beside its first. The first good one wins, the other is cancelled and paid for.

    Attributes:
        after: a percentile of the durations of finished tasks (``p95``; at least 20 are needed), or fixed seconds.
        factor: the percentile times this is waited for.
        limit: share of the tasks that may be hedged; one may always.
    """

    after: Annotated[float | str, BeforeValidator(_read_after)] = "p95"
    factor: Annotated[float, Field(ge=1)] = 1.5
    limit: Annotated[float, Field(gt=0, le=1)] = 0.05


class Hedging:
    """Says how long an attempt is waited for, and whether one more task may be hedged."""

    def __init__(self, hedge: Hedge) -> None:
        self._hedge = hedge
        self._durations: deque[float] = deque(maxlen=_WINDOW)
        self._seen = 0
        self._known: tuple[int, float] | None = None
        self._begun = self._hedged = 0

    def begin(self) -> None:
        """One more task is tried."""
        self._begun += 1

    def end(self, seconds: float) -> None:
        """A task succeeded after that long."""
        self._durations.append(seconds)
        self._seen += 1

    def patience(self) -> float | None:
        """Seconds that an attempt may take before it is hedged; None while too little is known."""
        after = self._hedge.after
        if not isinstance(after, str):
            return after
        if self._seen < LEAST_SEEN:
            return None
        if self._known is None or self._seen >= 1.1 * self._known[0]:  # sorting for each task would cost more than it is worth
            ordered = sorted(self._durations)
            index = math.ceil(len(ordered) * int(after[1:]) / 100) - 1
            self._known = (self._seen, ordered[index])
        return self._known[1] * self._hedge.factor

    def take(self) -> bool:
        """Whether one more task may be hedged; it is counted."""
        allowed = self._hedged + 1 <= max(1.0, self._hedge.limit * self._begun)
        self._hedged += allowed
        return allowed


def check_idempotent(agent: Any) -> None:
    """Refuse to hedge what has effects that a second attempt would repeat.

    Raises:
        ConfigurationError: some tool of the agent, or of a member, is not idempotent, or nobody knows what it does.
    """
    if not isinstance(agent, Runnable):
        if getattr(agent, "idempotent", False) is not True:
            raise ConfigurationError(
                f"hedge: nobody knows what a second attempt of a {type(agent).__name__} repeats; "
                "give it the attribute idempotent = True, or leave hedge out"
            )
        return
    names = sorted(_with_effects(agent, set()))
    if names:
        raise ConfigurationError(
            f"hedge: a second attempt could repeat what {', '.join(names)} did; "
            "declare them @tool(idempotent=True) if a second call does no harm, or leave hedge out"
        )


def _with_effects(runnable: Any, seen: set[int]) -> set[str]:
    """Names of tools, of it and of whatever it runs, that are not idempotent."""
    if id(runnable) in seen:
        return set()
    seen.add(id(runnable))
    tools = getattr(runnable, "tools_by_name", {}).values()
    found = {f"tool {tool.name!r}" for tool in tools if isinstance(tool, Tool) and tool.agent is None and not tool.idempotent}
    if type(runnable).__name__ == "RemoteAgent":
        found.add(f"remote agent {runnable.title!r}")
    for inner in runnable.inner():
        found |= _with_effects(inner, seen)
    return found
