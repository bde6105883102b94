"""``agent.run_sync`` and ``arun`` where a run goes on already: they are children, or refused, and never wait for ever."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Hook, Runtime, ToolContext, tool
from umbel.errors import RunError
from umbel.events import SubagentEvent, TerminateEvent, ToolCompleteEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls

pytestmark = pytest.mark.timeout(60)


def child(said: str = "said") -> Agent:
    return Agent(ScriptedModel([text(said)]), name="child")


def calling(body: Any, *, calls: int = 1, **settings: Any) -> Agent:
    ask = tool_calls(*((body.name, {"n": number}) for number in range(calls)))
    return Agent(ScriptedModel([ask, text("Done.")]), [body], name="parent", **settings)


async def said_by(body: Any, **settings: Any) -> list[Any]:
    result = await calling(body, **settings).arun("Go.")
    return [done.result if done.error is None else done.error for done in result.tool_executions]


@tool
async def runs_async(n: int) -> str:
    """Run an agent as anyone would."""
    result = await child().arun("Go.")
    return f"{result.message} {[message.role for message in result.messages]}"


@tool
async def streams(n: int) -> str:
    """Run an agent event by event."""
    return str([event.event_type async for event in child().run("Go.")])


@tool
def runs_sync(n: int) -> str:
    """Run an agent as anyone would."""
    return f"{child().run_sync('Go.').message} {asyncio.run(child('twice').arun('Go.')).message}"


@tool(isolation="thread")
def runs_in_thread(n: int) -> str:
    """The same in a thread of the executor."""
    return child().run_sync("Go.").message


@tool(isolation="process")
async def runs_async_in_process(n: int) -> str:
    """The same in a worker process."""
    return (await child().arun("Go.")).message


@pytest.mark.parametrize("body", [runs_async, streams, runs_sync, runs_in_thread, runs_async_in_process], ids=lambda b: b.name)
async def test_an_agent_run_in_a_body_is_a_child(runtime: Runtime, body: Any) -> None:
    events = [event async for event in calling(body).run("Go.")]
    inner = [event.event for event in events if isinstance(event, SubagentEvent)]
    assert inner and {event.parent_run_id for event in inner} == {events[0].run_id}
    [complete] = [event for event in events if isinstance(event, ToolCompleteEvent)]
    expected = {
        "runs_async": "said ['system', 'user', 'assistant']",
        "streams": "['think', 'terminate']",
        "runs_sync": "said twice",
    }
    assert complete.error is None and complete.result == expected.get(body.name, "said")


@tool
async def blocks(n: int) -> str:
    """Wait synchronously on the event loop."""
    return child().run_sync("Go.").message


@tool
def leaves_the_context(n: int) -> str:
    """Run an agent in a thread that knows nothing of the call."""
    said: list[str] = []

    def work() -> None:
        try:
            said.append(child().run_sync("Go.").message)
        except RunError as refused:
            said.append(f"refused: {refused}")

    thread = threading.Thread(target=lambda: contextvars.Context().run(work))
    thread.start()
    thread.join()
    return said[0]


async def test_what_would_block_is_refused_at_once(runtime: Runtime) -> None:
    [why] = await said_by(blocks)
    assert "await ctx.run_subagent" in why
    [said] = await said_by(leaves_the_context)
    if runtime.inline:
        assert said == "said"  # in the user's own process, it is a run like any other
    else:
        assert said.startswith("refused") and "ctx.run_subagent" in said


class RunsAgents(Hook):
    """Wants to ask another agent."""

    def __init__(self, sync: bool) -> None:
        self.sync = sync

    async def on_before_model_call(self, event: Any) -> None:
        if self.sync:
            child().run_sync("Go.")
        else:
            await child().arun("Go.")


def asking_prompt(facts: dict[str, Any]) -> str:
    """A system prompt that wants to ask another agent."""
    return child().run_sync("Go.").message


@pytest.mark.parametrize("how", ["sync hook", "async hook", "system prompt"])
async def test_the_supervisor_does_not_wait_for_runs(runtime: Runtime, how: str) -> None:
    settings: dict[str, Any] = {"hooks": [RunsAgents(how == "sync hook")]}
    if how == "system prompt":
        settings = {"system_prompt": asking_prompt}
    with pytest.raises(RunError, match=r"ctx\.run_subagent.*as_tool"):
        await Agent(ScriptedModel([text("never")]), **settings).arun("Go.")


@tool
async def has_a_supervisor_that_asks(n: int, ctx: ToolContext) -> str:
    """Run a child whose hook wants to run an agent."""
    try:
        await Agent(ScriptedModel([text("never")]), hooks=[RunsAgents(sync=True)]).arun("Go.")
    except RunError as refused:
        return f"refused: {refused}"
    return "not refused"


async def test_the_hooks_of_a_child_are_no_part_of_the_body(runtime: Runtime) -> None:
    [said] = await said_by(has_a_supervisor_that_asks)
    assert said.startswith("refused: no agent can be run from")


async def test_a_callers_callback_may_run_agents(runtime: Runtime) -> None:
    said: list[str] = []

    def heard(event: Any) -> None:
        if isinstance(event, TerminateEvent):
            said.append(child().run_sync("Go.").message)

    await child().with_settings(callback_handler=heard).arun("Go.")
    assert said == ["said"]


@tool(isolation="process")
def nested(n: int) -> str:
    """Run an agent that calls this same tool, two levels deep."""
    if n == 2:
        return "bottom"
    model = ScriptedModel([tool_call("nested", n=n + 1), lambda messages: text(messages[-1].content or "")])
    return f"{n} {Agent(model, [nested]).run_sync('Go.').message}"


async def test_bodies_that_wait_for_children_keep_no_place(runtime: Runtime) -> None:
    # as many calls as there are worker processes, each of which needs two more
    count = max(4, os.cpu_count() or 1)
    calls = tool_calls(*(("nested", {"n": 0}) for _ in range(count)))
    result = await Agent(ScriptedModel([calls, text("Done.")]), [nested], max_concurrency=count).arun("Go.")
    assert [done.result for done in result.tool_executions] == ["0 1 bottom"] * count


@tool
async def on_the_same_thread(n: int, ctx: ToolContext) -> str:
    """Run an agent on the conversation that this very run holds."""
    try:
        other = Agent(ScriptedModel([text("never")]), checkpointer=ctx.metadata["store"])
        return (await other.arun("Go.", thread_id=ctx.thread_id)).message
    except RunError as refused:
        return f"refused: {refused.code}"


@tool
def waits_in_thread(n: int) -> str:
    """Run an agent that calls this same tool, until enough threads wait."""
    if n == 2:
        return "bottom"
    model = ScriptedModel([tool_call("waits_in_thread", n=n + 1), lambda messages: text(messages[-1].content or "")])
    return f"{n} {Agent(model, [waits_in_thread]).run_sync('Go.').message}"


async def test_threads_that_wait_for_children_keep_no_place() -> None:
    # in the user's own process sync bodies have 64 threads; all of them wait here
    async with Runtime(inline=True):
        calls = tool_calls(*(("waits_in_thread", {"n": 0}) for _ in range(64)))
        agent = Agent(ScriptedModel([calls, text("Done.")]), [waits_in_thread], max_concurrency=64)
        result = await agent.arun("Go.")
    assert [done.result for done in result.tool_executions] == ["0 1 bottom"] * 64


async def test_a_child_does_not_wait_for_a_thread(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    result = await calling(on_the_same_thread, checkpointer=url).arun("Go.", thread_id="t", metadata={"store": url})
    assert [done.result for done in result.tool_executions] == ["refused: thread_busy"]


@tool
async def gives_up(n: int) -> str:
    """Start an agent that takes for ever, and do not wait for it."""
    slow = Agent(ScriptedModel([tool_call("wait"), text("never")]), [wait], name="slow")
    events = slow.run("Go.")
    async for event in events:
        if event.event_type == "tool_start":
            break
    await events.aclose()
    left = asyncio.ensure_future(slow.arun("Go."))
    await asyncio.sleep(0)
    return f"left behind: {not left.done()}"


@tool
async def wait() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@pytest.mark.spec("API-57")
async def test_children_end_with_their_body(runtime: Runtime) -> None:
    events = [event async for event in calling(gives_up).run("Go.")]
    inner = [event.event for event in events if isinstance(event, SubagentEvent)]
    # both children are over before the call is; what they did is known
    ends = [event.reason for event in inner if isinstance(event, TerminateEvent)]
    assert set(ends) <= {"cancelled"} and len(ends) >= 1
    [complete] = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert complete.result == "left behind: True"
    assert not [event for event in events[events.index(complete) :] if isinstance(event, SubagentEvent)]


@tool
async def waits_for_child(n: int) -> str:
    """Run an agent that takes for ever."""
    return (await Agent(ScriptedModel([tool_call("wait"), text("never")]), [wait], name="slow").arun("Go.")).message


@pytest.mark.spec("API-57", "OURS-5")
async def test_a_cancel_reaches_the_children_of_bodies(runtime: Runtime) -> None:
    def heard(event: Any) -> None:
        if isinstance(event, SubagentEvent) and event.event.event_type == "tool_start":
            parent.cancel()

    parent = calling(waits_for_child, callback_handler=heard)
    result = await parent.arun("Go.")
    # the child's model call is known, because the child has ended, too
    assert (result.stop_reason, result.metrics.model_calls) == ("cancelled", 2)
