"""A supervisor that moves to another node takes its durable runs along.

Each of them goes on to its next boundary, is saved there, and waits. Once all do, the process ends; whoever waits for them
sends them again, and the incarnation that follows goes on with what is stored, as after a crash (``recovery.py``), only
that nothing was under way. A run without a thread cannot be taken along: it is given the time that there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from .run import Run
from .thread import save


async def park(run: Run) -> None:
    """Store the run as it is between two iterations, and go no further in this process; a stop still ends it here."""
    await save(run, final=True)
    run.parked = True
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        run.parked = False


def may_leave(runs: Iterable[Run]) -> bool:
    """Whether nothing is lost when this process ends: the steps of a pattern are stored one by one, its members are runs."""
    return all(run.parked or (run.is_durable and run.agent.is_pattern and not run.closing) for run in runs)
