"""Every error that Umbel raises, as one tree.

    UmbelError
    ├── ConfigurationError            the caller's definition or settings are wrong (also a ValueError)
    │   ├── DefinitionError           an agent or tool definition (also a TypeError where the type is wrong)
    │   ├── MissingExtra              an optional dependency is not installed
    │   └── NoCheckpointer            threads are kept by a checkpointer, and there is none (also a RuntimeError)
    ├── ProtocolError                 bytes or messages that cannot be understood
    │   ├── DecodeError
    │   ├── UnknownKind
    │   ├── SchemaVersionError
    │   └── MessageTooLarge
    ├── ActorError                    another actor did not answer
    │   ├── PeerLost                  it died or restarted; ``delivered`` says what is known
    │   ├── DeadlineExceeded
    │   ├── RequestCancelled
    │   ├── RemoteError               its handler raised something that is not an Umbel error
    │   ├── StaleEpoch                a newer incarnation of the sender is known
    │   └── RestartsExceeded          it died so often that the runtime gave it up
    ├── RunError
    │   ├── RunFailed                 the loop ended with an exception
    │   ├── RunLost                   the supervisor died and nothing durable was kept
    │   ├── RunNotFound               nobody knows a run of this id, or not any more (also a LookupError)
    │   ├── EventsExpired             the events behind a cursor are not kept any more (also a LookupError)
    │   ├── ThreadBusy                another run holds the thread
    │   ├── UnknownTask               no subagent's conversation has this id (also a LookupError)
    │   ├── NotPaused                 nothing to resume, or an answer that fits no question (also a LookupError)
    │   ├── GuardrailViolation        a hook refuses the prompt (also a ValueError)
    │   ├── PatternError              a coordination pattern did not come to an answer
    │   │   ├── MemberFailed          a step of it failed
    │   │   ├── NothingRan            there was nothing to run
    │   │   ├── Unclaimed             nobody in a swarm can do a task
    │   │   ├── CapReached            a cap on its rounds, hops or supersteps
    │   │   ├── HandoffCycle          agents hand over to each other, round and round
    │   │   └── GraphError            a graph cannot go on: an unknown target, a join that was never complete
    │   │       ├── ConflictingWrites two tasks of one superstep wrote a key without a reducer (also a ValueError)
    │   │       └── InvalidUpdate     a write does not fit the graph's state (also a ValueError)
    │   ├── JudgeFailed               a model that judges an answer gave no verdict
    │   └── GsarRejected              the answer is not grounded well enough for the gate (also a ValueError)
    ├── ModelError                    a provider refused, failed or answered nonsense
    │   ├── RateLimited
    │   ├── Overloaded
    │   ├── ModelServerError
    │   ├── ModelTimeout
    │   ├── ModelConnectionError
    │   ├── AuthenticationFailed
    │   ├── BadRequest
    │   │   └── ContextOverflow
    │   └── MalformedResponse
    ├── ToolError
    │   ├── UnknownTool
    │   ├── InvalidArguments
    │   ├── ToolTimeout
    │   ├── ToolCrashed               its process died
    │   ├── OutcomeUnknown            it may or may not have run
    │   └── FetchRefused              a URL leads to where tools may not go
    ├── CheckpointError
    │   ├── CheckpointConflict        the stored thread moved on
    │   ├── CheckpointNotFound        no such thread, or no such checkpoint in it (also a LookupError)
    │   ├── StaleWriter               a newer owner has the thread's lease, or it was deleted
    │   ├── StoreUnavailable
    │   └── NotStorable               a value that would not survive the round trip
    ├── JobServerError                the job server of a Ray cluster refused, or went away
    └── RuntimeClosed                 the runtime was shut down

Each class has a stable ``code`` and says in ``retryable`` whether trying again can help. Errors cross actors
as ``{"code", "message", "details"}`` and come out as the same class (``to_wire`` / ``from_wire``).
"""

