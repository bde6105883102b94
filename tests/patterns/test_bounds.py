"""Model calls and messages between agents stay within the bounds of arXiv 2512.08296, for n agents of k calls each.

A message is a request in which an agent reads for the first time what another one wrote. The bounds:

                    calls        messages
    single          k            0
    independent     n k + 1      1
    decentralized   d n k        d n
    centralized     r n k + r    r n
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from umbel import Agent, Debate, Message, ModelResponse, Orchestrator, Runtime, parallel, sequential, tool
from umbel.testing import text, tool_call

K = 3  # model calls of a member: two with a tool, one that answers


@tool
async def look(number: int) -> str:
    """Look."""
    return f"saw {number}"


class Counts:
    """What the models of one run were asked."""

    def __init__(self) -> None:
        self.calls = self.messages = 0

    def request(self, messages: list[Message], speaker: str) -> str:
        """Count a request; what it says."""
        asked = messages[-1].content or ""
        self.calls += 1
        self.messages += messages[-1].role == "user" and any(f"said by {name}" in asked for name in NAMES if name != speaker)
        return asked


NAMES = ("router", *(f"m{number}" for number in range(8)))


class Worker:
    """Uses its tool twice, then says something."""

    def __init__(self, counts: Counts, name: str) -> None:
        self.counts, self.name = counts, name

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        self.counts.request(messages, self.name)
        seen = 0
        for message in reversed(messages):
            if message.role == "user":
                break
            seen += message.role == "tool"
        return tool_call("look", number=seen) if seen < K - 1 else text(f"said by {self.name}")


class Router:
    """Gives everybody a task, as often as it is asked."""

    def __init__(self, counts: Counts, names: list[str]) -> None:
        self.counts, self.names = counts, names

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        self.counts.request(messages, "router")
        given = [{"specialist": name, "task": "said by router"} for name in self.names]
        return text(json.dumps({"reasoning": "all", "assignments": given, "done": False}))


class Merger:
    """Unites what it reads."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        self.counts.request(messages, "merger")
        return text("united")


def team(counts: Counts, n: int) -> list[Agent]:
    return [Agent(Worker(counts, f"m{number}"), tools=[look], name=f"m{number}") for number in range(n)]


def centralized(counts: Counts, n: int, r: int) -> Any:
    members = team(counts, n)
    router = Router(counts, [member.title for member in members])
    return Orchestrator(members, model=router, max_rounds=r, summarise=False)


Make = Callable[[Counts], Any]
CASES: dict[str, tuple[Make, int, int]] = {
    "single": (lambda counts: sequential(team(counts, 1)), K, 0),
    "independent": (lambda counts: parallel(team(counts, 4), merge=Agent(Merger(counts), name="merger")), 4 * K + 1, 1),
    "decentralized": (lambda counts: Debate(team(counts, 4), rounds=3, stop_on_consensus=False), 3 * 4 * K, 3 * 4),
    "centralized": (lambda counts: centralized(counts, 4, 2), 2 * 4 * K + 2, 2 * 4),
}


@pytest.mark.parametrize("name", CASES)
async def test_calls_and_messages_stay_within_their_bounds(name: str) -> None:
    make, calls, messages = CASES[name]
    counts = Counts()
    async with Runtime(inline=True):
        result: Any = await make(counts).arun("The task.")
    assert result.success, result.error
    read_by_router = (
        max(result.details.get("rounds", 1) - 1, 0) if name == "centralized" else 0
    )  # reports, counted with its rounds
    assert counts.calls == result.metrics.model_calls <= calls
    assert counts.messages - read_by_router <= messages
    assert counts.calls == calls, "the case does not come near its bound"
