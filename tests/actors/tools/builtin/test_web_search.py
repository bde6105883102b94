"""Searching the web over a provider."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from umbel import SearchHit, web_search_tool
from umbel.actors.tools.invoke import invoke

Make = Callable[..., Any]


class Engine:
    def __init__(self, count: int = 30) -> None:
        self.count = count
        self.asked: list[tuple[str, int]] = []

    async def search(self, query: str, max_results: int) -> Sequence[SearchHit]:
        self.asked.append((query, max_results))
        return [SearchHit(url=f"http://{n}", title=f"Title {n}", snippet=f"About {n}") for n in range(self.count)]


class SyncEngine:
    def search(self, query: str, max_results: int) -> Sequence[SearchHit]:
        return [SearchHit(url=f"http://{threading.current_thread() is threading.main_thread()}")]


@pytest.mark.spec("TOOL-34")
async def test_hits_are_numbered_and_limited(request_for: Make) -> None:
    engine = Engine()
    web_search = web_search_tool(engine)
    result = await invoke(*request_for(web_search, query="actors"))
    assert engine.asked == [("actors", 5)]
    assert result.content.split("\n\n")[0] == "1. Title 0\nhttp://0\nAbout 0"
    assert result.content.count("http://") == 5, "whatever the engine gives"
    await invoke(*request_for(web_search, query="actors", max_results=2))
    assert engine.asked[-1] == ("actors", 2)


@pytest.mark.spec("TOOL-34")
async def test_nothing_found_and_wrong_questions(request_for: Make) -> None:
    engine = Engine(0)
    web_search = web_search_tool(engine)
    assert (await invoke(*request_for(web_search, query="x"))).content == "No results for 'x'."
    for wrong in ({"query": ""}, {"query": "x", "max_results": 0}, {"query": "x", "max_results": 1_000}):
        assert (await invoke(*request_for(web_search, **wrong))).code == "invalid_arguments"
    assert len(engine.asked) == 1


async def test_a_sync_engine_runs_beside_the_loop(request_for: Make) -> None:
    assert (await invoke(*request_for(web_search_tool(SyncEngine()), query="x"))).content == "1. http://False\nhttp://False"


async def test_a_failing_engine_is_the_calls_error(request_for: Make) -> None:
    class Broken:
        async def search(self, query: str, max_results: int) -> Sequence[SearchHit]:
            raise ConnectionError("no route")

    result = await invoke(*request_for(web_search_tool(Broken()), query="x"))
    assert result.error == "ConnectionError: no route"
