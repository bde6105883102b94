"""Servers that the tests of the network stores share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .postgres_server import PostgresServer
from .redis_server import RedisCluster, RedisServer
from .s3_server import ENVIRONMENT, S3Server


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


@pytest.fixture(scope="session")
def postgres_server(
    require_service: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresServer]:
    """One server for all tests that do not harm it; each takes a schema of its own."""
    with tempfile.TemporaryDirectory(prefix="umbel-pg-") as folder:  # pytest's folders are closed to other users
        server = PostgresServer(require_service, Path(folder))
        yield server.start(fsync="off")
        server.kill()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for all tests that do not harm it; each takes a prefix of its own."""
    server = S3Server()
    yield server.start()
    server.kill()


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What boto3 finds in the environment."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
