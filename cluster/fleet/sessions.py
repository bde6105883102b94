"""How a fleet with a name goes on with what an earlier session has begun: nothing is paid for twice."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from ...actors.charter import Charter, chartered
from ...protocol.errors import ConfigurationError, NotPaused
from .record import FleetRecord
from .tally import Attempts

_MAX_THREADS = 100


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions of a fleet.

    Attributes:
        fleet: stands for the fleet; one that begins anew under its name is another.
        resumed: there was a session before this one.
    """

    fleet: str
    resumed: bool

    @classmethod
    def of(cls, record: FleetRecord) -> Sessions:
        """Those of that fleet."""
        return cls(f"{record.name}@{record.started_at!r}", record.sessions > 1)

    def charter(self, thread: str, charter: Charter | None) -> Charter:
        """The charter of the first run on a task's thread. Its id follows from the thread, so that a later session knows it."""
        run_id = blake2b(f"{self.fleet}/{thread}".encode(), digest_size=16).hexdigest()
        return replace(charter or Charter(), run_id=run_id)

    async def take_up(self, agent: Any, thread: str, attempts: Attempts, charter: Charter | None, **given: Any) -> Any:
        """The outcome of a task that an earlier session may have begun.

        Its threads are looked at in the order in which attempts begin them. A turn that was cut off goes on; one that
        succeeded gives its stored outcome, and nothing runs, nor does anything for one that waits for a person; one that
        ended without success stays as it is. A thread with nothing in it gets the task.

        Args:
            agent: what is run.
            thread: of the task's first attempt.
            attempts: of the task.
            charter: what the run may spend.
            **given: options of the run.
        """
        for number in range(1, _MAX_THREADS):
            candidate = thread if number == 1 else f"{thread}#{number}"
            attempts.begin(candidate)
            attempts.includes_earlier = await agent.threads_in(given.get("runtime")).exists(candidate)
            with contextlib.suppress(NotPaused), chartered(self.charter(candidate, charter)):
                return await agent.take_up(attempts.task.prompt, candidate, **given)
        raise ConfigurationError(f"task {attempts.task.id!r} has {_MAX_THREADS} threads {thread}#...: delete some")
