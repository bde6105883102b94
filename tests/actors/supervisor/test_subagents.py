"""Agents that a tool's body runs: children of the run, wherever the body is. On the inline runtime and on Ray."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from umbel import (
    Agent,
    Prices,
    Runtime,
    SubagentResult,
    ToolContext,
    Usage,
    current_tool_context,
    run_subagent,
    run_subagent_sync,
    tool,
)
from umbel.errors import ConfigurationError, ModelError
from umbel.events import SubagentEvent, TerminateEvent, ToolCompleteEvent
from umbel.testing import ScriptedModel, error, text, tool_call, tool_calls

COST = Usage(prompt_tokens=100, completion_tokens=0)


@tool
async def look(page: int) -> str:
    """Look at a page."""
    return f"page {page}"


def reader(*turns: Any, **settings: Any) -> Agent:
    """An agent that looks at a page and says what it has seen."""
    script = turns or (tool_call("look", page=7), text("I have seen page 7."))
    return Agent(ScriptedModel(list(script)), [look], name="reader", **settings)


def parent_of(body: Any, *, calls: int = 1, **settings: Any) -> Agent:
    """An agent that calls ``body`` and ends."""
    ask = tool_calls(*((body.name, {"n": number}) for number in range(calls)))
    return Agent(ScriptedModel([ask, text("Done.")]), [body], name="parent", **settings)


def results_of(result: Any) -> list[Any]:
    return [done.result if done.error is None else (done.code, done.error) for done in result.tool_executions]


@tool
async def delegate(n: int, ctx: ToolContext) -> str:
    """Have it read."""
    done = await ctx.run_subagent(reader(), "Read.")
    return f"{done.text}|{done.stop_reason}|{done.iterations}|{done.tool_calls}|{done.agent_name}|{done.success}|{done.task_id}"


@tool
def delegate_sync(n: int, ctx: ToolContext) -> str:
    """Have it read."""
    return f"{ctx.run_subagent_sync(reader(), 'Read.').text} {os.getpid()}"


@pytest.mark.spec("API-54")
async def test_an_async_body_runs_a_child(runtime: Runtime) -> None:
    result = await parent_of(delegate).arun("Go.")
    assert results_of(result) == ["I have seen page 7.|complete|2|1|reader|True|None"]
    assert result.metrics.model_calls == 2 + 2


@tool
async def repeat_what_it_sees(n: int, ctx: ToolContext) -> str:
    """Run one that says what its conversation is."""
    model = ScriptedModel([lambda messages: text(f"{[(m.role, m.content) for m in messages]}").evolve(usage=COST)])
    return (await ctx.run_subagent(Agent(model, system_prompt="Be a child."), "Hello.")).text


@pytest.mark.spec("API-53", "API-57")
async def test_a_child_sees_its_prompt_only_and_its_tokens_are_its_parents(runtime: Runtime) -> None:
    turns = [tool_call("repeat_what_it_sees", n=1).evolve(usage=COST), text("Done.").evolve(usage=COST)]
    result = await Agent(ScriptedModel(turns), [repeat_what_it_sees]).arun("Go.")
    assert results_of(result) == ["[('system', 'Be a child.'), ('user', 'Hello.')]"]
    assert result.metrics.total_tokens == 3 * COST.total_tokens


@pytest.mark.spec("API-52")
async def test_a_sync_body_runs_a_child_from_its_own_process(runtime: Runtime) -> None:
    [said] = results_of(await parent_of(delegate_sync).arun("Go."))
    assert said.startswith("I have seen page 7. ")
    assert (int(said.rsplit(" ", 1)[1]) == os.getpid()) is runtime.inline


@tool(isolation="process")
def in_process(n: int) -> str:
    """Have it read twice, and look at something in between."""
    first = run_subagent_sync("Read.", model=ScriptedModel([text("one")]))
    second = run_subagent_sync("Read.", model=ScriptedModel([text(f"two {n}")]))
    return f"{first.text} {second.text}"


@pytest.mark.spec("API-52")
async def test_worker_processes_serve_calls_after_one_that_ran_children(runtime: Runtime) -> None:
    turns = [tool_calls(("in_process", {"n": 1}), ("in_process", {"n": 2})), tool_call("in_process", n=3), text("Done.")]
    result = await Agent(ScriptedModel(turns), [in_process]).arun("Go.")
    assert results_of(result) == ["one two 1", "one two 2", "one two 3"]


@tool
async def with_function(n: int) -> str:
    """Have somebody else say it."""
    heard: list[str] = []

    async def listen(event: Any) -> None:
        await asyncio.sleep(0)
        heard.append(event.event_type)

    done = await run_subagent(
        "Look.", model=ScriptedModel([tool_call("look", page=1), text("seen")]), tools=[look], on_event=listen
    )
    return f"{done.text} {done.agent_name} {heard}"


@pytest.mark.spec("API-52", "API-58")
async def test_the_function_form_and_its_events(runtime: Runtime) -> None:
    events = [event async for event in parent_of(with_function).run("Go.")]
    kinds = ["think", "tool_start", "tool_complete", "think", "terminate"]
    [complete] = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert complete.result == f"seen subagent {kinds}"
    inner = [event for event in events if isinstance(event, SubagentEvent)]
    assert [event.event.event_type for event in inner] == kinds
    assert {event.tool_name for event in inner} == {"with_function"}
    assert {event.event.parent_run_id for event in inner} == {events[0].run_id}
    assert sum(isinstance(event, TerminateEvent) for event in events) == 1


@tool
async def listen_badly(n: int, ctx: ToolContext) -> str:
    """Raise at the first event."""

    def fail(event: Any) -> None:
        raise LookupError("I do not like this event")

    return (await ctx.run_subagent(reader(), "Read.", on_event=fail)).text


@tool
async def fail_inside(n: int, ctx: ToolContext) -> str:
    """Run one whose model fails."""
    return (await ctx.run_subagent(reader(error("no such model")), "Read.")).text


@tool
async def catch_inside(n: int, ctx: ToolContext) -> str:
    """Run one whose model fails, and go on."""
    try:
        await ctx.run_subagent(reader(error("no such model")), "Read.")
    except ModelError as caught:
        return f"caught {caught.message}"
    return "nothing to catch"


@pytest.mark.spec("API-58", "API-59")
async def test_errors_of_a_child_and_of_its_listener_reach_the_body(runtime: Runtime) -> None:
    [(code, why)] = results_of(await parent_of(listen_badly).arun("Go."))
    assert code == "tool" and "I do not like this event" in why
    [(code, why)] = results_of(await parent_of(fail_inside).arun("Go."))
    assert code == "tool" and "no such model" in why
    assert results_of(await parent_of(catch_inside).arun("Go.")) == ["caught no such model"]


@tool
async def ask(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(ctx.interrupt("Really?"))


@tool
async def run_asker(n: int, ctx: ToolContext) -> str:
    """Run one that asks."""
    done = await ctx.run_subagent(Agent(ScriptedModel([tool_call("ask"), text("never")]), [ask]), "Ask.")
    return f"{done.stop_reason} {done.success} {done.interrupts[0]['question']}"


@pytest.mark.spec("API-59")
async def test_a_child_that_asks_a_person_is_interrupted(runtime: Runtime) -> None:
    assert results_of(await parent_of(run_asker).arun("Go.")) == ["interrupted False Really?"]


@tool
async def run_spender(n: int, ctx: ToolContext) -> str:
    """Run one that goes on for ever."""
    model = ScriptedModel([tool_call("look", page=page).evolve(usage=COST) for page in range(60)], loop=True)
    spender = Agent(model, [look], max_iterations=100, budget_nudge_at=None, termination=None)
    done = await ctx.run_subagent(spender, "Spend.")
    return f"{done.stop_reason} {done.iterations} {done.usage.prompt_tokens}"


@pytest.mark.spec("API-55", "API-56", "OURS-13")
async def test_children_together_spend_what_is_left_of_their_parent(runtime: Runtime) -> None:
    turns = [tool_calls(*(("run_spender", {"n": number}) for number in range(4))).evolve(usage=COST)]
    turns += [tool_call("run_spender", n=9).evolve(usage=COST)]
    parent = Agent(ScriptedModel(turns), [run_spender], token_budget=2_100, budget_nudge_at=None)
    result = await parent.arun("Go.")
    reasons = [str(said).split()[0] for said in results_of(result)]
    assert result.stop_reason == "token_budget" and set(reasons) == {"token_budget"}
    assert 2_100 <= result.metrics.total_tokens <= 2_100 + 4 * 100


@tool
async def run_twice(n: int, ctx: ToolContext) -> str:
    """Spend all, then try again."""
    model = ScriptedModel([tool_call("look", page=1).evolve(usage=COST), text("seen").evolve(usage=COST)])
    first = await ctx.run_subagent(Agent(model, [look], budget_nudge_at=None), "Spend.")
    second = await ctx.run_subagent(Agent(model, [look], budget_nudge_at=None), "Spend.")
    return f"{first.stop_reason} {second.stop_reason} {second.iterations} {second.success}"


@pytest.mark.spec("API-55")
async def test_an_exhausted_parent_gives_an_immediate_result(runtime: Runtime) -> None:
    parent = Agent(ScriptedModel([tool_call("run_twice", n=1).evolve(usage=COST)]), [run_twice], token_budget=200)
    [said] = results_of(await parent.arun("Go."))
    assert said == "token_budget token_budget 0 False"


class Priced(ScriptedModel):
    prices = Prices(input_per_million=1_000.0, output_per_million=1_000.0)


class Cheap(ScriptedModel):
    prices = Prices(input_per_million=10.0, output_per_million=10.0)


@tool
async def run_cheap(n: int, ctx: ToolContext) -> str:
    """Run a cheap one."""
    return (await ctx.run_subagent(Agent(Cheap([text("cheap").evolve(usage=COST)])), "Go.")).text


@pytest.mark.spec("API-57")
async def test_a_childs_tokens_cost_what_its_own_model_costs(runtime: Runtime) -> None:
    turns = [tool_call("run_cheap", n=1).evolve(usage=COST), text("Done.").evolve(usage=COST)]
    result = await Agent(Priced(turns), [run_cheap]).arun("Go.")
    assert result.metrics.total_tokens == 300
    assert result.metrics.cost_usd == pytest.approx(0.1 + 0.1 + 0.001)
    reported = [turn.evolve(cost_usd=0.5) for turn in turns]  # by the provider of the parent's model
    result = await Agent(Priced(reported), [run_cheap]).arun("Go.")
    assert result.metrics.cost_usd == pytest.approx(0.5 + 0.5 + 0.001)


@tool
async def recurse(n: int, ctx: ToolContext) -> str:
    """Run one that does the same."""
    again = Agent(ScriptedModel([tool_call("recurse", n=n + 1), text(f"level {n}")]), [recurse], name="again")
    try:
        await ctx.run_subagent(again, "Go on.")
    except Exception as caught:  # noqa: BLE001 - the test wants to see it, whatever it is
        FOUND.append(f"{n}: {caught}")
        return f"{n}: {caught}"
    return "deeper"


FOUND: list[str] = []


@pytest.mark.spec("API-55")
async def test_depth_is_capped(runtime: Runtime) -> None:
    result = await parent_of(recurse).arun("Go.")
    assert results_of(result) == ["deeper"]
    assert result.metrics.model_calls == 2 + 10 * 2
    if runtime.inline:
        assert FOUND.pop() == "10: no agent was run: agents are already 10 deep"


@tool
async def converse(n: int, ctx: ToolContext) -> str:
    """Talk twice to the same one, at once and in turn."""
    model = ScriptedModel([lambda messages: text(" / ".join(m.content or "" for m in messages if m.role != "system"))])
    first = await ctx.run_subagent(Agent(model), "one", resumable=True)
    both = await asyncio.gather(*(ctx.run_subagent(Agent(model), prompt, task_id=first.task_id) for prompt in ("two", "three")))
    return f"{first.task_id}|{both[0].text}|{both[1].text}|{both[0].task_id == both[1].task_id == first.task_id}"


@tool
async def talk_to_nobody(n: int, ctx: ToolContext) -> str:
    """Go on with what never began."""
    return (await ctx.run_subagent(Agent(ScriptedModel([text("?")])), "hello", task_id="task_000000000000")).text


@tool
async def bring_a_store(n: int, ctx: ToolContext) -> str:
    """Want two stores at once."""
    agent = Agent(ScriptedModel([text("?")]), checkpointer="memory://")
    try:
        await ctx.run_subagent(agent, "hello", resumable=True)
    except ValueError as refused:
        return type(refused).__name__
    return "accepted"


@pytest.mark.spec("API-60")
async def test_a_task_is_a_conversation_that_goes_on(runtime: Runtime) -> None:
    [said] = results_of(await parent_of(converse).arun("Go."))
    task_id, second, third, same = said.split("|")
    assert task_id.startswith("task_") and len(task_id) == 17 and int(task_id[5:], 16) >= 0 and same == "True"
    assert sorted([second, third], key=len) == ["one / one / two", "one / one / two / one / one / two / three"]
    [(code, why)] = results_of(await parent_of(talk_to_nobody).arun("Go."))
    assert code == "tool" and "task_000000000000" in why
    assert results_of(await parent_of(bring_a_store).arun("Go.")) == ["ConfigurationError"]


async def test_outside_of_a_tool_it_is_a_run(runtime: Runtime) -> None:
    events: list[Any] = []
    done = await run_subagent("Say it.", model=ScriptedModel([text("said")]), on_event=events.append)
    assert (type(done), done.text, done.iterations, done.success) == (SubagentResult, "said", 1, True)
    assert [event.event_type for event in events] == ["think", "terminate"]
    assert current_tool_context() is None
    with pytest.raises(ConfigurationError, match="tool's body"):
        await run_subagent("Say it.", model=ScriptedModel([text("said")]), resumable=True)
