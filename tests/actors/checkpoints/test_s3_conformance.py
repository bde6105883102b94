"""A bucket passes the tests that every store must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from umbel.actors.checkpoints import Store, open_store
from umbel.actors.checkpoints.conformance import StoreConformance

from .s3_server import S3Server


@pytest.mark.usefixtures("s3_credentials")
class TestS3(StoreConformance):
    """A prefix of its own for each test."""

    @pytest.fixture
    async def store(self, s3_server: S3Server) -> AsyncIterator[Store]:
        self.url = f"s3://umbel/{uuid4().hex}?endpoint={s3_server.endpoint}"
        store = open_store(self.url)
        yield store
        await store.close()

    def address(self, store: Store) -> str:
        return self.url
