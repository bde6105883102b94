"""What is left of a graph when its process dies, and what goes on from there."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from umbel import Agent, Runtime, ToolContext
from umbel.patterns.graph import START, NodeRetry, Send, StateGraph, emit, interrupt
from umbel.patterns.graph.compiled import CompiledGraph
from umbel.reducers import append
from umbel.testing import ScriptedModel, text

from ...cases.killing import kill, until


class Log(TypedDict, total=False):
    log: Annotated[list[str], append]


class Site:
    """A folder in which nodes leave what they did, and where some of them wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def node(self, name: str, *, waits: bool = False) -> Any:
        folder = self.folder

        async def body(state: Log) -> dict[str, Any]:
            with (folder / "ran").open("a") as file:
                file.write(f"{name} ")
            if waits:
                (folder / f"{name} waits").touch()
                while not (folder / "open").exists():
                    await asyncio.sleep(0.005)
            return {"log": name}

        return body

    @property
    def ran(self) -> list[str]:
        return (self.folder / "ran").read_text().split()

    def graph(self, url: str, **options: Any) -> CompiledGraph:
        """``a``, then ``b`` and ``c`` side by side, ``c`` waits, then ``d``."""
        made = StateGraph(Log).add_node("a", self.node("a")).add_node("b", self.node("b"))
        made.add_node("c", self.node("c", waits=True), **options).add_node("d", self.node("d"))
        made.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge(["b", "c"], "d")
        return made.compile(checkpointer=url)


async def crashed(site: Site, graph: CompiledGraph, folder: Path) -> str:
    """Run until ``c`` waits and ``b`` is stored; URL of what a process that died then would have left in its store."""
    async with Runtime(inline=True) as runtime:
        running = asyncio.ensure_future(graph.arun({"log": "in"}, thread_id="t", runtime=runtime))
        await until((site.folder / "c waits").exists)
        await until_stored(graph, runtime, "b")
        with sqlite3.connect(folder / "t.db") as store, sqlite3.connect(folder / "left.db") as left:
            store.backup(left)
            left.execute("UPDATE umbel_threads SET owner = NULL")  # its lease would end by itself
        store.close()
        left.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return f"sqlite:///{folder}/left.db"


async def until_stored(graph: CompiledGraph, runtime: Runtime, node: str) -> None:
    async with asyncio.timeout(20):
        while True:
            messages = (await graph.threads_in(runtime).get_state("t")).messages
            if any(message.name == node for message in messages):
                return
            await asyncio.sleep(0.005)


@pytest.mark.spec("PAT-58", "OURS-28", "OURS-24")
async def test_a_crash_resumes_at_the_last_superstep_and_repeats_nothing_that_is_finished(tmp_path: Path) -> None:
    site = Site(tmp_path)
    left = await crashed(site, site.graph(f"sqlite:///{tmp_path}/t.db"), tmp_path)
    assert site.ran == ["a", "b", "c"]
    (tmp_path / "open").touch()
    async with Runtime(inline=True) as runtime:
        graph = site.graph(left)
        state = await graph.get_state("t", runtime=runtime)
        assert state.values == {"log": ["in", "a"]} and state.next == ("b", "c") and state.step == 1
        result = await graph.continue_turn("t", runtime=runtime)
    assert result.success and result.value == {"log": ["in", "a", "b", "c", "d"]}
    assert site.ran == ["a", "b", "c", "c", "d"], "only what was under way is run again"


def test_only_a_node_that_may_be_repeated_is_repeated_when_its_executor_dies() -> None:
    tools = Site(Path()).graph("memory://", idempotent=False).tools_by_name
    assert {name: tool.idempotent for name, tool in tools.items()} == {"a": True, "b": True, "c": False, "d": True}


@pytest.mark.spec("PAT-58", "OURS-28")
async def test_a_node_that_must_not_run_twice_fails_with_an_unknown_outcome(tmp_path: Path) -> None:
    site = Site(tmp_path)
    left = await crashed(site, site.graph(f"sqlite:///{tmp_path}/t.db", idempotent=False), tmp_path)
    (tmp_path / "open").touch()
    async with Runtime(inline=True) as runtime:
        result = await site.graph(left, idempotent=False).continue_turn("t", runtime=runtime)
    assert not result.success and site.ran == ["a", "b", "c"]
    assert "the process stopped while it ran" in result.nodes["c"].error and result.nodes["d"].status == "skipped"
    assert result.value == {"log": ["in", "a", "b"]}


@pytest.mark.spec("PAT-58", "OURS-28", "OURS-22", "PAT-59")
async def test_whatever_is_stored_the_run_comes_to_the_same_end_and_repeats_nothing_that_is(tmp_path: Path) -> None:
    """Each checkpoint of a run is what a crash behind it leaves: a fork of each is run to its end."""
    ran: list[str] = []
    graph = rich(ran, f"sqlite:///{tmp_path}/t.db")
    async with Runtime(inline=True) as runtime:
        whole = await graph.arun({"n": 3}, thread_id="t", runtime=runtime)
        assert whole.success, whole.error
        threads = graph.threads_in(runtime)
        left = [info for info in await threads.history("t", 1_000) if not info.metadata["finished"]]
        assert len(left) > 12
        total = list(ran)
        for index, info in enumerate(left):
            fork = await graph.fork("t", f"fork-{index}", checkpoint_id=info.checkpoint_id, runtime=runtime)
            messages = (await threads.get_state(fork)).messages
            stored = {message.metadata["step"]["key"] for message in messages if "step" in message.metadata}
            ran.clear()
            result = await graph.continue_turn(fork, runtime=runtime)
            assert result.success and result.value == whole.value, (index, result.error)
            assert result.execution_order == whole.execution_order
            followed = {"2/flaky": "2/flaky.try2", "2/broken": "2/broken.handler"}
            allowed = {failed for failed, after in followed.items() if after not in stored}
            assert {key for key in ran if key in stored} <= allowed, "only a failed attempt that nothing followed is made again"
            missing = {key for key in total if key not in stored and key not in ("1/x", "2/y")}
            assert missing <= set(ran), "the others are"


