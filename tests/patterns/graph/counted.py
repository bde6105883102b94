"""Nodes that say which of them ran."""

from __future__ import annotations

from typing import Any


class Counted:
    """Makes nodes that log their name, and remembers in which order they ran (in this process)."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def __call__(self, name: str) -> Any:
        async def node(state: Any) -> dict[str, Any]:
            self.runs.append(name)
            return {"log": name}

        return node