from __future__ import annotations

from typing import Any, ClassVar

_MAX_DEPTH = 20


class UmbelError(Exception):
    """Root of the tree.

    Args:
        message: what happened, to what, and what to do about it.
        **details: JSON values that travel with the error and are readable as attributes of ``details``.
    """

    code: ClassVar[str] = "umbel"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_wire, (self.to_wire(),))

    def to_wire(self) -> dict[str, Any]:
        """The error as plain JSON values; whatever else is among the details travels as its text."""
        return {"code": self.code, "message": self.message, "details": _plain(self.details)}


class ConfigurationError(UmbelError, ValueError):
    """The caller's definition or settings are wrong."""

    code = "configuration"


class DefinitionError(ConfigurationError, TypeError):
    """An agent or tool is defined wrongly."""

    code = "definition"


class MissingExtra(ConfigurationError, ImportError):
    """An optional dependency is not installed."""

    code = "missing_extra"


class NoCheckpointer(ConfigurationError, RuntimeError):
    """Threads are kept by a checkpointer, and the agent has none."""

    code = "no_checkpointer"


class ProtocolError(UmbelError):
    """Bytes or messages cannot be understood, or a message cannot be written."""

    code = "protocol"


class DecodeError(ProtocolError, ValueError):
    """The bytes are not a valid message."""

    code = "decode"


class UnknownKind(ProtocolError):
    """No message type has this name."""

    code = "unknown_kind"


class SchemaVersionError(ProtocolError):
    """The message type is known, this version of it is not."""

    code = "schema_version"


class MessageTooLarge(ProtocolError):
    """A message exceeds the size limit."""

    code = "message_too_large"


class ActorError(UmbelError):
    """Another actor did not answer."""

    code = "actor"
    retryable = True


class PeerLost(ActorError):
    """The peer died or restarted before it answered.

    ``delivered`` is ``"no"`` when the request never reached it (safe to send again) and ``"unknown"`` otherwise.
    """

    code = "peer_lost"

    @property
    def delivered(self) -> str:
        """``no`` or ``unknown``."""
        return str(self.details.get("delivered", "unknown"))


class DeadlineExceeded(ActorError, TimeoutError):
    """The answer did not come in time."""

    code = "deadline_exceeded"


class RequestCancelled(ActorError):
    """The request was withdrawn by its sender."""

    code = "request_cancelled"
    retryable = False


class RemoteError(ActorError):
    """The peer's handler raised something that is not an Umbel error."""

    code = "remote"
    retryable = False


class StaleEpoch(ActorError):
    """A newer incarnation of the sender is known."""

    code = "stale_epoch"
    retryable = False


class RestartsExceeded(ActorError):
    """An actor died so often within so short a time that the runtime gave it up.

    ``details``: ``peer`` (the actor), ``restarts``, ``seconds`` (the window), ``reason`` (how it ended the last time).
    """

    code = "restarts_exceeded"
    retryable = False


class RunError(UmbelError):
    """A run could not be carried out or read."""

    code = "run"


class RunFailed(RunError):
    """The loop ended with an exception."""

    code = "run_failed"


class RunLost(RunError):
    """The supervisor died and nothing durable was kept."""

    code = "run_lost"
    retryable = True


class RunNotFound(RunError, LookupError):
    """Nobody knows a run of this id, or not any more."""

    code = "run_not_found"


class EventsExpired(RunError, LookupError):
    """The events behind a cursor are not kept any more.

    ``details``: ``run_id``, ``after_seq`` (the cursor), ``oldest`` (number of the oldest event that is kept).
    """

    code = "events_expired"


class NotPaused(RunError, LookupError):
    """There is nothing to resume, or the answer does not say which question it belongs to."""

    code = "not_paused"


class UnknownTask(RunError, LookupError):
    """The run has no subagent's conversation with this task id."""

    code = "unknown_task"


class ThreadBusy(RunError):
    """Another run holds the thread."""

    code = "thread_busy"
    retryable = True


