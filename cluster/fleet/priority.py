"""Which of the tasks that wait comes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tasks import BadTask, Task

LOOK_AHEAD = 1_000


def read_priority(value: Any) -> float | str:
    """A number for the whole fleet, or ``metadata.<field>`` (deeper ones with more dots).

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.startswith("metadata.") and all(value.split(".")):
        return value
    raise ValueError(f"expected a number, or a field like metadata.priority, found {value!r}")


def priority_of(task: Task, field: str) -> float | BadTask:
    """The number in that field of a task, 0 where it has none; whatever else is there makes the line invalid."""
    value: Any = task.metadata
    for name in field.split(".")[1:]:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None or value == "":
        return 0.0
    try:
        return float(value)
    except (TypeError, ValueError):
        problem = f"field {field!r}: expected a number, found {str(value)[:100]!r}; higher comes first, without one it is 0"
        return BadTask(id=task.id, where=task.where, problem=problem)
