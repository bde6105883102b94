"""Case 4: what can never be stored is refused once: no save, no tool and no task is tried again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest

from umbel import Agent, Fleet, Runtime, tool
from umbel.errors import NotStorable, RunFailed
from umbel.testing import ScriptedModel, text, tool_call

from .counted_stores import CountedStore

pytestmark = pytest.mark.case(4)
CAP = 1_000_000
Durability = Literal["sync", "async", "exit"]
executed: list[str] = []


@tool(idempotent=True)
async def fetch() -> str:
    """Give a long text."""
    executed.append("fetch")
    return "x" * 2 * CAP


@tool
async def dump() -> str:
    """The same, with a side effect."""
    executed.append("dump")
    return "x" * 2 * CAP


def agent(kind: Any, store: str, durability: Durability = "sync") -> Agent:
    script = ScriptedModel([tool_call(kind.name), text("ok")])
    return Agent(script, [kind], checkpointer=store, durability=durability, max_tool_result_length=0)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("kind", [fetch, dump])
async def test_nothing_is_tried_again(kind: Any, durability: Durability) -> None:
    executed.clear()
    store = CountedStore(max_bytes=CAP)
    async with Runtime(inline=True) as runtime:
        with pytest.raises((RunFailed, NotStorable), match=str(CAP)) as raised:
            await agent(kind, store.register("capped"), durability).arun("go", thread_id="t", runtime=runtime)
    assert not raised.value.retryable
    assert executed == [kind.name]
    assert set(Counter(save.checkpoint_id for save in store.saves).values()) == {1}, "no save was sent again"
    assert sum(len(save.state) > CAP for save in store.saves) <= 2, "the step, and at most the end of the run"


async def test_a_fleet_does_not_try_the_task_again(tmp_path: Path) -> None:
    executed.clear()
    out = tmp_path / "out.jsonl"
    async with Runtime(inline=True) as runtime:
        fleet = Fleet(agent(fetch, CountedStore(max_bytes=CAP).register("capped")), runtime=runtime, threads="f", retries=5)
        report = await fleet.run([{"id": "a", "prompt": "go"}], out)
    [line] = [json.loads(line) for line in out.read_text().splitlines()]
    assert (report.failed, line["attempts"], executed) == (1, 1, ["fetch"])
    assert str(CAP) in json.dumps(line["error"])
