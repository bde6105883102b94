"""What a run of a fleet records to, and reads from when it is resumed.

A fleet without a name has a results file (``results_file.py``), which is all there is. One with a name has a thread in a store
of checkpoints (``store_ledger.py``): its results, and its record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Protocol

from .record import FleetRecord
from .results import TaskResult

EndState = Literal["finished", "stopped", "failed"]


def id_hash(task_id: str) -> int:
    """8 bytes that stand for an id: a million ids collide with a chance of 1 in 37 million."""
    return int.from_bytes(blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run of a fleet ends.

    Attributes:
        state: ``finished`` (every task was tried), ``stopped`` (somebody or a limit ended it early) or ``failed`` (it cannot
            go on).
        reason: what stopped it, or the error; None for ``finished``.
        exit_code: of the command that runs it.
    """

    state: EndState
    reason: str | None = None
    exit_code: int = 0


class Ledger(Protocol):
    """Where a run of a fleet records results.

    Attributes:
        where: for people: the results file, or the fleet's name and its store.
        files: that hold the results; perhaps none.
        record: of the fleet, earlier sessions included; None without a name.
    """

    @property
    def where(self) -> str: ...
    @property
    def files(self) -> Sequence[Path]: ...
    @property
    def record(self) -> FleetRecord | None: ...

    def is_done(self, key: int) -> bool:
        """Whether the task of that :func:`id_hash` is ok, so that it is never run again."""

    def put(self, result: TaskResult, *, includes_earlier: bool = False) -> None:
        """Take a result. It is written soon, together with others.

        Args:
            result: of a task.
            includes_earlier: its tokens and cost include those of the task's result before, of an earlier session.
        """

    def note(self, *, total: int | None = None, draining: str | None = None) -> None:
        """What there is to know of the fleet beside its results: how many tasks, and that it is being ended and why."""

    async def room(self) -> None:
        """Wait while writing is behind.

        Raises:
            UmbelError: as :meth:`check`.
        """

    def check(self) -> None:
        """Whether it can still be written.

        Raises:
            StoreUnavailable: no, for too long already.
            StaleWriter: another run of the fleet has taken over.
        """

    async def close(self, ending: Ending) -> None:
        """Write what is left, make it durable, and say how the run ended.

        Raises:
            StoreUnavailable: it cannot be written.
        """
