"""Graphs in graphs: what goes in and comes out, pauses, failures, commands to the parent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from umbel import Agent
from umbel.errors import MemberFailed
from umbel.patterns.graph import END, PARENT, START, Command, Send, StateGraph, interrupt
from umbel.patterns.graph.compiled import CompiledGraph
from umbel.reducers import append
from umbel.testing import ScriptedModel, text

from .samples import Counted

pytestmark = pytest.mark.usefixtures("inline")


class Log(TypedDict, total=False):
    log: Annotated[list[str], append]
    n: int


def nested(depth: int, node: Any, **options: Any) -> CompiledGraph:
    """A graph whose only node is a graph whose only node ... is ``node``."""
    made = StateGraph(Log, name=f"level-{depth}").add_node("inner", node if depth == 0 else nested(depth - 1, node))
    made.add_node("beside", lambda state: {"log": f"beside {depth}"}).add_edge(START, "inner").add_edge("inner", "beside")
    return made.compile(**options)


@pytest.mark.spec("PAT-60", "OURS-28")
async def test_what_a_graph_writes_is_written_once_in_its_parent() -> None:
    inner = (
        StateGraph(Log)
        .add_node("x", lambda s: {"log": f"x{len(s['log'])}", "n": s["n"] + 1})
        .add_node("y", lambda s: {"log": "y"})
    )
    inner.add_edge(START, "x").add_edge("x", "y")

    class Outer(TypedDict, total=False):
        log: Annotated[list[str], append]
        n: int
        other: str

    outer = StateGraph(Outer).add_node("a", lambda s: {"log": "a", "other": "kept"}).add_node("inner", inner)
    outer.add_node("b", lambda s: {"log": "b"}).add_edge(START, "a").add_edge("a", "inner").add_edge("inner", "b")
    result = await outer.compile().arun({"log": "in", "n": 1})
    assert result.value == {"log": ["in", "a", "x2", "y", "b"], "n": 2, "other": "kept"}
    assert result.nodes["inner"].output == {"log": "y", "n": 2}


@pytest.mark.spec("PAT-60")
async def test_what_only_the_inner_graph_knows_stays_inside() -> None:
    inner = StateGraph().add_node("x", lambda s: {"n": 2, "private": 1}).add_edge(START, "x").compile()
    outer = StateGraph(Log).add_node("inner", inner).add_edge(START, "inner").compile()
    result = await outer.arun({"log": "in"})
    assert result.success and result.value == {"log": ["in"], "n": 2}


@pytest.mark.spec("PAT-60")
async def test_input_and_output_of_a_graph_may_be_mapped() -> None:
    inner = StateGraph().add_node("double", lambda s: {"answer": s["number"] * 2}).add_edge(START, "double").compile()
    outer = StateGraph().add_node("one", inner, input=lambda s: {"number": s["n"]}, output="all")
    outer.add_node("two", inner, input="all", output=lambda result: {"last": result.value["answer"]})
    outer.add_edge(START, "one").add_edge("one", "two")
    assert (await outer.compile().arun({"n": 4})).value == {"n": 4, "all": {"number": 4, "answer": 8}, "last": 8}


@pytest.mark.spec("PAT-60", "OURS-28", "OURS-24", "BUG-59")
async def test_three_graphs_deep_a_node_fails_and_every_graph_says_so() -> None:
    def fails(state: Log) -> None:
        raise LookupError("deep down")

    result = await nested(3, fails).arun({})
    assert not result.success and isinstance(result.error, MemberFailed)
    assert "deep down" in str(result.error) and result.nodes["beside"].status == "skipped"
    assert result.value == {}


@pytest.mark.spec("PAT-60", "OURS-28", "OURS-3", "OURS-24", "BUG-59")
@pytest.mark.parametrize("stored", [False, True])
async def test_three_graphs_deep_a_node_asks_twice_and_gets_its_answers(tmp_path: Path, stored: bool) -> None:
    options: dict[str, Any] = {"checkpointer": f"sqlite:///{tmp_path}/t.db"} if stored else {}
    thread: dict[str, Any] = {"thread_id": "t"} if stored else {}
    made = nested(3, lambda state: {"log": f"{interrupt('one?')} {interrupt('two?')}"}, **options)
    paused = await made.arun({"log": "in"}, **thread)
    assert paused.stop_reason == "interrupted" and [asked["question"] for asked in paused.interrupts] == ["one?"]
    assert paused.nodes["inner"].status == "interrupted"
    again = await made.arun(Command(resume="a"))
    assert [asked["question"] for asked in again.interrupts] == ["two?"]
    done = await made.arun(Command(resume="b"))
    assert done.success and done.value == {"log": ["in", "a b", *(f"beside {depth}" for depth in range(4))]}
    assert all(not key.startswith("_") for key in done.value), "nothing of the pause leaks into the state"


@pytest.mark.spec("OURS-24", "OURS-5")
async def test_three_graphs_deep_a_node_is_cancelled() -> None:
    started = asyncio.Event()
    ended: list[str] = []

    async def waits(state: Log) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("stopped")

    made = nested(3, waits)
    running = asyncio.ensure_future(made.arun({}))
    await started.wait()
    assert made.cancel() == 1
    result = await running
    assert not result.success and result.stop_reason == "cancelled" and ended == ["stopped"]


@pytest.mark.spec("OURS-24", "PAT-46")
async def test_three_graphs_deep_a_node_is_too_slow() -> None:
    async def waits(state: Log) -> None:
        await asyncio.sleep(60)

    inner = StateGraph(Log).add_node("slow", waits, timeout=0.02).add_edge(START, "slow").compile()
    made = StateGraph(Log).add_node("inner", nested(1, inner)).add_edge(START, "inner").compile()
    result = await made.arun({})
    assert not result.success and "did not finish within 0.02 s" in str(result.error)
    outer = StateGraph(Log).add_node("inner", nested(1, waits), timeout=0.05).add_edge(START, "inner").compile()
    result = await outer.arun({})
    assert not result.success and result.nodes["inner"].error == "stopped: time_budget"


@pytest.mark.spec("PAT-51", "PAT-60", "OURS-28")
async def test_a_command_to_the_parent_goes_there() -> None:
    async def leave(state: Log) -> Command:
        return Command(update={"log": "from below"}, goto="rescue", graph=PARENT)

    inner = StateGraph(Log).add_node("leave", leave).add_node("never", lambda s: {"log": "never"})
    inner.add_edge(START, "leave").add_edge("leave", "never")
    outer = StateGraph(Log).add_node("inner", inner).add_node("usual", lambda s: {"log": "usual"})
    outer.add_node("rescue", lambda s: {"log": "rescue"}).add_edge(START, "inner").add_edge("inner", "usual")
    result = await outer.compile().arun({"log": "in"})
    assert result.success and result.value == {"log": ["in", "from below", "rescue"]}


@pytest.mark.spec("PAT-49", "OURS-24")
async def test_graphs_and_agents_can_be_sent_to() -> None:
    inner = StateGraph(Log).add_node("x", lambda s: {"log": f"x{s['n']}"}).add_edge(START, "x").compile()
    outer = StateGraph(None, reducers={"log": append}).add_node("inner", inner)
    outer.add_node("bot", Agent(ScriptedModel([text("said")])))
    sends = [Send("inner", {"n": 1}), Send("inner", {"n": 2}), Send("bot", {"question": "well?"}, id="answer")]
    outer.add_conditional_edges(START, lambda s: sends, ["inner", "bot"])
    result = await outer.compile().arun({})
    assert result.success, result.error
    assert result.value == {"log": ["x1", "x2"], "bot": "said", "answer": {"bot": "said"}}


@pytest.mark.spec("OURS-28", "PAT-60")
async def test_a_finished_graph_is_not_run_again_when_its_parent_resumes(tmp_path: Path) -> None:
    count = Counted()
    inner = StateGraph(Log).add_node("x", count("x")).add_edge(START, "x").compile()
    outer = StateGraph(Log).add_node("inner", inner).add_node("ask", lambda s: {"log": interrupt("?")})
    made = outer.add_edge(START, "inner").add_edge(START, "ask").compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
    await made.arun({}, thread_id="t")
    assert count.runs == ["x"]
    assert (await made.aresume("yes", thread_id="t")).value == {"log": ["x", "yes"]} and count.runs == ["x"]
    assert {thread.thread_id for thread in await made.list_threads()} >= {"t"}


async def test_a_graph_is_a_tool() -> None:
    from umbel.testing import tool_call

    shout = (
        StateGraph(name="shout").add_node("up", lambda s: s["task"].upper()).add_edge(START, "up").add_edge("up", END).compile()
    )
    agent = Agent(ScriptedModel([tool_call("shout", prompt="hey"), text("done")]), tools=[shout.as_tool()])
    result = await agent.arun("go")
    assert result.success and result.tool_executions[0].result == "HEY"


async def test_the_same_graph_serves_runs_at_once() -> None:
    made = nested(1, lambda state: {"log": f"n{state['n']}"})
    results = await asyncio.gather(*(made.arun({"n": n}) for n in range(20)))
    assert [result.value["log"][0] for result in results] == [f"n{n}" for n in range(20)]
