"""The patterns that ``makespan.py`` times, with a model of known latency, and what each takes at best."""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from umbel import Agent, MemberResult, Message, ModelResponse, loop, parallel, sequential, tool
from umbel.patterns.debate import Debate
from umbel.patterns.functional import entrypoint, step
from umbel.patterns.graph import START, Send, StateGraph
from umbel.patterns.group_chat import GroupChat
from umbel.patterns.handoff import Handoff
from umbel.patterns.map_reduce import MapReduce
from umbel.patterns.plan_execute import PlanExecute
from umbel.patterns.swarm import Swarm
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


def hands_over(name: str, target: str, delay: float) -> Agent:
    """An agent that hands over at once."""
    return Agent(ScriptedModel([tool_call(f"transfer_to_{target}", message="Yours.")], delay=delay), name=name)


class Manager:
    """Plans once, gives one instruction, and is content with whatever comes of it."""

    def __init__(self, delay: float) -> None:
        self.delay = delay

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        await asyncio.sleep(self.delay)
        asked = "\n".join(message.content or "" for message in messages)
        if "make a plan" in asked:
            return text(json.dumps({"facts": "none", "plan": ["have the member do it"]}))
        if "has 4" in asked:
            return text(json.dumps({"is_done": True}))
        return text(json.dumps({"is_done": False, "next_speaker": "member", "instruction": "Do it."}))


class Found(TypedDict):
    """A graph's state: what its nodes have found."""

    task: str
    found: Annotated[list[str], operator.add]


def chain(delay: float) -> Handoff:
    """Two agents that hand over, and one that works."""
    return Handoff([hands_over("a", "b", delay), hands_over("b", "c", delay), worker("c", delay)])


def found(result: MemberResult) -> dict[str, Any]:
    """What a node writes of an answer."""
    return {"found": [result.text]}


def mapping_graph(delay: float) -> Any:
    """One call, ten workers at once by ``Send``, one call."""
    made = StateGraph(Found)
    made.add_node("plan", speaker("plan", delay), output=found)
    made.add_node("fan", lambda state: [Send("work", {"task": f"part {number}"}) for number in range(10)])
    made.add_node("work", worker("worker", delay), output=found)
    made.add_node("sum", speaker("sum", delay), output=found)
    made.add_edge(START, "plan").add_edge("plan", "fan").add_edge("work", "sum")
    return made.compile()


def plain_code(delay: float) -> Any:
    """An entrypoint: one call, then three workers at once."""
    first, team = speaker("first", delay), workers(3, delay)

    @entrypoint(name="main")
    async def main(prompt: str) -> list[str]:
        await step(first, prompt)
        return [result.text for result in await asyncio.gather(*(step(one, prompt) for one in team))]

    return main


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
    Case(
        "handoff, 3 agents",
        lambda delay: Handoff([hands_over("a", "b", delay), hands_over("b", "c", delay), worker("c", delay)]),
        4,
    ),
    Case(
        "swarm, 10 tasks, 5 agents",
        lambda delay: Swarm(workers(5, delay), tasks=[f"part {number}" for number in range(10)]),
        4,
    ),
    Case("debate, 5 members, 2 rounds", lambda delay: Debate(workers(5, delay), rounds=2, stop_on_consensus=False), 4),
    Case(
        "map_reduce, 20 items, 5 at once",
        lambda delay: MapReduce(worker("mapper", delay), items=list(range(20)), concurrency=5),
        8,
    ),
    Case("group chat, 4 turns", lambda delay: GroupChat([speaker("a", delay), speaker("b", delay)], max_rounds=4), 4),
    Case(
        "plan-execute, 1 instruction", lambda delay: PlanExecute({"member": worker("member", delay)}, model=Manager(delay)), 6
    ),
    Case("graph, 10 workers by Send", mapping_graph, 4),
    Case("entrypoint, 3 steps at once", plain_code, 3),
]
