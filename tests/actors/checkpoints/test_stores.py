"""Umbel's stores pass the tests that every store must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from umbel.actors.checkpoints import FileStore, MemoryStore, SqliteStore
from umbel.actors.checkpoints.conformance import StoreConformance


@pytest.mark.case(4)
@pytest.mark.case(16)
@pytest.mark.spec("OURS-15", "OURS-21", "OURS-22", "OURS-23", "BUG-51")
@pytest.mark.spec("MEM-22", "MEM-27", "MEM-30", "MEM-33", "MEM-39", "MEM-40", "MEM-43")
class StoreTests(StoreConformance):
    """What they show, for every store of Umbel's own."""


class TestMemoryStore(StoreTests):
    @pytest.fixture
    async def store(self) -> AsyncIterator[MemoryStore]:
        store = MemoryStore()
        yield store
        await store.close()


class TestSqliteStore(StoreTests):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(tmp_path / "deep" / "checkpoints.sqlite", synchronous="normal")
        yield store
        await store.close()

    def address(self, store: SqliteStore) -> str:
        return f"sqlite:///{store.path}?synchronous=normal"


class TestFileStore(StoreTests):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[FileStore]:
        store = FileStore(tmp_path / "deep" / "store", synchronous="normal")
        yield store
        await store.close()

    def address(self, store: FileStore) -> str:
        return f"file:///{store.path}?synchronous=normal"
