"""Fleets: one agent over 10 to 1,000,000 tasks, with retries, results that survive crashes, and live progress."""

from .fleet import Fleet
from .fleets import default_store, delete_fleet, export, list_fleets, load_fleet, open_results, results_of
from .progress import Snapshot
from .record import FleetRecord
from .results import FleetInterrupted, FleetReport, TaskResult, resume_advice
from .retry import Backoff
from .signals import stop_on_signals
from .tasks import Task

__all__ = [
    "Backoff",
    "Fleet",
    "FleetInterrupted",
    "FleetRecord",
    "FleetReport",
    "Snapshot",
    "Task",
    "TaskResult",
    "default_store",
    "delete_fleet",
    "export",
    "list_fleets",
    "load_fleet",
    "open_results",
    "results_of",
    "resume_advice",
    "stop_on_signals",
]
