"""A graph's stream, mode by mode."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

import pytest

from umbel import Agent
from umbel.errors import ConfigurationError
from umbel.events import GraphStreamEvent, TerminateEvent
from umbel.patterns.graph import START, Command, Send, StateGraph, emit, interrupt
from umbel.reducers import append
from umbel.testing import ScriptedModel, text

pytestmark = pytest.mark.usefixtures("inline")


class Log(TypedDict, total=False):
    log: Annotated[list[str], append]


def made(**options: Any) -> Any:
    def first(state: Log) -> dict[str, Any]:
        emit({"half": 1})
        emit("way")
        return {"log": "a"}

    async def second(state: Log) -> dict[str, Any]:
        emit([2])
        return {"log": "b"}

    graph = StateGraph(Log).add_node("a", first).add_node("b", second).add_edge(START, "a").add_edge("a", "b")
    return graph.compile(**options)


async def pieces(graph: Any, mode: Any = None, prompt: Any = None) -> list[Any]:
    return [piece async for piece in graph.astream({} if prompt is None else prompt, mode=mode)]


@pytest.mark.spec("PAT-61", "PAT-30")
async def test_values_and_updates_and_nodes() -> None:
    graph = made()
    assert await pieces(graph) == [{}, {"log": ["a"]}, {"log": ["a", "b"]}]
    assert await pieces(graph, "updates") == [{"a": {"log": "a"}}, {"b": {"log": "b"}}]
    nodes = await pieces(graph, "nodes")
    assert [(node["node"], node["status"], node["output"]) for node in nodes] == [
        ("a", "completed", {"log": "a"}),
        ("b", "completed", {"log": "b"}),
    ]


@pytest.mark.spec("PAT-61", "PAT-62")
async def test_custom_is_what_nodes_emit() -> None:
    assert await pieces(made(), "custom") == [{"half": 1}, "way", [2]]
    assert emit({"nobody": "listens"}) is False
    assert (await made().arun({})).success


@pytest.mark.spec("PAT-61", "PAT-62")
async def test_several_modes_and_the_default_of_the_graph() -> None:
    both = await pieces(made(), ["updates", "custom"])
    assert [mode for mode, _ in both] == ["custom", "custom", "updates", "custom", "updates"]
    assert await pieces(made(stream_mode="updates")) == [{"a": {"log": "a"}}, {"b": {"log": "b"}}]
    assert [mode for mode, _ in await pieces(made(stream_mode=["values", "updates"]))][:2] == ["values", "updates"]
    wrongs: tuple[Any, ...] = ("everything", [])
    for wrong in wrongs:
        with pytest.raises(ConfigurationError, match="stream mode"):
            await pieces(made(), wrong)


@pytest.mark.spec("PAT-61")
async def test_debug_and_events_are_everything() -> None:
    events = await pieces(made(), "events")
    assert isinstance(events[-1], TerminateEvent) and [event.seq for event in events] == list(range(len(events)))
    debug = await pieces(made(), "debug")
    assert [piece["type"] for piece in debug] == [event.event_type for event in events]
    started = [event.data for event in events if isinstance(event, GraphStreamEvent) and event.mode == "debug"]
    assert started[0] == {"kind": "superstep_started", "step": 1, "tasks": ["a"]}


@pytest.mark.spec("PAT-61", "OURS-24")
async def test_messages_are_texts_of_models_at_any_depth() -> None:
    inner = StateGraph().add_node("bot", Agent(ScriptedModel([text("one two")]))).add_edge(START, "bot").compile()
    graph = StateGraph().add_node("deep", inner).add_edge(START, "deep").compile()
    said = await pieces(graph, "messages", "go")
    assert "".join(piece["text"] for piece in said) == "one two" and {piece["node"] for piece in said} == {"deep"}


@pytest.mark.spec("PAT-62")
async def test_closing_the_stream_stops_the_nodes() -> None:
    stopped = asyncio.Event()

    async def waits(state: Log) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    graph = StateGraph(Log).add_node("a", waits).add_edge(START, "a").compile()
    stream = graph.astream({}, mode="values")
    assert await anext(stream) == {}
    await stream.aclose()
    async with asyncio.timeout(10):
        await stopped.wait()


@pytest.mark.spec("PAT-61", "OURS-3")
async def test_what_was_streamed_before_a_pause_is_not_streamed_again() -> None:
    graph = (
        StateGraph(Log)
        .add_node("a", lambda s: {"log": "a"})
        .add_node("b", lambda s: {"log": interrupt("?")})
        .add_node("c", lambda s: {"log": "c"})
        .add_edge(START, "a")
        .add_edge("a", "b")
        .add_edge("a", "c")
        .compile()
    )
    before = await pieces(graph, ["values", "updates"])
    after = await pieces(graph, ["values", "updates"], Command(resume="b"))
    assert before == [
        ("values", {}),
        ("updates", {"a": {"log": "a"}}),
        ("values", {"log": ["a"]}),
        ("updates", {"c": {"log": "c"}}),
    ]
    assert after == [("updates", {"b": {"log": "b"}}), ("values", {"log": ["a", "b", "c"]})]


@pytest.mark.case(22)
async def test_failed_sends_are_told() -> None:
    def work(state: Any) -> dict[str, Any]:
        if state["i"] == 1:
            raise LookupError("one")
        return {"log": str(state["i"])}

    graph = StateGraph(Log).add_node("work", work)
    graph.add_conditional_edges(START, lambda s: [Send("work", {"i": i}) for i in range(3)], ["work"])
    told = await pieces(graph.compile(), "nodes")
    assert sorted(piece["status"] for piece in told) == ["completed", "completed", "failed"]
    assert "LookupError: one" in next(piece["error"] for piece in told if piece["status"] == "failed")
