"""Results of nodes that are used again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from umbel.errors import DefinitionError
from umbel.patterns.graph import START, CachePolicy, Send, StateGraph, interrupt
from umbel.patterns.graph.cache import CACHE, NodeCache

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    CACHE.clear()
    yield
    CACHE.clear()


@pytest.mark.spec("PAT-31")
async def test_equal_input_is_answered_from_the_cache() -> None:
    runs: list[int] = []

    async def square(state: Any) -> dict[str, Any]:
        runs.append(state["n"])
        if state["n"] == 9:
            raise LookupError("nine")
        return {"square": state["n"] ** 2}

    by_n = CachePolicy(key=lambda state: state["n"])
    graph = StateGraph().add_node("a", square, cache=by_n).add_edge(START, "a").compile()
    first, again, other = [await graph.arun({"n": n, "x": x}) for n, x in ((3, 1), (3, 2), (4, 1))]
    assert first.value["square"] == again.value["square"] == 9 and other.value["square"] == 16 and runs == [3, 4]
    assert again.nodes["a"].cached and again.nodes["a"].output == {"square": 9} and not first.nodes["a"].cached
    assert not (await graph.arun({"n": 9})).success and not (await graph.arun({"n": 9})).success
    assert runs == [3, 4, 9, 9], "failures are not kept"
    whole = StateGraph().add_node("a", square, cache=CachePolicy()).add_edge(START, "a").compile()
    runs.clear()
    for x in (1, 2, 1):
        await whole.arun({"n": 3, "x": x})
    assert runs == [3, 3]


@pytest.mark.spec("PAT-32")
async def test_sends_are_kept_like_anything_else() -> None:
    runs: list[str] = []

    async def split(state: Any) -> list[Send]:
        runs.append("split")
        return [Send("work", {"i": i}) for i in range(3)]

    graph = StateGraph(None, reducers={"log": "append"}).add_node("split", split, cache=CachePolicy())
    made = graph.add_node("work", lambda state: {"log": state["i"]}).add_edge(START, "split").compile()
    assert (await made.arun({})).value == (await made.arun({})).value == {"log": [0, 1, 2]} and runs == ["split"]


@pytest.mark.spec("PAT-32")
def test_the_cache_is_bounded_in_number_and_time() -> None:
    now = 0.0
    cache = NodeCache(lambda: now)
    for i in range(5):
        cache.put("node", str(i), {"value": i}, ttl=10, max_entries=3)
    assert [cache.get("node", str(i)) for i in range(5)] == [None, None, {"value": 2}, {"value": 3}, {"value": 4}]
    cache.put("node", "ever", {"value": 9}, ttl=None, max_entries=3)
    now = 11.0
    assert cache.get("node", "4") is None and cache.get("node", "ever") == {"value": 9}
    assert CachePolicy().ttl == 300
    for i in range(1_001):
        cache.put(str(i), "k", {"value": i}, ttl=None, max_entries=3)
    assert cache.get("0", "k") is None and cache.get("node", "ever") is None and cache.get("1000", "k") == {"value": 1000}


async def test_what_was_reused_is_the_same_after_a_pause(tmp_path: Path) -> None:
    runs: list[int] = []

    async def count(state: Any) -> dict[str, Any]:
        runs.append(1)
        return {"count": len(runs)}

    graph = StateGraph().add_node("a", count, cache=CachePolicy()).add_node("b", lambda s: {"said": interrupt("?")})
    made = graph.add_edge(START, "a").add_edge(START, "b").compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
    await made.arun({}, thread_id="first")
    await made.arun({}, thread_id="second")
    CACHE.clear()
    assert (await made.aresume("x", thread_id="second")).value == {"count": 1, "said": "x"} and runs == [1]


def test_functions_with_parameters_that_nobody_fills_in_are_refused() -> None:
    def three(state: Any, failure: Any, more: Any) -> None: ...

    for options in ({"on_error": three}, {"condition": lambda a, b: True}):
        with pytest.raises(DefinitionError, match="it needs"):
            StateGraph().add_node("a", lambda state: None, **options).add_edge(START, "a").compile()
    with pytest.raises(DefinitionError, match=r"node 'a' is called with \(state\)"):
        StateGraph().add_node("a", three).add_edge(START, "a").compile()
