"""What a fleet may spend altogether, and what it leaves to each of its runs. Source: OURS-13."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ...protocol.settings import Settings
from .durations import Count, Seconds
from .progress import duration

PROBES = 8  # runs at most before one has ended
Resource = Literal["tokens", "cost_usd", "seconds"]

_UNITS: dict[Resource, str] = {"tokens": "{:,.0f} tokens", "cost_usd": "${:,.2f}"}


class Budget(Settings):
    """Limits over all tasks of a fleet, earlier sessions of the same fleet included.

    Attributes:
        tokens: prompt and completion tokens.
        cost_usd: US dollars; counts models whose prices are known.
        seconds: time that the fleet works, waits included.
    """

    tokens: Count | None = None
    cost_usd: Annotated[float, Field(gt=0)] | None = None
    seconds: Seconds | None = None


@dataclass(slots=True)
class RunLease:
    """What one attempt may spend; None where there is no limit. Returned to the purse when it has ended.

    Attributes:
        tokens, cost_usd: its share of what is left.
        largest: whether it was everything that was left of a budget, so that nothing larger can be had.
    """

    tokens: int | None = None
    cost_usd: float | None = None
    largest: bool = False


class FleetPurse:
    """Leases what is left of a budget to runs in flight, so that together they cannot overspend by more than one call each.

    A run gets an even share of what is free, and where experience says that this is too little for one task, as much as the
    dearest task so far took, twice. When not even that is free it waits for others to end, so near the end of a budget fewer
    tasks run at once rather than all of them being cut short. Until the first has ended nobody knows what a task takes, and
    only a few run.

    Args:
        budget: the limits.
        width: runs in flight at most.
        clock: seconds that the fleet has been working, earlier sessions included.
        spent_tokens, spent_cost_usd: by earlier sessions.
    """

    def __init__(
        self, budget: Budget, width: int, clock: Callable[[], float], *, spent_tokens: int = 0, spent_cost_usd: float = 0.0
    ) -> None:
        self.budget = budget
        self.spent: dict[Resource, float] = {"tokens": spent_tokens, "cost_usd": spent_cost_usd}
        self._limits: dict[Resource, float] = {}
        if budget.tokens is not None:
            self._limits["tokens"] = budget.tokens
        if budget.cost_usd is not None:
            self._limits["cost_usd"] = budget.cost_usd
        self._width = width
        self._clock = clock
        self._out: dict[int, RunLease] = {}
        self._dearest: dict[Resource, float] = {"tokens": 0, "cost_usd": 0.0}
        self._ended = False
        self._returned = asyncio.Event()

    @property
    def used_up(self) -> Resource | None:
        """The first budget that nothing is left of."""
        for name, limit in self._limits.items():
            if self.spent[name] >= limit:
                return name
        left = self.seconds_left()
        return "seconds" if left is not None and left <= 0 else None

    def seconds_left(self) -> float | None:
        """Of the time; None without a limit."""
        return None if self.budget.seconds is None else self.budget.seconds - self._clock()

    def describe(self) -> str:
        """How much of each budget is used: ``62% of 1,000,000 tokens``; empty without one."""
        parts = [f"{self.spent[name] / limit:.0%} of {_UNITS[name].format(limit)}" for name, limit in self._limits.items()]
        if self.budget.seconds is not None:
            parts.append(f"{self._clock() / self.budget.seconds:.0%} of {duration(self.budget.seconds)}")
        return ", ".join(parts)

    async def lease(self, above: RunLease | None = None) -> RunLease | None:
        """What the next attempt may spend, as soon as there is enough; None when a budget is used up.

        Args:
            above: a lease that turned out too small for this task: wait for more than that.
        """
        if not self._limits:
            return RunLease() if self.used_up is None else None
        while self.used_up is None:
            lease = self._offer(above)
            if lease is not None:
                self._out[id(lease)] = lease
                return lease
            self._returned.clear()
            await self._returned.wait()
        return None

    def give_back(self, lease: RunLease, tokens: int, cost_usd: float | None) -> None:
        """The attempt has ended and spent that much."""
        if not self._limits:
            return
        del self._out[id(lease)]
        self._ended = True
        spent: dict[Resource, float] = {"tokens": tokens, "cost_usd": cost_usd or 0.0}
        for name, amount in spent.items():
            self.spent[name] += amount
            self._dearest[name] = max(self._dearest[name], amount)
        self._returned.set()

    def _offer(self, above: RunLease | None) -> RunLease | None:
        """A lease, or None while others must end first."""
        width = self._width if self._ended else min(self._width, PROBES)
        if len(self._out) >= width:
            return None
        lease = RunLease()
        for name, limit in self._limits.items():
            free = limit - self.spent[name] - sum(getattr(other, name) or 0 for other in self._out.values())
            least = max(self._dearest[name], 2 * (getattr(above, name) or 0) if above is not None else 0)
            if self._out and free < max(least, 1e-12):
                return None
            share = free / (width - len(self._out))
            amount = min(free, max(share, 2 * least))
            lease.largest = lease.largest or (not self._out and amount >= free)
            setattr(lease, name, max(1, int(amount)) if name == "tokens" else amount)
        return lease
