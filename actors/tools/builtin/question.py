"""``ask_user``: the run waits for a person, whose answer is the call's result (TOOL-31, TOOL-36)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ..context import ToolContext
from ..decorator import tool


@tool
async def ask_user(  # noqa: D417 - the model reads this docstring, and ctx is not for it
    ctx: ToolContext, question: Annotated[str, Field(min_length=1)], options: str | list[str] | None = None
) -> Any:
    """Ask the user a question and wait for the answer. Use it when you cannot go on without a decision or a fact.

    Args:
        question: What the user is asked.
        options: The answers to choose from, separated by commas.
    """
    choices = options.split(",") if isinstance(options, str) else options or []
    return ctx.interrupt(question, [choice.strip() for choice in choices if choice.strip()] or None, answers=True)
