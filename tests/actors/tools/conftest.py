"""A context and a call for any tool, and pools that are closed whatever the test does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from umbel.actors.tools.context import ToolContext
from umbel.actors.tools.decorator import Tool
from umbel.actors.tools.workers import WorkerPool
from umbel.protocol.messages import ToolCall

Request = tuple[Tool, ToolCall, ToolContext]


@pytest.fixture
def request_for() -> Callable[..., Request]:
    """``request_for(tool, **arguments)``: what ``invoke`` and its like take."""

    def make(tool: Tool, **arguments: Any) -> Request:
        context = ToolContext(tool_call_id="call_1", tool_name=tool.name, run_id="run_1", metadata={"tenant": "t1"}, grace=0.3)
        return tool, ToolCall(id="call_1", name=tool.name, arguments=arguments), context

    return make


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    """Two worker processes at most."""
    workers = WorkerPool(2)
    yield workers
    await workers.close()
