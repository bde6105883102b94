"""A bucket passes the tests that every store must pass."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from umbel.actors.checkpoints import Store, open_store
from umbel.actors.checkpoints.conformance import StoreConformance
from umbel.actors.checkpoints.conformance.requests import a_save, saved

from .s3_server import S3Server


@pytest.mark.usefixtures("s3_credentials")
class TestS3(StoreConformance):
    """A prefix of its own for each test. Processes save less often than elsewhere: a bucket is slow."""

    races = 12
    turns = 3

    @pytest.fixture
    async def store(self, s3_server: S3Server) -> AsyncIterator[Store]:
        self.url = f"s3://umbel/{uuid4().hex}?endpoint={s3_server.endpoint}"
        store = open_store(self.url)
        yield store
        await store.close()

    def address(self, store: Store) -> str:
        return self.url

    async def test_of_several_processes_one_wins_each_parent(self, store: Store, s3_server: S3Server) -> None:  # type: ignore[override]
        """As elsewhere; and the server did work on their requests side by side, as S3 does."""
        s3_server.most_at_once()
        await super().test_of_several_processes_one_wins_each_parent(store)
        assert s3_server.most_at_once() >= 2

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
