"""What actors ask of each other. One class per request or reply; the mailbox delivers them (``actors/mailbox.py``).

    caller      -> supervisor    StartRun            -> RunFinished      (events of a subscribed run come as one-way messages)
    caller      -> supervisor    CancelRun           -> RunsCancelled
    caller      -> supervisor    LoadInterrupts      -> InterruptsLoaded
    supervisor  -> agent         ThinkRequest        -> ThinkReply       (ModelChunk messages in between when streaming)
    supervisor  -> agent         ForgetRuns                              (one way)
    supervisor  -> tool executor ExecuteCall         -> ToolReply        (in between: ToolProgress, SubagentRequest, CancelRun)
    supervisor  -> tool executor SubagentHeard, SubagentAnswer           (one way: what became of a SubagentRequest)
    supervisor  -> checkpointer  SaveCheckpoint      -> CheckpointSaved
    supervisor  -> checkpointer  LoadCheckpoint      -> CheckpointLoaded
    anyone      -> anyone        Define                                  (one way, ahead of the first message that needs it)
    mailbox     -> anyone        Failure                                 (a reply: the request raised)

The mailbox pairs requests with replies; a message itself holds no address.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from .codec import message_type, to_json
from .event import AnyEvent
from .messages import (
    NOTHING,
    Frozen,
    InterruptRequest,
    Json,
    JsonObject,
    Message,
    ModelChunk,
    ModelResponse,
    Text,
    ToolCall,
    ToolResult,
)
from .results import RunOutcome
from .shares import Share
from .storage import JournalEntry

message_type(ModelChunk)


@message_type
class Failure(Frozen):
    """A request failed: an error of ``protocol/errors.py`` as plain values."""

    code: str
    message: Text
    details: JsonObject = NOTHING


@message_type
class Define(Frozen):
    """A definition (agent, tools), pickled once by the caller and cached by every actor under its content hash."""

    definition: str
    blob: bytes = Field(default=b"", exclude=True)

    attached = "blob"


@message_type
class StartRun(Frozen):
    """Run one turn.

    Attributes:
        run_id: chosen by the caller, unique.
        definition: content hash of the agent.
        prompt: the user's message.
        thread_id: conversation to continue (needs a checkpointer).
        metadata: reaches tools and hooks, and is persisted.
        ephemeral: reaches tools and hooks, never persisted, logged or returned.
        model_kwargs: forwarded to every model call of this run.
        events: send the run's events to the caller.
        stream_tokens: also send model chunks (needs ``events``).
        full: the outcome carries the whole final state; otherwise only message, reason and metrics.
        timeout: seconds from now until the run is stopped with ``time_budget``.
        parent_run_id: the run that started this one.
        depth: how many parents are above.
        lease_tokens, lease_cost_usd: what the parent leaves to this run of its budgets.
        cancelled: stop it before its first iteration (a cancel was armed).
        mode: ``turn`` answers a new prompt; ``resume`` goes on after a pause, with ``answers``; ``continue`` goes on with a
            turn that was cut off.
        answers: for ``resume``: answers by interrupt id; the id ``""`` means the only one there is.
        perform: for ``resume``: a call that waits is performed, and its result is the answer.
        state: for ``resume`` of a run without a thread: its paused state, as JSON. For a ``turn``: the conversation that it
            continues, unless its thread has one already.
        recover: the supervisor that had this very request died over it: go on from what it stored, or begin if that is nothing.
        values: a pattern's structured input.
        member: the pattern's step that the run is.
        member_of: the thread of the outermost pattern that it works in, where it has a thread, too.
        on_busy: what to do while another run has the thread: wait (``queue``), fail with ``ThreadBusy`` (``reject``), or
            cancel that run (``interrupt``).
        after_seq: number of the last event that the caller has seen; what follows is numbered from there.
        heard: of a pattern that is recovered: the same of its members in progress (``protocol/heard.py``).
        share: what it claims of the endpoints' limits; its children claim the same.
    """

    run_id: str
    definition: str
    prompt: Text
    thread_id: str | None = None
    metadata: JsonObject = NOTHING
    ephemeral: JsonObject = Field(default=NOTHING, repr=False)
    model_kwargs: JsonObject = NOTHING
    events: bool = False
    stream_tokens: bool = False
    full: bool = True
    timeout: float | None = None
    parent_run_id: str | None = None
    depth: int = 0
    lease_tokens: int | None = None
    lease_cost_usd: float | None = None
    cancelled: bool = False
    mode: Literal["turn", "resume", "continue"] = "turn"
    answers: JsonObject | None = None
    perform: bool = False
    state: bytes | None = Field(default=None, exclude=True)
    on_busy: Literal["queue", "reject", "interrupt"] = "queue"
    recover: bool = False
    after_seq: int = -1
    heard: JsonObject = NOTHING
    values: JsonObject | None = None
    member: str | None = None
    member_of: str | None = None
    share: Share | None = None

    attached = "state"


@message_type
class RunFinished(Frozen):
    """A run's end, whatever it was. The final state travels beside it, so that only those who want it read it."""

    outcome: RunOutcome

    attached = "outcome"

    def attachment(self) -> bytes | None:
        """The outcome's state as JSON."""
        outcome = self.outcome
        return to_json(outcome.state) if outcome.state is not None else outcome.state_json

    def with_attachment(self, data: bytes) -> Self:
        """The outcome with its state, not yet read."""
        return self.evolve(outcome=self.outcome.evolve(state_json=data))


