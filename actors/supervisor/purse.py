"""Leases: a run's children spend from its budgets, and together never more than is left. Source: OURS-13, API-55, API-56."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import Literal

from .run import Run


@dataclass(frozen=True, slots=True)
class Lease:
    """What one child may use; None where there is no limit.

    Attributes:
        tokens, cost_usd, seconds: as they say.
        spent: the budget that nothing is left of: the child must not run.
        number: in its purse; 0 for one that takes nothing away.
    """

    tokens: int | None = None
    cost_usd: float | None = None
    seconds: float | None = None
    spent: Literal["token", "cost", "time"] | None = None
    number: int = 0


class Purse:
    """Divides what is left of a run's budgets among its children.

    Children that ask at the same moment share evenly what is not leased out. One that finds everything leased out, but
    not all of it used, waits until a lease comes back. Time is not divided: it passes for all of them alike.

    Attributes:
        width: how many children run side by side at most, where that is known: then none gets more than such a share.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.width = 1
        self._out: dict[int, Lease] = {}
        self._numbers = itertools.count(1)
        self._waiting: list[asyncio.Future[Lease]] = []
        self._soon = False
        self._before: list[Lease] = []  # what was leased out before those who are served now

    async def lease(self) -> Lease:
        """A share of what is left, to be given back."""
        state = self._run.state
        if not state.token_budget and state.cost_budget_usd is None:
            return self._with_time(Lease())
        share: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.append(share)
        self._divide_soon()
        try:
            return self._with_time(await share)
        except asyncio.CancelledError:
            if share.done() and not share.cancelled():
                self.give_back(share.result())
            raise

    def give_back(self, lease: Lease) -> None:
        """The child has ended, and what it used was added to the run."""
        self._out.pop(lease.number, None)
        self._divide_soon()

    def _divide_soon(self) -> None:
        if self._waiting and not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._divide)

    def _divide(self) -> None:
        self._soon = False
        waiting = [share for share in self._waiting if not share.done()]
        spent, free = self._free()
        if spent is None and self._out and any(left <= 0 for left in free.values()):
            self._waiting = waiting
            return
        self._waiting, self._before = [], list(self._out.values())
        for share in waiting:
            lease = Lease(spent=spent)
            if spent is None:
                lease = Lease(
                    tokens=None if "token" not in free else max(1, int(self._share("token", free, len(waiting)))),
                    cost_usd=None if "cost" not in free else self._share("cost", free, len(waiting)),
                    number=next(self._numbers),
                )
                self._out[lease.number] = lease
            share.set_result(lease)

    def _share(self, budget: Literal["token", "cost"], free: dict[str, float], waiting: int) -> float:
        """What one of those who wait gets."""
        out = sum((lease.tokens if budget == "token" else lease.cost_usd) or 0 for lease in self._before)
        return min(free[budget] / waiting, (free[budget] + out) / self.width)

    def _free(self) -> tuple[Literal["token", "cost"] | None, dict[str, float]]:
        """The budget that is used up, if one is; and of each budget what is neither used nor leased out."""
        state = self._run.state
        free: dict[str, float] = {}
        if state.token_budget:
            left = state.token_budget - state.total_tokens_used
            if left <= 0:
                return "token", {}
            free["token"] = left - sum(lease.tokens or 0 for lease in self._out.values())
        if state.cost_budget_usd is not None:
            money = state.cost_budget_usd - state.cost_usd_used
            if money <= 0:
                return "cost", {}
            free["cost"] = money - sum(lease.cost_usd or 0.0 for lease in self._out.values())
        return None, free

    def _with_time(self, lease: Lease) -> Lease:
        run = self._run
        if lease.spent or run.time_limit is None:
            return lease
        left = run.time_limit - run.elapsed()
        return replace(lease, seconds=left, spent="time" if left <= 0 else None)


def purse_of(run: Run) -> Purse:
    """The run's purse."""
    if run.memo.purse is None:
        run.memo.purse = Purse(run)
    return run.memo.purse  # type: ignore[no-any-return]
