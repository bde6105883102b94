"""One run, as its supervisor holds it: the request, the state, and what is needed to act on them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import is_
from typing import Any, Protocol

from ...protocol.codec import to_json
from ...protocol.commands import StartRun
from ...protocol.config import Topology
from ...protocol.events import CustomEvent, Event, RunInfo
from ...protocol.markers import is_request
from ...protocol.messages import Message, ModelChunk, ModelResponse, ToolCall, ToolResult, Usage
from ...protocol.results import Metrics
from ...protocol.state import AgentState
from ..frames import Caller, Channel
from ..tools.builtin.discovery import activated

_random = random.Random()  # its own, so that nobody who calls seed() makes call ids repeat
LONG_CONVERSATION = 100  # messages


class Peers(Protocol):
    """Where a supervisor finds the other actors; ``cluster/`` decides which process they are in."""

    def agent(self, agent: Any, run_id: str, attempt: int = 0) -> Channel: ...
    def tools(self, tool: Any, run_id: str) -> Channel: ...
    def supervisor(self, run_id: str) -> Channel: ...
    @property
    def topology(self) -> Topology: ...
    def checkpointer(self) -> Channel: ...
    def blob(self, definition: str) -> bytes: ...
    def register(self, agent: Any) -> str: ...
    def admit(self, definition: str, blob: bytes) -> Any: ...


@dataclass(slots=True)
class Memo:
    """What only some runs have to remember.

    Attributes:
        nudged: the model was told that a budget runs out.
        compaction: what the compactor knows of this run.
        prompt_tokens: of the last request, as its provider counted them.
        reflections, groundings: judgements so far.
        grounding, gsar: the last verdict on an answer.
        rejected: drafts of the final answer that were sent back.
        unfinished: replies in a row whose call broke off.
        held: streamed chunks that wait for their reply to be accepted.
        hook_errors: of hooks that ran after the run was safe.
        purse: what it leases to its children.
        tasks: conversations of its children that can go on, by task id.
        open_iteration: the one whose end the hooks have not been told.
        backlog: saves on their way in the background.
        unsure: a save, and the baseline after it, that was cut off by a stop: it may or may not be stored.
        call_ids: of a long conversation's calls.
        marks: of a pattern: facts for its next checkpoint.
        tool_calls, tool_errors: of a pattern's members.
        unpriced: one of them used a model that has no price.
        problem: why a pattern did not come to an answer.
    """

    nudged: bool = False
    compaction: Any = None
    prompt_tokens: int = 0
    reflections: int = 0
    groundings: int = 0
    grounding: Any = None
    gsar: Any = None
    rejected: int = 0
    unfinished: int = 0
    held: list[ModelChunk] = field(default_factory=list)
    hook_errors: tuple[str, ...] = ()
    purse: Any = None
    tasks: dict[str, Any] = field(default_factory=dict)
    open_iteration: int | None = None
    backlog: Any = None
    unsure: Any = None
    call_ids: set[str] | None = None
    marks: dict[str, Any] = field(default_factory=dict)
    tool_calls: int = 0
    tool_errors: int = 0
    unpriced: bool = False
    problem: str | None = None


class Run:
    """A turn in progress. Nothing of it lives on the agent, so one agent serves any number of runs at once.

    Attributes:
        state: the authoritative state; replaced, never changed.
        watched: somebody gets its events.
        sent: messages of the conversation that the agent actor holds.
        opening: what its last checkpoint is built on, when it takes the place of those of its iterations; None otherwise.
        journal: of a durable run: what was known of calls without a result when it began, by call id; None otherwise.
        batch: the journal's view of the calls that run now.
        lease: on its thread, while it has one; token: of that lease.
        closing: it has ended, and is being saved and told.
        lost: why it must stop, if that is an error: somebody else has its thread.
        bad_batches: batches in a row whose every call failed.
        empty_replies: unusable replies in a row.
        moving: its process is about to end in good order: a durable run waits at its next boundary for the one that follows.
        parked: it does.
        stopping: why the run was told to stop from outside, if it was.
        suspending: it ends at its next boundary; on_suspend: of a pattern, told when that is asked for.
        time_limit: seconds from the turn's start until it is stopped, if there is a limit.
        partial_text: what was streamed of a reply that has not ended.
    """

    __slots__ = (
        "_deadline",
        "_forget",
        "_held",
        "_memo",
        "_seq",
        "_task",
        "agent",
        "agent_channel",
        "bad_batches",
        "batch",
        "caller",
        "checkpoint",
        "closing",
        "config",
        "earlier_ends",
        "empty_replies",
        "ends",
        "id",
        "journal",
        "last_text",
        "lease",
        "lost",
        "model_calls",
        "moving",
        "no_tool_calls",
        "on_suspend",
        "opening",
        "parked",
        "partial_text",
        "peers",
        "request",
        "sent",
        "started",
        "started_at",
        "state",
        "stopping",
        "suspending",
        "termination",
        "termination_reason",
        "time_limit",
        "token",
        "watched",
    )

    def __init__(
        self,
        request: StartRun,
        agent: Any,
        caller: Caller,
        peers: Peers,
        forget: Callable[[Channel, str, int], None],
        task: asyncio.Task[Any] | None,
    ) -> None:
        self.request = request
        self.agent = agent
        self.config = agent.config
        self.caller = caller
        self.peers = peers
        self.state: AgentState = agent.blank_state
        self.id = request.run_id
        self.watched = request.events
        self.agent_channel: Channel | None = None
        self.termination = copy_of(agent.config.termination)
        self.termination_reason: str | None = None
        self.started = time.monotonic()
        self.started_at = datetime.now(UTC)
        self.checkpoint: Any = None
        self.opening: Any = None
        self.journal: dict[str, Any] | None = None
        self.batch: Any = None
        self.lease: Any = None
        self.lost: Exception | None = None
        self.closing = False
        self.token = 0
        self.sent = 0
        self.model_calls = 0
        self.bad_batches = 0
        self.empty_replies = 0
        self.last_text = ""
        self.no_tool_calls = False
        self.partial_text = ""
        self.moving = self.parked = False
        self.stopping: str | None = None
        self.suspending = False
        self.on_suspend: Callable[[], None] | None = None
        self.time_limit: float | None = None
        self._held: list[Event] | None = None
        self.ends: list[list[Any]] = []
        self.earlier_ends: list[list[Any]] = []
        self._memo: Memo | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._task = task
        self._seq = request.after_seq + 1
        self._forget = forget

    @property
    def memo(self) -> Memo:
        """Made when it is first needed: most of thousands of runs never do."""
        if self._memo is None:
            self._memo = Memo()
        return self._memo

    @property
    def info(self) -> RunInfo:
        """Whose run it is, as hooks and verifiers see it."""
        return RunInfo(self.id, self.request.thread_id, self.state.metadata, self.agent.label)

    # events

    def publish(self, events: Iterable[CustomEvent]) -> None:
        """Pass on what a hook emitted."""
        for event in events:
            self.emit(CustomEvent, name=event.name, data=event.data, tool_call_id=event.tool_call_id)

    def emit(self, event_class: type[Event], **fields: Any) -> None:
        """Give the run's subscriber an event, if there is one."""
        if self.watched:
            event = event_class.trusted(
                timestamp=datetime.now(UTC),
                agent_name=self.agent.label,
                run_id=self.id,
                seq=self._seq,
                thread_id=self.request.thread_id,
                parent_run_id=self.request.parent_run_id,
                member=self.request.member,
                **fields,
            )
            self._seq += 1
            if self._held is None:
                self.caller.send(event)
            else:
                self._held.append(event)

    @property
    def seq(self) -> int:
        """Number of the last event."""
        return self._seq - 1

    def hold(self) -> None:
        """Keep events back until :meth:`let_go`: what they tell is not stored yet."""
        if self.watched and self._held is None:
            self._held = []

    def let_go(self) -> None:
        """It is stored, or never will be: send what was held, in order."""
        held, self._held = self._held, None
        for event in held or ():
            self.caller.send(event)

    # being stopped

    def stop(self, reason: str) -> None:
        """Stop the run: whatever it waits for is cancelled, and the loop ends with ``reason``."""
        if self.stopping is None:
            overdue = self.time_limit is not None and self.elapsed() >= self.time_limit
            self.stopping = "time_budget" if overdue else reason  # LOOP-21
            if self._task is not None:
                self._task.cancel()

    def suspend(self) -> bool:
        """End the run at its next boundary, if somebody can go on with it from there."""
        if self.is_durable and not self.closing and self.stopping is None:
            self.suspending = True
            if self.on_suspend is not None:
                self.on_suspend()
            return True
        return False

    def lose(self, error: Exception) -> None:
        """Stop the run with an error: its thread is not its own any more."""
        self.lost = error
        if not self.closing:  # otherwise its last save says so, too
            self.stop("error")

    def set_deadline(self) -> None:
        """Stop the run when its time is over. Source: OURS-1, OURS-6.

        Earlier segments of the turn took their part of its budget; the caller's timeout begins with the segment.
        """
        timeout, budget = self.request.timeout, self.config.time_budget_seconds
        if timeout is None and budget is None:
            return
        self.clear_deadline()
        limits = (None if timeout is None else self.state.turn.elapsed_seconds + timeout, budget)
        self.time_limit = min(seconds for seconds in limits if seconds is not None)
        left = self.time_limit - self.elapsed()
        if left <= 0:
            self.stop("time_budget")
            return
        self._deadline = asyncio.get_running_loop().call_later(left, self.stop, "time_budget")

    def clear_deadline(self) -> None:
        """The time budget does not matter any more."""
        if self._deadline is not None:
            self._deadline.cancel()

    async def absorb_stop(self) -> None:
        """Take the cancellation that :meth:`stop` sent, so that what follows (saving, reporting) is not hit by it."""
        task = self._task
        if self.stopping is None or task is None or not task.cancelling():
            return
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        task.uncancel()

    # facts

    @property
    def is_durable(self) -> bool:
        """Its thread is stored."""
        return self.request.thread_id is not None and self.config.checkpointer is not None

    @property
    def opened(self) -> bool:
        """Whether the conversation holds this turn's prompt."""
        return bool(self.state.messages)

    @property
    def newest_text(self) -> str:
        """The last text that the model wrote in this turn."""
        for message in reversed(self.state.messages):
            if message.role == "assistant" and (message.content or "").strip():
                return message.content or ""
            if is_request(message):
                break
        return ""

    @property
    def tool_calls(self) -> int:
        """Calls that were carried out; a pattern counts those of its members."""
        return len(self.state.tool_executions) + (self._memo.tool_calls if self._memo is not None else 0)

    @property
    def tool_metadata(self) -> dict[str, Any]:
        """The agent's and the run's metadata, as tools see them."""
        return self.state.metadata

    def state_for(self, tool: Any) -> bytes | None:
        """The state as JSON, for a tool that takes the context."""
        return to_json(self.state) if tool.wants_context else None

    def activated_tools(self) -> tuple[str, ...]:
        """Deferred tools that a search of this run has found."""
        return tuple(sorted(activated(self.state.tool_executions))) if self.agent.has_deferred_tools else ()

    def note(self, text: str) -> None:
        """Append a note of the runtime to the conversation."""
        self.state = self.state.with_message(Message.system(text, automated=True))

    def forget(self) -> None:
        """The agent actor may drop the conversation."""
        if self.agent_channel is not None:
            self._forget(self.agent_channel, self.id, self.sent)

    def drop_held(self) -> None:
        """Streamed chunks that were held belong to a reply that does not count."""
        if self._memo is not None:
            self._memo.held = []

    def keep_time(self) -> None:
        """Write down what the turn has taken, for its next segment."""
        turn = self.state.turn.evolve(elapsed_seconds=self.elapsed(), model_calls=self.model_calls)
        self.state = self.state.evolve(turn=turn)
        self.started = time.monotonic()

    def add_child(self, metrics: Metrics) -> None:
        """A child run's tokens count as this run's: at the child's prices where they are known, else at this run's."""
        usage = Usage(prompt_tokens=metrics.prompt_tokens, completion_tokens=metrics.completion_tokens)
        spent = self.state.cost_usd_used
        self.state = self.state.with_token_usage(usage)
        if metrics.cost_usd is not None:
            self.state = self.state.evolve(cost_usd_used=spent + metrics.cost_usd)
            if self.state.reported_cost_calls:  # then the run's cost is what providers reported
                self.state = self.state.evolve(reported_cost_usd=self.state.reported_cost_usd + metrics.cost_usd)
        self.model_calls += metrics.model_calls

    def elapsed(self) -> float:
        """Seconds that the turn has taken, earlier segments included; waiting for a person does not count."""
        return self.state.turn.elapsed_seconds + time.monotonic() - self.started

    def adopt_calls(self, response: ModelResponse) -> Message:
        """The reply's message with call ids that are unique in the conversation; the provider's own are kept beside them."""
        message = response.message
        if not message.tool_calls:
            return message
        taken = self._memo.call_ids if self._memo is not None else None
        if taken is None:
            taken = {call.id for earlier in self.state.messages for call in earlier.tool_calls}
            if len(self.state.messages) > LONG_CONVERSATION:  # looked through once
                self.memo.call_ids = taken
        calls = tuple([_unique(call, taken) for call in message.tool_calls])
        same = all(map(is_, calls, message.tool_calls))
        return message if same else message.evolve(tool_calls=calls)

    def count(self, usage: Usage | None, cost_usd: float | None) -> None:
        """Add one model call to the state's counters."""
        self.model_calls += 1
        if usage is not None or cost_usd is not None:
            self.state = self.state.with_response_usage(usage, cost_usd)

    def metrics(self) -> Metrics:
        state, memo = self.state, self._memo
        return Metrics.trusted(
            iterations=state.iteration,
            model_calls=self.model_calls,
            tool_calls=self.tool_calls,
            tool_errors=sum(execution.error is not None for execution in state.tool_executions)
            + (memo.tool_errors if memo else 0),
            prompt_tokens=state.prompt_tokens_used,
            completion_tokens=state.completion_tokens_used,
            total_tokens=state.total_tokens_used,
            cache_read_tokens=state.cache_read_tokens + state.cached_tokens,
            cache_write_tokens=state.cache_creation_tokens + state.cache_write_tokens,
            cost_usd=None if memo is not None and memo.unpriced else cost(state),
            duration_ms=self.elapsed() * 1e3,
            reflexion_evaluations=memo.reflections if memo is not None else 0,
            grounding_evaluations=memo.groundings if memo is not None else 0,
        )


def refuse(call: ToolCall, why: str, code: str) -> ToolResult:
    """The result of a call that is not run."""
    return ToolResult(tool_call_id=call.id, name=call.name, error=why, code=code)


def new_id(bits: int) -> str:
    """Random hex digits. Asking the kernel for each would cost a run more than anything else that it does on its own."""
    return f"{_random.getrandbits(bits):0{bits // 4}x}"


def _unique(call: ToolCall, taken: set[str]) -> ToolCall:
    own = call.id if call.id and call.id not in taken else f"call_{new_id(48)}"
    taken.add(own)
    return call if own == call.id else call.evolve(id=own, provider_id=call.provider_id or call.id or None)


def cost(state: AgentState) -> float | None:
    """Spend in US dollars: the provider's own figure where it reports one, else by price, else None."""
    if state.reported_cost_calls:
        return state.reported_cost_usd
    return state.cost_usd_used if state.priced else None


def copy_of(condition: Any) -> Any:
    """A run's own copy of its agent's stop condition, so that concurrent runs do not share its clocks."""
    if condition is None:
        return None
    own = copy.deepcopy(condition)
    own.reset()
    return own
