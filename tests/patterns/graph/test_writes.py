"""What nodes return, and what becomes of writes to the same key, whatever the order of completion."""

from __future__ import annotations

import asyncio
import random
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from umbel.errors import (
    ConfigurationError,
    ConflictingWrites,
    InvalidUpdate,
)
from umbel.patterns.graph import START, Send, StateGraph

from .samples import Log, writes

pytestmark = pytest.mark.usefixtures("inline")


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

    def renames(state: Shape) -> Shape:
        state.name = "z"
        return state

    both = StateGraph(Shape).add_node("a", careless).add_node("b", renames).add_edge(START, "a").add_edge(START, "b")
    result = await both.compile().arun({"n": 4})
    assert result.value == {"n": 5, "name": "z"}, "of the state itself only what was changed is written"


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
