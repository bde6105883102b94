"""What is left of a graph when its process dies, and what goes on from there."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from umbel import Agent, Runtime
from umbel.patterns.graph import START, Send, StateGraph, interrupt
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
        return made.compile(checkpointer=url, lease_seconds=1)


async def crashed(site: Site, graph: CompiledGraph, folder: Path) -> str:
    """Run until ``c`` waits and ``b`` is stored; URL of what a process that died then would have left in its store."""
    async with Runtime(inline=True) as runtime:
        running = asyncio.ensure_future(graph.arun({"log": "in"}, thread_id="t", runtime=runtime))
        await until((site.folder / "c waits").exists)
        await until_stored(graph, runtime, "b")
        shutil.copytree(folder / "store", folder / "left")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return f"file:///{folder}/left"


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
    left = await crashed(site, site.graph(f"file:///{tmp_path}/store"), tmp_path)
    assert site.ran == ["a", "b", "c"]
    (tmp_path / "open").touch()
    async with Runtime(inline=True) as runtime:
        graph = site.graph(left)
        state = await graph.get_state("t", runtime=runtime)
        assert state.values == {"log": ["in", "a"]} and state.next == ("b", "c") and state.step == 1
        result = await graph.continue_turn("t", runtime=runtime)
    assert result.success and result.value == {"log": ["in", "a", "b", "c", "d"]}
    assert site.ran == ["a", "b", "c", "c", "d"], "only what was under way is run again"


@pytest.mark.spec("PAT-58", "OURS-28")
async def test_a_node_that_must_not_run_twice_fails_with_an_unknown_outcome(tmp_path: Path) -> None:
    site = Site(tmp_path)
    left = await crashed(site, site.graph(f"file:///{tmp_path}/store", idempotent=False), tmp_path)
    (tmp_path / "open").touch()
    async with Runtime(inline=True) as runtime:
        result = await site.graph(left, idempotent=False).continue_turn("t", runtime=runtime)
    assert not result.success and site.ran == ["a", "b", "c"]
    assert "the process stopped while it ran" in result.nodes["c"].error and result.nodes["d"].status == "skipped"
    assert result.value == {"log": ["in", "a", "b"]}


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
        if state["i"] == 2:
            return {"log": f"{state['i']} {interrupt('two?')}"}
        return {"log": str(state["i"])}

    made = StateGraph(None, reducers={"log": "append"}).add_node("split", lambda s: [Send("work", {"i": i}) for i in range(4)])
    made.add_node("work", work).add_node("bot", Agent(ScriptedModel([text("said")])))
    made.add_edge(START, "split").add_edge("work", "bot")
    graph = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
    paused = await graph.arun("go", thread_id="t")
    assert [asked["question"] for asked in paused.interrupts] == ["two?"]
    result = await graph.aresume("yes", thread_id="t")
    assert result.success, result.error
    assert result.value == {"task": "go", "log": ["0", "1", "2 yes", "3"], "bot": "said"}
