"""One task of a superstep, on a stage: condition, pause, cache, attempts, error handler. Source: PAT-31, PAT-42, case 22."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...protocol.errors import GraphError
from ...protocol.patterns import MemberResult
from ..pattern import settled
from .bodies import HANDLER, caller
from .cache import CACHE
from .members import question_for, reply_of_member
from .node import Node
from .options import NodeRetry
from .plain import plain, sign
from .plan import Plan
from .planner import Task
from .reply import Reply
from .timeline import Done

if TYPE_CHECKING:
    from ...actors.supervisor.stage import Stage

NEVER_AGAIN = frozenset({"cancelled", "token_budget", "cost_budget"})
UNKNOWN = frozenset({"outcome_unknown", "unknown_tool", "request_cancelled"})


@dataclass(frozen=True)
class TaskRun:
    """A task about to run.

    Attributes:
        stage: of the graph's run.
        plan: the graph.
        key: of the task's steps: the superstep's number and the task's id.
        task: which.
        values: the state as it was when the superstep began.
        asks_before: the task waits for a person first.
        cache: names the graph in the cache.
    """

    stage: Stage
    plan: Plan
    key: str
    task: Task
    values: Mapping[str, Any]
    asks_before: bool = False
    cache: str = ""

    @property
    def node(self) -> Node:
        found = self.plan.nodes.get(self.task.node)
        if found is None:
            raise GraphError(f"node {self.task.node!r} comes next, and the graph has none of that name: it was changed since")
        return found

    async def carry_out(self) -> Done:
        """The task, to its end; what its node did wrong is in the result.

        Raises:
            StepPaused: it waits for a person.
            Exception: what a condition, a cache key or an input function raised.
        """
        node, task = self.node, self.task
        if node.condition is not None and not await settled(self._asked_of(node.condition, "condition")):
            return Done(task, "skipped")
        if self.asks_before:
            await self.stage.ask(
                f"Run node {node.name!r}?",
                key=f"{self.key}/before",
                metadata={"node": node.name, "task": task.id, "when": "before"},
            )
        if node.cache is None:
            return await self._attempted()
        return await self._cached(sign(plain(self._cache_key(), f"the cache key of node {node.name!r}")))

    def _cache_key(self) -> Any:
        policy = self.node.cache
        if policy is None or policy.key is None:
            return {**self.values, **(self.task.payload or {})}
        return self._asked_of(policy.key, "cache key")

    def _asked_of(self, function: Any, what: str) -> Any:
        view = self.plan.schema.view(self.values, self.task.payload)
        return caller(function, f"{what} of node {self.node.name!r}", 1)(view)

    async def _cached(self, key: str) -> Done:
        policy, place = self.node.cache, f"{self.cache}/{self.node.name}"
        hit = await self.stage.remember(f"{self.key}/cached", lambda: CACHE.get(place, key))
        if hit is not None:
            return Done(self.task, reply=Reply.from_json(hit), cached=True)
        done = await self._attempted()
        if done.status == "completed" and not done.handled and policy is not None:
            CACHE.put(place, key, done.reply.to_json(), ttl=policy.ttl, max_entries=policy.max_entries)
        return done

    async def _attempted(self) -> Done:
        policy = self.node.retry or NodeRetry(max_attempts=1)
        steps: list[str] = []
        spent = 0.0
        for attempt in range(1, policy.max_attempts + 1):
            steps.append(self.key if attempt == 1 else f"{self.key}.try{attempt}")
            result = self._followed(steps[-1], attempt) or await self._perform(steps[-1])
            spent += result.duration_ms
            if result.success:
                reply = reply_of_member(self.plan, self.node, result)
                return Done(self.task, steps=tuple(steps), reply=reply, duration_ms=spent, result=result)
            if attempt == policy.max_attempts or not tried_again(policy, result):
                break
            if not self.stage.replaying:
                await asyncio.sleep(policy.pause(attempt, random.random()))
        failed = Done(self.task, "failed", tuple(steps), problem=result.problem, duration_ms=spent, result=result)
        if self.node.on_error is None or result.stop_reason in NEVER_AGAIN:
            return failed
        return await self._handled(failed, result)

    def _followed(self, step: str, attempt: int) -> MemberResult | None:
        """The failure of an attempt that is over for good, since what came after it is recorded.

        A turn that is continued forgets failed steps, so that they are tried again.
        """
        log = self.stage.log
        if log.knows(step) or not (log.knows(f"{self.key}.try{attempt + 1}") or log.knows(f"{self.key}.handler")):
            return None
        return next((result for result in reversed(log.totals) if result.step == step), None)

    async def _perform(self, step: str) -> MemberResult:
        node, task = self.node, self.task
        if node.kind == "function":
            arguments: dict[str, Any] = {"state": dict(self.values)}
            if task.payload is not None:
                arguments["over"] = dict(task.payload)
            return await self.stage.function(node.name, arguments, key=step, member=node.name, idempotent=node.idempotent)
        prompt, values = question_for(self.plan, node, task, self.values)
        structured = values if node.kind != "agent" else None
        return await self.stage.call(node.name, prompt, key=step, values=structured, timeout=node.timeout)

    async def _handled(self, failed: Done, result: MemberResult) -> Done:
        """What the node's handler makes of the failure; if it fails, too, the node has failed for that reason."""
        error = result.error or {"code": "member_failed", "message": result.problem, "details": {}}
        failure: dict[str, Any] = {
            "node": failed.task.node,
            "task": failed.task.id,
            "error": error,
            "attempts": len(failed.steps),
            "item": None if failed.task.payload is None else dict(failed.task.payload),
        }
        arguments: dict[str, Any] = {"state": dict(self.values), "failure": failure}
        if failed.task.payload is not None:
            arguments["over"] = dict(failed.task.payload)
        step = f"{self.key}.handler"
        handler = await self.stage.function(self.node.name + HANDLER, arguments, key=step, member=self.node.name + HANDLER)
        steps, spent = (*failed.steps, step), failed.duration_ms + handler.duration_ms
        if not handler.success:
            problem = f"{failed.problem}; then its handler: {handler.problem}"
            return replace(failed, steps=steps, problem=problem, duration_ms=spent)
        reply = reply_of_member(self.plan, self.node, handler, handled=True)
        return replace(failed, status="completed", steps=steps, reply=reply, handled=True, duration_ms=spent)


def tried_again(policy: NodeRetry, result: MemberResult) -> bool:
    """Whether a failure is one that another attempt may mend. Source: PAT-31, PAT-46."""
    code = str((result.error or {}).get("code", ""))
    if result.stop_reason in NEVER_AGAIN or code in UNKNOWN:
        return False
    if code == "tool_timeout" or result.stop_reason == "time_budget":
        return policy.timeouts
    kinds = {code, result.stop_reason, *(word.strip(" :") for word in result.problem.split(":")[:2])}
    return not policy.on or bool(kinds.intersection(policy.on))
