"""Fleets: one agent over 10 to 1,000,000 tasks, with retries, results that survive crashes, and live progress."""

from .fleet import Fleet, stop_on_signals
from .progress import Snapshot
from .results import FleetInterrupted, FleetReport, TaskResult, resume_advice
from .retry import Backoff
from .tasks import Task

__all__ = [
    "Backoff",
    "Fleet",
    "FleetInterrupted",
    "FleetReport",
    "Snapshot",
    "Task",
    "TaskResult",
    "resume_advice",
    "stop_on_signals",
]
