"""The patterns that ``makespan.py`` times, with a model of known latency, and what each takes at best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from umbel import Agent, loop, parallel, sequential, tool
from umbel.testing import ScriptedModel, text, tool_call


@dataclass(frozen=True)
class Case:
    """A pattern to time.

    Attributes:
        name: of the case.
        make: the pattern, for a model that takes so many seconds per call.
        critical_path: model calls that must follow each other.
        check: whether a result is the right one.
    """

    name: str
    make: Callable[[float], Any]
    critical_path: int
    check: Callable[[Any], bool] = lambda result: result.success


@tool(idempotent=True)
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def speaker(name: str, delay: float, *said: str) -> Agent:
    """An agent that answers at once, in words."""
    return Agent(ScriptedModel([text(one) for one in said or (f"{name} is done",)], delay=delay), name=name)


def worker(name: str, delay: float) -> Agent:
    """An agent that does a tool turn: two model calls."""
    return Agent(ScriptedModel([tool_call("add", a=2, b=2), text(f"{name} has 4")], delay=delay), tools=[add], name=name)


def workers(count: int, delay: float) -> list[Agent]:
    """So many of them."""
    return [worker(f"worker-{number}", delay) for number in range(count)]


CASES = [
    Case("sequential, 4 members", lambda delay: sequential(workers(4, delay)), 8),
    Case("parallel, 20 members", lambda delay: parallel(workers(20, delay)), 2),
    Case("parallel, 20 members, 5 at once", lambda delay: parallel(workers(20, delay), max_concurrency=5), 8),
    Case(
        "loop with a critic, 3 rounds",
        lambda delay: loop(
            speaker("writer", delay),
            critic=speaker("critic", delay, "more of it"),
            max_loops=3,
        ),
        6,
        lambda result: result.stop_reason == "max_iterations" and len(result.outputs) == 3,
    ),
    Case(
        "nested 3 deep",
        lambda delay: sequential(
            speaker("plan", delay),
            parallel(sequential(worker("a", delay), speaker("b", delay), name="left"), worker("c", delay), name="middle"),
            speaker("sum", delay),
        ),
        5,
    ),
]
