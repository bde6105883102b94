"""Releasing what belongs to an event loop when that loop ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable


async def at_loop_end(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Have ``close`` awaited when the running event loop shuts down (``asyncio.run`` and ``asyncio.Runner`` do that).

    Returns:
        Something to keep for as long as that is wanted.
    """

    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await close()

    guard = wait()
    await anext(guard)  # begun, so the loop closes it with its other asynchronous generators
    return guard
