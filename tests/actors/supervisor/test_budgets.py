"""Budgets and room: nudges, worst-case cost, compaction, leases of children, long results. Inline and on Ray."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from umbel import Agent, CompactionConfig, Hook, Message, ModelResponse, Prices, Runtime, Usage, tool
from umbel.errors import ConfigurationError
from umbel.events import CompactionEvent, CustomEvent, SubagentEvent, TerminateEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls


class Priced(ScriptedModel):
    prices = Prices(input_per_million=1.0, output_per_million=10.0)


class Windowed(ScriptedModel):
    context_window = 1_000


@tool
async def look(page: int) -> str:
    """Look at a page."""
    return f"page {page}"


@tool
async def dump(size: int) -> str:
    """Return much text."""
    return "begin " + "x" * size + " end"


async def watched(agent: Agent, prompt: str = "go") -> tuple[list[Any], Any]:
    events: list[Any] = []
    result = await agent.with_settings(callback_handler=events.append).arun(prompt)
    return events, result


def looking(count: int) -> list[ModelResponse]:
    return [tool_call("look", page=number) for number in range(count)]


@pytest.mark.spec("LOOP-34", "LOOP-36", "EVT-19")
async def test_one_nudge_when_a_budget_runs_out(runtime: Runtime) -> None:
    events, result = await watched(Agent(ScriptedModel([*looking(9), text("done")]), [look], max_iterations=10))
    [nudge] = [event for event in events if isinstance(event, CustomEvent)]
    assert nudge.name == "budget_nudge" and nudge.data["fraction"] == 0.8 and nudge.data["budget"] == "model calls"
    [note] = [message for message in result.messages if message.role == "user" and message.metadata.get("automated")]
    assert "80%" in (note.content or "")
    quiet, _ = await watched(Agent(ScriptedModel([*looking(9), text("done")]), [look], max_iterations=10, budget_nudge_at=None))
    assert not [event for event in quiet if isinstance(event, CustomEvent)]
    tokens = [turn.evolve(usage=Usage(prompt_tokens=40, completion_tokens=0)) for turn in (*looking(3), text("done"))]
    events, _ = await watched(Agent(ScriptedModel(tokens), [look], token_budget=150, max_iterations=5))
    [nudge] = [event for event in events if isinstance(event, CustomEvent)]
    assert nudge.data["budget"] == "tokens"


@pytest.mark.spec("LOOP-37", "LOOP-38", "BUG-30", "API-50")
async def test_a_call_that_could_cost_too_much_is_not_made(runtime: Runtime) -> None:
    with pytest.raises(ConfigurationError, match="register_model"):
        Agent(ScriptedModel([text("hi")]), max_cost_usd=1.0)
    spent = Usage(prompt_tokens=1_000, completion_tokens=100)
    turns = [turn.evolve(usage=spent) for turn in (*looking(3), text("done"))]
    result = await Agent(Priced(turns), [look], max_cost_usd=0.005, max_tokens=250).arun("go")
    assert result.stop_reason == "cost_budget" and not result.success
    assert result.metrics.cost_usd == pytest.approx(0.004) and result.metrics.model_calls == 2
    enough = await Agent(Priced(turns), [look], max_cost_usd=1.0).arun("go")
    assert enough.success and enough.metrics.cost_usd == pytest.approx(4 * 0.002)


class Summariser:
    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        return text("They looked at many pages.", usage=Usage(prompt_tokens=50, completion_tokens=5))


@pytest.mark.spec("LOOP-39", "LOOP-41", "EVT-16", "MEM-21", "OURS-13", "STATE-41")
async def test_a_conversation_that_outgrows_the_window_is_rewritten(runtime: Runtime) -> None:
    turns = [tool_call("dump", size=700 + number) for number in range(4)]
    agent = Agent(
        Windowed([*turns, text("done")], loop=True),
        [dump],
        compaction=CompactionConfig(summary_model=Summariser(), tail_turns=1),
        termination=None,
        max_iterations=12,
    )
    events, result = await watched(agent)
    compactions = [event for event in events if isinstance(event, CompactionEvent)]
    assert compactions and all(event.tokens_after < event.tokens_before for event in compactions)
    assert all(event.context_window == 1_000 for event in compactions)
    assert result.messages[0].role == "system" and any(message.content == "go" for message in result.messages)


@pytest.mark.spec("LOOP-40", "MEM-18")
async def test_a_conversation_that_cannot_be_made_to_fit_ends_the_run(runtime: Runtime) -> None:
    result = await Agent(Windowed([text("never")])).arun("y" * 8_000)
    assert result.stop_reason == "context_exhausted" and not result.success and result.message
    assert result.metrics.model_calls == 0


@pytest.mark.spec("LOOP-91", "BUG-39", "OURS-20")
async def test_a_long_result_keeps_its_head_and_its_tail(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([tool_call("dump", size=5_000), text("ok")]), [dump], max_tool_result_length=1_000)
    result = await agent.arun("go")
    [shown] = [message.content or "" for message in result.messages if message.role == "tool"]
    assert shown.startswith("begin x") and shown.endswith("x end") and len(shown) < 1_300


@pytest.mark.spec("OURS-13", "API-55", "API-56", "API-57", "STATE-43")
async def test_children_share_what_the_parent_has_left(runtime: Runtime) -> None:
    usage = Usage(prompt_tokens=100, completion_tokens=0)
    child = Agent(
        ScriptedModel([turn.evolve(usage=usage) for turn in looking(50)], loop=True),
        [look],
        name="child",
        budget_nudge_at=None,
        max_iterations=100,
    )
    ask = tool_calls(*(("child", {"prompt": f"{number}"}) for number in range(4))).evolve(usage=usage)
    parent = Agent(ScriptedModel([ask, text("all").evolve(usage=usage)]), [child.as_tool()], token_budget=2_100)
    result = await parent.arun("go")
    # 2,000 tokens are left for four children: each stops within one call of its 500
    assert 2_100 <= result.metrics.total_tokens <= 2_100 + 4 * 100
    assert [done.code for done in result.tool_executions] == ["token_budget"] * 4


@pytest.mark.spec("EVT-11", "API-58", "EVT-2")
async def test_a_childs_events_arrive_wrapped(runtime: Runtime) -> None:
    child = Agent(ScriptedModel([tool_call("look", page=1), text("seen")]), [look], name="child")
    parent = Agent(ScriptedModel([tool_call("child", prompt="look"), text("ok")]), [child.as_tool()], name="parent")
    events = [event async for event in parent.run("go")]
    inner = [event.event for event in events if isinstance(event, SubagentEvent)]
    assert [event.event_type for event in inner] == ["think", "tool_start", "tool_complete", "think", "terminate"]
    assert {event.agent_name for event in inner} == {"child"}
    assert sum(isinstance(event, TerminateEvent) for event in events) == 1
    assert [event.seq for event in events] == list(range(len(events)))


@pytest.mark.spec("OURS-6", "LOOP-17")
async def test_a_childs_time_is_its_parents(runtime: Runtime) -> None:
    @tool
    async def wait() -> str:
        """Wait for long."""
        await asyncio.sleep(60)
        return "waited"

    child = Agent(ScriptedModel([tool_call("wait"), text("never")]), [wait], name="child")
    parent = Agent(ScriptedModel([tool_call("child", prompt="x"), text("never")]), [child.as_tool()], time_budget_seconds=0.5)
    result = await parent.arun("go")
    assert result.stop_reason == "time_budget"


class Expensive(ScriptedModel):
    prices = Prices(input_per_million=100.0, output_per_million=1_000.0)


@pytest.mark.spec("STATE-43", "OURS-13")
async def test_a_child_costs_what_its_own_model_costs(runtime: Runtime) -> None:
    usage = Usage(prompt_tokens=1_000, completion_tokens=0)

    def parent(child: ScriptedModel) -> Agent:
        turns = [tool_call("child", prompt="x").evolve(usage=usage), text("ok", usage=usage)]
        return Agent(Priced(turns), [Agent(child, name="child").as_tool()])

    dear = await parent(Expensive([text("hi", usage=usage)])).arun("go")
    assert dear.metrics.cost_usd == pytest.approx(2 * 0.001 + 0.1) and dear.metrics.total_tokens == 3_000
    unpriced = await parent(ScriptedModel([text("hi", usage=usage)])).arun("go")
    assert unpriced.metrics.cost_usd == pytest.approx(3 * 0.001), "at the parent's prices, where its own are not known"


class NotNow(Hook):
    async def on_before_compaction(self, event: Any) -> None:
        event.cancel = True


class Wishes(Hook):
    async def on_before_compaction(self, event: Any) -> None:
        event.instructions = "Keep the page numbers."


class Obedient:
    """Its summary is what it was asked for."""

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        return text("as told" if "Keep the page numbers." in str(messages) else "not told")


@pytest.mark.spec("LOOP-40")
@pytest.mark.parametrize(("hooks", "found"), [([NotNow()], []), ([Wishes()], ["as told"]), ([], ["not told"])])
async def test_a_hook_may_put_off_compaction_or_say_what_to_keep(runtime: Runtime, hooks: list[Hook], found: list[str]) -> None:
    turns = [turn.evolve(message=turn.message.evolve(content="y" * 600)) for turn in looking(5)]
    agent = Agent(
        Windowed([*turns, text("done")], loop=True),
        [look],
        hooks=hooks,
        compaction=CompactionConfig(summary_model=Obedient(), tail_turns=1),
        max_iterations=6,
    )
    events, _ = await watched(agent)
    compactions = [event for event in events if isinstance(event, CompactionEvent)]
    assert [event.summary for event in compactions] == found