def rich(ran: list[str], url: str) -> CompiledGraph:
    """Retries, a handler, sends, a join, a router, a graph inside, a deferred node."""

    def tracked(name: str) -> Any:
        async def body(state: Any, ctx: ToolContext) -> dict[str, Any]:
            ran.append(ctx.tool_call_id)
            if name == "flaky" and ctx.tool_call_id.endswith("flaky"):
                raise LookupError("the first time")
            if name == "broken":
                raise LookupError("always")
            return {"log": f"{name}{state.get('i', '')}"}

        return body

    async def split(state: Any, ctx: ToolContext) -> list[Send]:
        ran.append(ctx.tool_call_id)
        return [Send("work", {"i": i}) for i in range(state["n"])]

    class State(TypedDict, total=False):
        log: Annotated[list[str], append]
        n: int
        i: int

    inner = StateGraph(State).add_node("x", tracked("x")).add_node("y", tracked("y")).add_edge(START, "x").add_edge("x", "y")
    made = StateGraph(State).add_node("split", split).add_node("inner", inner).add_node("join", tracked("join"))
    made.add_node("flaky", tracked("flaky"), retry=NodeRetry(initial_seconds=0)).add_node("last", tracked("last"), defer=True)
    made.add_node("broken", tracked("broken"), on_error=lambda failure: {"log": f"instead of {failure.node}"})
    for name in ("work", "left", "right"):
        made.add_node(name, tracked(name))
    made.add_edge(START, "split").add_edge(START, "last").add_edge("work", "flaky").add_edge("work", "inner")
    made.add_edge("work", "broken").add_edge(["flaky", "inner", "broken"], "join")
    made.add_conditional_edges("join", lambda state: "left" if len(state["log"]) % 2 else "right", ["left", "right"])
    return made.compile(checkpointer=url)


@pytest.mark.spec("OURS-5", "OURS-28", "PAT-58")
async def test_a_cancelled_run_can_be_gone_on_with(tmp_path: Path) -> None:
    site = Site(tmp_path)
    graph = site.graph(f"sqlite:///{tmp_path}/t.db")
    async with Runtime(inline=True) as runtime:
        running = asyncio.ensure_future(graph.arun({}, thread_id="t", runtime=runtime))
        await until((tmp_path / "c waits").exists)
        graph.cancel("t")
        assert (await running).stop_reason == "cancelled"
        (tmp_path / "open").touch()
        result = await graph.continue_turn("t", runtime=runtime)
    assert result.success and result.value == {"log": ["a", "b", "c", "d"]} and site.ran == ["a", "b", "c", "c", "d"]


@pytest.mark.ray
@pytest.mark.spec("PAT-58", "OURS-28", "OURS-24")
async def test_a_killed_supervisor_is_followed_by_one_that_goes_on(fragile_runtime: Runtime, tmp_path: Path) -> None:
    site = Site(tmp_path)
    graph = site.graph(f"sqlite:///{tmp_path}/t.db")
    running = asyncio.ensure_future(graph.arun({"log": "in"}, thread_id="t", runtime=fragile_runtime))
    await until((tmp_path / "c waits").exists)
    await until_stored(graph, fragile_runtime, "b")
    kill(fragile_runtime, "supervisor")
    (tmp_path / "open").touch()
    async with asyncio.timeout(60):
        result = await running
    assert result.success and result.value == {"log": ["in", "a", "b", "c", "d"]}
    assert site.ran.count("a") == site.ran.count("b") == site.ran.count("d") == 1


@pytest.mark.spec("OURS-28", "PAT-52", "PAT-49", "OURS-24")
async def test_sync_nodes_sends_agents_and_pauses(runtime: Runtime, tmp_path: Path) -> None:
    def work(state: Any) -> dict[str, Any]:
        emit(state["i"])
        if state["i"] == 2:
            return {"log": f"{state['i']} {interrupt('two?')}"}
        return {"log": str(state["i"])}

    made = StateGraph(None, reducers={"log": "append"}).add_node("split", lambda s: [Send("work", {"i": i}) for i in range(4)])
    made.add_node("work", work).add_node("bot", Agent(ScriptedModel([text("said")])))
    made.add_edge(START, "split").add_edge("work", "bot")
    graph = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
    told = [piece async for piece in graph.astream("go", mode=["custom", "values"], thread_id="t")]
    assert sorted(data for mode, data in told if mode == "custom") == [0, 1, 2, 3]
    assert [data for mode, data in told if mode == "values"] == [{"task": "go"}]
    assert [asked["question"] for asked in await graph.pending_interrupts_of("t")] == ["two?"]
    result = await graph.aresume("yes", thread_id="t")
    assert result.success, result.error
    assert result.value == {"task": "go", "log": ["0", "1", "2 yes", "3"], "bot": "said"}
