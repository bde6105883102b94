"""A fleet at a rate limit: its progress says how many model calls wait."""

from __future__ import annotations

from typing import Any

import pytest

from umbel import Agent, Fleet, Runtime
from umbel.cluster.fleet import runner


@pytest.mark.case(24)
async def test_progress_shows_how_many_calls_wait(llmock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_ATTEND_SECONDS", 0.05)
    monkeypatch.setattr(runner, "_TICK_SECONDS", 0.05)
    where = {"base_url": f"{llmock.url}/v1", "api_key": "sk-waiting", "limits": {"requests_per_minute": 600}}
    seen: list[int | None] = []
    async with Runtime(inline=True) as runtime:
        fleet = Fleet(Agent("openai:gpt-4o-mini", model_kwargs=where), runtime=runtime, concurrency=10)
        tasks = [{"id": str(number), "prompt": "hi"} for number in range(12)]
        report = await fleet.run(tasks, progress=lambda snapshot: seen.append(snapshot.waiting))
    assert report.ok == 12
    assert max(count or 0 for count in seen) >= 5
    assert len(llmock.requests) == 12
