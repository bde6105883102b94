"""Swarms: who claims what, how many at once, what the others see, and that no task is ever done twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from umbel import Agent, Message, ModelResponse, Runtime, ToolContext, Topology, Usage, tool
from umbel.actors.checkpoints import restore
from umbel.actors.checkpoints.registry import open_store
from umbel.errors import CapReached, ConfigurationError, MemberFailed, NothingRan
from umbel.patterns.board import Board, task_of
from umbel.patterns.pipeline import parallel, sequential
from umbel.patterns.swarm import Swarm, SwarmAgent
from umbel.protocol.errors import Unclaimed
from umbel.testing import ScriptedModel, error, text, tool_call, tool_calls

from ..cases.killing import kill_all
from .team import FLOOR, FloorModel, asked, kinds_of, member, replying

DONE = replying(lambda request: f"done: {asked_of(request)}")


def asked_of(request: str) -> str:
    return next(line.removeprefix("Your task: ") for line in request.splitlines() if line.startswith("Your task: "))


def worker(name: str, *turns: Any, **model: Any) -> Agent:
    return Agent(FloorModel(*(turns or (DONE,)), **model), name=name)


def claims_of(board: Board) -> list[tuple[str, str]]:
    claims = []
    while (claimed := board.claim()) is not None:
        claims.append((claimed[0].id, claimed[1]))
    return claims


def board_of(agents: dict[str, set[str]], *tasks: Any, per_agent: int = 1, holders: dict[str, str] | None = None) -> Board:
    board = Board({name: frozenset(tags) for name, tags in agents.items()}, per_agent, (holders or {}).get)
    for task in tasks:
        board.add(task_of(task))
    return board


# the board


@pytest.mark.spec("PAT-18", "PAT-19")
def test_the_highest_priority_that_an_agent_is_able_to_do_goes_first() -> None:
    board = board_of(
        {"ann": {"write"}, "bob": {"search"}, "cid": set()},
        {"description": "low", "priority": 3},
        {"description": "high", "priority": 12, "required": ["search"]},
        {"description": "same as low, later", "priority": 3},
        {"description": "nobody", "priority": 99, "required": ["search", "write"]},
        {"description": "middle", "required": "write"},
    )
    assert claims_of(board) == [("2", "bob"), ("5", "ann"), ("1", "cid")]
    assert [task.description for task in board.unclaimed] == ["nobody", "same as low, later"]


@pytest.mark.spec("PAT-18", "PAT-19")
def test_preferred_capabilities_decide_between_equals() -> None:
    agents = {"ann": {"python"}, "bob": {"python", "tests"}, "cid": {"docs"}}
    one = {"description": "a", "preferred": ["tests", "python"]}
    assert claims_of(board_of(agents, one)) == [("1", "bob")]
    assert claims_of(board_of(agents, "plain", {"description": "for cid", "preferred": ["docs"]}))[0] == ("2", "cid")
    assert claims_of(board_of(agents, {"description": "x", "priority": 11}, one))[0] == ("1", "ann"), "priority comes first"
    assert claims_of(board_of({"ann": set(), "bob": set()}, *"abcd", per_agent=2)) == [
        ("1", "ann"),
        ("2", "bob"),
        ("3", "ann"),
        ("4", "bob"),
    ]


def test_a_task_that_was_claimed_is_kept_for_its_agent() -> None:
    board = board_of({"ann": set(), "bob": set()}, "a", "b", "c", holders={"1": "bob", "2": "bob", "3": "gone"})
    assert claims_of(board) == [("1", "bob"), ("3", "ann")], "task 2 waits for bob; task 3's agent is not there any more"


@pytest.mark.spec("PAT-18")
def test_a_subtask_has_one_less_than_its_parent() -> None:
    board = board_of({"ann": set()}, "first", {"description": "second", "priority": 20})
    second = board.tasks["2"]
    child = board.add(task_of("part"), second)
    assert (board.tasks["1"].priority, second.priority, child.priority) == (10, 20, 19)
    assert (child.id, child.parent, child.generation) == ("2.1", "2", 2)
    assert board.add(task_of("part of a part"), child).id == "2.1.1"
    assert board.add(task_of("another"), second).id == "2.2"


@pytest.mark.parametrize("given", ["", " ", 7, {}, {"description": "x", "urgent": True}, {"description": "x", "priority": "a"}])
def test_what_is_no_task_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="task"):
        task_of(given)


@pytest.mark.parametrize(("limit", "fit"), [(40, 1), (60, 2), (200, 7)])
def test_the_newest_of_what_is_known_fits(limit: int, fit: int) -> None:
    board = board_of({"ann": set()})
    board.findings += [{"task": "1", "agent": "ann", "text": f"finding {number}"} for number in range(10, 30)]
    title, *lines = board.context(limit).splitlines()
    assert title == "Findings:" and lines[0] == "- (older ones are left out)"
    assert lines[1:] == [f"- finding {number} (found by ann)" for number in range(30 - fit, 30)]
    assert board.context(10) == "Findings:\n- finding ", "one that is too long is cut"
    assert len(board.context().splitlines()) == 21
    board.facts["door"] = "blue"
    assert "- door: blue" in board.context(limit), "each kind has its share"


# a run


@pytest.mark.spec("PAT-17", "PAT-20", "PAT-22", "PAT-23", "OURS-24", "OURS-26")
async def test_tasks_go_to_who_is_able_and_what_they_post_reaches_later_ones(runtime: Runtime) -> None:
    def told(messages: list[Any]) -> Any:
        assert "the key is under the mat (found by scout)" in messages[-1].content
        assert "- door: blue" in messages[-1].content and "- look around: looked" in messages[-1].content
        return text("opened")

    scout = member(
        "scout",
        tool_calls(
            ("share_finding", {"finding": "the key is under the mat"}),
            ("write_blackboard", {"name": "door", "value": "blue"}),
            ("add_task", {"description": "open the door", "required": ["hands"]}),
        ),
        text("looked"),
    )
    opener = member("opener", told)
    team = [SwarmAgent(scout, {"eyes"}), SwarmAgent(opener, {"hands"})]
    swarm = Swarm(team, tasks=[{"description": "look around", "required": ["eyes"]}])
    result = await swarm.arun("Get in.")
    assert result.success and result.outputs == ["looked", "opened"]
    assert result.details["findings"] == [{"task": "1", "agent": "scout", "text": "the key is under the mat"}]
    assert result.details["blackboard"] == {"door": "blue"}
    assert [(task["id"], task["agent"], task["priority"]) for task in result.details["tasks"]] == [
        ("1", "scout", 10),
        ("1.1", "opener", 9),
    ]
    assert result.final_output.startswith("Findings:\n- the key is under the mat")
    assert result.metrics.model_calls == 3 and result.metrics.tool_calls == 3


@pytest.mark.spec("PAT-20", "OURS-26", "PAT-17")
@pytest.mark.parametrize("cap", [1, 3, 5])
async def test_agents_work_side_by_side_up_to_the_cap(inline: Runtime, cap: int) -> None:
    team = [worker(f"w{number}", together=cap) for number in range(8)]
    swarm = Swarm(team, tasks=[f"task {number}" for number in range(12)], max_parallel_agents=cap)
    async with asyncio.timeout(20):
        result = await swarm.arun("All of it.")
    assert result.success and FLOOR.most == cap, "as many as may, and never more"
    assert sorted(FLOOR.came.values()) == [1] * 12
    assert result.outputs == [f"done: task {number}" for number in range(12)]


@pytest.mark.spec("PAT-17")
async def test_an_agent_has_one_task_at_a_time_unless_it_may_have_more(inline: Runtime) -> None:
    tasks = [f"task {number}" for number in range(6)]
    await Swarm([worker("ann", together=2, slow=30), worker("bob", together=2, slow=30)], tasks=tasks).arun("go")
    assert FLOOR.most == 2
    FLOOR.clear()
    team = [worker("ann", together=3), worker("bob", together=3)]
    await Swarm(team, tasks=tasks, per_agent=2, max_parallel_agents=3).arun("go")
    assert FLOOR.most == 3


@pytest.mark.spec("PAT-21", "OURS-26", "OURS-25")
@pytest.mark.parametrize("on_error", ["fail", "continue"])
async def test_a_task_that_nobody_can_claim_fails_the_swarm_and_is_named(inline: Runtime, on_error: Any) -> None:
    team = [SwarmAgent(worker("ann"), {"write"})]
    swarm = Swarm(team, tasks=["easy", {"description": "fly", "required": ["wings"]}], on_error=on_error)
    result = await swarm.arun("go")
    assert not result.success and isinstance(result.error, Unclaimed)
    assert "fly" in str(result.error) and "wings" in str(result.error) and result.error.details["tasks"] == ["2"]
    assert result.details["unclaimed"] == ["2"] and result.outputs == ["done: easy", ""], "the others are done"
    assert [task["status"] for task in result.details["tasks"]] == ["completed", "pending"]


@pytest.mark.spec("PAT-22", "OURS-25")
async def test_a_task_that_fails_does_not_stop_the_others(inline: Runtime) -> None:
    def some(messages: list[Any]) -> Any:
        if "bad" in asked(messages):
            raise error("no answer")
        return DONE(messages)

    tasks = ["bad", "a", "b", "c"]
    strict = await Swarm([worker("ann", some)], tasks=tasks).arun("go")
    assert not strict.success and isinstance(strict.error, MemberFailed) and "no answer" in str(strict.error)
    assert strict.details["failed"] == ["1"] and strict.details["completed"] == ["2", "3", "4"]
    assert strict.outputs == ["", "done: a", "done: b", "done: c"]
    assert "bad: FAILED, ModelError: no answer" in strict.final_output
    lenient = await Swarm([worker("ann", some)], tasks=tasks, on_error="continue").arun("go")
    assert lenient.success and lenient.details["failed"] == ["1"]
    hopeless = await Swarm([worker("ann", some)], tasks=["bad", "also bad"], on_error="continue").arun("go")
    assert not hopeless.success and isinstance(hopeless.error, MemberFailed)


@pytest.mark.spec("PAT-22")
async def test_a_task_that_takes_too_long_is_a_failure(inline: Runtime) -> None:
    async def slow(prompt: str) -> str:
        """Never answers."""
        await asyncio.sleep(3600)
        return prompt

    team = {"slow": slow, "agent": worker("agent", together=99), "quick": SwarmAgent(worker("quick"), {"q"})}
    swarm = Swarm(team, tasks=["one", "two", {"description": "three", "required": ["q"]}], task_timeout=0.2)
    async with asyncio.timeout(20):
        result = await swarm.arun("go")
    assert result.details["completed"] == ["3"]
    assert result.details["failed"] == ["1", "2"] or result.details["failed"] == ["2", "1"]
    assert result.stop_reason == "error" and not result.success
    assert all("0.2" in task["error"] for task in result.details["tasks"][:2])


# splitting, subtasks, the end


def planning(*tasks: dict[str, Any], summary: str = "all done") -> Any:
    """A model that splits a goal so, and sums up."""

    def reply(messages: list[Any]) -> Any:
        request = messages[-1].content
        if "Split the goal" in request:
            return text(json.dumps({"tasks": list(tasks)}))
        assert "Write the final answer" in request
        return text(f"{summary}: {request.count('done: ')}")

    return ScriptedModel([reply])


@pytest.mark.spec("PAT-17", "PAT-23")
async def test_the_goal_is_split_and_summed_up_by_the_model(inline: Runtime) -> None:
    plan = ({"description": "read", "required": ["eyes"]}, {"description": "write", "preferred": ["hands"]})
    team = [SwarmAgent(worker("ann"), {"eyes"}), SwarmAgent(worker("bob"), {"hands"})]
    result = await Swarm(team, model=planning(*plan)).arun("A report.")
    assert result.success and result.final_output == "all done: 2"
    assert [(task["description"], task["agent"]) for task in result.details["tasks"]] == [("read", "ann"), ("write", "bob")]
    assert result.metrics.model_calls == 4, "one to split, one a task, one to sum up"
    whole = await Swarm(team, model=planning(), decompose=False, summarize=False).arun("A report.")
    assert whole.outputs == ["done: A report."] and whole.metrics.model_calls == 1
    given = await Swarm(team, model=planning(*plan), tasks=["mine"]).arun("A report.")
    assert given.outputs == ["done: mine"], "there is nothing to split where there are tasks"


@pytest.mark.spec("PAT-17", "OURS-25")
async def test_a_split_that_fails(inline: Runtime) -> None:
    nonsense = ScriptedModel([text("no json"), text("none again"), text("never")])
    strict = await Swarm([worker("ann")], model=nonsense, summarize=False).arun("goal")
    assert not strict.success and isinstance(strict.error, MemberFailed) and not FLOOR.came
    lenient = await Swarm([worker("ann")], model=nonsense, summarize=False, on_error="continue").arun("goal")
    assert lenient.success and lenient.outputs == ["done: goal"], "the goal is one task"


@pytest.mark.spec("PAT-23", "OURS-25")
async def test_a_summary_that_fails_keeps_what_is_known(inline: Runtime) -> None:
    model = ScriptedModel([error("out of order")])
    strict = await Swarm([worker("ann")], model=model, decompose=False).arun("goal")
    assert not strict.success and "summarizer" in str(strict.error) and strict.final_output == "Results:\n- goal: done: goal"
    lenient = await Swarm([worker("ann")], model=model, decompose=False, on_error="continue").arun("goal")
    assert lenient.success and lenient.final_output == strict.final_output


@pytest.mark.spec("PAT-18")
async def test_a_run_has_tasks_of_its_own_and_those_that_were_added(inline: Runtime) -> None:
    swarm = Swarm([SwarmAgent(worker("ann"), {"a"}), SwarmAgent(worker("bob"), {"b"})])
    swarm.add_task("always", required=["b"], priority=3)
    result = await swarm.arun({"goal": "g", "tasks": ["now", {"description": "first", "priority": 50}]})
    assert result.outputs == ["done: always", "done: now", "done: first"]
    assert [task["priority"] for task in result.details["tasks"]] == [3, 10, 50]
    assert result.details["tasks"][0]["agent"] == "bob"
    with pytest.raises(ConfigurationError, match="goal"):
        await swarm.arun({"goals": []})
    with pytest.raises(ConfigurationError, match="task"):
        await swarm.arun({"goal": "g", "tasks": [{"urgent": 1}]})
    with pytest.raises(ConfigurationError, match="list"):
        await swarm.arun({"goal": "g", "tasks": "abc"})
    nothing = await Swarm([worker("ann")]).arun({"goal": "", "tasks": []})
    assert not nothing.success and isinstance(nothing.error, NothingRan)


@pytest.mark.spec("PAT-17", "OURS-25")
async def test_subtasks_end_with_the_last_generation(inline: Runtime) -> None:
    async def splits(prompt: str) -> dict[str, Any]:
        """Always finds more to do."""
        return {"text": "half", "findings": ["endless"], "subtasks": ["more", {"description": "even more"}]}

    result = await Swarm([splits], tasks=["start"], max_iterations=3).arun("go")
    assert not result.success and result.stop_reason == "max_iterations" and isinstance(result.error, CapReached)
    assert len(result.details["tasks"]) == 1 + 2 + 4 and len(result.details["completed"]) == 7
    assert max(task["generation"] for task in result.details["tasks"]) == 3

    def answers(messages: list[Any]) -> Any:
        return text(f"refused: {messages[-1].content}")

    polite = member("ann", tool_call("add_task", description="more"), answers)
    result = await Swarm([polite], tasks=["start"], max_iterations=2).arun("go")
    assert result.success and "no subtasks" in result.outputs[1], "an agent is told, and can do it itself"


async def test_a_subtask_for_nobody_goes_back_to_the_agent(inline: Runtime) -> None:
    def answers(messages: list[Any]) -> Any:
        return text(messages[-1].content)

    asks = member("ann", tool_call("add_task", description="more", required=["magic"]), answers)
    result = await Swarm([SwarmAgent(asks, {"ink"})], tasks=["start"]).arun("go")
    assert result.success and len(result.outputs) == 1
    assert "nobody has the capability magic; there are: ink" in result.outputs[0]


async def test_a_member_with_structured_output_posts_in_its_answer(inline: Runtime) -> None:
    class Report(BaseModel):
        summary: str
        findings: list[str] = []
        subtasks: list[str] = []

    first = text(json.dumps({"summary": "s", "findings": ["f"], "subtasks": ["sub"]}))
    later = text(json.dumps({"summary": "later"}))
    agent = Agent(
        ScriptedModel([lambda messages: later if "sub" in asked(messages) else first]),
        name="ann",
        output_schema=Report,
    )
    swarm = Swarm([agent], tasks=["start"])
    assert not swarm.members["ann"].tools, "no tools beside a schema"
    result = await swarm.arun("go")
    assert result.success and [task["id"] for task in result.details["tasks"]] == ["1", "1.1"]
    assert result.details["findings"] == [{"task": "1", "agent": "ann", "text": "f"}]


async def test_a_subtask_that_is_none_fails_its_task(inline: Runtime) -> None:
    async def confused(prompt: str) -> dict[str, Any]:
        """Posts nonsense."""
        return {"subtasks": [17]}

    result = await Swarm([confused], tasks=["start"]).arun("go")
    assert not result.success and "17" in str(result.error)


@pytest.mark.spec("PAT-16", "PAT-19")
async def test_its_events_tell_who_claimed_what(inline: Runtime) -> None:
    swarm = Swarm([worker("ann")], tasks=["a", {"description": "b", "required": ["x"]}])
    assert await kinds_of(swarm, "go") == ["task_added", "task_added", "task_claimed", "task_completed"]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"max_parallel_agents": 0}, "max_parallel_agents"),
        ({"per_agent": 0}, "per_agent"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"task_timeout": 0}, "task_timeout"),
        ({"tasks": [1]}, "task"),
        ({"model": Agent(ScriptedModel([]))}, "model is a model"),
        ({"rounds": 3}, "rounds"),
    ],
)
def test_wrong_settings_say_what_is_wrong(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        Swarm([worker("ann")], **settings)


# pauses, crashes, cancels


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


@pytest.mark.spec("OURS-24", "OURS-13")
async def test_tasks_share_the_swarms_budget(inline: Runtime) -> None:
    def costly(messages: list[Any]) -> Any:
        return text("done", usage=Usage(prompt_tokens=300, completion_tokens=0))

    swarm = Swarm([member("ann", costly), member("bob", costly)], tasks=[*"abcdefgh"], token_budget=1_000)
    result = await swarm.arun("go")
    assert not result.success and result.stop_reason == "token_budget"
    assert 2 <= len(result.details["completed"]) <= 4 and result.metrics.total_tokens <= 1_300
    assert result.metrics.model_calls <= 4, "the others never began"


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
