"""Every behaviour test runs on the inline runtime and on Ray: the ``runtime`` fixture."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from umbel import Runtime, Topology

RAY_GROUP = "ray"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the session's Ray stays in one worker of pytest-xdist, so that there is one Ray."""
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()) or item.get_closest_marker("ray") is not None:
            item.add_marker(pytest.mark.xdist_group(RAY_GROUP))


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session's Ray: one local cluster, whatever number of tests needs it."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    resources: dict[str, float] = {"browser": 4}
    ray.init(
        address="local",
        num_cpus=8,
        resources=resources,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def ray_runtime(ray_cluster: Any) -> Iterator[Runtime]:
    """Separate actors on the session's Ray, as by default."""
    runtime = Runtime()
    runtime.start()
    yield runtime
    runtime.close()


@pytest.fixture(scope="session")
def fragile_runtime(ray_cluster: Any) -> Iterator[Runtime]:
    """A runtime with actors of its own, on the session's Ray, whose processes the tests kill as often as they like."""
    with Runtime(topology=Topology(max_restarts=10_000)).start() as runtime:
        yield runtime


@pytest.fixture(scope="session")
def sharded_runtime(ray_cluster: Any) -> Iterator[Runtime]:
    """The same with two supervisors, so that members of a pattern have another one than the pattern."""
    with Runtime(topology=Topology(max_restarts=10_000, supervisors=2)).start() as runtime:
        yield runtime


@pytest_asyncio.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.ray)])
async def runtime(request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    """The current runtime of a test: inline, or the session's Ray runtime."""
    before = Runtime._current
    chosen = Runtime(inline=True) if request.param == "inline" else request.getfixturevalue("ray_runtime")
    Runtime._current = chosen
    yield chosen
    Runtime._current = before
    if request.param == "inline":
        await chosen.aclose()
    else:
        await chosen.backend.close_here()
