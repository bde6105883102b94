"""What a graph's run gave its caller. Source: PAT-48."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ...protocol.patterns import MemberResult, PatternResult
from ...protocol.results import RunOutcome
from .bodies import HANDLER
from .members import reply_of_member
from .plan import Plan
from .timeline import read

NodeStatus = Literal["pending", "running", "completed", "failed", "skipped", "interrupted"]


@dataclass(frozen=True)
class NodeResult:
    """How one task of a graph went.

    Attributes:
        node: whose task.
        id: the node's name, or the ``Send``'s id.
        superstep: in which; 0 when it has not come to its turn.
        status: ``interrupted`` while it waits for a person; ``skipped`` when its condition was false, or a node before it
            failed; ``pending`` when nothing led to it.
        output: what it wrote or returned; of a handled failure, the handler's.
        error: why it failed, as text; also of a failure that a handler has replaced.
        duration_ms: milliseconds, all attempts.
        attempts: how many steps it took.
        handled: its ``on_error`` function replaced the failure.
        cached: the output was reused.
        item: the ``Send``'s payload.
    """

    node: str
    id: str
    superstep: int = 0
    status: NodeStatus = "pending"
    output: Any = None
    error: str = ""
    duration_ms: float = 0.0
    attempts: int = 0
    handled: bool = False
    cached: bool = False
    item: dict[str, Any] | None = None


@dataclass(frozen=True)
class GraphResult(PatternResult):
    """A graph's end. ``success`` is False when any node failed for good; ``error`` then names the nodes.

    Attributes:
        plan: the graph.
    """

    plan: Plan | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of_graph(cls, outcome: RunOutcome, plan: Plan) -> GraphResult:
        """The caller's view of an outcome."""
        return cls(outcome, plan=plan)

    @property
    def graph_id(self) -> str:
        """The graph's name."""
        return "" if self.plan is None else self.plan.name

    @cached_property
    def value(self) -> Any:
        """The state at the end, or at the pause: JSON values."""
        if "value" in self.report or self.plan is None or not self.interrupts:
            return self.report.get("value")
        return dict(read(self.plan, self.messages).values)

    @property
    def final_state(self) -> Any:
        """Another name for :attr:`value`."""
        return self.value

    @property
    def state_values(self) -> Any:
        """The same as the schema has it: an instance of its class, or a dict with its types."""
        if self.plan is None or self.value is None:
            return self.value
        schema = self.plan.output_schema or self.plan.schema
        return schema.view(self.value)

    @cached_property
    def tasks(self) -> tuple[NodeResult, ...]:
        """Every task that has ended, in task order, superstep after superstep."""
        by_step = {member.step: member for member in self.members}
        return tuple(self._task(known, by_step) for known in self.details.get("tasks", ()))

    def _task(self, known: dict[str, Any], by_step: dict[str, MemberResult]) -> NodeResult:
        last = by_step.get(known["steps"][-1]) if known["steps"] else None
        output = known.get("output")
        if last is not None and last.success and self.plan is not None:
            node = self.plan.nodes.get(known["node"])
            output = reply_of_member(self.plan, node, last, handled=known.get("handled", False)).output
        facts = {name: known[name] for name in ("node", "id", "superstep", "status", "duration_ms")}
        facts |= {name: known[name] for name in ("error", "handled", "cached", "item") if name in known}
        return NodeResult(**facts, output=output, attempts=len(known["steps"]) - known.get("handled", False))

    @cached_property
    def nodes(self) -> dict[str, NodeResult]:
        """By node, its last task; nodes that had none are there, too."""
        found = {} if self.plan is None else {name: NodeResult(name, name) for name in self.plan.nodes}
        skipped = set(self.details.get("skipped", ()))
        found = {name: NodeResult(name, name, status="skipped") if name in skipped else r for name, r in found.items()}
        for task in self.tasks or self._so_far():
            found[task.node] = task
        for asked in self.interrupts:
            node = str((asked.get("metadata") or {}).get("node") or asked.get("tool_name")).removesuffix(HANDLER)
            if node in found:
                found[node] = NodeResult(node, node, status="interrupted")
        return found

    def _so_far(self) -> list[NodeResult]:
        """Tasks of a run that is paused."""
        if self.plan is None or not self.interrupts:
            return []
        return [
            NodeResult(
                done.task.node, done.task.id, step.number, done.status, done.reply.output, done.problem, done.duration_ms
            )
            for step in read(self.plan, self.messages).supersteps
            for done in step.done
        ]

    @property
    def sends(self) -> tuple[NodeResult, ...]:
        """The tasks that were sent, as many as there were Sends; those that failed have the error and the item."""
        return tuple(task for task in self.tasks if task.item is not None)

    @property
    def outputs(self) -> list[Any]:
        """What the tasks that succeeded gave, newest first."""
        return [task.output for task in reversed(self.tasks) if task.status == "completed"]

    @property
    def execution_order(self) -> list[str]:
        """The nodes that ran, in task order."""
        return [task.node for task in self.tasks if task.status != "skipped"]

    @property
    def iterations(self) -> int:
        """Supersteps."""
        return int(self.details.get("iterations", 0))
