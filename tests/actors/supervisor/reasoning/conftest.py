"""Doubles for judges, and executions as a run records them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from umbel.protocol.messages import FinishReason, Message, ModelResponse
from umbel.protocol.state import ToolExecution


class Judge:
    """Replies in turn; an exception is raised instead. Keeps the prompts."""

    def __init__(self, *replies: str | BaseException | None, stop_reason: FinishReason = "stop") -> None:
        self.replies = list(replies)
        self.stop_reason = stop_reason
        self.prompts: list[str] = []

    async def __call__(self, messages: list[Message]) -> ModelResponse:
        (message,) = messages
        assert message.role == "user"
        self.prompts.append(message.content or "")
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return ModelResponse(message=Message.assistant(reply), stop_reason=self.stop_reason)


@pytest.fixture
def judge_of() -> type[Judge]:
    return Judge


@pytest.fixture
def ran() -> Callable[..., ToolExecution]:
    """A successful execution of a tool."""

    def make(result: str | None = "ok", tool: str = "lookup", **more: Any) -> ToolExecution:
        return ToolExecution(tool_name=tool, tool_call_id="c", result=result, **more)

    return make


@pytest.fixture
def failed() -> Callable[..., ToolExecution]:
    """A failed one."""

    def make(error: str = "boom", tool: str = "lookup") -> ToolExecution:
        return ToolExecution(tool_name=tool, tool_call_id="c", error=error)

    return make
