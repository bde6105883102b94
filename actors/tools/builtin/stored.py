"""``read_stored_result``: the model reads more of a result that was too long for the conversation (OURS-20)."""

from __future__ import annotations

import asyncio
import inspect
from typing import Annotated

from pydantic import Field

from ....protocol.errors import ToolError
from ....protocol.images import strip_images
from ..decorator import Tool, tool
from ..result_store import PREVIEW, ResultStore, StoredResults


def stored_result_tool(store: ResultStore | StoredResults) -> Tool:
    """The tool ``read_stored_result`` over an agent's result store.

    It runs beside the supervisor, which is who stores results: so it also works with a store in memory.
    """
    kept = store.store if isinstance(store, StoredResults) else store

    @tool(idempotent=True, placement="local")
    async def read_stored_result(
        key: str, start: Annotated[int, Field(ge=0)] = 0, max_chars: Annotated[int, Field(ge=1, le=2 * PREVIEW)] = PREVIEW
    ) -> str:
        """Read a part of a result that was too long to be shown whole.

        Args:
            key: Under which the result is stored.
            start: How many characters to skip.
            max_chars: How many characters to read.
        """
        text = await _load(kept, key)
        if text is None:
            raise ToolError(f"no result is stored under {key[:80]!r}")
        plain = strip_images(text, "[image]")
        start, end = min(start, len(plain)), min(start + max_chars, len(plain))
        return f"[characters {start:,} to {end:,} of {len(plain):,}]\n{plain[start:end]}"

    return read_stored_result


async def _load(store: ResultStore, key: str) -> str | None:
    if inspect.iscoroutinefunction(store.load):
        text: str | None = await store.load(key)
        return text
    pending = await asyncio.to_thread(store.load, key)
    return await pending if inspect.isawaitable(pending) else pending
