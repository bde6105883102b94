"""Fixtures for tests of patterns."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from umbel import Runtime

from .team import FLOOR


@pytest_asyncio.fixture
async def inline() -> AsyncIterator[Runtime]:
    """The current runtime of a test that needs no Ray; nobody is on the floor."""
    FLOOR.clear()
    async with Runtime(inline=True) as runtime:
        yield runtime
