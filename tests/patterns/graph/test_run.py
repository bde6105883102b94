"""How a graph runs: supersteps, routes, joins, failures, ends."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel

from umbel import Agent
from umbel.errors import (
    CapReached,
    ConfigurationError,
    ConflictingWrites,
    GraphError,
    InvalidUpdate,
    MemberFailed,
    NothingRan,
    RunFailed,
)
from umbel.patterns.graph import END, START, Command, NodeFailure, NodeRetry, Send, StateGraph
from umbel.reducers import append
from umbel.testing import ScriptedModel, text

pytestmark = pytest.mark.usefixtures("inline")


class Log(TypedDict, total=False):
    log: Annotated[list[str], append]
    n: int


def writes(name: str) -> Any:
    async def node(state: Log) -> dict[str, Any]:
        return {"log": name}

    return node


def fails(state: Any) -> None:
    raise LookupError("broken")


def chain(*edges: tuple[Any, str], nodes: str = "abcd", **options: Any) -> StateGraph:
    made = StateGraph(Log, **options)
    for name in nodes:
        made.add_node(name, writes(name))
    for source, target in edges:
        made.add_edge(source, target)
    return made


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


class Shape(BaseModel):
    n: int = 0
    name: str = "x"


@pytest.mark.spec("PAT-36", "PAT-38")
async def test_what_a_node_may_return() -> None:
    async def last(state: Any) -> Any:
        return [1, 2]

    graph = (
        StateGraph()
        .add_node("mapping", lambda state: {"a": 1})
        .add_node("model", lambda state: Shape(n=3))
        .add_node("nothing", lambda state: None)
        .add_node("other", last)
        .add_edge(START, "mapping")
        .add_edge("mapping", "model")
        .add_edge("model", "nothing")
        .add_edge("nothing", "other")
        .compile()
    )
    result = await graph.arun({})
    assert result.value == {"a": 1, "n": 3, "result": [1, 2]}
    assert result.nodes["other"].output == [1, 2] and result.nodes["nothing"].output is None
    typed = StateGraph(Shape).add_node("a", lambda state: state.model_copy(update={"n": state.n + 1})).add_edge(START, "a")
    result = await typed.compile().arun(Shape(name="y"))
    assert result.state_values == Shape(n=1, name="y")

    def careless(state: Shape) -> Shape:
        state.n += 1
        return state

    result = await StateGraph(Shape).add_node("a", careless).add_edge(START, "a").compile().arun({"n": 4})
    assert result.value == {"n": 5, "name": "x"}


@pytest.mark.spec("PAT-38")
async def test_schemas_of_what_goes_in_and_what_comes_out() -> None:
    class In(TypedDict):
        n: int

    class Out(TypedDict):
        log: list[str]

    graph = StateGraph(Log, input_schema=In, output_schema=Out).add_node("a", writes("a")).add_edge(START, "a").compile()
    assert (await graph.arun({"n": 3})).value == {"log": ["a"]}
    with pytest.raises(InvalidUpdate, match="'log', which is no key of In"):
        await graph.arun({"log": ["x"]})
    with pytest.raises(InvalidUpdate, match="the input wrote 'n'"):
        await graph.arun({"n": "many"})
    with pytest.raises(ConfigurationError, match="takes a mapping, its schema or a text, not int"):
        await graph.arun(3)
    needs = StateGraph(Needs).add_node("a", lambda state: None).add_edge(START, "a").compile()
    refused = await needs.arun({})
    assert not refused.success and isinstance(refused.error, InvalidUpdate) and "lacks name" in str(refused.error)
    bad = StateGraph(Shape).add_node("a", lambda state: {"n": "many"}).add_edge(START, "a").compile()
    result = await bad.arun({})
    assert not result.success and "node 'a' wrote 'n'" in str(result.error) and result.value == {"n": 0, "name": "x"}


class Needs(BaseModel):
    name: str


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


@pytest.mark.spec("PAT-41", "OURS-25")
async def test_a_failed_node_stops_its_successors_and_no_others() -> None:
    graph = chain((START, "a"), (START, "b"), ("x", "c"), ("c", "d"), ("b", "e"), (["c", "e"], "f"), nodes="abcdef")
    graph.add_node("x", fails).add_edge("a", "x")
    result = await graph.compile().arun({})
    assert not result.success and result.stop_reason == "error"
    assert isinstance(result.error, MemberFailed) and "node 'x': " in str(result.error) and "broken" in str(result.error)
    assert result.error.details["nodes"] == ["x"]
    assert {name: node.status for name, node in result.nodes.items()} == {
        "a": "completed",
        "b": "completed",
        "c": "skipped",
        "d": "skipped",
        "e": "completed",
        "f": "skipped",
        "x": "failed",
    }
    assert "LookupError: broken" in result.nodes["x"].error and result.value == {"log": ["a", "b", "e"]}


@pytest.mark.spec("PAT-41", "OURS-25")
async def test_a_graph_may_go_on_without_a_failed_node() -> None:
    graph = chain((START, "a"), (START, "x"), (["a", "x"], "b"), nodes="ab").add_node("x", fails)
    result = await graph.compile(on_error="continue").arun({})
    assert result.success and result.value == {"log": ["a", "b"]} and result.nodes["x"].status == "failed"
    alone = await chain((START, "x"), nodes="").add_node("x", fails).compile(on_error="continue").arun({})
    assert not alone.success and "broken" in str(alone.error)


@pytest.mark.spec("PAT-41")
async def test_the_error_names_failed_nodes_in_task_order() -> None:
    graph = chain((START, "a"), nodes="a").add_node("x", fails).add_node("y", fails).add_node("z", fails)
    result = await graph.add_edge(START, "x").add_edge(START, "y").add_edge("a", "z").compile().arun({})
    assert [part[:9] for part in str(result.error).split("; ")] == ["node 'x':", "node 'y':", "node 'z':"]


@pytest.mark.spec("PAT-31", "PAT-46")
async def test_a_sync_node_is_really_stopped_when_its_time_is_over(tmp_path: Path) -> None:
    def slow(state: Any) -> None:
        time.sleep(1.0)
        (tmp_path / "late").touch()

    graph = (
        StateGraph().add_node("slow", slow, timeout=0.05).add_node("own", lambda s: {"pid": os.getpid()}, isolation="process")
    )
    result = await graph.add_edge(START, "slow").add_edge(START, "own").compile().arun({})
    assert "did not finish within 0.05 s" in result.nodes["slow"].error and result.value["pid"] != os.getpid()
    assert not (tmp_path / "late").exists()
    with pytest.raises(ConfigurationError, match="are for functions"):
        graph.add_node("bot", Agent(ScriptedModel([])), isolation="process")


@pytest.mark.spec("PAT-40")
async def test_what_a_router_raises_is_raised() -> None:
    graph = chain((START, "a"), nodes="a").add_conditional_edges("a", fails, ["a", END]).compile()
    with pytest.raises(RunFailed, match="LookupError: broken"):
        await graph.arun({})


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


@pytest.mark.spec("OURS-28", "OURS-25")
async def test_a_join_that_is_never_complete_is_no_success() -> None:
    graph = chain((["b", "c"], "d"), (START, "a")).add_conditional_edges("a", lambda state: "b", ["b", "c"]).compile()
    result = await graph.arun({})
    assert not result.success and "'d' waits for c" in str(result.error)


@pytest.mark.spec("PAT-45", "PAT-30", "OURS-25")
async def test_the_cap_is_a_failure_that_says_so() -> None:
    graph = chain((START, "a"), ("a", "b"), ("b", "a"), nodes="ab", allow_cycles=True)
    result = await graph.compile(max_iterations=5).arun({})
    assert not result.success and result.stop_reason == "max_iterations" and result.iterations == 5
    assert isinstance(result.error, CapReached) and result.error.details["limit"] == 5
    assert result.value == {"log": ["a", "b", "a", "b", "a"]}, "what was done is kept"
    default = await graph.compile().arun({})
    assert default.iterations == 100
    with pytest.raises(ConfigurationError, match="max_iterations"):
        graph.compile(max_iterations=0)


@pytest.mark.spec("PAT-47", "OURS-25")
async def test_when_nothing_ran_it_is_no_success() -> None:
    graph = chain(nodes="a").add_conditional_edges(START, lambda state: END, ["a", END]).compile()
    result = await graph.arun({})
    assert not result.success and isinstance(result.error, NothingRan)
    skipped = chain((START, "x"), nodes="").add_node("x", fails, condition=lambda state: False).compile()
    assert isinstance((await skipped.arun({})).error, NothingRan)


@pytest.mark.case(20)
@pytest.mark.spec("PAT-37", "OURS-28")
async def test_two_writers_of_one_key_are_an_error_that_names_both_whoever_is_first() -> None:
    for first in ("left", "right"):
        gate = asyncio.Event()
        graph = StateGraph()
        for name in ("left", "right"):
            graph.add_node(name, gated(name, first, gate)).add_edge(START, name)
        result = await graph.compile().arun({"x": "before"})
        assert not result.success and isinstance(result.error, ConflictingWrites)
        assert result.error.details == {"key": "x", "writers": ["node 'left'", "node 'right'"]}
        assert result.value == {"x": "before"}


def gated(name: str, first: str, gate: asyncio.Event) -> Any:
    async def node(state: Any) -> dict[str, Any]:
        if name == first:
            gate.set()
        else:
            await gate.wait()
        return {"x": name}

    return node


class Shuffle:
    """Lets tasks end in the order of a seed: each waits until those before it have ended."""

    def __init__(self, names: list[str], seed: int) -> None:
        self.order = random.Random(seed).sample(names, len(names))
        self.ended: list[str] = []
        self.gates = {name: asyncio.Event() for name in names}
        self.gates[self.order[0]].set()

    async def turn(self, name: str) -> None:
        await self.gates[name].wait()
        self.ended.append(name)
        following = len(self.ended)
        if following < len(self.order):
            self.gates[self.order[following]].set()


@pytest.mark.case(20, 21)
@pytest.mark.spec("OURS-28", "PAT-35")
async def test_reducers_see_writes_in_task_order_whatever_the_order_of_completion() -> None:
    names = [f"n{i}" for i in range(6)]
    orders: set[tuple[str, ...]] = set()
    shuffle: Shuffle

    def node(name: str) -> Any:
        async def body(state: Any) -> dict[str, Any]:
            await shuffle.turn(name)
            return {"log": [name, "same"]}

        return body

    made = StateGraph(Log)
    for name in names:
        made.add_node(name, node(name)).add_edge(START, name)
    graph = made.compile()
    expected = [part for name in names for part in (name, "same")]
    for seed in range(200):
        shuffle = Shuffle(names, seed)
        result = await graph.arun({})
        assert result.value == {"log": expected} and shuffle.ended == shuffle.order
        orders.add(tuple(shuffle.ended))
    assert len(orders) > 100


@pytest.mark.case(21)
@pytest.mark.spec("OURS-28")
async def test_ten_workers_with_a_duplicate_keep_their_order_and_a_failed_reducer_the_state() -> None:
    def strict(current: list[int], write: list[int]) -> list[int]:
        if set(current) & set(write):
            raise ValueError(f"duplicate {write}")
        return current + write

    async def worker(state: Any) -> dict[str, Any]:
        return {"found": [state["item"]]}

    def graph(reduce: Any, items: list[int]) -> Any:
        made = StateGraph(None, reducers={"found": reduce}).add_node("work", worker)
        made.add_conditional_edges(START, lambda state: [Send("work", {"item": item}) for item in items], ["work"])
        return made.compile()

    items = [0, 1, 2, 3, 4, 5, 6, 3, 8, 9]
    assert (await graph("append_unique", items).arun({"found": []})).value == {"found": [0, 1, 2, 3, 4, 5, 6, 8, 9]}
    result = await graph(strict, items).arun({"found": [77]})
    assert not result.success and "strict of 'found' failed" in str(result.error) and "work:8" in str(result.error)
    assert result.value == {"found": [77]}


@pytest.mark.spec("PAT-46", "PAT-31")
async def test_a_timeout_is_the_nodes_and_is_tried_again_only_if_told() -> None:
    tries: list[str] = []

    async def slow(state: Any) -> None:
        tries.append("slow")
        await asyncio.sleep(60)

    async def own(state: Any) -> None:
        tries.append("own")
        raise TimeoutError("upstream")

    policy = NodeRetry(max_attempts=2, initial_seconds=0)
    graph = StateGraph().add_node("slow", slow, timeout=0.02, retry=policy).add_node("own", own, retry=policy)
    result = await graph.add_edge(START, "slow").add_edge(START, "own").compile().arun({})
    assert sorted(tries) == ["own", "own", "slow"]
    assert "did not finish within" in result.nodes["slow"].error and "TimeoutError: upstream" in result.nodes["own"].error
    told = NodeRetry(max_attempts=2, initial_seconds=0, timeouts=True)
    tries.clear()
    await StateGraph().add_node("slow", slow, timeout=0.02, retry=told).add_edge(START, "slow").compile().arun({})
    assert tries == ["slow", "slow"]


@pytest.mark.spec("PAT-31")
async def test_attempts_are_counted_and_chosen_by_kind() -> None:
    tries: list[int] = []

    async def third(state: Any) -> dict[str, Any]:
        tries.append(1)
        if len(tries) < 3:
            raise LookupError("not yet")
        return {"x": len(tries)}

    policy = NodeRetry(initial_seconds=0)
    graph = StateGraph().add_node("a", third, retry=policy).add_edge(START, "a").compile()
    result = await graph.arun({})
    assert result.value == {"x": 3} and result.nodes["a"].attempts == 3
    for on, expected in ((("LookupError",), 3), (("KeyError", "rate_limit"), 1)):
        tries.clear()
        policy = NodeRetry(initial_seconds=0, on=on)
        await StateGraph().add_node("a", third, retry=policy).add_edge(START, "a").compile().arun({})
        assert len(tries) == expected


@pytest.mark.spec("PAT-31")
def test_the_pauses_between_attempts() -> None:
    policy = NodeRetry()
    assert policy.max_attempts == 3
    assert [policy.pause(n, 0.0) for n in (1, 2, 3, 10)] == [1.0, 2.0, 4.0, 60.0]
    assert [policy.pause(n, 1.0) for n in (1, 2)] == [0.5, 1.0]


@pytest.mark.case(22)
@pytest.mark.spec("PAT-50", "OURS-28")
@pytest.mark.parametrize("consumed", ["arun", "run_sync", "astream"])
async def test_a_handled_error_is_over_in_every_way_of_consuming(consumed: str) -> None:
    handled: list[NodeFailure] = []

    async def work(state: Any) -> dict[str, Any]:
        if state["item"] == 3:
            raise LookupError("three")
        return {"log": [str(state["item"])]}

    def degrade(state: Any, failure: NodeFailure) -> dict[str, Any]:
        handled.append(failure)
        return {"log": [f"degraded {(failure.item or {})['item']}"]}

    graph = StateGraph(Log).add_node("work", work, on_error=degrade).add_node("sum", lambda state: {"n": len(state["log"])})
    graph.add_conditional_edges(START, lambda state: [Send("work", {"item": i}) for i in range(1, 6)], ["work"])
    made = graph.add_edge("work", "sum").compile()
    if consumed == "arun":
        value = (await made.arun({})).value
    elif consumed == "run_sync":
        result = await asyncio.to_thread(made.run_sync, {})
        assert result.success and result.error is None and result.nodes["sum"].status == "completed"
        assert [task.handled for task in result.sends] == [False, False, True, False, False]
        value = result.value
    else:
        value = [piece async for piece in made.astream({}, mode="values")][-1]
    assert value == {"log": ["1", "2", "degraded 3", "4", "5"], "n": 5}
    assert len(handled) == 1 and handled[0].error.code == "tool" and "three" in str(handled[0].error)


async def test_a_handler_may_fail_itself() -> None:
    def broken(failure: NodeFailure) -> None:
        raise ValueError(f"after {failure.node}")

    result = await StateGraph().add_node("a", fails, on_error=broken).add_edge(START, "a").compile().arun({})
    assert not result.success and "broken; then its handler:" in str(result.error) and "after a" in str(result.error)


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


@pytest.mark.spec("OURS-25")
async def test_an_agents_bad_end_is_a_failure_of_its_node() -> None:
    from umbel.testing import tool_call

    agent = Agent(ScriptedModel([tool_call("nothing"), tool_call("nothing")]), max_iterations=1)
    result = await StateGraph().add_node("bot", agent).add_edge(START, "bot").compile().arun("go")
    assert not result.success and "node 'bot': stopped: max_iterations" in str(result.error)


@pytest.mark.spec("PAT-63")
async def test_sync_calls_work_where_a_loop_runs() -> None:
    graph = chain((START, "a"), nodes="a").compile()
    assert graph.invoke({}).value == graph.run_sync({}).value == {"log": ["a"]}
    assert (await graph.ainvoke({})).success
