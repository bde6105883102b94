"""What tests of patterns share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from umbel import Runtime

from .programs import inline


@pytest_asyncio.fixture
async def here() -> AsyncIterator[Runtime]:
    """The current runtime, inline."""
    async with inline() as runtime:
        yield runtime


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The URL of a store that other processes see, too."""
    return f"sqlite:///{tmp_path}/threads.db"
