"""Another attempt at a durable task goes on with what the first one did: its side effects do not happen again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Fleet, Message, ModelResponse, Runtime, tool
from umbel.cluster.fleet import Backoff
from umbel.errors import RateLimited
from umbel.protocol.messages import Usage
from umbel.testing import ScriptedModel, text, tool_call

from ...cases.counted_stores import CountedStore

USAGE = Usage(prompt_tokens=10, completion_tokens=5)
FAST = Backoff(first=0.001, cap=0.01)
paid: list[int] = []


@tool
async def pay(amount: int) -> str:
    """A side effect."""
    paid.append(amount)
    return "paid"


class Busy(ScriptedModel):
    """Cannot answer at some of its calls, counted over all runs."""

    def __init__(self, *at: int) -> None:
        super().__init__([tool_call("pay", amount=1).evolve(usage=USAGE), text("done").evolve(usage=USAGE)])
        self.at = at
        self.calls = 0

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        self.calls += 1
        if self.calls in self.at:
            raise RateLimited("later")
        return await super().complete(messages, tools, **settings)


@pytest.mark.parametrize(("at", "attempts"), [((2,), 2), ((2, 3), 3), ((1,), 2), ((1, 3), 3)])
async def test_a_side_effect_is_not_repeated_by_another_attempt(tmp_path: Path, at: tuple[int, ...], attempts: int) -> None:
    paid.clear()
    url, out = f"sqlite:///{tmp_path}/t.db", tmp_path / "out.jsonl"
    agent = Agent(Busy(*at), [pay], checkpointer=url, model_retry=False)
    async with Runtime(inline=True) as runtime:
        report = await Fleet(agent, runtime=runtime, threads="f", retries=3, backoff=FAST).run(
            [{"id": "a", "prompt": "go"}], out
        )
    line = json.loads(out.read_text())
    assert (report.ok, line["attempts"], paid) == (1, attempts, [1])
    assert line["tokens"] == 2 * USAGE.total_tokens, "of every call once"


async def test_an_outage_of_the_store_does_not_repeat_one_either(tmp_path: Path) -> None:
    paid.clear()

    class Recovers(CountedStore):
        async def save(self, saves: Any) -> Any:
            self.fail_at = 2 if len(self.saves) < 2 else None  # only the save behind the call
            return await super().save(saves)

    store = Recovers()
    agent = Agent(Busy(), [pay], checkpointer=store.register("recovers"))
    async with Runtime(inline=True) as runtime:
        fleet = Fleet(agent, runtime=runtime, threads="f", retries=3, backoff=FAST)
        report = await fleet.run([{"id": "a", "prompt": "go"}], tmp_path / "out.jsonl")
    assert (report.ok, report.retries, paid) == (1, 1, [1])
