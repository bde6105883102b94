"""Calls to a runtime's own tool executor, past supervisor and agent."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from umbel import Agent, Runtime
from umbel.actors.link import Link, LocalLink
from umbel.actors.tools.decorator import Tool
from umbel.cluster.host import Identity, RayTransport
from umbel.protocol.commands import ExecuteCall, ToolReply
from umbel.protocol.messages import ToolCall
from umbel.testing import ScriptedModel, text

Execute = Callable[..., Awaitable[ToolReply]]


@asynccontextmanager
async def executor_of(runtime: Runtime, *tools: Tool) -> AsyncIterator[Execute]:
    """``execute(tool, arguments, answers)`` on the runtime's own tool executor, over its own mailbox."""
    backend: Any = runtime.backend
    agent = Agent(ScriptedModel([text("unused")]), list(tools))
    definition = runtime.register(agent)
    if runtime.inline:
        link: Any = LocalLink((await backend._open()).mailbox)
    else:
        me = Identity(backend._actors.namespace, f"test-{time.time_ns()}", backend._actors.secret)
        link = Link(me.name, time.time_ns(), "tools/default/0", RayTransport(me, "tools/default/0"))
        link.define(definition, backend._blobs.__getitem__)

    async def execute(chosen: Tool, arguments: dict[str, Any], *answers: Any) -> ToolReply:
        call = ToolCall(id="call_1", name=chosen.name, arguments=arguments)
        message = ExecuteCall(run_id="r", definition=definition, call=call, answers=answers)
        reply = await link.request(message)
        assert isinstance(reply, ToolReply)
        return reply

    try:
        yield execute
    finally:
        if isinstance(link, Link):
            await link.close()
