"""Model calls that belong to a pattern itself: agents of its own that route, plan, judge or sum up."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from ..actors.agent_definition import Agent
from ..actors.runnable import Runnable
from ..protocol.errors import ConfigurationError, MemberFailed
from ..protocol.patterns import MemberResult


def auxiliary_agent(model: Any, name: str, instructions: str, schema: type[BaseModel] | None = None) -> Runnable:
    """The agent for one such call.

    Args:
        model: as for ``Agent``.
        name: in events and results.
        instructions: its system prompt.
        schema: what its answers must look like; one that does not fit goes back to the model.

    Raises:
        ConfigurationError: an agent instead of a model.
    """
    if isinstance(model, Runnable):
        raise ConfigurationError(f"model is a model, such as 'openai:gpt-4o-mini', not {model!r}")
    return Agent(model, system_prompt=instructions, name=name, output_schema=schema)


def with_value(result: MemberResult) -> MemberResult:
    """The result of a call that was to have a structured answer: without one it is a failure."""
    if not result.success or result.value is not None:
        return result
    error = MemberFailed(f"the answer does not fit what was asked for: {result.text[:200]}")
    return result.evolve(status="failed", stop_reason="error", error=error.to_wire())


def name_in(text: str, names: Collection[str]) -> str | None:
    """The one of the names that a model means by ``text``: it is the text, or the only one that is a word of it.

    Names that are part of others count as those. Case does not matter, unless names differ in nothing else.
    """
    said = text.strip()
    if said in names:
        return said
    found = [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said, re.IGNORECASE)]
    longest = [name for name in found if not any(name != other and name.casefold() in other.casefold() for other in found)]
    return longest[0] if len(longest) == 1 else None
