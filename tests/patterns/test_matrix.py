"""Every pattern, with a member three patterns deeper that fails, pauses, is cancelled, or is too slow; inline and on Ray.

What dies of members is in ``test_killed.py``. A new pattern gets one line in ``KINDS``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from umbel import (
    Agent,
    MemberEvent,
    Message,
    ModelResponse,
    Pattern,
    Runnable,
    Runtime,
    TerminateEvent,
    ToolContext,
    ToolStartEvent,
    loop,
    parallel,
    sequential,
    tool,
)
from umbel.patterns.debate import Debate
from umbel.patterns.functional import entrypoint, step
from umbel.patterns.graph import START, StateGraph
from umbel.patterns.group_chat import GroupChat
from umbel.patterns.handoff import Handoff
from umbel.patterns.map_reduce import MapReduce
from umbel.patterns.orchestrator import Orchestrator
from umbel.patterns.plan_execute import PlanExecute
from umbel.patterns.swarm import Swarm
from umbel.testing import ScriptedModel, error, text, tool_call


@tool(idempotent=True)
async def ask(ctx: ToolContext) -> str:
    """Ask whether to go on."""
    return f"the answer was {ctx.interrupt('Go on?')}"


@tool(idempotent=True)
async def wait() -> str:
    """Wait for something that does not come."""
    await asyncio.sleep(60)
    return "it came"


def speaker(name: str) -> Agent:
    return Agent(ScriptedModel([text(f"{name} is done")]), name=name)


MEMBERS: dict[str, Callable[[], Agent]] = {
    "failing": lambda: Agent(ScriptedModel([error("boom")]), name="subject"),
    "pausing": lambda: Agent(ScriptedModel([tool_call("ask"), text("subject is done")]), tools=[ask], name="subject"),
    "waiting": lambda: Agent(ScriptedModel([tool_call("wait"), text("subject is done")]), tools=[wait], name="subject"),
}


def deep(kind: str) -> Pattern:
    """The member: three patterns around an agent of that kind."""
    inner = parallel(speaker("beside"), MEMBERS[kind](), name="inner")
    return sequential(speaker("before"), loop(inner, until=bool, name="middle"), name="outer")


def graph(member: Any) -> StateGraph:
    made = StateGraph().add_node("first", speaker("first")).add_node("member", member)
    return made.add_edge(START, "first").add_edge("first", "member")


def hands_over(target: str) -> Agent:
    return Agent(ScriptedModel([tool_call(f"transfer_to_{target}", message="Yours.")]), name="first")


class Manager:
    """Plans once, gives one instruction, and is then content."""

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        asked = "\n".join(message.content or "" for message in messages)
        if "make a plan" in asked:
            return text(json.dumps({"facts": "none", "plan": ["have the member do it"]}))
        if "subject is done" in asked:
            return text(json.dumps({"is_done": True}))
        return text(json.dumps({"is_done": False, "next_speaker": "member", "instruction": "Do it."}))


def asks(member: Runnable) -> Callable[[str], Any]:
    async def main(prompt: str) -> str:
        return (await step(member, prompt)).text

    return main


Make = Callable[..., Pattern]
KINDS: dict[str, Make] = {
    "sequential": lambda member, **settings: sequential(speaker("first"), member, speaker("last"), **settings),
    "parallel": lambda member, **settings: parallel(speaker("first"), member, **settings),
    "loop": lambda member, **settings: loop(member, until=bool, **settings),
    "graph": lambda member, **settings: graph(member).compile(**settings),
    "handoff": lambda member, **settings: Handoff({"first": hands_over("member"), "member": member}, **settings),
    "orchestrator": lambda member, **settings: Orchestrator([speaker("first"), member], on_error="fail", **settings),
    "swarm": lambda member, **settings: Swarm({"member": member}, **settings),
    "debate": lambda member, **settings: Debate({"first": speaker("first"), "member": member}, rounds=1, **settings),
    "map_reduce": lambda member, **settings: MapReduce(member, items=["one item"], **settings),
    "group_chat": lambda member, **settings: GroupChat({"first": speaker("first"), "member": member}, max_rounds=2, **settings),
    "plan_execute": lambda member, **settings: PlanExecute({"member": member}, model=Manager(), **settings),
    "entrypoint": lambda member, **settings: entrypoint(name="main", **settings)(asks(member)),
}


async def fails(make: Make, store: str) -> None:
    result: Any = await make(deep("failing")).arun("Go.")
    assert not result.success and result.stop_reason == "error"
    assert "boom" in str(result.error)


async def pauses_and_goes_on(make: Make, store: str) -> None:
    pattern = make(deep("pausing"))
    paused: Any = await pattern.arun("Go.")
    assert not paused.success and paused.stop_reason == "interrupted"
    assert [asked["question"] for asked in paused.interrupts] == ["Go on?"]
    result = await pattern.aresume("yes", result=paused)
    assert result.success, result.error


async def pauses_in_a_thread_and_another_object_goes_on(make: Make, store: str) -> None:
    paused: Any = await make(deep("pausing"), checkpointer=store).arun("Go.", thread_id="t")
    assert paused.stop_reason == "interrupted"
    result = await make(deep("pausing"), checkpointer=store).aresume("yes", thread_id="t")
    assert result.success, result.error


async def is_cancelled_with_the_pattern(make: Make, store: str) -> None:
    handle = await make(deep("waiting")).start("Go.")
    ends: list[tuple[str, str]] = []
    async for event in handle.events():
        innermost = event.innermost if isinstance(event, MemberEvent) else event
        if isinstance(innermost, ToolStartEvent) and innermost.tool_name == "wait":
            assert await handle.cancel()
        if isinstance(innermost, TerminateEvent):
            ends.append((innermost.run_id, innermost.reason))
    assert len({run for run, _ in ends}) == len(ends), "two ends of one run"
    assert ends[-1] == (handle.run_id, "cancelled")
    assert [reason for _, reason in ends].count("cancelled") == 5, ends  # the agent, and the four patterns around it


async def is_too_slow(make: Make, store: str) -> None:
    result: Any = await make(deep("waiting"), time_budget_seconds=0.3).arun("Go.")
    assert not result.success and result.stop_reason == "time_budget"


FATES = [fails, pauses_and_goes_on, pauses_in_a_thread_and_another_object_goes_on, is_cancelled_with_the_pattern, is_too_slow]


@pytest.mark.parametrize("fate", FATES, ids=[fate.__name__ for fate in FATES])
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_deep_member(kind: str, fate: Callable[..., Any], inline: Runtime, store: str) -> None:
    await fate(KINDS[kind], store)


@pytest.mark.parametrize("runtime", [pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_deep_members_on_ray(kind: str, runtime: Runtime, store: str) -> None:
    """All that can befall them, at the same time."""
    await asyncio.gather(*(fate(KINDS[kind], store) for fate in FATES))
