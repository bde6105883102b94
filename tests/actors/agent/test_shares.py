"""A run's share of an endpoint's limits reaches its model calls, and those of everything below it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime, sequential
from umbel.actors.sharing import Share, current_share, sharing
from umbel.testing import text, tool_call


@pytest.fixture
async def inline() -> AsyncIterator[Runtime]:
    async with Runtime(inline=True) as runtime:
        yield runtime


class Noting:
    """Notes whose share its calls had; answers ``call`` first, if there is one."""

    def __init__(self, call: Any = None) -> None:
        self.call, self.shares = call, []  # type: ignore[var-annotated]

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        self.shares.append(current_share())
        return self.call if self.call is not None and messages[-1].role == "user" else text("done")


SHARE = Share(fleet="nightly", weight=2.0, priority=3)


async def test_a_share_reaches_the_calls_of_a_run_and_of_its_children(inline: Any) -> None:
    below, above = Noting(), Noting(tool_call("ask", prompt="go"))
    agent = Agent(above, tools=[Agent(below).as_tool(name="ask", description="asks")])
    with sharing(SHARE):
        await agent.arun("go", runtime=inline)
    await agent.arun("go", runtime=inline)
    assert above.shares == [SHARE, SHARE, None, None]
    assert below.shares == [SHARE, None]


async def test_members_of_a_pattern_inherit_its_share(inline: Any) -> None:
    member = Noting()
    pattern = sequential([Agent(member)])
    with sharing(SHARE):
        await pattern.arun("go", runtime=inline)
    assert member.shares == [SHARE]
    assert current_share() is None


def test_a_weight_is_positive() -> None:
    with pytest.raises(ValueError, match="weight"):
        Share(weight=0)
