"""Runtimes of the graphs' tests: most run inline, behaviour that depends on where things run also takes ``runtime``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from umbel import Runtime


@pytest_asyncio.fixture
async def inline() -> AsyncIterator[Runtime]:
    """The current runtime of a test: inline."""
    before = Runtime._current
    async with Runtime(inline=True) as runtime:
        Runtime._current = runtime
        yield runtime
    Runtime._current = before
