"""A bucket passes the tests that every store must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from umbel.actors.checkpoints import Store, open_store
from umbel.actors.checkpoints.conformance.keeping import Keeping
from umbel.actors.checkpoints.conformance.leases import Leases
from umbel.actors.checkpoints.conformance.saving import Saving

from .s3_server import S3Server


@pytest.mark.usefixtures("s3_credentials")
class TestS3(Saving, Leases, Keeping):
    """A prefix of its own for each test. Several processes are in ``test_s3.py``, with fewer saves: a bucket is slow."""

    @pytest.fixture
    async def store(self, s3_server: S3Server) -> AsyncIterator[Store]:
        store = open_store(f"s3://umbel/{uuid4().hex}?endpoint={s3_server.endpoint}")
        yield store
        await store.close()
