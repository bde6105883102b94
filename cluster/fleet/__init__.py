"""Fleets: one agent over 10 to 1,000,000 tasks, with retries, results that survive crashes, and live progress."""

from .budget import Budget
from .fleet import Fleet, runtime_of, stop_on_signals
from .hedging import Hedge
from .inputs import TaskInput
from .plan import Plan
from .progress import Snapshot
from .results import FleetInterrupted, FleetReport, TaskResult, resume_advice
from .retry import Backoff, Retries
from .spec import FleetSpec
from .tasks import Task

__all__ = [
    "Backoff",
    "Budget",
    "Fleet",
    "FleetInterrupted",
    "FleetReport",
    "FleetSpec",
    "Hedge",
    "Plan",
    "Retries",
    "Snapshot",
    "Task",
    "TaskInput",
    "TaskResult",
    "resume_advice",
    "runtime_of",
    "stop_on_signals",
]
