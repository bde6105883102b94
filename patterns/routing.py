"""What the parts of an orchestrator are told, and what they answer. Source: PAT-10, PAT-12."""

from __future__ import annotations

from pydantic import BaseModel, Field

ROUTER = (
    "You direct specialists. Choose those that the task needs, as few as will do, and give each a task of its own that can be "
    "understood by itself. When you are shown findings, choose again only if something important is missing; otherwise say "
    "that it is done."
)
CORRELATOR = (
    "You compare what several specialists found. Name statements that findings of at least two of them support together, "
    "or in which they contradict each other, each with a strength from 0 (coincidence) to 1 (certain)."
)
SUMMARISER = "You unite the findings of specialists in one answer to the task. Add nothing of your own; name what stays open."


class Assignment(BaseModel):
    """A specialist's part of the task."""

    specialist: str
    task: str = ""


class Routing(BaseModel):
    """What a router answers."""

    reasoning: str = ""
    assignments: list[Assignment] = Field(default_factory=list)
    done: bool = False


class Correlation(BaseModel):
    """Findings that belong together, or contradict each other."""

    statement: str
    specialists: list[str] = Field(default_factory=list)
    strength: float = Field(default=0.0, ge=0, le=1)


class Correlations(BaseModel):
    """What a correlator answers."""

    correlations: list[Correlation] = Field(default_factory=list)


__all__ = ["Assignment", "Correlation", "Correlations", "Routing"]
