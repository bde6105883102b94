"""Swarms: who claims what, how many at once, what the others see, and that no task is ever done twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

from umbel import Agent, Runtime, Usage
from umbel.errors import CapReached, ConfigurationError, MemberFailed, NothingRan
from umbel.patterns.swarm import Swarm, SwarmAgent
from umbel.protocol.errors import Unclaimed
from umbel.testing import ScriptedModel, error, text, tool_call, tool_calls

from .team import DONE, FLOOR, asked, kinds_of, member, worker


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


@pytest.mark.spec("OURS-24", "OURS-13")
async def test_tasks_share_the_swarms_budget(inline: Runtime) -> None:
    def costly(messages: list[Any]) -> Any:
        return text("done", usage=Usage(prompt_tokens=300, completion_tokens=0))

    swarm = Swarm([member("ann", costly), member("bob", costly)], tasks=[*"abcdefgh"], token_budget=1_000)
    result = await swarm.arun("go")
    assert not result.success and result.stop_reason == "token_budget"
    assert 2 <= len(result.details["completed"]) <= 4 and result.metrics.total_tokens <= 1_300
    assert result.metrics.model_calls <= 4, "the others never began"
