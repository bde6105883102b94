"""Deferred tools: hidden from the model until ``tool_search`` finds them (TOOL-28).

What is activated is read from the run's own executions, so runs share nothing, and a resumed run knows it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ....protocol.state import ToolExecution
from ..decorator import Tool, tool

NAME = "tool_search"
FOUND = 5
NAME_SCORE, DESCRIPTION_SCORE = 3, 1
_DESCRIPTION_CHARS = 300
_WORD = re.compile(r"\w+")


def tool_search_for(tools: Iterable[Tool]) -> Tool | None:
    """The tool ``tool_search`` over the deferred ones of ``tools``; None when none is deferred."""
    deferred = {each.name: each.description for each in tools if each.deferred}
    if not deferred:
        return None

    @tool(name=NAME, idempotent=True)
    async def tool_search(query: str) -> dict[str, Any]:
        """Find further tools by keywords. The tools that it finds can be called from your next step on.

        Args:
            query: Words for what the tool should do or is called.
        """
        found = search(query, deferred)
        if not found:
            return {"tools": [], "note": f"None of the {len(deferred)} further tools matches; try other words."}
        return {"tools": [{"name": name, "description": deferred[name][:_DESCRIPTION_CHARS]} for name in found]}

    return tool_search


def search(query: str, catalogue: Mapping[str, str], limit: int = FOUND) -> tuple[str, ...]:
    """Names of the best matches in ``catalogue`` (name to description), best first, ties by name.

    Every different word of the query counts 3 where the name contains it and 1 where the description does.
    """
    words = {word.lower() for word in _WORD.findall(query)}
    scores = {name: _score(words, name.lower(), description.lower()) for name, description in catalogue.items()}
    return tuple(sorted((name for name in scores if scores[name]), key=lambda name: (-scores[name], name))[:limit])


def activated(executions: Iterable[ToolExecution]) -> frozenset[str]:
    """Names of the tools that the successful searches of a run have found."""
    found: set[str] = set()
    for execution in executions:
        if execution.tool_name == NAME and execution.success:
            found.update(_names(execution.result or ""))
    return frozenset(found)


def with_tool_search(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """``tools`` and, if some are deferred and none has its name, ``tool_search`` over those."""
    own = tuple(tools)
    finder = tool_search_for(own)
    return own if finder is None or any(each.name == NAME for each in own) else (*own, finder)


def _score(words: set[str], name: str, description: str) -> int:
    return sum(NAME_SCORE * (word in name) + DESCRIPTION_SCORE * (word in description) for word in words)


def _names(result: str) -> list[str]:
    try:
        return [str(each["name"]) for each in json.loads(result)["tools"]]
    except (ValueError, TypeError, KeyError):
        return []  # a hook replaced the text, or the agent's own tool has this name
