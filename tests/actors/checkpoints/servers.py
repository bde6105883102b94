"""Servers that the tests of the network stores share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .redis_server import RedisCluster, RedisServer


@pytest.fixture(scope="session")
def redis_server(require_service: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that do not harm it; each takes a prefix of its own."""
    server = RedisServer(require_service("redis-server"), tmp_path_factory.mktemp("redis"), "--appendonly", "yes").start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def redis_cluster(require_service: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = RedisCluster(require_service("redis-server"), tmp_path_factory.mktemp("redis-cluster"))
    yield cluster.start()
    cluster.kill()
