"""``web_search`` over whatever search engine the application has (TOOL-34)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from typing import Annotated, Protocol

from pydantic import Field

from ....protocol.messages import Frozen, Text
from ..decorator import Tool, tool

MAX_RESULTS = 20


class SearchHit(Frozen):
    """One result: where it is, what it is called, a passage of it."""

    url: Text
    title: Text = ""
    snippet: Text = ""


class SearchProvider(Protocol):
    """A search engine. ``search`` may be sync (it runs in a thread) or async; what it raises is the call's error."""

    def search(self, query: str, max_results: int) -> Awaitable[Sequence[SearchHit]] | Sequence[SearchHit]:
        """At most ``max_results`` hits, best first."""


def web_search_tool(provider: SearchProvider) -> Tool:
    """The tool ``web_search``.

    Args:
        provider: travels to the executor, so it must be picklable.
    """

    @tool(idempotent=True)
    async def web_search(
        query: Annotated[str, Field(min_length=1)], max_results: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 5
    ) -> str:
        """Search the web. Gives titles, addresses and passages.

        Args:
            query: What to look for.
            max_results: How many results at most.
        """
        hits = (await _search(provider, query, max_results))[:max_results]
        if not hits:
            return f"No results for {query!r}."
        return "\n\n".join(_entry(number, hit) for number, hit in enumerate(hits, 1))

    return web_search


async def _search(provider: SearchProvider, query: str, max_results: int) -> Sequence[SearchHit]:
    if inspect.iscoroutinefunction(provider.search):
        found: Sequence[SearchHit] = await provider.search(query, max_results)
        return found
    pending = await asyncio.to_thread(provider.search, query, max_results)
    return await pending if inspect.isawaitable(pending) else pending


def _entry(number: int, hit: SearchHit) -> str:
    return "\n".join(line for line in (f"{number}. {hit.title or hit.url}", hit.url, hit.snippet) if line)
