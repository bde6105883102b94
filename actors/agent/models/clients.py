"""HTTP connection pools, one per event loop: a pool used from a second loop fails as if the provider were down."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import cache
from weakref import WeakKeyDictionary

import httpx


class LoopClients:
    """The HTTP client of each event loop, made on first use.

    Args:
        make: makes a client; called inside the loop that will use it.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    def get(self) -> httpx.AsyncClient:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None or client.is_closed:
            self._forget_closed_loops()
            client = self._by_loop[loop] = self._make()
        return client

    async def aclose(self) -> None:
        """Close the running loop's connections; those of other loops are theirs to close."""
        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
        self._forget_closed_loops()

    def _forget_closed_loops(self) -> None:
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            del self._by_loop[loop]


@cache
def tls_context() -> ssl.SSLContext:
    """Trusted certificates, read from disk once per process."""
    return httpx.create_ssl_context()
