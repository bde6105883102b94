"""Fixtures for tests of patterns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from umbel import Runtime

from .programs import new_runtime
from .team import FLOOR


@pytest_asyncio.fixture
async def inline() -> AsyncIterator[Runtime]:
    """The current runtime of a test that needs no Ray; nobody is on the floor."""
    FLOOR.clear()
    async with new_runtime() as runtime:
        yield runtime


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The URL of a store that other processes see, too."""
    return f"sqlite:///{tmp_path}/threads.db"
