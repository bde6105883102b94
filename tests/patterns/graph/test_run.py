"""How a graph runs: supersteps, routes, joins, ends."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from umbel import Runtime
from umbel.patterns.graph import END, START, StateGraph
from umbel.patterns.graph.reducers import append


class Log(TypedDict, total=False):
    log: Annotated[list[str], append]
    n: int


def writes(name: str) -> Any:
    async def node(state: Log) -> dict[str, Any]:
        return {"log": name}

    return node


def chain(*edges: tuple[Any, str], nodes: str = "abcd", **options: Any) -> StateGraph:
    made = StateGraph(Log, **options)
    for name in nodes:
        made.add_node(name, writes(name))
    for source, target in edges:
        made.add_edge(source, target)
    return made


@pytest.fixture
async def inline() -> Any:
    async with Runtime(inline=True) as runtime:
        yield runtime


@pytest.mark.spec("PAT-35", "PAT-48", "PAT-36")
async def test_a_diamond(runtime: Runtime) -> None:
    graph = chain((START, "a"), ("a", "b"), ("a", "c"), (["b", "c"], "d"), ("d", END)).compile()
    result = await graph.arun({"log": ["in"]})
    assert result.success, result.error
    assert result.value == {"log": ["in", "a", "b", "c", "d"]}
    assert result.execution_order == ["a", "b", "c", "d"] and result.iterations == 3
    assert {name: node.status for name, node in result.nodes.items()} == dict.fromkeys("abcd", "completed")
    assert result.outputs[0] == {"log": "d"} and result.nodes["b"].superstep == 2
