"""Redis passes the tests that every store must pass, on one server and on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from umbel.actors.checkpoints import Store, open_store
from umbel.actors.checkpoints.conformance import StoreConformance
from umbel.actors.checkpoints.conformance.keeping import Keeping
from umbel.actors.checkpoints.conformance.leases import Leases
from umbel.actors.checkpoints.conformance.saving import Saving
from umbel.actors.checkpoints.conformance.superseding import Superseding

from .redis_server import RedisCluster, RedisServer


class TestRedis(StoreConformance):
    """A lone server."""

    @pytest.fixture
    async def store(self, redis_server: RedisServer) -> AsyncIterator[Store]:
        self.url = f"{redis_server.url}/1?prefix=[{uuid4().hex}]*:"
        store = open_store(self.url)
        yield store
        await store.close()

    def address(self, store: Store) -> str:
        return self.url


class TestRedisCluster(Saving, Superseding, Leases, Keeping):
    """Two nodes that share the slots: a command or script over two slots is refused there."""

    @pytest.fixture
    async def store(self, redis_cluster: RedisCluster) -> AsyncIterator[Store]:
        store = open_store(f"{redis_cluster.url}?cluster=yes&prefix={uuid4().hex}:")
        yield store
        await store.close()
