"""Where a fleet that is a job stands: by our own record, whatever Ray's job table says or has forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..fleet.record import FleetRecord
from .server import FINAL

_EXIT_CODES = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 143}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A job, from both sides.

    Attributes:
        job_id: its submission id.
        ray: its status in Ray's job table; None if Ray does not know it, or does not answer.
        record: of the fleet, if the job is its newest session.
        message: what Ray says about it.
        driver_exit_code: of its process, where Ray knows it.
    """

    job_id: str
    ray: str | None = None
    record: FleetRecord | None = None
    message: str = ""
    driver_exit_code: int | None = None

    @property
    def state(self) -> str:
        """How the fleet is, or ended: ``pending``, ``running``, ``draining``, ``lost``, ``finished``, ``stopped``, ``failed``.

        The record decides. Only where there is none, because the fleet never came to run, Ray's status does.
        A fleet whose process Ray saw end, and which had no time to say how, is ``lost``.
        """
        if self.record is not None:
            unsaid = self.record.liveness in ("running", "draining") and self.ray in FINAL
            return "lost" if unsaid else self.record.liveness
        states = {"SUCCEEDED": "finished", None: "unknown"}
        return states.get(self.ray, str(self.ray).lower())

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in ("finished", "stopped", "failed", "lost")

    @property
    def exit_code(self) -> int | None:
        """Of the fleet; None while it runs, and 1 for one that was lost."""
        if not self.ended:
            return None
        if self.state == "lost":
            return 1
        if self.record is not None and self.record.exit_code is not None:
            return int(self.record.exit_code)
        return self.driver_exit_code if self.driver_exit_code is not None else _EXIT_CODES.get(self.ray or "", 1)

    def facts(self) -> dict[str, Any]:
        """Everything as JSON values."""
        record = None if self.record is None else self.record.model_dump(mode="json", exclude={"spec"})
        return {
            "job_id": self.job_id,
            "state": self.state,
            "ray_status": self.ray,
            "exit_code": self.exit_code,
            "message": self.message,
            "fleet": record,
        }


def standing_of(job_id: str, job: Any | None, records: Mapping[str, FleetRecord]) -> Standing:
    """Put together what Ray says of a job (``JobDetails``) and the records of a store, by job id."""
    record = records.get(job_id)
    if job is None:
        return Standing(job_id=job_id, record=record)
    return Standing(
        job_id=job_id,
        ray=str(job.status.value),
        record=record,
        message=(job.message or "").strip(),
        driver_exit_code=job.driver_exit_code,
    )
