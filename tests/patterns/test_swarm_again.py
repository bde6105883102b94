"""Swarms that pause, are cancelled, are continued and lose their supervisors: no task is ever done twice."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime, ToolContext, Topology, tool
from umbel.actors.checkpoints import restore
from umbel.actors.checkpoints.registry import open_store
from umbel.patterns.pipeline import parallel, sequential
from umbel.patterns.swarm import Swarm, SwarmAgent
from umbel.testing import ScriptedModel, error, text, tool_call, tool_calls

from ..cases.killing import kill_all
from .team import DONE, FLOOR, FloorModel, asked, worker


@tool
async def approve(what: str, ctx: ToolContext) -> str:
    """Ask whether to go on."""
    return str(ctx.interrupt(f"{what}?"))


def turns_of(name: str) -> Any:
    """What a worker of the tests below does: some tasks are split, some need a person."""

    def turn(messages: list[Any]) -> Any:
        task = asked(messages)
        first = messages[-1].role == "user"
        if first and task.startswith("ask"):
            return tool_call("approve", what=f"{task} by {name}")
        if first and task.startswith("split"):
            return tool_calls(("add_task", {"description": f"a of {task}"}), ("add_task", {"description": f"b of {task}"}))
        asker = [call.arguments["what"] for message in messages for call in message.tool_calls if call.name == "approve"]
        assert asker in ([], [f"{task} by {name}"]), "it was somebody else who asked"
        return text(f"done: {task} {messages[-1].content if not first else ''}".strip())

    return turn


def crew(seed: int, size: int = 3, **settings: Any) -> Swarm:
    team = {}
    for name in (f"w{number}" for number in range(size)):
        agent = Agent(FloorModel(*[turns_of(name)] * 2, slow=40, seed=seed), [approve], name=name)
        team[name] = SwarmAgent(agent, {"odd"} if name == "w1" else ())
    names = ["plain 1", "ask 1", "split 1", "plain 2", "split 2", "ask 2", "plain 3"]
    random.Random(seed).shuffle(names)
    tasks = [{"description": name, "required": ["odd"] if name == "plain 2" and size > 1 else []} for name in names]
    return Swarm(team, tasks=tasks, max_parallel_agents=size, **settings)


CREW_CALLS = {
    **{f"plain {number}": 1 for number in (1, 2, 3)},
    **{f"{kind} {number}": 2 for kind in ("ask", "split") for number in (1, 2)},
    **{f"{part} of split {number}": 1 for part in "ab" for number in (1, 2)},
}


def who(result: Any) -> dict[str, str | None]:
    return {task["id"]: task["agent"] for task in result.details["tasks"] if task["status"] == "completed"}


@pytest.mark.spec("OURS-24", "OURS-3", "PAT-19")
@pytest.mark.parametrize("url", [None, "memory://"])
@pytest.mark.parametrize("size", [1, 2, 3])
async def test_no_task_is_done_twice_whatever_the_order_in_which_they_end(inline: Runtime, url: str | None, size: int) -> None:
    for seed in range(6):
        FLOOR.clear()
        swarm = crew(seed, size, checkpointer=url)
        thread = None if url is None else f"{size}-{seed}"
        result = await swarm.arun("go", thread_id=thread)
        pauses = 0
        while result.interrupts:
            pauses += 1
            done = {member.step: member.member for member in result.members}
            before = Counter(FLOOR.came)
            answers = {asked["interrupt_id"]: "yes" for asked in result.interrupts[:1]}
            result = await crew(seed, size, checkpointer=url).aresume(
                answers=answers, **({"result": result} if url is None else {"thread_id": thread})
            )
            assert done.items() <= {member.step: member.member for member in result.members}.items(), "nobody else did it"
            began = {name for name, count in FLOOR.came.items() if before[name] != count}
            assert not began & {task for task, count in before.items() if count == CREW_CALLS[task] and "ask" not in task}
        assert result.success and pauses >= 1
        assert dict(FLOOR.came) == CREW_CALLS, "every task was done, and none of them twice"
        assert len(who(result)) == len(CREW_CALLS)


async def test_what_waits_for_a_person_does_not_stop_the_others(inline: Runtime) -> None:
    result = await crew(1).arun("go")
    assert result.stop_reason == "interrupted" and not result.success
    assert len(result.interrupts) == 2 and "ask" in str(result.interrupts)
    assert len(result.members) == len(CREW_CALLS) - 2, "all the others are done"


@pytest.mark.spec("PAT-22", "OURS-24")
async def test_a_turn_that_is_continued_repeats_what_failed_and_nothing_else(inline: Runtime) -> None:
    broken = {"b", "d"}

    def some(messages: list[Any]) -> Any:
        if asked(messages) in broken:
            raise error("no answer")
        return DONE(messages)

    swarm = Swarm([worker("ann", some, slow=9), worker("bob", some, slow=9)], tasks=[*"abcdef"], checkpointer="memory://")
    result = await swarm.arun("go", thread_id="t")
    assert not result.success and sorted(result.details["failed"]) == ["2", "4"]
    first = {task["id"]: task["agent"] for task in result.details["tasks"]}
    broken.clear()
    result = await swarm.continue_turn("t")
    assert result.success and {task["id"]: task["agent"] for task in result.details["tasks"]} == first
    assert FLOOR.came == {"a": 1, "b": 2, "c": 1, "d": 2, "e": 1, "f": 1}


@pytest.mark.spec("OURS-24", "OURS-5")
async def test_a_swarm_that_was_cancelled_goes_on_where_it_was(inline: Runtime) -> None:
    held = asyncio.Event()

    class Held(FloorModel):
        async def complete(self, messages: list[Any], tools: Any = None, **settings: Any) -> Any:
            async with FLOOR.visit(asked(messages), self.together):
                if asked(messages) in {"c", "d"}:
                    await held.wait()
                return DONE(messages)

    swarm = Swarm({name: Agent(Held(), name=name) for name in ("ann", "bob")}, tasks=[*"abcdef"], checkpointer="memory://")
    running = asyncio.ensure_future(swarm.arun("go", thread_id="t"))
    async with asyncio.timeout(20):
        while sorted(FLOOR.now) != ["c", "d"]:
            await asyncio.sleep(0)
        assert swarm.cancel("t") == 1
        result = await running
        assert result.stop_reason == "cancelled" and not FLOOR.now
        held.set()
        result = await swarm.continue_turn("t")
    assert result.success and result.outputs == [f"done: {name}" for name in "abcdef"]
    assert FLOOR.came == {"a": 1, "b": 1, "c": 2, "d": 2, "e": 1, "f": 1}


@pytest.mark.spec("OURS-24", "OURS-3")
async def test_it_can_be_a_member_at_any_depth(inline: Runtime) -> None:
    inner = Swarm({"w": Agent(FloorModel(*[turns_of("w")] * 2), [approve], name="w")}, tasks=["ask 1", "plain 1"], name="inner")
    outer = parallel(sequential(Swarm([inner], tasks=["outer"], name="middle"), name="chain"), name="top")
    result = await outer.arun("go")
    assert result.stop_reason == "interrupted" and len(result.interrupts) == 1
    result = await outer.aresume("yes", result=result)
    assert result.success and "done: ask 1 yes" in result.final_output and "done: plain 1" in result.final_output
    assert result.members[0].members[0].members[0].members[0].member == "w"
    assert FLOOR.came == {"ask 1": 2, "plain 1": 1}


# a cluster


@tool(placement="local", idempotent=True)
async def where() -> str:
    """Name the process that the supervisor is in."""
    return f"ran in {os.getpid()}"


class Noted(ScriptedModel):
    """Asks where it is, and says so; every task is noted in a file, and the task ``slow`` does not end the first time."""

    def __init__(self, log: Path) -> None:
        super().__init__([tool_call("where"), lambda messages: text(str(messages[-1].content))])
        self.log = log

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        if messages[-1].role == "user":
            seen = self.log.read_text().splitlines() if self.log.exists() else []
            with self.log.open("a") as file:
                file.write(f"{asked(messages)}\n")
            if asked(messages) == "slow" and "slow" not in seen:
                await asyncio.sleep(600)
        return await super().complete(messages, tools, **settings)


async def ended_in(url: str) -> int:
    """How many tasks of thread ``t`` have ended, as the store has it."""
    store = open_store(url)
    await store.open()
    try:
        found = restore(await store.load("t"))
    finally:
        await store.close()
    return sum(message.name in {"ann", "bob", "cid"} for message in found.state.messages) if found is not None else 0


async def hold_over_deaths(runtime: Runtime, folder: Path, shards: int) -> Any:
    """A swarm's result, whose supervisors were all killed when all tasks but one had ended; none was done twice."""
    log, url = folder / "log", f"sqlite:///{folder}/t.db"
    team = [Agent(Noted(log), [where], name=name) for name in ("ann", "bob", "cid")]
    tasks = ["task 1", "slow", *(f"task {number}" for number in range(2, 12))]
    async with asyncio.timeout(120):
        running = asyncio.ensure_future(Swarm(team, tasks=tasks, checkpointer=url).arun("go", thread_id="t", runtime=runtime))
        while await ended_in(url) < len(tasks) - 1:
            await asyncio.sleep(0.05)
        assert kill_all(runtime, "supervisor") == shards
        result = await running
    assert result.success and len(result.details["completed"]) == len(tasks)
    assert {task["agent"] for task in result.details["tasks"]} == {"ann", "bob", "cid"}
    noted = Counter(log.read_text().splitlines())
    assert noted == {**dict.fromkeys(tasks, 1), "slow": 2}, "the one that had not ended goes on, the others are not done again"
    return result


@pytest.mark.ray
@pytest.mark.spec("PAT-19", "OURS-24")
async def test_no_task_is_done_twice_when_the_supervisor_dies(fragile_runtime: Runtime, tmp_path: Path) -> None:
    await hold_over_deaths(fragile_runtime, tmp_path, 1)


@pytest.mark.chaos
@pytest.mark.ray
@pytest.mark.spec("PAT-19", "OURS-26")
async def test_claims_hold_over_several_supervisors(ray_cluster: Any, tmp_path: Path) -> None:
    with Runtime(topology=Topology(supervisors=2, max_restarts=10)).start() as runtime:
        result = await hold_over_deaths(runtime, tmp_path, 2)
    assert len({output for output in result.outputs if output.startswith("ran in ")}) >= 2, "members run on all shards"
