"""Which process does what: shards, pools, colocation, tools beside the supervisor."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Placement, Runtime, Topology, tool
from umbel.errors import ConfigurationError
from umbel.testing import ScriptedModel, text, tool_call, tool_calls

pytestmark = pytest.mark.ray


@tool
async def pid() -> int:
    """The process."""
    return os.getpid()


@tool(placement="local")
async def local_pid() -> int:
    """The process, beside the supervisor."""
    return os.getpid()


@tool(placement=Placement(resources={"browser": 1}, replicas=2))
async def browser_pid() -> int:
    """The process of a pool with a custom resource."""
    return os.getpid()


class TellsItsProcess:
    """Answers with the process that the model runs in."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        return text(str(os.getpid()))


def pids(runtime: Runtime) -> dict[str, int]:
    reports = runtime.backend.reports()  # type: ignore[attr-defined]  # Ray only
    return {name: report["pid"] for name, report in reports.items()}


async def test_every_kind_of_actor_has_its_process(ray_runtime: Runtime) -> None:
    where = pids(ray_runtime)
    assert sorted(where) == ["agent/default/0", "checkpointer/default/0", "supervisor/default/0", "tools/default/0"]
    assert len(set(where.values())) == 4 and os.getpid() not in where.values()
    result = await Agent(ScriptedModel([tool_calls(("pid", {}), ("local_pid", {})), text("ok")]), [pid, local_pid]).arun(
        "where?", runtime=ray_runtime
    )
    assert [int(done.result or 0) for done in result.tool_executions] == [
        where["tools/default/0"],
        where["supervisor/default/0"],
    ]
    assert int((await Agent(TellsItsProcess()).arun("where?", runtime=ray_runtime)).message) == where["agent/default/0"]


async def test_a_pool_with_its_own_resources(ray_runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([tool_call("browser_pid"), text("ok")]), [browser_pid, pid])
    used: set[int] = set()
    async with asyncio.timeout(60):
        while len(used) < 2:  # a replica that takes long to start leaves its work to the other one
            results = await asyncio.gather(*(agent.arun("where?", runtime=ray_runtime) for _ in range(12)))
            used |= {int(result.tool_executions[0].result or 0) for result in results}
    where = pids(ray_runtime)
    pool = {process for name, process in where.items() if "browser" in name}
    assert len(pool) == 2 and used == pool


async def test_a_dedicated_agent_has_an_actor_of_its_own(ray_runtime: Runtime) -> None:
    agent = Agent(TellsItsProcess(), placement=Placement(dedicated=True, cpus=1))
    process = int((await agent.arun("where?", runtime=ray_runtime)).message)
    where = pids(ray_runtime)
    assert process != where["agent/default/0"] and process in where.values()


async def test_what_the_cluster_cannot_give_is_refused_at_once(ray_runtime: Runtime) -> None:
    agent = Agent(TellsItsProcess(), placement=Placement(gpus=3, resources={"moon": 1}))
    with pytest.raises(ConfigurationError, match=r"GPU 3 \(there is 0\), moon 1"):
        await agent.arun("where?", runtime=ray_runtime)


async def test_colocated_agents_and_several_shards(ray_cluster: Any) -> None:
    runtime = Runtime(topology=Topology(colocate_agents=True, supervisors=2, tool_executors=2))
    try:
        runtime.start()
        where = pids(runtime)
        shards = {where["supervisor/default/0"], where["supervisor/default/1"]}
        assert not [name for name in where if name.startswith("agent/")]
        answers = await asyncio.gather(*(Agent(TellsItsProcess()).arun("where?", runtime=runtime) for _ in range(20)))
        assert {int(answer.message) for answer in answers} == shards
        agent = Agent(ScriptedModel([tool_call("pid"), text("ok")]), [pid])
        results = await asyncio.gather(*(agent.arun("where?", runtime=runtime) for _ in range(20)))
        used = {int(result.tool_executions[0].result or 0) for result in results}
        assert used == {where["tools/default/0"], where["tools/default/1"]}
        parent = Agent(ScriptedModel([tool_call("child", prompt="x"), text("ok")]), [agent.as_tool(name="child")])
        assert (await parent.arun("delegate", runtime=runtime)).tool_executions[0].result == "ok"
    finally:
        await runtime.aclose()


async def test_a_definition_is_sent_once_and_tells_equal_from_different(ray_runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([text("a")]))
    assert agent.packed[0] == agent.packed[0]
    before = agent.packed[0]
    agent.add_tool(pid)
    assert agent.packed[0] != before
    assert (await agent.arun("x", runtime=ray_runtime)).message == "a"
