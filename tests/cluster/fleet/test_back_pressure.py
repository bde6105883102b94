"""A slow sink holds back everything before it, to the source: what waits anywhere is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Fleet, Runtime
from umbel.cluster.fleet import results_file, store_ledger
from umbel.testing import ScriptedModel, text

TASKS = 20_000
WIDTH = 50


class Source:
    """Counts what was taken of it."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[str]:
        for number in range(TASKS):
            self.taken += 1
            yield str(number)

    async def standstill(self) -> int:
        """How many were taken when no more are."""
        before = -1
        while before != self.taken or not before:
            before = self.taken
            await asyncio.sleep(0.3)
        return before


@pytest.fixture(params=["file", "store"])
def blocked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[[], None], str | None]:
    """Results cannot be written until the function is called; and the name of the fleet that writes there."""
    if request.param == "file":
        gate = threading.Event()
        append = results_file.ResultsFile._append

        def slow_append(self: Any, data: bytes) -> None:
            gate.wait(60)
            append(self, data)

        monkeypatch.setattr(results_file.ResultsFile, "_append", slow_append)
        monkeypatch.setattr(results_file, "_BACKLOG", 200)
        return gate.set, None
    ready = asyncio.Event()
    commit = store_ledger.StoreLedger._commit

    async def slow_commit(self: Any, save: Any) -> None:
        await ready.wait()
        await commit(self, save)

    monkeypatch.setattr(store_ledger.StoreLedger, "_commit", slow_commit)
    monkeypatch.setattr(store_ledger, "_BACKLOG_BYTES", 200 * 150)
    return ready.set, "pressed"


async def test_a_slow_sink_stops_a_fast_source(
    blocked: tuple[Callable[[], None], str | None], make_agent: Any, out: Path, read_results: Any
) -> None:
    release, name = blocked
    source = Source()
    agent = make_agent()
    running = asyncio.ensure_future(Fleet(agent, concurrency=WIDTH, name=name).run(source, out, limit=1_000))
    taken = await source.standstill()
    assert 0 < taken <= 2 * 200 + 2 * WIDTH
    assert len(agent.calls) <= taken
    release()
    report = await running
    assert (report.ok, source.taken) == (1_000, 1_000)
    assert len(read_results(out)) == 1_000


async def test_a_slow_agent_stops_a_fast_source() -> None:
    gate = asyncio.Event()

    class Slow(ScriptedModel):
        async def complete(self, messages: Any, tools: Any = None, **settings: Any) -> Any:
            await gate.wait()
            return await super().complete(messages, tools, **settings)

    source = Source()
    async with Runtime(inline=True) as runtime:
        fleet = Fleet(Agent(Slow([text("x")])), concurrency=WIDTH, runtime=runtime)
        running = asyncio.ensure_future(fleet.run(source, limit=200))
        assert await source.standstill() == WIDTH
        gate.set()
        assert (await running).ok == 200