class GuardrailViolation(RunError, ValueError):
    """A hook refuses the prompt. ``details`` hold ``rule``, the name of the rule it breaks."""

    code = "guardrail_violation"


class PatternError(RunError):
    """A coordination pattern did not come to an answer."""

    code = "pattern"


class MemberFailed(PatternError):
    """Steps of a pattern failed.

    ``details``: ``steps``, their keys; ``codes``, those of the errors behind it, however deep, or the names of limits.
    """

    code = "member_failed"


class NothingRan(PatternError):
    """A pattern had nothing to run."""

    code = "nothing_ran"


class Unclaimed(PatternError):
    """Nobody in a swarm has the capabilities that a task requires. ``details``: ``tasks`` (ids)."""

    code = "unclaimed"


class CapReached(PatternError):
    """A pattern reached a cap of its own. ``details``: ``cap``, its name, and ``limit``."""

    code = "cap_reached"


class HandoffCycle(PatternError):
    """A chain of handoffs goes round. ``details``: ``trail``, the hops, and ``agents``, those that it goes round between."""

    code = "handoff_cycle"


class GraphError(PatternError):
    """A graph cannot go on as its nodes or routers want it to."""

    code = "graph"


class ConflictingWrites(GraphError, ValueError):
    """Two tasks of one superstep wrote a key that has no reducer. ``details``: ``key``, ``writers``."""

    code = "conflicting_writes"


class InvalidUpdate(GraphError, ValueError):
    """A write does not fit the graph's state. ``details``: ``key``, ``writer``."""

    code = "invalid_update"


class JudgeFailed(RunError):
    """A model that judges an answer failed, or gave nothing that is a verdict."""

    code = "judge_failed"


class GsarRejected(RunError, ValueError):
    """The answer did not pass typed grounding; ``details``: ``decision``, ``score`` (0 to 1), ``reason``, ``judge_error``."""

    code = "gsar_rejected"


class ModelError(UmbelError):
    """A model call failed. ``details`` may hold ``status_code``, ``provider``, ``model`` and ``retry_after`` (seconds)."""

    code = "model"

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the provider allows another try."""
        value = self.details.get("retry_after")
        return None if value is None else float(value)

    @property
    def status_code(self) -> int | None:
        """The HTTP status, if there was one."""
        value = self.details.get("status_code")
        return None if value is None else int(value)


class RateLimited(ModelError):
    """The provider says: too many requests or tokens for now."""

    code = "rate_limit"
    retryable = True


class Overloaded(ModelError):
    """The provider is out of capacity."""

    code = "overloaded"
    retryable = True


class ModelServerError(ModelError):
    """The provider failed."""

    code = "server_error"
    retryable = True


class ModelTimeout(ModelError, TimeoutError):
    """The provider did not answer in time."""

    code = "timeout"
    retryable = True


class ModelConnectionError(ModelError, ConnectionError):
    """The provider could not be reached."""

    code = "connection"
    retryable = True


class AuthenticationFailed(ModelError):
    """The provider refuses the credentials."""

    code = "authentication"


class BadRequest(ModelError):
    """The provider refuses the request as it is."""

    code = "bad_request"


class ContextOverflow(BadRequest):
    """The conversation is longer than the model can read."""

    code = "context_overflow"


class MalformedResponse(ModelError):
    """The provider's answer cannot be understood."""

    code = "malformed_response"
    retryable = True


class ToolError(UmbelError):
    """A tool call failed."""

    code = "tool"


class UnknownTool(ToolError):
    """The model called a tool that the agent does not have."""

    code = "unknown_tool"


class InvalidArguments(ToolError):
    """The arguments do not fit the tool's parameters."""

    code = "invalid_arguments"


class ToolTimeout(ToolError, TimeoutError):
    """The tool did not end in time."""

    code = "tool_timeout"


