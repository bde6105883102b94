"""What a running tool call knows about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...protocol.messages import InterruptRequest, Message
    from ...protocol.results import SubagentResult
    from ...protocol.state import AgentState
    from .children import ChildPort

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
        answers: what was answered so far, when the call is performed again after :meth:`interrupt`.
        asked: how many of them this attempt has used.
        state_json: the run's state at the start of the batch, as JSON; see :attr:`state`.
        port: the way to the supervisor, for agents that the body runs.
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
    answers: tuple[Any, ...] = ()
    asked: int = field(default=0, repr=False)
    state_json: bytes | None = field(default=None, repr=False)
    reporter: Reporter | None = field(default=None, repr=False)
    port: ChildPort | None = field(default=None, repr=False)

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

    @property
    def confidence(self) -> float | None:
        """The run's confidence at the start of the batch, 0 to 1; None when the state was not sent along."""
        state = self.state
        return None if state is None else state.confidence

    @property
    def answered(self) -> bool:
        """Whether the call is performed again, with an answer to what it asked."""
        return bool(self.answers)

    def interrupt(
        self,
        question: str,
        options: Iterable[str] | None = None,
        fields: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        answers: bool = False,
    ) -> Any:
        """Ask a person. The run pauses, and the call is performed again, from its beginning, once there is an answer.

        Then this returns the answer. A call that asks several questions gets their answers in the order in which it asks;
        ask before side effects, because what stands before a question is done again.

        Args:
            question: for the person.
            options: the answers to choose from.
            fields: description of a structured answer (a JSON object).
            metadata: JSON values for whoever shows the question.
            answers: the answer simply is the call's result; the call is not performed again.

        Returns:
            The answer, a JSON value.

        Raises:
            Interrupt: there is no answer yet. Let it pass.
            ValidationError, ProtocolError: the question is not text, or something in it is not JSON.
        """
        if self.asked < len(self.answers):
            self.asked += 1
            return self.answers[self.asked - 1]
        from .interrupt import Interrupt

        raise Interrupt(_request(question, options, fields, metadata, answers))

    def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Say how far the call is. May be called from any thread or task, at any time.

        Returns:
            Whether anyone listens.
        """
        return self.reporter is not None and self.reporter(progress, total, message)

    async def run_subagent(
        self,
        agent: Any,
        prompt: str,
        *,
        on_event: Callable[[Any], Any] | None = None,
        resumable: bool = False,
        task_id: str | None = None,
    ) -> SubagentResult:
        """Run an agent as a child of this call's run, on a supervisor, not in this process.

        It may spend what is left of the run's budgets, and is stopped with the run, with this call, and when the waiting
        task is cancelled. Its events are the run's ``SubagentEvent``.

        Args:
            agent: an ``Agent``, or anything that can be run.
            prompt: its task; it sees nothing else of this conversation.
            on_event: sync or async, called here with every event; what it raises stops the child and is raised.
            resumable: keep the conversation until the run ends; the result has the ``task_id`` to go on with.
            task_id: of an earlier result in this run: go on with that conversation. One turn at a time.

        Raises:
            UmbelError: what ended the child; ``RunError``: the task is unknown, or agents are nested too deep.
            ConfigurationError: (a ValueError) a resumable agent has a checkpointer.
        """
        from ...protocol.errors import RunError
        from .children import run_child

        if self.port is None:
            raise RunError("this context belongs to no running call: use 'await agent.arun(prompt)'")
        return await run_child(self.port, agent, prompt, on_event=on_event, resumable=resumable, task_id=task_id)

    def run_subagent_sync(self, agent: Any, prompt: str, **options: Any) -> SubagentResult:
        """:meth:`run_subagent` for sync bodies."""
        from ...protocol.errors import RunError
        from .children import ChildRuntime

        if self.port is None:
            raise RunError("this context belongs to no running call: use 'agent.run_sync(prompt)'")
        return ChildRuntime(self.port).run_sync(self.run_subagent(agent, prompt, **options))


def _request(
    question: str,
    options: Iterable[str] | None,
    fields: Mapping[str, Any] | None,
    metadata: Mapping[str, Any] | None,
    answers: bool,
) -> InterruptRequest:
    from ...protocol.codec import to_json
    from ...protocol.messages import InterruptRequest

    request = InterruptRequest(
        question=question,
        options=None if options is None else tuple(options),
        fields=None if fields is None else dict(fields),
        metadata=dict(metadata or {}),
        answers=answers,
    )
    return InterruptRequest.model_validate_json(to_json(request))  # the same plain values inline as from another process


_current: ContextVar[ToolContext | None] = ContextVar("umbel_tool_context", default=None)
enter = _current.set
leave = _current.reset


def current_tool_context() -> ToolContext | None:
    """The context of the tool call that this code runs in, or None. Parallel calls each see their own."""
    return _current.get()
