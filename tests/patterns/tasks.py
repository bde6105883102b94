"""Tasks for tests of entrypoints, which count how often they run in this process."""

from __future__ import annotations

from collections import Counter
from typing import Any

from umbel import Agent, ToolContext
from umbel.patterns.functional import task
from umbel.testing import ScriptedModel, text

runs: Counter[str] = Counter()


@task
async def double(n: int) -> int:
    """Twice as much."""
    runs[f"double {n}"] += 1
    return 2 * n


@task
async def fail(why: str) -> str:
    runs[f"fail {why}"] += 1
    raise ValueError(why)


async def _confirm(what: str, ctx: ToolContext) -> list[str]:
    return [ctx.interrupt(f"{what}, really?"), ctx.interrupt(f"{what}, certainly?")]


confirm: Any = task(name="confirm")(_confirm)

writer = Agent(ScriptedModel([text("A draft.")]), name="writer")


def step_names(result: Any) -> list[tuple[str, str]]:
    return [(done["step"], done["status"]) for done in result.details["tasks"]]