@message_type
class CancelRun(Frozen):
    """Stop runs: one run, those of a thread, or all of an agent (by the caller's agent key).

    Attributes:
        suspend: let durable runs come to their next boundary, where they end as ``suspended``; leave others alone.
    """

    run_id: str | None = None
    thread_id: str | None = None
    definition: str | None = None
    suspend: bool = False


@message_type
class RunsCancelled(Frozen):
    """How many runs were told to stop."""

    count: int


@message_type
class LoadInterrupts(Frozen):
    """Read what a thread waits for, from its newest checkpoint."""

    store: str
    thread_id: str


@message_type
class InterruptsLoaded(Frozen):
    """The thread's open questions, as ``RunOutcome.interrupts`` has them, and the run that asks; none when it is not paused."""

    run_id: Text | None = None
    interrupts: tuple[JsonObject, ...] = ()


@message_type
class ThinkRequest(Frozen):
    """Call the model on the conversation of a run.

    Attributes:
        run_id: whose conversation.
        definition: content hash of the agent.
        base: how many messages of the conversation the agent actor should already hold.
        messages: the messages after those (the whole conversation when ``base`` is 0).
        exact: ``messages`` are the request as it is: nothing is kept of it, shortened or added.
        use_tools: offer the agent's tools.
        activated: names of deferred tools on offer.
        role: whose model answers: ``primary``, ``auxiliary``, ``grounding``, ``gsar`` or ``summary``; a role without one
            falls back to the auxiliary model, then to the primary.
        stream: send ``ModelChunk`` messages before the reply.
        model_kwargs: settings for this run's calls.
        share: what the run claims of the endpoint's limits.
    """

    run_id: str
    definition: str
    base: int = 0
    messages: tuple[Message, ...]
    exact: bool = False
    use_tools: bool = True
    activated: tuple[str, ...] = ()
    role: str = "primary"
    stream: bool = False
    model_kwargs: JsonObject = NOTHING
    share: Share | None = None


@message_type
class ThinkReply(Frozen):
    """The model's reply, or the wish for the whole conversation (the agent actor is new or has forgotten it)."""

    response: ModelResponse | None = None
    need_conversation: bool = False


@message_type
class ForgetRuns(Frozen):
    """These runs are over; drop what is cached for them."""

    run_ids: tuple[str, ...]


@message_type
class ExecuteCall(Frozen):
    """Run one tool call.

    Attributes:
        run_id: whose call.
        definition: content hash of the agent that owns the tool.
        call: the call, its arguments as the model gave them.
        iteration: the run's iteration (from 1).
        thread_id, agent_name, metadata, ephemeral: for the tool's context.
        grace: seconds that a sync body may go on once the call is cancelled; then its process is killed.
        apart: run the body in a worker process, whatever the tool says: an executor died while it ran.
        answers: to the questions that the call has asked so far, when it is performed again; in the order asked.
        state: the run's state as JSON, only for tools that ask for it.
    """

    run_id: str
    definition: str
    call: ToolCall
    iteration: int = 0
    thread_id: str | None = None
    agent_name: str | None = None
    metadata: JsonObject = NOTHING
    ephemeral: JsonObject = Field(default=NOTHING, repr=False)
    grace: float = 5.0
    apart: bool = False
    answers: tuple[Json, ...] = ()
    state: bytes | None = Field(default=None, exclude=True)

    attached = "state"


@message_type
class ToolProgress(Frozen):
    """A tool says how far it is, while it runs."""

    tool_call_id: str
    progress: float
    total: float | None = None
    message: Text | None = None


@message_type
class ToolReply(Frozen):
    """A call is done, or it asks.

    Attributes:
        result: the call's result; with an ``interrupt`` an error result (code ``interrupted``) that only says so.
        arguments: those the body got, where they differ from the model's.
        interrupt: what the call asks; the body has ended and had no result.
    """

    result: ToolResult
    arguments: JsonObject | None = None
    interrupt: InterruptRequest | None = None


