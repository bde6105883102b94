"""PostgreSQL passes the tests that every store must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from umbel.actors.checkpoints import Store, open_store
from umbel.actors.checkpoints.conformance import StoreConformance

from .postgres_server import PostgresServer


class TestPostgres(StoreConformance):
    """A schema of its own for each test."""

    @pytest.fixture
    async def store(self, postgres_server: PostgresServer) -> AsyncIterator[Store]:
        self.url = f"{postgres_server.url}?schema=t{uuid4().hex}"
        store = open_store(self.url)
        yield store
        await store.close()

    def address(self, store: Store) -> str:
        return self.url
