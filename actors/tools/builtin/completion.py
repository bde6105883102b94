"""``task_complete``: the agent says that it is done, in explicit completion mode (TOOL-31)."""

from __future__ import annotations

from collections.abc import Iterable

from ..decorator import Tool, tool
from .question import ask_user


@tool
async def task_complete(summary: str, status: str = "success") -> str:
    """Say that the task is done. Call it only when nothing is left to do; it ends your work.

    Args:
        summary: What was done, and its result.
        status: "success", or in a word how it ended otherwise.
    """
    return summary if status == "success" else f"{status}: {summary}"


def with_explicit_tools(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """``tools`` and, unless they have tools of these names themselves, ``task_complete`` and ``ask_user``."""
    own = tuple(tools)
    names = {each.name for each in own}
    return own + tuple(each for each in (task_complete, ask_user) if each.name not in names)
