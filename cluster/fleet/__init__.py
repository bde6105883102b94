"""Fleets: one agent over 10 to 1,000,000 tasks, with retries, results that survive crashes, and live progress."""

from .budget import Budget
from .fleet import Fleet
from .fleets import default_store, delete_fleet, export, list_fleets, load_fleet, open_results, results_of
from .hedging import Hedge
from .inputs import TaskInput
from .plan import Plan
from .progress import Snapshot
from .record import FleetRecord
from .results import FleetInterrupted, FleetReport, TaskResult, resume_advice
from .retry import Backoff, Retries
from .signals import stop_on_signals
from .spec import FleetSpec
from .tasks import Task
from .where import runtime_of

__all__ = [
    "Backoff",
    "Budget",
    "Fleet",
    "FleetInterrupted",
    "FleetRecord",
    "FleetReport",
    "FleetSpec",
    "Hedge",
    "Plan",
    "Retries",
    "Snapshot",
    "Task",
    "TaskInput",
    "TaskResult",
    "default_store",
    "delete_fleet",
    "export",
    "list_fleets",
    "load_fleet",
    "open_results",
    "results_of",
    "resume_advice",
    "runtime_of",
    "stop_on_signals",
]
