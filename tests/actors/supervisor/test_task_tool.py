"""The delegation tool: a model gives tasks to subagents of its own kind. On the inline runtime and on Ray."""

from __future__ import annotations

from typing import Any

import pytest

from umbel import Agent, Hook, Message, ModelResponse, Runtime, SubagentSpec, task_tool, tool
from umbel.errors import ConfigurationError
from umbel.events import CustomEvent, SubagentEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls


@tool
async def look(page: int) -> str:
    """Look at a page."""
    return f"page {page}"


@tool
async def erase(page: int) -> str:
    """Erase a page."""
    return f"no page {page}"


class Told:
    """A model that does what the prompt says: ``look``, ``tools``, ``count`` or ``deeper``; the parent follows its script.

    Args:
        script: what the agent says whose prompt is ``Go.``.
    """

    def __init__(self, *script: Any) -> None:
        self.parent = ScriptedModel([*script, text("Done.")])

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        prompts = [message.content or "" for message in messages if message.role == "user"]
        last = messages[-1]
        if prompts[-1] == "Go.":
            return await self.parent.complete(messages, tools, **settings)
        if last.role == "tool":
            return text(f"got {last.content}")
        if prompts[-1] == "tools":
            return text(", ".join(sorted(offered["function"]["name"] for offered in tools or ())) + f" {messages[0].content}")
        if prompts[-1] == "count":
            return text(f"turn {len(prompts)}")
        if prompts[-1] == "look":
            return tool_call("look", page=3)
        return tool_call("task", description="deeper", prompt="deeper", subagent_type="worker")


def task(prompt: str, kind: str = "reader", **more: Any) -> tuple[str, dict[str, Any]]:
    return "task", {"description": "a task", "prompt": prompt, "subagent_type": kind, **more}


SPECS = (
    SubagentSpec(name="reader", description="reads pages", tools=("look",), system_prompt="You read."),
    SubagentSpec(name="worker", description="does anything"),
    SubagentSpec(name="thief", description="wants what it may not have", tools=("look", "launch")),
    SubagentSpec(name="quiet", description="without hooks", with_hooks=False),
)


def parent(*script: Any, **settings: Any) -> Agent:
    return Agent(Told(*script), [look, erase, task_tool(SPECS)], name="parent", system_prompt="You lead.", **settings)


async def results(*script: Any, **settings: Any) -> list[str]:
    result = await parent(*script, **settings).arun("Go.")
    return [str(done.result if done.error is None else done.error) for done in result.tool_executions]


@pytest.mark.spec("TOOL-55")
async def test_types_narrow_the_parents_tools(runtime: Runtime) -> None:
    reader, worker, thief = await results(tool_calls(task("tools"), task("tools", "worker"), task("tools", "thief")))
    assert reader.startswith("look You read.")
    assert worker.startswith("erase, look, task You lead.")
    assert "launch" in thief and "does not have" in thief


@pytest.mark.spec("TOOL-55", "API-60")
async def test_a_task_goes_on_and_unknown_ones_are_answered(runtime: Runtime) -> None:
    def again(messages: list[Message]) -> ModelResponse:
        task_id = (messages[-1].content or "").rpartition("task_id: ")[2].rstrip(")")
        return tool_calls(task("count", task_id=task_id), task("count", task_id="task_0123456789ab"), task("count", "nobody"))

    first, second, unknown, nobody = await results(tool_calls(task("count")), again)
    assert first.startswith("turn 1\n") and second.startswith("turn 2\n")
    assert first.rpartition("task_id")[2] == second.rpartition("task_id")[2]
    assert unknown.startswith("The task was not given") and "task_0123456789ab" in unknown
    assert nobody == "There is no subagent type 'nobody'; choose one of: reader, worker, thief, quiet."


@pytest.mark.spec("TOOL-55")
async def test_depth_is_refused_in_words(runtime: Runtime) -> None:
    [said] = await results(tool_calls(task("deeper", "worker")))
    assert said.count("got ") == 2 and "The task was not given: tasks are already 2 deep" in said


class Says(Hook):
    """Says whose model is called."""

    async def on_before_model_call(self, event: Any) -> None:
        event.emit(CustomEvent(name="thinking", data={}))


@pytest.mark.spec("TOOL-55", "EVT-11")
async def test_the_parents_hooks_run_inside_and_events_carry_the_task(runtime: Runtime) -> None:
    agent = parent(tool_calls(task("look", "worker"), task("look", "quiet")), hooks=[Says()])
    events = [event async for event in agent.run("Go.")]
    inner = [event for event in events if isinstance(event, SubagentEvent)]
    said = [event.event.agent_name for event in inner if isinstance(event.event, CustomEvent)]
    assert said == ["worker", "worker"]
    tasks = {event.event.agent_name: event.task_id for event in inner}
    assert len(set(tasks.values())) == 2 and all(str(task_id).startswith("task_") for task_id in tasks.values())


def test_what_cannot_work_is_refused_when_it_is_made() -> None:
    twice = [SubagentSpec(name="a", description=""), SubagentSpec(name="a", description="")]
    for specs, depth in ((twice, 2), ([], 2), (SPECS, 0)):
        with pytest.raises(ConfigurationError, match="task_tool needs"):
            task_tool(specs, max_depth=depth)
