"""How a graph runs: supersteps, routes, joins, sends, agents as nodes."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, TypedDict

import pytest

from umbel import Agent
from umbel.errors import (
    GraphError,
)
from umbel.patterns.graph import END, START, Command, Send, StateGraph
from umbel.reducers import append
from umbel.testing import ScriptedModel, text

from .samples import Log, chain, writes

pytestmark = pytest.mark.usefixtures("inline")


@pytest.mark.spec("PAT-35", "PAT-48", "PAT-36", "PAT-44")
async def test_a_diamond() -> None:
    graph = chain((START, "a"), ("a", "b"), ("a", "c"), (["b", "c"], "d"), ("d", END)).compile()
    result = await graph.arun({"log": ["in"]})
    assert result.success and result.stop_reason == "complete" and result.error is None
    assert result.value == result.state_values == {"log": ["in", "a", "b", "c", "d"]}
    assert result.execution_order == ["a", "b", "c", "d"] and result.iterations == 3
    assert {name: node.status for name, node in result.nodes.items()} == dict.fromkeys("abcd", "completed")
    assert result.outputs[0] == {"log": "d"} and result.nodes["b"].superstep == 2
    assert result.duration_ms > 0 and all(node.duration_ms > 0 for node in result.nodes.values())


@pytest.mark.spec("PAT-35", "PAT-30")
@pytest.mark.parametrize(("parallel", "most"), [(True, 3), (False, 1)])
async def test_a_superstep_runs_side_by_side_unless_told_otherwise(parallel: bool, most: int) -> None:
    at_once: list[int] = []
    running = 0

    async def node(state: Any) -> None:
        nonlocal running
        running += 1
        at_once.append(running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1

    graph = StateGraph()
    for name in "abc":
        graph.add_node(name, node).add_edge(START, name)
    assert (await graph.compile(parallel=parallel).arun({})).success
    assert max(at_once) == most


async def test_a_text_is_the_task() -> None:
    graph = StateGraph().add_node("a", lambda state: state["task"].upper()).add_edge(START, "a").compile()
    result = await graph.arun("hello")
    assert result.value == {"task": "hello", "result": "HELLO"} and result.final_output == "HELLO"


@pytest.mark.spec("PAT-40")
async def test_a_command_wins_over_branches_and_these_over_edges() -> None:
    def router(state: Log) -> Any:
        return {1: "b", 2: None}.get(state.get("n", 0), ["b", "c"])

    def going(n: int) -> Any:
        return lambda state: Command(update={"log": "a"}, goto="d") if n == 0 else {"log": "a", "n": n}

    for n, expected in ((0, ["a", "d"]), (1, ["a", "b"]), (2, ["a", "d"]), (3, ["a", "b", "c"])):
        graph = StateGraph(Log).add_node("a", going(n))
        for name in "bcd":
            graph.add_node(name, writes(name))
        graph.add_edge(START, "a").add_edge("a", "d").add_conditional_edges("a", router, ["b", "c"])
        result = await graph.compile().arun({})
        assert result.value["log"] == expected, result.error


@pytest.mark.spec("PAT-40")
async def test_a_target_that_is_not_there_ends_the_run_with_an_error_that_names_it() -> None:
    graph = chain((START, "a"), nodes="b").add_node("a", lambda state: Command(goto="nowhere"))
    result = await graph.compile().arun({})
    assert not result.success and isinstance(result.error, GraphError)
    assert "node 'a' goes to 'nowhere', which is no node of the graph; there are a, b and END" in str(result.error)
    odd = chain((START, "a"), nodes="ab").add_conditional_edges("a", lambda state: 3, {1: "b"}).compile()
    assert "answered 3; it may answer 1" in str((await odd.arun({})).error)


async def test_routers_are_sync_or_async_and_may_begin() -> None:
    async def entry(state: Log) -> Literal["b"]:
        await asyncio.sleep(0)
        return "b"

    graph = chain(("b", "c"), nodes="bc").add_conditional_edges(START, entry).compile()
    assert (await graph.arun({})).execution_order == ["b", "c"]


async def test_a_function_may_give_a_coroutine() -> None:
    graph = StateGraph().add_node("a", lambda state: writes("x")({"n": len(state)})).add_edge(START, "a").compile()
    assert (await graph.arun({})).value == {"log": "x"}


@pytest.mark.spec("PAT-42")
async def test_a_node_whose_condition_is_false_is_passed_over() -> None:
    async def never(state: Log) -> bool:
        return state.get("n") == 1

    graph = chain((START, "a"), ("a", "x"), ("x", "b"), nodes="ab").add_node("x", writes("x"), condition=never).compile()
    result = await graph.arun({})
    assert result.success and result.value == {"log": ["a", "b"]} and result.nodes["x"].status == "skipped"
    assert (await graph.arun({"n": 1})).value["log"] == ["a", "x", "b"]


@pytest.mark.spec("PAT-42", "PAT-31")
async def test_a_deferred_node_runs_when_nothing_else_is_left() -> None:
    graph = chain((START, "a"), ("a", "b"), ("b", "c"), ("a", "sum"), ("c", "sum"), nodes="abc")
    graph.add_node("sum", writes("sum"), defer=True)
    assert (await graph.compile().arun({})).value["log"] == ["a", "b", "c", "sum"]


@pytest.mark.spec("PAT-43", "OURS-28", "BUG-59")
async def test_the_end_of_one_branch_lets_the_others_finish() -> None:
    graph = chain((START, "a"), (START, "b"), ("a", END), ("b", "c"), ("c", "d"), ("d", END)).compile()
    assert (await graph.arun({})).execution_order == ["a", "b", "c", "d"]


@pytest.mark.spec("PAT-49", "PAT-50", "OURS-28")
async def test_sends_run_in_the_same_superstep_and_none_is_lost() -> None:
    async def split(state: Any) -> Any:
        return [Send("work", {"item": i}, id=f"part-{i}") for i in range(4)]

    async def work(state: Any) -> Any:
        assert state["base"] == 10
        if state["item"] == 2:
            raise LookupError("two")
        return state["base"] + state["item"]

    async def total(state: Any) -> dict[str, Any]:
        return {"total": sum(v for k, v in state.items() if k.startswith("part-") and isinstance(v, int))}

    graph = StateGraph().add_node("split", split).add_node("work", work).add_node("total", total)
    graph.add_edge(START, "split").add_edge("split", "total")
    result = await graph.compile().arun({"base": 10})
    assert result.iterations == 2 and [task.superstep for task in result.tasks] == [1, 1, 1, 1, 1, 2]
    assert [task.status for task in result.sends] == ["completed", "completed", "failed", "completed"]
    assert result.sends[2].item == {"item": 2} and "two" in result.sends[2].error
    assert result.value["part-0"] == 10 and result.value["part-3"] == 13 and result.value["total"] == 34
    assert result.value["part-2"]["item"] == {"item": 2} and "two" in result.value["part-2"]["error"]
    assert not result.success and "task 'part-2'" in str(result.error)


@pytest.mark.spec("PAT-50")
async def test_what_follows_a_sends_target_runs_once_for_all_of_them() -> None:
    graph = StateGraph(Log).add_node("split", lambda state: [Send("work"), Send("work")]).add_node("work", writes("work"))
    graph.add_node("sum", writes("sum")).add_edge(START, "split").add_edge("work", "sum")
    assert (await graph.compile(max_concurrency=1).arun({})).value == {"log": ["work", "work", "sum"]}


async def test_two_tasks_of_one_superstep_need_different_ids() -> None:
    split = {"log": "x"}
    graph = StateGraph(Log).add_node("work", lambda state: split)
    for name in ("a", "b"):
        graph.add_node(name, lambda state: [Send("work", id="same")]).add_edge(START, name)
    result = await graph.compile().arun({})
    assert isinstance(result.error, GraphError) and "have the id 'same'" in str(result.error)


async def test_sends_that_lead_back_to_themselves_end() -> None:
    graph = StateGraph().add_node("a", lambda state: [Send("a")]).add_edge(START, "a").compile(max_iterations=5)
    result = await graph.arun({})
    assert not result.success and "lead back to it" in str(result.error)
    lost = StateGraph().add_node("a", lambda state: [Send("x")]).add_edge(START, "a").compile()
    assert "sends to 'x', which is no node" in str((await lost.arun({})).error)


@pytest.mark.spec("PAT-51")
async def test_a_command_may_send_and_go_on() -> None:
    async def split(state: Any) -> Command:
        return Command(update={"log": "split"}, goto=[Send("work", {"n": 1}), "after", Send("work", {"n": 2})])

    graph = StateGraph(Log).add_node("split", split).add_node("work", lambda state: {"log": f"work {state['n']}"})
    graph.add_node("after", writes("after")).add_edge(START, "split")
    assert (await graph.compile().arun({})).value == {"log": ["split", "work 1", "work 2", "after"]}


@pytest.mark.spec("OURS-24")
async def test_agents_as_nodes() -> None:
    graph = (
        StateGraph()
        .add_node("writer", Agent(ScriptedModel([text("a draft")])))
        .add_node("critic", Agent(ScriptedModel([text("fine")])), input="writer", output="review")
        .add_node("joint", Agent(ScriptedModel([text("both")])), input=lambda s: f"{s['writer']} {s['review']}")
        .add_edge(START, "writer")
        .add_edge("writer", "critic")
        .add_edge("critic", "joint")
        .compile()
    )
    result = await graph.arun("write")
    assert result.value == {"task": "write", "writer": "a draft", "review": "fine", "joint": "both"}
    assert result.metrics.model_calls == 3 and [m.member for m in result.members] == ["writer", "critic", "joint"]
    empty = await graph.arun({})
    assert not empty.success and "has nothing to ask" in str(empty.error)


async def test_an_agents_answer_becomes_a_message_where_the_state_has_only_these() -> None:
    class Chat(TypedDict, total=False):
        messages: Annotated[list[dict[str, Any]], append]

    graph = StateGraph(Chat).add_node("bot", Agent(ScriptedModel([text("hello")]))).add_edge(START, "bot").compile()
    result = await graph.arun("hi")
    assert result.value == {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    assert result.final_output == "hello"


@pytest.mark.spec("PAT-63")
async def test_sync_calls_work_where_a_loop_runs() -> None:
    graph = chain((START, "a"), nodes="a").compile()
    assert graph.invoke({}).value == graph.run_sync({}).value == {"log": ["a"]}
    assert (await graph.ainvoke({})).success
