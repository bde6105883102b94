"""A loop of a few lines that calls hooks in the order of the contract: enough to try them without actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from umbel.actors.supervisor.hooks import (
    MAX_MODEL_ATTEMPTS,
    AfterModelCall,
    AfterToolCall,
    BeforeModelCall,
    BeforeToolCall,
    Hooks,
    after_invocation_all,
    before_invocation_all,
    call,
    replacement,
    with_feedback,
)
from umbel.events import CustomEvent, RunInfo
from umbel.protocol.messages import Message, ModelResponse, ToolCall, ToolResult, Usage
from umbel.protocol.state import AgentState, ToolExecution

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Model = Callable[[list[Message]], ModelResponse]


class TinyLoop:
    """One turn: model calls until a reply has no calls. ``tools`` map names to plain functions.

    Attributes:
        custom: events that hooks emitted.
        counted: usage reported by hooks.
        sent: the messages of every model call.
        hook_errors: texts of what after-invocation hooks raised.
    """

    def __init__(self, hooks: Any, model: Sequence[ModelResponse | Exception] | Model, **tools: Callable[..., str]) -> None:
        self.hooks = hooks if isinstance(hooks, Hooks) else Hooks(hooks)
        self.model: Model = model if callable(model) else self._scripted(list(model))
        self.tools = tools
        self.custom: list[CustomEvent] = []
        self.counted: list[Usage | None] = []
        self.sent: list[list[Message]] = []
        self.hook_errors: tuple[str, ...] = ()
        self._queue: list[CustomEvent] = []

    def _scripted(self, replies: list[ModelResponse | Exception]) -> Model:
        def model(messages: list[Message]) -> ModelResponse:
            reply = replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply

        return model

    async def run(
        self,
        prompt: str,
        *,
        run_id: str = "r1",
        thread_id: str | None = None,
        agent_name: str | None = "tiny",
        metadata: Mapping[str, Any] | None = None,
    ) -> AgentState:
        state = AgentState(
            run_id=run_id, messages=(Message.user(prompt),), metadata=dict(metadata or {}), started_at=START, updated_at=START
        )
        state = await before_invocation_all(self.hooks.before_invocation, prompt, state)
        self.about = RunInfo(run_id=run_id, thread_id=thread_id, metadata=state.metadata, agent_name=agent_name)
        success = False
        try:
            while True:
                iteration = state.iteration
                await call(self.hooks.iteration_start, iteration, state)
                state = state.next_iteration()
                response = await self.think(state)
                state = state.with_message(response.message).with_response_usage(response.usage, None)
                for each in response.tool_calls:
                    state = await self.execute(state, each)
                await call(self.hooks.iteration_end, iteration, state)
                if not response.tool_calls:
                    success = True
                    return state
        except Exception as error:
            state = state.with_error(f"{type(error).__name__}: {error}")
            raise
        finally:
            self.hook_errors = await after_invocation_all(self.hooks.after_invocation, state, success)

    def base(self) -> dict[str, Any]:
        return {"run": self.about, "queue": self._queue, "count": lambda usage, cost: self.counted.append(usage)}

    async def think(self, state: AgentState) -> ModelResponse:
        before = BeforeModelCall(messages=state.messages, **self.base())
        await call(self.hooks.before_model, before)
        messages = before.messages
        for _ in range(MAX_MODEL_ATTEMPTS):
            self.sent.append(messages)
            after = AfterModelCall(response=self.model(messages), messages=messages, **self.base())
            await call(self.hooks.after_model, after)
            if not after.retry:
                break
            messages = with_feedback(before.messages, after.retry_feedback)
        self.custom += after.drain()
        return after.response

    async def execute(self, state: AgentState, asked: ToolCall) -> AgentState:
        before = BeforeToolCall(tool_name=asked.name, tool_call_id=asked.id, arguments=asked.arguments, **self.base())
        await call(self.hooks.before_tool, before)
        self.custom += before.drain()
        result: str | None = None
        error: str | None = None
        code = None
        if before.cancel_reason is not None:
            result, code = before.cancel_reason, "cancelled"
        else:
            result, error = self.body(before)
            about: dict[str, Any] = {"tool_name": asked.name, "tool_call_id": asked.id, "arguments": before.arguments}
            after = AfterToolCall(**about, result=result, error=error, **self.base())
            await call(self.hooks.after_tool, after)
            self.custom += after.drain()
            if after.retry:
                result, error = self.body(before)
            result = replacement(after, result) or result
        told = ToolResult(tool_call_id=asked.id, name=asked.name, content=result or "", error=error)
        execution = ToolExecution(
            tool_name=asked.name,
            tool_call_id=asked.id,
            arguments=before.arguments,
            result=result,
            error=error,
            code=code,
            timestamp=datetime.now(UTC),
        )
        return state.with_tool_results([execution], [Message.tool(told)])

    def body(self, before: BeforeToolCall) -> tuple[str | None, str | None]:
        try:
            return self.tools[before.tool_name](**before.full_arguments), None
        except ValueError as error:
            return None, str(error)
