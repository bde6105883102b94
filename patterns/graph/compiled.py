"""``CompiledGraph``: a graph that can be run."""

from __future__ import annotations

from typing import Any

from ...actors.runnable import Runnable
from .plan import Plan
from .structure import Structure


class CompiledGraph(Runnable):
    """A checked, frozen graph; :meth:`StateGraph.compile` makes it.

    Args:
        plan: what it consists of.
    """

    def __init__(self, plan: Plan, **options: Any) -> None:
        super().__init__()
        self.plan = plan

    @property
    def title(self) -> str:
        """The graph's name."""
        return self.plan.name

    def structure(self) -> Structure:
        """The graph as nodes and edges."""
        return self.plan.structure()
