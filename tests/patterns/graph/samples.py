"""Small graphs, and nodes that say which of them ran."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from umbel.patterns.graph import StateGraph
from umbel.reducers import append


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


class Counted:
    """Makes nodes that log their name, and remembers in which order they ran (in this process)."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def __call__(self, name: str) -> Any:
        async def node(state: Any) -> dict[str, Any]:
            self.runs.append(name)
            return {"log": name}

        return node
