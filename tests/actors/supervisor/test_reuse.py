"""Results of idempotent calls that later turns of a thread reuse: ``@tool(idempotent=True, scope="thread")``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Hook, Message, Runtime, tool
from umbel.errors import DefinitionError
from umbel.protocol.messages import ToolCall
from umbel.protocol.state import AgentState
from umbel.testing import ScriptedModel, text, tool_call, tool_calls, validate_history

pytestmark = pytest.mark.spec("OURS-18")


def counting(ledger: Path) -> Any:
    """A tool that writes down each time it runs, and fails for an order of which it has not heard before."""

    @tool(idempotent=True, scope="thread")
    async def refund(order: str, urgent: Any = False) -> str:
        """Refund an order."""
        known = lines(ledger)
        with ledger.open("a") as file:
            file.write(f"{order}\n")
        if order == "new" and "new" not in known:
            raise LookupError("not heard of it yet")
        return f"receipt {len(known)} " + "x" * (2_000 if order == "long" else 0)

    return refund


def lines(ledger: Path) -> list[str]:
    return ledger.read_text().split() if ledger.exists() else []


def agent_in(folder: Path, *replies: Any, **settings: Any) -> Agent:
    settings = {"checkpointer": f"sqlite:///{folder}/t.db", **settings}
    return Agent(ScriptedModel([*replies, text("ok")]), [counting(folder / "ledger")], **settings)


async def hits(agent: Agent, prompt: str = "go", thread: str = "t") -> list[bool]:
    """Which calls of a turn reused a result."""
    result = await agent.arun(prompt, thread_id=thread)
    validate_history(result.messages)
    return [done.idempotent_cache_hit for done in result.tool_executions]


async def test_a_later_turn_of_the_thread_reuses_a_success(runtime: Runtime, tmp_path: Path) -> None:
    first = agent_in(tmp_path, tool_calls(("refund", {"order": "1", "urgent": 1}), ("refund", {"order": "new"})))
    assert await hits(first) == [False, False]
    again: list[dict[str, Any]] = [{"urgent": 1, "order": "1"}, {"order": "new"}, {"order": "1", "urgent": True}]
    second = agent_in(tmp_path, tool_calls(*(("refund", arguments) for arguments in again)))
    assert await hits(second) == [True, False, False], "order does not matter, a failure is not reused, True is not 1"
    assert await hits(second) == [True, True, True]
    assert await hits(second, thread="other") == [False, False, False]
    assert lines(tmp_path / "ledger").count("1") == 4


@pytest.fixture
async def inline() -> Any:
    async with Runtime(inline=True) as runtime:
        yield runtime


async def test_the_result_outlives_the_conversation_that_held_it(inline: Runtime, tmp_path: Path) -> None:
    agent = agent_in(tmp_path, tool_call("refund", order="long"))
    first = await agent.arun("go", thread_id="t")
    state = await agent.get_state("t")
    rewritten = state.evolve(messages=(state.messages[0], Message.user("A summary of what was said.")))
    await agent.threads.write("t", rewritten, replace=True)
    second = await agent.arun("go", thread_id="t")
    assert second.tool_executions[0].idempotent_cache_hit
    assert second.tool_executions[0].result == first.tool_executions[0].result
    assert lines(tmp_path / "ledger") == ["long"]


async def test_a_recovered_turn_reuses_what_an_earlier_turn_did(inline: Runtime, tmp_path: Path) -> None:
    agent = agent_in(tmp_path, tool_call("refund", order="1"))
    await hits(agent)
    state = await agent.get_state("t")
    call = ToolCall(id="call_of_the_dead", name="refund", arguments={"order": "1"})
    crashed = AgentState(
        run_id="r-2",
        iteration=1,
        messages=(*state.messages, Message.user("again"), Message.assistant(tool_calls=(call,))),
        thread_executions=state.thread_executions,
    )
    await agent.threads.write("t", crashed, replace=True)  # as a process that was killed has left it
    result = await agent.continue_turn("t")
    validate_history(result.messages)
    assert [done.idempotent_cache_hit for done in result.tool_executions] == [True]
    assert lines(tmp_path / "ledger") == ["1"]


async def test_a_thread_holds_each_result_once(inline: Runtime, tmp_path: Path) -> None:
    agent = agent_in(tmp_path, tool_call("refund", order="1"))
    for _ in range(5):
        await hits(agent)
    assert [done.result for done in (await agent.get_state("t")).thread_executions] == ["receipt 0 "]


class Renames(Hook):
    """Whatever order the model names, its own one is meant."""

    async def on_before_tool_call(self, event: Any) -> None:
        event.arguments = {"order": f"own-{event.run.metadata['user']}"}


async def test_calls_are_compared_as_hooks_have_edited_them(inline: Runtime, tmp_path: Path) -> None:
    agent = agent_in(tmp_path, tool_call("refund", order="1"), hooks=[Renames()])
    for user, reused in (("ann", False), ("bob", False), ("ann", True)):
        result = await agent.arun("go", thread_id="t", metadata={"user": user})
        assert result.tool_executions[0].idempotent_cache_hit is reused


async def test_without_a_thread_every_run_is_its_own(inline: Runtime, tmp_path: Path) -> None:
    agent = agent_in(tmp_path, tool_call("refund", order="1"), tool_call("refund", order="1"))
    for _ in range(2):
        result = await agent.arun("go")
        assert [done.idempotent_cache_hit for done in result.tool_executions] == [False, True]


def test_a_scope_is_checked() -> None:
    with pytest.raises(DefinitionError, match=r"'save': scope='thread' .* needs idempotent=True"):
        tool(name="save", scope="thread")(lambda: None)
    with pytest.raises(DefinitionError, match="scope is 'turn' or 'thread', not 'run'"):
        tool(name="save", idempotent=True, scope="run")(lambda: None)  # type: ignore[call-overload]
