"""Summaries of the beginnings of conversations, found again by what they sum up.

The key of a summary is a digest of the very messages that it stands for. So one manager can serve all threads of an agent
at once: a summary is only ever used where the same messages were said, and never in another thread (spec MEM-8).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ....protocol.messages import Message

Summarise = Callable[[list[Message]], Awaitable[str | None]]


def prefix_keys(messages: Sequence[Message]) -> list[bytes]:
    """One key per prefix: item n identifies the first n + 1 messages."""
    keys: list[bytes] = []
    key = b""
    for message in messages:
        key = hashlib.blake2b(key + message.model_dump_json().encode(), digest_size=16).digest()
        keys.append(key)
    return keys


class Summaries:
    """The most recently used summaries. Safe for threads; a pickled one arrives empty.

    Args:
        limit: how many to keep.
    """

    def __init__(self, limit: int = 256) -> None:
        self.limit = limit
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Summaries, (self.limit,))

    def __len__(self) -> int:
        return len(self._texts)

    def longest(self, keys: Sequence[bytes]) -> tuple[int, str]:
        """How many messages the longest known summary stands for, and its text; ``(0, "")`` when none is known."""
        with self._lock:
            for covered in range(len(keys), 0, -1):
                text = self._texts.get(keys[covered - 1])
                if text is not None:
                    self._texts.move_to_end(keys[covered - 1])
                    return covered, text
        return 0, ""

    def keep(self, key: bytes, text: str) -> None:
        """Remember a summary; the one unused for longest goes."""
        with self._lock:
            self._texts[key] = text
            self._texts.move_to_end(key)
            if len(self._texts) > self.limit:
                self._texts.popitem(last=False)
