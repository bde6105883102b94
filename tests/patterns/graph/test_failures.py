"""Nodes that fail, take too long, are tried again or replaced; runs that come to no good end."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent
from umbel.errors import (
    CapReached,
    ConfigurationError,
    MemberFailed,
    NothingRan,
    RunFailed,
)
from umbel.patterns.graph import END, START, NodeFailure, NodeRetry, Send, StateGraph
from umbel.testing import ScriptedModel

from .samples import Log, chain, fails

pytestmark = pytest.mark.usefixtures("inline")


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


@pytest.mark.spec("OURS-25")
async def test_an_agents_bad_end_is_a_failure_of_its_node() -> None:
    from umbel.testing import tool_call

    agent = Agent(ScriptedModel([tool_call("nothing"), tool_call("nothing")]), max_iterations=1)
    result = await StateGraph().add_node("bot", agent).add_edge(START, "bot").compile().arun("go")
    assert not result.success and "node 'bot': stopped: max_iterations" in str(result.error)
