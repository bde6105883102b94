"""How a graph's run ends, from its timeline. Source: PAT-41, PAT-45, PAT-48, OURS-25."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ...protocol.errors import GraphError, MemberFailed, NothingRan, UmbelError
from ...protocol.patterns import LIMITS, Ending
from ...protocol.results import StopReason
from .commands import END
from .edges import Edge
from .plan import Plan, declared
from .reply import RESULT, target_json
from .timeline import Done, Timeline, writes_of


def ending_of(plan: Plan, line: Timeline, *, child: bool, tolerant: bool = False) -> Ending:
    """The end of a run in which nothing is left to be done.

    Args:
        plan: the graph.
        line: what happened.
        child: the graph is a node of another, which needs to know what was written.
        tolerant: it is a success if any node was.
    """
    failed = failures(line)
    ran = any(done.status == "completed" for superstep in line.supersteps for done in superstep.done)
    if failed and not (tolerant and ran):
        text = "; ".join(f"{name(done)}: {done.problem}" for done in failed)
        limits = {done.result.stop_reason for done in failed if done.result is not None} & LIMITS
        error: UmbelError = MemberFailed(
            text, steps=[done.steps[-1] for done in failed if done.steps], nodes=sorted({done.task.node for done in failed})
        )
        return stopped(plan, line, error, limits.pop() if len(limits) == 1 else "error")
    if not ran:
        return stopped(plan, line, NothingRan(f"graph {plan.name!r} came to its end, and no node had run"))
    waiting = plan.planner.unfinished(line.schedule)
    if waiting and not leaves(line):
        text = "; ".join(f"{target!r} waits for {', '.join(missing)}" for target, (_, missing) in waiting.items())
        text = (
            f"the run is over, and a join is not complete: {text}. Not every branch led there: use plain edges, or defer=True"
        )
        return stopped(plan, line, GraphError(text))
    value = final_value(plan, line)
    return Ending(final_output=text_of(value), value=value, details=details(plan, line, child=child))


def stopped(plan: Plan, line: Timeline, error: UmbelError, reason: StopReason = "error") -> Ending:
    """An end that is no success; the state is what it was after the last superstep."""
    return Ending.failed(error, reason, value=final_value(plan, line), details=details(plan, line, child=False))


def failures(line: Timeline) -> list[Done]:
    """Tasks that failed, and were not tried again with success."""
    left = list(line.failed)
    found: list[Done] = []
    for superstep in reversed(line.supersteps):
        for done in reversed(superstep.done):
            if done.status == "failed" and done.task in left:
                left.remove(done.task)
                found.append(done)
    return found[::-1]


def leaves(line: Timeline) -> bool:
    """Whether the run ended because it goes on in the parent graph."""
    return bool(line.supersteps) and any(done.reply.to_parent for done in line.supersteps[-1].done)


def name(done: Done) -> str:
    """The task, for people."""
    same = done.task.id == done.task.node
    return f"node {done.task.node!r}" if same else f"node {done.task.node!r} (task {done.task.id!r})"


def final_value(plan: Plan, line: Timeline) -> dict[str, Any]:
    """The final state, or the part of it that is the result."""
    schema = plan.output_schema
    return {key: value for key, value in line.values.items() if schema is None or schema.has(key)}


def text_of(values: dict[str, Any]) -> str:
    """The state as a text: its ``result`` or its last message, where there is one, or all of it as JSON."""
    if isinstance(values.get(RESULT), str):
        return str(values[RESULT])
    messages = values.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        return str(messages[-1].get("content") or "")
    return json.dumps(values, ensure_ascii=False)


def details(plan: Plan, line: Timeline, *, child: bool) -> dict[str, Any]:
    """What is special to a graph's run."""
    tasks = [
        {
            "node": done.task.node,
            "id": done.task.id,
            "superstep": superstep.number,
            "status": done.status,
            "steps": list(done.steps),
            "duration_ms": done.duration_ms,
            **({"error": done.problem} if done.problem else {}),
            **({"handled": True} if done.handled else {}),
            **({"cached": True, "output": done.reply.output} if done.cached else {}),
            **({"item": dict(done.task.payload)} if done.task.payload is not None else {}),
        }
        for superstep in line.supersteps
        for done in superstep.done
    ]
    facts: dict[str, Any] = {"tasks": tasks, "iterations": line.number, "skipped": sorted(skipped(plan, line))}
    parent = [done.reply for superstep in line.supersteps[-1:] for done in superstep.done if done.reply.to_parent]
    if parent:
        goto = [target_json(target) for reply in parent for target in reply.targets or ()]
        update = {key: value for reply in parent for key, value in reply.update.items()}
        facts["parent"] = {"update": update, **({"goto": goto} if goto else {})}
    if child:
        facts["writes"] = [list(write) for write in line.writes]
        facts["written"] = list(dict.fromkeys(written(plan, line)))
    return facts


def written(plan: Plan, line: Timeline) -> Iterable[str]:
    """The keys that the turn's tasks wrote."""
    for superstep in line.supersteps:
        for done in superstep.done:
            yield from (write.key for write in writes_of(plan, done))


def skipped(plan: Plan, line: Timeline) -> set[str]:
    """Nodes that never ran because a failed node stands before them."""
    ran = {done.task.node for superstep in line.supersteps for done in superstep.done}
    queue = [done.task.node for done in failures(line)]
    found: set[str] = set()
    while queue:
        source = queue.pop()
        onward = [e.target for e in plan.edges if source in ((e.source,) if isinstance(e, Edge) else e.sources)]
        onward += [target for branch in plan.branches.get(source, ()) for target in declared(branch) or ()]
        for target in onward:
            if target not in ran and target not in found and target != END:
                found.add(target)
                queue.append(target)
    return found
