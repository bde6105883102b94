"""A graph's threads as applications handle them: read, gone back in, amended. Source: PAT-59.

A checkpoint is never changed. ``fork`` copies one into a thread of its own, and ``continue_turn`` runs on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...actors.runtime_port import RuntimePort, current_runtime
from ...actors.supervisor.pause import listed
from ...actors.supervisor.steps import record
from ...actors.thread_calls import ThreadCalls
from ...protocol.errors import ConfigurationError
from ...protocol.state import AgentState
from ...protocol.storage import CheckpointInfo
from .planner import Ended
from .reply import fields_of, is_record, update_of
from .schema import Write
from .timeline import UPDATE, Reader, Timeline, read

if TYPE_CHECKING:
    from .plan import Plan


@dataclass(frozen=True)
class GraphState:
    """A graph's thread at one moment.

    Attributes:
        thread_id, checkpoint_id: where it is stored.
        values: the state; JSON values.
        next: the nodes of the superstep that is under way, or would be next; empty when the turn is over.
        interrupts: what the thread waits for.
        step: supersteps of the newest turn that are over.
        stop_reason: why the newest turn ended; None while it goes on, is paused, or was cut off.
        created_at: of the checkpoint, UTC; None where it was not asked for.
        metadata: of the checkpoint, where it was asked for.
    """

    thread_id: str
    checkpoint_id: str | None
    values: dict[str, Any]
    next: tuple[str, ...] = ()
    interrupts: tuple[dict[str, Any], ...] = ()
    step: int = 0
    stop_reason: str | None = None
    created_at: datetime | None = None
    metadata: Mapping[str, Any] | None = None


class GraphCalls(ThreadCalls):
    """What can be done with a graph's threads."""

    plan: Plan

    async def get_state(  # type: ignore[override]  # a graph's state is its values, not a conversation
        self, thread_id: str, checkpoint_id: str | None = None, *, runtime: RuntimePort | None = None
    ) -> GraphState:
        """A thread as it is, or was at a checkpoint.

        Raises:
            CheckpointNotFound: there is no such thread or checkpoint.
        """
        state = await self.threads_in(runtime).get_state(thread_id, checkpoint_id)
        return view(read(self.plan, state.messages), thread_id, state, checkpoint_id)

    def get_state_sync(  # type: ignore[override]  # as above
        self, thread_id: str, checkpoint_id: str | None = None, *, runtime: RuntimePort | None = None
    ) -> GraphState:
        """:meth:`get_state` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.get_state(thread_id, checkpoint_id, runtime=runtime))

    async def get_state_history(  # type: ignore[override]  # as above
        self, thread_id: str, limit: int = 10, *, runtime: RuntimePort | None = None
    ) -> list[GraphState]:
        """A thread's states, newest first: one for each superstep that is kept (``checkpoint_every_step``), and each end.

        Args:
            thread_id: the thread.
            limit: at most so many.
            runtime: where the checkpointer is asked.
        """
        threads = self.threads_in(runtime)
        reader = Reader(self.plan)
        found: list[GraphState] = []
        for info in reversed(by_superstep(await threads.history(thread_id, CHECKPOINTS))[:limit]):
            state = await threads.get_state(thread_id, info.checkpoint_id)
            found.append(view(reader.read(state.messages), thread_id, state, info.checkpoint_id, info))
        return found[::-1]

    def get_state_history_sync(  # type: ignore[override]  # as above
        self, thread_id: str, limit: int = 10, *, runtime: RuntimePort | None = None
    ) -> list[GraphState]:
        """:meth:`get_state_history` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.get_state_history(thread_id, limit, runtime=runtime))

    async def update_state(  # type: ignore[override]  # a graph has values, not messages
        self,
        thread_id: str,
        values: Any,
        *,
        as_node: str | None = None,
        runtime: RuntimePort | None = None,
    ) -> str:
        """Write to a thread's state from outside, through the reducers; a pause stays a pause.

        Args:
            thread_id: the thread.
            values: keys to write, as a node's update.
            as_node: the update counts as this node's, and what follows the node comes next: ``continue_turn`` runs it. In a
                thread that is paused the update is only named after it, since what is under way comes first.
            runtime: where the checkpointer is asked.

        Returns:
            The new checkpoint's id.

        Raises:
            CheckpointNotFound: there is no such thread.
            ThreadBusy: a run has the thread.
            ConfigurationError: ``as_node`` is no node.
            ConflictingWrites, InvalidUpdate: the values do not fit.
        """
        if as_node is not None and as_node not in self.plan.nodes:
            raise ConfigurationError(f"as_node: {as_node!r} is no node; there are {', '.join(self.plan.nodes)}")
        given = fields_of(values) if is_record(values) else values
        update = update_of(given, as_node or "update_state")

        async def change(state: AgentState) -> AgentState:
            line = read(self.plan, state.messages)
            kept: dict[str, Any] = {"writer": as_node or "update_state", "writes": update, "schedule": None}
            amended = self.plan.schema.fold(line.values, [Write(kept["writer"], *item) for item in update.items()])
            turn = state.turn
            if as_node is not None and not state.interrupts:
                targets = await self.plan.route(as_node, amended)
                kept["schedule"] = self.plan.planner.follow([Ended(as_node, targets)], line.schedule).to_json()
                turn = turn.evolve(stop_reason=None)
            message = record("value", f"{UPDATE}{line.updates + 1}", value=kept)
            return state.evolve(messages=(*state.messages, message), turn=turn)

        return await self.threads_in(runtime).amend(thread_id, change)

    def update_state_sync(  # type: ignore[override]  # as above
        self, thread_id: str, values: Any, *, as_node: str | None = None, runtime: RuntimePort | None = None
    ) -> str:
        """:meth:`update_state` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.update_state(thread_id, values, as_node=as_node, runtime=runtime))


CHECKPOINTS = 1_000  # of a thread that its history looks at


def view(
    line: Timeline, thread_id: str, state: AgentState, checkpoint_id: str | None, info: CheckpointInfo | None = None
) -> GraphState:
    """A stored state as a graph's."""
    return GraphState(
        thread_id=thread_id,
        checkpoint_id=checkpoint_id,
        values=dict(line.values),
        next=following(line, state),
        interrupts=tuple(listed(state.interrupts)),
        step=line.number,
        stop_reason=state.turn.stop_reason,
        created_at=None if info is None else datetime.fromtimestamp(info.created_at, UTC),
        metadata=None if info is None else info.metadata,
    )


def following(line: Timeline, state: AgentState) -> tuple[str, ...]:
    """The nodes that come next."""
    if state.turn.stop_reason not in {None, "error"}:
        return ()
    return tuple(dict.fromkeys(task.node for task in (*line.schedule.tasks, *line.failed)))


def by_superstep(history: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Of the checkpoints of each superstep (newest first) the one that closes it, and all that are an end or an amendment."""
    kept: list[CheckpointInfo] = []
    for index, info in enumerate(history):
        superstep, older = info.metadata.get("superstep"), history[index + 1].metadata if index + 1 < len(history) else {}
        closes = superstep is not None and older.get("superstep") != superstep
        if index == 0 or closes or info.metadata.get("finished") or "updated_from" in info.metadata:
            kept.append(info)
    return kept
