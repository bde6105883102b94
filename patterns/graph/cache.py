"""Results of nodes that may be used again, for the graphs of one process. Source: PAT-31, PAT-32."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

MAX_NODES = 1_000


class NodeCache:
    """Replies by node and key: bounded per node, and in the number of nodes.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes: OrderedDict[str, OrderedDict[str, tuple[float, Any]]] = OrderedDict()

    def get(self, node: str, key: str) -> Any:
        """The reply that is kept, or None."""
        kept = self._nodes.get(node, OrderedDict())
        found = kept.get(key)
        if found is None:
            return None
        expires, reply = found
        if self._clock() >= expires:
            del kept[key]
            return None
        return reply

    def put(self, node: str, key: str, reply: Any, *, ttl: float | None, max_entries: int) -> None:
        """Keep a reply for ``ttl`` seconds; None is as long as there is room."""
        kept = self._nodes.setdefault(node, OrderedDict())
        self._nodes.move_to_end(node)
        kept.pop(key, None)
        kept[key] = (float("inf") if ttl is None else self._clock() + ttl, reply)
        while len(kept) > max_entries:
            kept.popitem(last=False)
        while len(self._nodes) > MAX_NODES:
            self._nodes.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._nodes.clear()


CACHE = NodeCache()
