"""Handles on runs of patterns: begun, attached by whoever knows the id, read event by event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import umbel
from umbel import Agent, MemberResult, PatternResult, Runtime
from umbel.cluster.cli.attach import follow
from umbel.events import MemberEvent, StepCompleteEvent
from umbel.patterns.functional import ask, entrypoint, step
from umbel.patterns.pipeline import sequential
from umbel.testing import ScriptedModel, error, text


def agent(name: str, *turns: Any) -> Agent:
    return Agent(ScriptedModel(turns or [text(f"{name} is done.")]), name=name)


@pytest.mark.spec("OURS-25")
async def test_whoever_attaches_gets_a_patterns_result(runtime: Runtime) -> None:
    pattern = sequential(sequential(agent("a"), name="inner"), agent("b", error("no")), name="outer")
    begun = await pattern.start("Go")
    for handle in (begun, await umbel.attach(begun.run_id), await pattern.attach(begun.run_id)):
        result: Any = await handle.result()
        assert isinstance(result, PatternResult) and not result.success
        assert (str(result.error), result.outputs) == ("b: ModelError: no", ["a is done."])
        assert [member.status for member in result.members] == ["completed", "failed"]
    told = [event async for event in begun.events()]
    assert [event.seq for event in told] == list(range(len(told)))
    steps = [event.innermost if isinstance(event, MemberEvent) else event for event in told]
    assert [event.step for event in steps if isinstance(event, StepCompleteEvent)] == ["0.a", "0.inner", "1.b"]


async def test_who_follows_at_a_terminal_sees_the_members(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    pattern = sequential(sequential(agent("a"), name="inner"), agent("b"), name="outer")
    handle = await pattern.start("Go", stream_tokens=True)
    assert await follow(await umbel.attach(handle.run_id), as_json=False)
    printed = capsys.readouterr()
    assert printed.out == "b is done.\n"
    told = printed.err.splitlines()
    assert {"umbel: 0.inner/0.a: started", "0.inner/0.a| a is done.", "1.b| b is done."} <= set(told)
    assert [line.split()[0] for line in told[-4:]] == ["step", "0.inner", "0.a", "1.b"]
    assert await follow(await umbel.attach(handle.run_id), as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [member["step"] for member in lines[-1]["members"]] == ["0.inner", "1.b"]
    assert [line["seq"] for line in lines[:-1]] == list(range(len(lines) - 1))


async def test_a_paused_run_of_a_handle_is_resumed(runtime: Runtime, tmp_path: Path) -> None:
    writer = agent("writer")

    @entrypoint(checkpointer=f"sqlite:///{tmp_path}/t.db")
    async def main(topic: str) -> str:
        draft: MemberResult = await step(writer, topic)
        return f"{draft.text} {await ask('Publish?')}"

    handle = await main.start({"topic": "umbels"}, thread_id="t")
    paused = await handle.result()
    assert (paused.success, paused.stop_reason) == (False, "interrupted")
    assert (await main.aresume("Yes.", thread_id="t")).value == "writer is done. Yes."
