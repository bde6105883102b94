"""Limits of an endpoint on a real Ray: two agent actors share them by an actor of its own, which may die."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
import ray

from umbel import Agent, Runtime, Topology
from umbel.cluster.limiter import PREFIX
from umbel.cluster.named_actors import NAMESPACE
from umbel.protocol.config import Limits

pytestmark = pytest.mark.ray
RUNS = 20
A_SECOND = 10


@pytest.mark.case(24)
async def test_two_actors_share_a_limit_and_survive_the_death_of_who_keeps_it(ray_cluster: Any, llmock: Any) -> None:
    where = {"base_url": f"{llmock.url}/v1", "api_key": "sk-shared-limit"}
    agent = Agent("openai:gpt-4o-mini", model_kwargs=where)
    topology = Topology(agents=2, limits={f"{llmock.url}/v1": Limits(requests_per_minute=60 * A_SECOND)})
    before = limiters()
    async with Runtime(topology=topology) as runtime:
        runs = asyncio.gather(*(agent.arun("hi", runtime=runtime) for _ in range(RUNS)))
        while len(llmock.requests) < RUNS // 4:
            await asyncio.sleep(0.05)
        first = [handle for name, handle in limiters().items() if name not in before]
        assert len(first) == 1, "both asked the same one"
        ray.kill(first[0])
        assert all(result.success for result in await runs)
    times = sorted(record.started_at for record in llmock.requests)
    assert len(times) == RUNS
    assert times[RUNS // 4 - 1] - times[0] > 0.8 * (RUNS // 4 - 1) / A_SECOND
    assert times[-1] - times[0] > 0.8 * (RUNS - 1) / A_SECOND, "its death does not let everybody go"


def limiters() -> dict[str, Any]:
    """The limiters there are, by name."""
    found = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(PREFIX):
            with contextlib.suppress(ValueError):
                found[actor["name"]] = ray.get_actor(actor["name"], NAMESPACE)
    return found
