"""Fleets of real agents: the same promises as with doubles, through the whole runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Fleet, Runtime
from umbel.actors.tools.decorator import tool
from umbel.cluster.fleet import Backoff
from umbel.protocol.errors import ConfigurationError, Overloaded
from umbel.testing import ScriptedModel, text, tool_call

ReadResults = Callable[[Path], dict[str, dict[str, Any]]]


@tool
async def shout(word: str) -> str:
    """Say it louder."""
    return word.upper()


def test_a_fleet_of_agents_with_tools_inline(out: Any, read_results: ReadResults) -> None:
    agent = Agent(model=ScriptedModel([tool_call("shout", word="hey"), text("said it")]), tools=[shout])
    with Runtime(inline=True) as runtime:
        report = Fleet(agent, runtime=runtime).run_sync([f"task {n}" for n in range(200)], out)
    results = read_results(out)
    assert (report.ok, len(results)) == (200, 200)
    assert {result["message"] for result in results.values()} == {"said it"}
    assert report.tokens == sum(result["tokens"] for result in results.values()) > 0


async def test_a_model_error_that_goes_away_is_retried_by_the_fleet(out: Any, read_results: ReadResults) -> None:
    class Moody(ScriptedModel):
        calls = 0

        async def complete(self, messages: Any, tools: Any = None, **settings: Any) -> Any:
            Moody.calls += 1
            if Moody.calls <= 2:
                raise Overloaded("too busy")
            return await super().complete(messages, tools, **settings)

    agent = Agent(model=Moody([text("fine")]), model_retry=False)
    async with Runtime(inline=True) as runtime:
        report = await Fleet(agent, runtime=runtime, retries=3, backoff=Backoff(first=0)).run([{"id": "a", "prompt": "x"}], out)
    assert (report.ok, report.retries) == (1, 2)
    assert read_results(out)["a"]["attempts"] == 3


async def test_a_limit_is_a_failure_with_its_reason(out: Any, read_results: ReadResults) -> None:
    agent = Agent(model=ScriptedModel([tool_call("shout", word="hey")], loop=True), tools=[shout], token_budget=1)
    async with Runtime(inline=True) as runtime:
        report = await Fleet(agent, runtime=runtime).run([{"id": "a", "prompt": "x"}], out)
    result = read_results(out)["a"]
    assert (report.failed, result["stop_reason"], result["attempts"]) == (1, "token_budget", 1)
    assert "token_budget" in result["error"]


@pytest.mark.parametrize("model", ["nosuch:model", "openai:gpt-4o-mini"])
async def test_a_wrong_model_or_a_missing_key_stops_the_fleet(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    seen: list[Any] = []
    async with Runtime(inline=True) as runtime:
        with pytest.raises(ConfigurationError, match=r"nosuch|OPENAI_API_KEY"):
            await Fleet(Agent(model=model), runtime=runtime, concurrency=2).run(
                [str(n) for n in range(50)], progress=seen.append
            )
    assert seen[-1].done < 10


async def test_stopping_a_fleet_cancels_its_runs(out: Any, read_results: ReadResults) -> None:
    fleet: Fleet | None = None

    @tool
    async def stop_all() -> str:
        """Stop the fleet and wait for ever."""
        import asyncio

        assert fleet is not None
        fleet.stop("SIGTERM")
        await asyncio.Event().wait()
        return "never"

    agent = Agent(model=ScriptedModel([tool_call("stop_all"), text("never")]), tools=[stop_all])
    async with Runtime(inline=True) as runtime:
        fleet = Fleet(agent, runtime=runtime, concurrency=1)
        report = await fleet.run([{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "y"}], out)
    assert (report.cancelled, report.total, report.exit_code) == (1, 1, 143)
    assert read_results(out)["a"]["status"] == "cancelled"


def test_threads_keep_each_conversation(tmp_path: Path) -> None:
    agent = Agent(model=ScriptedModel([text("kept")]), checkpointer=f"sqlite:///{tmp_path / 'threads.sqlite'}")
    with Runtime(inline=True) as runtime:
        report = Fleet(agent, runtime=runtime, threads="f").run_sync([{"id": "a", "prompt": "x"}])
        again = runtime.run_sync(agent.arun("y", thread_id="f/a", runtime=runtime))
    assert report.ok == 1
    assert [message.content for message in again.messages if message.role == "user"] == ["x", "y"]
