"""The record of a fleet: what its store says of it beside its results, for whoever looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from ...protocol.messages import Frozen, JsonObject, Text
from ...protocol.storage import LEDGER_PREFIX

FleetState = Literal["running", "draining", "finished", "stopped", "failed"]
Liveness = Literal["running", "draining", "lost", "finished", "stopped", "failed"]
FACT = "fleet"  # the key of the record in the metadata of a checkpoint
ALIVE: frozenset[str] = frozenset({"running", "draining"})


class FleetRecord(Frozen):
    """A fleet with a name, as its ledger has it.

    Attributes:
        name: of the fleet, unique in its store.
        state: what its newest session says of itself; see ``liveness``.
        reason: what stopped it, or why it failed.
        started_at: of the first session, seconds since the epoch, UTC.
        updated_at: when the record was written; at least every two seconds while it runs.
        sessions: how often it was started, this time included.
        host, pid: of the newest session.
        job_id: the cluster job that the newest session belongs to.
        total: tasks there are to do, None while that is not known.
        counts: tasks by the status of their newest result.
        retries: attempts beyond the first, of all sessions, as are the next three.
        tokens: prompt and completion tokens.
        cost_usd: None when no model has a price.
        seconds: that sessions have taken.
        spec: what the fleet was started from, without secrets.
        exit_code: of the newest session; None while it runs.
        owner: who runs it now, None when nobody does.
    """

    name: Text
    state: FleetState = "running"
    reason: Text | None = None
    started_at: float = 0.0
    updated_at: float = 0.0
    sessions: int = 1
    host: str = ""
    pid: int = 0
    job_id: str | None = None
    total: int | None = None
    counts: dict[str, int] = Field(default_factory=dict)
    retries: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0
    spec: JsonObject = Field(default_factory=dict)
    exit_code: int | None = None
    owner: str | None = None

    @property
    def liveness(self) -> Liveness:
        """``state``, or ``lost`` for a fleet that nobody runs any more though it never came to an end."""
        return "lost" if self.state in ALIVE and self.owner is None else self.state

    @property
    def done(self) -> int:
        """Tasks with a result."""
        return sum(self.counts.values())


def thread_of(name: str) -> str:
    """The thread of a store that is the ledger of that fleet."""
    return f"{LEDGER_PREFIX}{name}"


def record_in(metadata: Mapping[str, Any], owner: str | None = None) -> FleetRecord | None:
    """The record that a checkpoint's metadata holds, if it is a ledger's."""
    stored = metadata.get(FACT)
    return FleetRecord.model_validate({**stored, "owner": owner}) if isinstance(stored, dict) else None
