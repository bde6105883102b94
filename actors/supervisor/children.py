"""Runs that a tool's body starts: the supervisor of the call carries them out as children, and tells the body.

The body's side of this is ``tools/children.py``. A child is stopped when its body gives it up, when the call is over, and
when the run is stopped; what it used until then counts as the run's all the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from ...protocol.codec import to_json
from ...protocol.commands import CancelRun, StartRun, SubagentAnswer, SubagentHeard, SubagentRequest, ToolProgress
from ...protocol.errors import PeerLost, RunError, RunFailed, RunLost, UmbelError, UnknownTask
from ...protocol.results import RunOutcome, StopReason
from ..frames import Channel
from .purse import purse_of
from .run import Run
from .slot import Slot, progress
from .subagent import MAX_DEPTH, child_channel, child_outcome, subordinate

logger = logging.getLogger("umbel.supervisor")
SPENT: dict[str, StopReason] = {"token": "token_budget", "cost": "cost_budget", "time": "time_budget"}


class _Task:
    """A conversation with a child that can go on. One turn at a time. Source: API-60."""

    __slots__ = ("lock", "state", "task_id")

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.lock = asyncio.Lock()
        self.state: bytes | None = None


class _Child:
    __slots__ = ("begun", "stopped", "task")

    def __init__(self) -> None:
        self.begun: StartRun | None = None
        self.stopped = False
        self.task: asyncio.Task[None] | None = None


class Body:
    """What a running tool body says to its supervisor, and the children that it has started.

    Args:
        run: whose call it is.
        slot: the call.
        channel: to the executor that runs the body.
    """

    __slots__ = ("_channel", "_run", "_slot", "children")

    def __init__(self, run: Run, slot: Slot, channel: Channel) -> None:
        self._run, self._slot, self._channel = run, slot, channel
        self.children: dict[str, _Child] | None = None

    def heard(self, part: Any) -> None:
        """A message that came along the call."""
        if isinstance(part, ToolProgress):
            if self._slot.tool.emits_progress:
                progress(self._run, self._slot, part)
        elif isinstance(part, SubagentRequest):
            self.children = {} if self.children is None else self.children
            if part.start.run_id not in self.children:
                child = self.children[part.start.run_id] = _Child()
                child.task = asyncio.ensure_future(self._serve(part, child))
        elif isinstance(part, CancelRun):
            self._stop((self.children or {}).get(part.run_id or ""))

    async def end(self) -> None:
        """The body is over: children that it left behind are stopped, and what they used is counted."""
        left = [child for child in (self.children or {}).values() if child.task is not None and not child.task.done()]
        try:
            for child in left:
                self._stop(child)
            await asyncio.gather(*(child.task for child in left if child.task is not None), return_exceptions=True)
        finally:
            for child in left:
                if child.task is not None:
                    child.task.cancel()

    def _stop(self, child: _Child | None) -> None:
        """Tell a child to stop; one that does not within the grace is left to its supervisor."""
        if child is None or child.stopped or child.task is None:
            return
        child.stopped = True
        if child.begun is None:
            child.task.cancel()
            return
        told = asyncio.ensure_future(child_channel(self._run, child.begun).request(CancelRun(run_id=child.begun.run_id)))
        told.add_done_callback(lambda done: done.cancelled() or done.exception())  # the child's own request tells, too
        asyncio.get_running_loop().call_later(self._run.config.cancel_grace_seconds, child.task.cancel)

    async def _serve(self, request: SubagentRequest, child: _Child) -> None:
        start, task_id = request.start, None
        try:
            if self._run.request.depth >= MAX_DEPTH:
                raise RunError(f"no agent was run: agents are already {MAX_DEPTH} deep")
            sent = self._run.peers.admit(start.definition, request.blob)
            agent = sent.as_child_of(self._run.agent)  # both are held until the child is over
            if agent is not sent:
                start = start.evolve(definition=self._run.peers.register(agent))
            task = self._task(request.task_id)
            if task is None:
                outcome = await self._attempt(start, child)
            else:
                task_id = task.task_id
                outcome = await self._turn(task, start, child)
            del agent, sent
        except asyncio.CancelledError:
            if not child.stopped:
                raise
            outcome = unrun(start, "cancelled")
        except PeerLost as error:
            lost = RunLost(f"the subagent's run was lost: {error.message}", run_id=start.run_id)
            outcome = unrun(start, "error", lost)
        except UmbelError as error:
            outcome = unrun(start, "error", error)
        except Exception as error:  # whatever it was, the body must not wait for ever
            logger.warning("run %s: a subagent could not be run", self._run.id, exc_info=True)
            outcome = unrun(start, "error", RunFailed(f"{type(error).__name__}: {error}", type=type(error).__name__))
        if not start.full:
            outcome = outcome.evolve(state=None, state_json=None)
        self._channel.send(SubagentAnswer.trusted(run_id=start.run_id, outcome=outcome, task_id=task_id))

    def _task(self, task_id: str | None) -> _Task | None:
        """The conversation that a request belongs to, a new one for ``""``."""
        tasks = self._run.memo.tasks
        if task_id is None:
            return None
        if not task_id:
            task_id = f"task_{os.urandom(6).hex()}"
            tasks[task_id] = _Task(task_id)
        if task_id not in tasks:
            known = ", ".join(sorted(tasks)) or "none"
            raise UnknownTask(f"this run has no subagent task {task_id!r} to go on with; there are: {known}")
        return tasks[task_id]  # type: ignore[no-any-return]

    async def _turn(self, task: _Task, start: StartRun, child: _Child) -> RunOutcome:
        """The next turn of a conversation; one that failed leaves it as it was."""
        async with task.lock:
            outcome = await self._attempt(start.evolve(full=True, state=task.state), child, task.task_id)
            state = outcome.state_json if outcome.state is None else to_json(outcome.state)
            if outcome.error is None and state is not None:
                task.state = state
            return outcome

    async def _attempt(self, start: StartRun, child: _Child, task_id: str | None = None) -> RunOutcome:
        run, purse = self._run, purse_of(self._run)
        told = None
        if start.events:

            def told(event: Any) -> None:
                self._channel.send(SubagentHeard.trusted(run_id=start.run_id, event=event))

        lease = await purse.lease()
        try:
            if lease.spent:
                return unrun(start, SPENT[lease.spent])
            child.begun = subordinate(run, start, lease)
            outcome = await child_outcome(run, self._slot, child.begun, task_id=task_id, told=told)
            run.add_child(outcome.metrics)
            return outcome
        finally:
            purse.give_back(lease)


def unrun(start: StartRun, reason: StopReason, error: UmbelError | None = None) -> RunOutcome:
    """The outcome of a child that did not run, or was lost."""
    wire = None if error is None else error.to_wire()
    return RunOutcome(run_id=start.run_id, thread_id=start.thread_id, stop_reason=reason, reason=reason, error=wire)
