"""A bucket passes the tests that every store must pass."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from umbel.actors.checkpoints import Store, open_store
from umbel.actors.checkpoints.conformance.keeping import Keeping
from umbel.actors.checkpoints.conformance.leases import Leases
from umbel.actors.checkpoints.conformance.requests import a_save, saved
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

    async def test_deltas_are_folded(self, store: Store) -> None:
        """As elsewhere, but all in one batch: 300 saves alone would take a bucket too long."""
        first = a_save("c0", state=b'{"messages":[0],"iteration":0}')
        rest = [
            a_save(f"c{n}", f"c{n - 1}", kind="delta", base=n, state=b'{"messages":[%d],"iteration":%d}' % (n, n))
            for n in range(1, 120)
        ]
        await saved(store, first, *rest)
        newest = await store.load("thread")
        assert json.loads(newest.state or b"") == {"messages": list(range(120)), "iteration": 119}
        assert newest.depth == 119
        middle = await store.load("thread", "c7")
        assert json.loads(middle.state or b"") == {"messages": list(range(8)), "iteration": 7}