@message_type
class SubagentRequest(Frozen):
    """The body of a running tool call wants a child run. The supervisor of the call's run starts it and leases it budgets.

    Attributes:
        start: the run as the body asks for it; its ``run_id`` pairs the request with what is heard of it.
        blob: the packed definition; empty where body and supervisor share a process.
        task_id: a conversation to continue, ``""`` to begin one, None for a run that leaves nothing behind.
    """

    start: StartRun
    blob: bytes = b""
    task_id: str | None = None

    attached = "start"

    def attachment(self) -> bytes | None:
        """The paused state that the run goes on with."""
        return self.start.state

    def with_attachment(self, data: bytes) -> Self:
        """The request with that state."""
        return self.evolve(start=self.start.evolve(state=data))


@message_type
class SubagentHeard(Frozen):
    """A child run that a tool's body started says something."""

    run_id: str
    event: AnyEvent

    compact = False  # the event's kind is a default


@message_type
class SubagentAnswer(RunFinished):
    """A child run that a tool's body started has ended, or was refused; ``task_id`` names a conversation that can go on."""

    run_id: str
    task_id: str | None = None


@message_type
class SaveCheckpoint(Frozen):
    """Store a step of a thread.

    Attributes:
        store: URL of the store.
        thread_id: the thread.
        checkpoint_id: chosen by the writer; saving the same id again changes nothing.
        parent_id: the newest checkpoint the writer knew, None for a new thread. Anything else is a conflict.
        kind: ``snapshot`` holds the whole state, ``delta`` only the messages after the parent's and the other fields.
        base: for a delta, how many messages the parent holds.
        state: the state's JSON object.
        metadata: searchable facts (run id, stop reason, finished).
        created_at: seconds since the epoch, UTC, by the writer's clock.
        token: of the writer's lease. One that is smaller than the thread's is stale and refused; 0 is a writer without a
            lease, who is refused where somebody has one, and in a thread that was deleted.
        entries: added to the thread's journal together with the checkpoint.
        settles: the state holds what the journal says; it is emptied, before ``entries`` are added.
        statics: texts, by content hash, that states refer to and that the store does not have yet, as far as the writer knows.
        release: the owner of the lease, who gives it back once the checkpoint is stored.
        supersedes: how many of the thread's newest checkpoints this one takes the place of. They go in the same step.
        onto: with ``supersedes``, the checkpoint before them (None: there is none), which becomes this one's parent and is
            what a delta builds on. ``parent_id`` names the newest all the same. Anything else is a conflict.
    """

    store: str
    thread_id: str
    checkpoint_id: str
    parent_id: str | None = None
    kind: Literal["snapshot", "delta"] = "snapshot"
    base: int = 0
    state: bytes = Field(default=b"", exclude=True)
    metadata: JsonObject = NOTHING
    created_at: float = 0.0
    token: int = 0
    entries: tuple[JournalEntry, ...] = ()
    settles: bool = False
    statics: dict[str, str] = NOTHING
    release: str | None = None
    supersedes: int = 0
    onto: str | None = None

    attached = "state"

    @property
    def below(self) -> str | None:
        """The checkpoint that it stands on once it is stored."""
        return self.onto if self.supersedes else self.parent_id


@message_type
class CheckpointSaved(Frozen):
    """The checkpoint is stored."""

    checkpoint_id: str


@message_type
class LoadCheckpoint(Frozen):
    """Read a thread's newest checkpoint, or a given one.

    Attributes:
        store: URL of the store.
        thread_id: the thread.
        checkpoint_id: which one; None is the newest.
        owner: take the thread's lease before (``TakeLease``); None only reads.
        seconds, steal: of that lease.
    """

    store: str
    thread_id: str
    checkpoint_id: str | None = None
    owner: str | None = None
    seconds: float = 0.0
    steal: bool = False


@message_type
class CheckpointLoaded(Frozen):
    """The checkpoint, deltas already folded in; ``checkpoint_id`` is None when the thread is new.

    Attributes:
        journal: of the thread, since the last checkpoint that settled it; only with the newest checkpoint.
        statics: the texts that the state refers to, by content hash.
        token: the thread's fencing token, that of the lease where one was taken; 0 when nobody ever had a lease.
    """

    checkpoint_id: str | None = None
    parent_id: str | None = None
    state: bytes | None = Field(default=None, exclude=True)
    metadata: JsonObject = NOTHING
    created_at: float = 0.0
    depth: int = 0
    journal: tuple[JournalEntry, ...] = ()
    statics: dict[str, str] = NOTHING
    token: int = 0

    attached = "state"


@message_type
class Ping(Frozen):
    """Are you there?"""


@message_type
class Pong(Frozen):
    """Who answers: its incarnation, and what it is busy with."""

    epoch: int
    pid: int
    busy: int = 0
    rss_bytes: int = 0
    stats: JsonObject = NOTHING