class ToolCrashed(ToolError):
    """The tool's process died."""

    code = "tool_crashed"


class OutcomeUnknown(ToolError):
    """The call may or may not have run; it is never run again by itself."""

    code = "outcome_unknown"


class FetchRefused(ToolError):
    """A URL leads to an address that tools may not reach."""

    code = "fetch_refused"


class CheckpointError(UmbelError):
    """A checkpoint could not be written or read."""

    code = "checkpoint"


class CheckpointConflict(CheckpointError):
    """The stored thread moved on since it was read."""

    code = "checkpoint_conflict"


class CheckpointNotFound(CheckpointError, LookupError):
    """There is no such thread, or it has no such checkpoint."""

    code = "checkpoint_not_found"


class StaleWriter(CheckpointError):
    """Another owner took the thread's lease, or the thread was deleted: this writer must stop."""

    code = "stale_writer"


class StoreUnavailable(CheckpointError):
    """The store cannot be reached."""

    code = "store_unavailable"
    retryable = True


class NotStorable(CheckpointError, TypeError):
    """A value would not survive being stored and read back."""

    code = "not_storable"


class JobServerError(UmbelError):
    """The job server of a Ray cluster refused a request, or went away."""

    code = "job_server"


class RuntimeClosed(UmbelError):
    """The runtime was shut down."""

    code = "runtime_closed"


def _tree(root: type[UmbelError]) -> dict[str, type[UmbelError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


def _plain(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth < _MAX_DEPTH:
        if isinstance(value, dict):
            return {str(key): _plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(item, depth + 1) for item in value]
    return str(value)[:1000]


def from_wire(data: dict[str, Any]) -> UmbelError:
    """The error that ``to_wire`` described; a code nobody knows becomes a plain ``UmbelError`` that names it."""
    code, message, details = str(data.get("code")), str(data.get("message", "")), data.get("details")
    values = {str(key): value for key, value in details.items()} if isinstance(details, dict) else {}
    cls = _BY_CODE.get(code)
    if cls is None:
        return UmbelError(f"{message} [{code}]", **values)
    return cls(message, **values)


_BY_CODE = _tree(UmbelError)


def error_codes() -> frozenset[str]:
    """Every code that an error of Umbel can have."""
    return frozenset(_BY_CODE)


__all__ = [
    "ActorError",
    "AuthenticationFailed",
    "BadRequest",
    "CapReached",
    "CheckpointConflict",
    "CheckpointError",
    "CheckpointNotFound",
    "ConfigurationError",
    "ConflictingWrites",
    "ContextOverflow",
    "DeadlineExceeded",
    "DecodeError",
    "DefinitionError",
    "EventsExpired",
    "FetchRefused",
    "GraphError",
    "GsarRejected",
    "GuardrailViolation",
    "HandoffCycle",
    "InvalidArguments",
    "InvalidUpdate",
    "JudgeFailed",
    "MalformedResponse",
    "MemberFailed",
    "MessageTooLarge",
    "MissingExtra",
    "ModelConnectionError",
    "ModelError",
    "ModelServerError",
    "ModelTimeout",
    "NoCheckpointer",
    "NotPaused",
    "NotStorable",
    "NothingRan",
    "OutcomeUnknown",
    "Overloaded",
    "PatternError",
    "PeerLost",
    "ProtocolError",
    "RateLimited",
    "RemoteError",
    "RequestCancelled",
    "RestartsExceeded",
    "RunError",
    "RunFailed",
    "RunLost",
    "RunNotFound",
    "RuntimeClosed",
    "SchemaVersionError",
    "StaleEpoch",
    "StaleWriter",
    "StoreUnavailable",
    "ThreadBusy",
    "ToolCrashed",
    "ToolError",
    "ToolTimeout",
    "UmbelError",
    "Unclaimed",
    "UnknownKind",
    "UnknownTask",
    "UnknownTool",
    "error_codes",
    "from_wire",
]  # fmt: skip
