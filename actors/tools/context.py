"""What a running tool call knows about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...protocol.messages import Message
    from ...protocol.state import AgentState

Reporter = Callable[[float, float | None, str | None], bool]


@dataclass(slots=True, eq=False)  # not frozen: one is made for every call, and freezing would triple its cost
class ToolContext:
    """Given to a tool that has a parameter ``ctx``, ``context`` or one annotated ``ToolContext``.

    Attributes:
        tool_call_id: the call.
        tool_name: the tool.
        agent_name: the agent that called it, if it has a name.
        run_id, thread_id, iteration: where in which run (iterations count from 1).
        metadata: the run's metadata.
        ephemeral_metadata: values that are never stored, logged or returned (and never in this object's ``repr``).
        grace: seconds that a sync body may go on once its call is cancelled; then its process is killed.
        state_json: the run's state at the start of the batch, as JSON; see :attr:`state`.
    """

    tool_call_id: str = ""
    tool_name: str = ""
    run_id: str = ""
    thread_id: str | None = None
    agent_name: str | None = None
    iteration: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    ephemeral_metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    grace: float = 5.0
    state_json: bytes | None = field(default=None, repr=False)
    reporter: Reporter | None = field(default=None, repr=False)

    @property
    def agent_id(self) -> str | None:
        """Another name for :attr:`agent_name`."""
        return self.agent_name

    @property
    def invocation_metadata(self) -> Mapping[str, Any]:
        """Another name for :attr:`metadata`."""
        return self.metadata

    @property
    def state(self) -> AgentState | None:
        """The run's state at the start of the batch (decoded anew each time), or None when it was not sent along."""
        if self.state_json is None:
            return None
        from ...protocol.state import AgentState

        return AgentState.model_validate_json(self.state_json)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation at the start of the batch; empty when the state was not sent along."""
        state = self.state
        return () if state is None else tuple(state.messages)

    def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Say how far the call is. May be called from any thread or task, at any time.

        Returns:
            Whether anyone listens.
        """
        return self.reporter is not None and self.reporter(progress, total, message)


_current: ContextVar[ToolContext | None] = ContextVar("umbel_tool_context", default=None)
enter = _current.set
leave = _current.reset


def current_tool_context() -> ToolContext | None:
    """The context of the tool call that this code runs in, or None. Parallel calls each see their own."""
    return _current.get()
