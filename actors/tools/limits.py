"""Results too long for a conversation: stored and referenced, or cut in the middle (LOOP-91, OURS-20)."""

from __future__ import annotations

import asyncio
import inspect
import logging

from ...protocol.images import strip_images, text_length
from ...protocol.messages import ToolResult
from .output import error_text
from .result_store import ResultStore, StoredResults, reference, result_key

logger = logging.getLogger("umbel.tools")

LIMIT, HEAD_FRACTION = 32_000, 0.4


async def limited(
    result: ToolResult,
    *,
    limit: int = LIMIT,
    head_fraction: float = HEAD_FRACTION,
    store: ResultStore | StoredResults | None = None,
) -> ToolResult:
    """``result`` with no text longer than the limit. Never raises, and never loses what the store could not take.

    Args:
        result: of any call, failed ones too.
        limit: characters, images not counted; 0 means no limit.
        head_fraction: share of what is kept that comes from the beginning, 0 to 1.
        store: takes long texts whole, once per content; the result then holds a reference with both ends of the text.
            A text over the limit that is not over the store's own threshold stays whole (TOOL-44).
    """
    changes = {}
    for field in ("content", "error"):
        text: str | None = getattr(result, field)
        if limit and text and len(text) > limit and text_length(text) > limit:
            changes[field] = await _shorter(text, limit, head_fraction, store)
    return result.evolve(**changes) if changes else result


def cut(text: str, limit: int, head_fraction: float = HEAD_FRACTION, note: str = "") -> str:
    """The first and the last characters of ``text``, ``limit`` in all, around a marker that says what is missing.

    Images are taken out first. ``note`` goes into the marker.
    """
    plain = strip_images(text)
    if len(plain) <= limit:
        return plain
    head, tail = _ends(plain, limit, head_fraction)
    images = " and its images" if len(plain) < len(text) else ""
    missing = len(plain) - len(head) - len(tail)
    marker = f"[... {missing:,} of {len(plain):,} characters{images} were cut out here{note} ...]"
    return f"{head}\n{marker}\n{tail}"


async def _shorter(text: str, limit: int, head_fraction: float, store: ResultStore | StoredResults | None) -> str:
    if store is None:
        return cut(text, limit, head_fraction)
    kept = store if isinstance(store, StoredResults) else StoredResults(store)
    if text_length(text) <= kept.threshold:
        return text
    key = result_key(text)
    try:
        await _save(kept.store, key, text)
    except Exception as error:  # a store is foreign code; the text is cut instead, and says why
        logger.warning("a tool result of %d characters could not be stored, it is cut instead", len(text), exc_info=True)
        return cut(text, limit, head_fraction, f"; storing the whole failed: {error_text(error)}")
    head, tail = _ends(strip_images(text), kept.preview, head_fraction)
    return reference(key, len(text), head, tail)


async def _save(store: ResultStore, key: str, text: str) -> None:
    if inspect.iscoroutinefunction(store.save):
        await store.save(key, text)
        return
    pending = await asyncio.to_thread(store.save, key, text)
    if inspect.isawaitable(pending):
        await pending


def _ends(text: str, size: int, head_fraction: float) -> tuple[str, str]:
    head = int(size * head_fraction)
    tail = min(size - head, len(text) - head)
    return text[:head], text[len(text) - tail :] if tail > 0 else ""
