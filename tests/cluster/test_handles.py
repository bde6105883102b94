"""Handles on runs: begin, read, wait, stop, attach, on the inline runtime and on Ray."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import umbel
from umbel import Agent, Runtime, Topology, tool
from umbel.cluster import ray_actors
from umbel.cluster.cli.main import app
from umbel.cluster.services import end_service
from umbel.errors import ConfigurationError, EventsExpired, ModelError, RunError, RunNotFound, ThreadBusy
from umbel.testing import ScriptedModel, error, text, tool_call, tool_calls

from ..cases.killing import kill

KINDS = ["think", "tool_start", "tool_complete", "think", "terminate"]


@tool(idempotent=True)
async def look(what: str) -> str:
    """Look something up."""
    return what.upper()


class Gated(ScriptedModel):
    """Answers a tool's result once the gate is there."""

    def __init__(self, gate: Path) -> None:
        super().__init__([tool_call("look", what="x"), text("seen")])
        self.gate = gate

    def talking(self, *turns: Any) -> Gated:
        """With other turns."""
        self.turns = turns
        return self

    async def complete(self, messages: Any, tools: Any = None, **settings: Any) -> Any:
        while messages[-1].role == "tool" and not self.gate.exists():
            await asyncio.sleep(0.005)
        return await super().complete(messages, tools, **settings)


def looker(gate: Path, **settings: Any) -> Agent:
    return Agent(Gated(gate), tools=[look], **settings)


async def read(handle: umbel.RunHandle, most: int = 1_000) -> list[umbel.Event]:
    events: list[umbel.Event] = []
    async for event in handle.events():
        events.append(event)
        if len(events) == most:
            break
    return events


async def test_events_outcome_and_readers(runtime: Runtime, tmp_path: Path) -> None:
    handle = await looker(tmp_path / "gate").start("go", metadata={"customer": 7})
    first = await read(handle, 2)
    assert [event.seq for event in first] == [0, 1] and handle.seq == 1
    status = await handle.status()
    assert (status.run_id, status.status, status.durable, status.first_seq) == (handle.run_id, "running", False, 0)
    assert handle.run_id in {entry.run_id for entry in await runtime.runs()}
    other = await umbel.attach(handle.run_id, after_seq=0)
    reading = [asyncio.ensure_future(read(one)) for one in (handle, other)]
    (tmp_path / "gate").touch()
    rest, all_but_one = await asyncio.gather(*reading)
    whole = await read(await umbel.attach(handle.run_id))
    assert [event.event_type for event in whole] == KINDS and [event.seq for event in whole] == [0, 1, 2, 3, 4]
    assert first + rest == whole and all_but_one == whole[1:], "whoever reads: the same events"
    assert all(event.run_id == handle.run_id for event in whole)
    result = await handle.result()
    assert result.message == "seen" and result.state.metadata["customer"] == 7 and len(result.tool_executions) == 1
    assert (await handle.status()).status == "finished" and not await handle.cancel()
    assert await read(await umbel.attach(handle.run_id, after_seq=4)) == []
    assert [event.seq for event in await read(await umbel.attach(handle.run_id, after_seq=None))] == [0, 1, 2, 3, 4]


async def test_a_run_is_stopped_by_its_handle(runtime: Runtime, tmp_path: Path) -> None:
    handle = await looker(tmp_path / "never").start("go")
    await read(handle, 3)
    assert await handle.cancel()
    result = await handle.result()
    assert result.stop_reason == "cancelled" and (await read(handle))[-1].event_type == "terminate"


async def test_how_a_run_failed_is_said_by_its_result(runtime: Runtime) -> None:
    handle = await Agent(ScriptedModel([error("the model is ill")])).start("go")
    assert [event.event_type for event in await read(handle)] == ["terminate"]
    for _ in range(2):
        with pytest.raises(ModelError, match="the model is ill"):
            await handle.result()


async def test_a_run_that_nobody_knows(runtime: Runtime) -> None:
    with pytest.raises(RunNotFound, match="no run 'nope' is known in this runtime") as caught:
        await umbel.attach("nope")
    assert caught.value.details["run_id"] == "nope"


async def test_a_thread_that_is_in_use(runtime: Runtime, tmp_path: Path) -> None:
    agent = looker(tmp_path / "gate", checkpointer=f"sqlite:///{tmp_path}/t.db")
    first = await agent.start("one", thread_id="t")
    with pytest.raises(ThreadBusy, match="held by run"):
        await agent.start("two", thread_id="t", on_busy="reject")
    second = await agent.start("two", thread_id="t")
    (tmp_path / "gate").touch()
    assert (await first.result()).success
    said = [message.content for message in (await second.result()).messages if message.role == "user"]
    assert said == ["one", "two"], "it waited for the thread"
    assert (await first.status()).durable


def test_synchronous_code(tmp_path: Path) -> None:
    with Runtime(inline=True) as runtime:
        (tmp_path / "gate").touch()
        handle = looker(tmp_path / "gate").start_sync("go", stream_tokens=True)
        again = umbel.attach_sync(handle.run_id)
        assert [event.event_type for event in again.events_sync() if event.event_type != "model_chunk"] == KINDS
        assert handle.result_sync().message == "seen" and handle.status_sync().status == "finished"
        assert not handle.cancel_sync() and len(runtime.runs_sync()) == 1
        assert runtime.attach_sync(handle.run_id).result_sync().message == "seen"


async def test_a_cancel_that_was_armed_and_a_tool_that_wants_to_begin(tmp_path: Path) -> None:
    inner = Agent(ScriptedModel([text("inner")]))

    @tool
    async def begin() -> str:
        """Begin something."""
        return str(await inner.start("x"))

    async with Runtime(inline=True):
        agent = Agent(ScriptedModel([tool_call("begin"), text("ok")]), tools=[begin])
        agent.cancel()
        assert (await (await agent.start("go")).result()).stop_reason == "cancelled"
        result = await (await agent.start("go")).result()
        assert "cannot begin a run that goes on without it" in (result.tool_executions[0].error or "")
        with pytest.raises(ConfigurationError, match="on_busy='never' is not known"):
            await agent.start("go", on_busy="never")  # type: ignore[arg-type]


@pytest.mark.ray
async def test_the_supervisor_dies_under_connected_readers(fragile_runtime: Runtime, tmp_path: Path) -> None:
    agent = looker(tmp_path / "gate", checkpointer=f"sqlite:///{tmp_path}/t.db")
    durable = await agent.start("go", thread_id="t", runtime=fragile_runtime)
    volatile = await agent.start("go", runtime=fragile_runtime)
    seen = await read(durable, 3)
    reading = [asyncio.ensure_future(read(one)) for one in (durable, volatile)]
    waiting = asyncio.ensure_future(durable.result())
    await asyncio.sleep(0.05)
    kill(fragile_runtime, "supervisor")
    (tmp_path / "gate").touch()
    rest, lost = await asyncio.gather(*reading, return_exceptions=True)
    assert isinstance(rest, list) and [event.seq for event in seen + rest] == list(range(3 + len(rest)))
    assert [event.event_type for event in rest] == ["custom", "think", "terminate"] and (await waiting).message == "seen"
    assert isinstance(lost, umbel.RunLost)
    with pytest.raises(umbel.RunLost, match="it had no thread"):
        await umbel.attach(volatile.run_id, runtime=fragile_runtime)
    await fragile_runtime.backend.close_here()


@pytest.mark.ray
def test_ctrl_c_leaves_the_run_alone(ray_runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray_actors, "is_joined", lambda: True)

    async def interrupted(handle: umbel.RunHandle, *, as_json: bool) -> bool:
        await read(handle, 2)
        raise KeyboardInterrupt

    monkeypatch.setattr("umbel.cluster.cli.attach.follow", interrupted)
    call = CliRunner().invoke
    small = Topology(colocate_agents=True, supervisors=1)
    with Runtime(namespace="ctrl-c", detached=True, topology=small).start() as runtime:
        monkeypatch.setattr("umbel.cluster.loading.load_agent", lambda spec: looker(tmp_path / "never"))
        begun = call(app, ["run", "go", "--agent", "m:agent", "--detach", "ctrl-c"])
        assert begun.exit_code == 0 and runtime.attach_sync(begun.stdout.strip()).cancel_sync()
        handle = looker(tmp_path / "gate").start_sync("go", runtime=runtime)
        done = call(app, ["attach", handle.run_id])
        assert done.exit_code == 130
        assert f"read on: umbel attach {handle.run_id} --from 2; stop it: umbel cancel {handle.run_id}" in done.stderr
        assert runtime.run_sync(handle.status()).status == "running"
        stopped = call(app, ["cancel", handle.run_id, "--json"])
        assert stopped.exit_code == 0 and json.loads(stopped.stdout) == {"run_id": handle.run_id, "cancelled": True}
        assert handle.result_sync().stop_reason == "cancelled"
        monkeypatch.undo()
        monkeypatch.setattr(ray_actors, "is_joined", lambda: True)
        ended = call(app, ["attach", handle.run_id])
        assert ended.exit_code == 1 and "the run ended with cancelled" in ended.stderr
    end_service("ctrl-c")
    handle = looker(tmp_path / "gate").start_sync("go", runtime=ray_runtime)
    refused = call(app, ["attach", handle.run_id])
    assert refused.exit_code == 2 and "which is not detached: only its own program can attach" in refused.stderr
    assert handle.cancel_sync()
    nobody = call(app, ["runs", "--namespace", "nobody"])
    assert nobody.stderr == "umbel: no runs were begun with a handle on this cluster\n"


# what is kept


async def test_events_that_are_not_kept_any_more(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    async with Runtime(inline=True, topology=Topology(kept_events=2)):
        handle = await looker(tmp_path / "gate").start("go")
        await handle.result()
        with pytest.raises(
            EventsExpired, match="behind -1 are not kept any more, the oldest is 3: attach with after_seq=2"
        ) as old:
            await read(handle)
        assert old.value.details == {"run_id": handle.run_id, "after_seq": -1, "oldest": 3}
        assert [event.seq for event in await read(await umbel.attach(handle.run_id, after_seq=2))] == [3, 4]
        assert [event.seq for event in await read(await umbel.attach(handle.run_id, after_seq=None))] == [3, 4]


@pytest.mark.parametrize("limit", [{"kept_runs": 2}, {"kept_bytes": 9_000}])
async def test_only_so_many_finished_runs_are_kept(tmp_path: Path, limit: dict[str, Any]) -> None:
    (tmp_path / "gate").touch()
    async with Runtime(inline=True, topology=Topology(**limit)) as runtime:
        agent = looker(tmp_path / "gate")
        runs = []
        for _ in range(8):
            handle = await agent.start("go")
            assert (await handle.result()).message == "seen"
            runs.append(handle.run_id)
        kept = [entry.run_id for entry in await runtime.runs()]
        assert kept == runs[-len(kept) :] and 0 < len(kept) < 5, "the newest"
        with pytest.raises(RunNotFound, match=r"kept_seconds, kept_runs"):
            await umbel.attach(runs[0])


async def test_a_run_in_progress_needs_its_events_more_than_those_that_are_over(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    calls = tool_calls(*(("look", {"what": "y" * 800}) for _ in range(5)))
    async with Runtime(inline=True, topology=Topology(kept_bytes=18_000)) as runtime:
        over = await looker(tmp_path / "gate").start("go")
        await over.result()
        (tmp_path / "gate").unlink()
        agent = Agent(Gated(tmp_path / "gate").talking(calls), tools=[look])
        handle = await agent.start("go")
        assert len(await read(handle, 11)) == 11, "all that it has told"
        assert [entry.run_id for entry in await runtime.runs()] == [handle.run_id]
        await handle.cancel()


async def test_finished_runs_are_forgotten_after_a_while(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    async with Runtime(inline=True, topology=Topology(kept_seconds=0.05)) as runtime:
        handle = await looker(tmp_path / "gate").start("go")
        assert [event.seq for event in await read(handle)] == [0, 1, 2, 3, 4]
        while await runtime.runs():
            await asyncio.sleep(0.01)
        with pytest.raises(RunNotFound):
            await handle.result()


# what only the store knows


async def test_a_durable_run_that_was_forgotten_is_found_in_its_thread(tmp_path: Path) -> None:
    agent = looker(tmp_path / "gate", checkpointer=f"sqlite:///{tmp_path}/t.db")
    (tmp_path / "gate").touch()
    async with Runtime(inline=True):
        handle = await agent.start("go", thread_id="t")
        assert (await handle.result()).success
        newer = await agent.start("more", thread_id="t")
        await newer.result()
    async with Runtime(inline=True):
        with pytest.raises(RunNotFound):
            await umbel.attach(newer.run_id)
        found = await agent.attach(newer.run_id)
        assert [event.event_type for event in await read(found)] == ["custom", "terminate"]
        result = await found.result()
        assert (result.message, result.run_id, result.metrics.model_calls) == ("seen", newer.run_id, 2)
        with pytest.raises(RunNotFound, match="no thread of sqlite"):
            await agent.attach(handle.run_id)  # not the thread's newest
        assert (await (await agent.attach(handle.run_id, thread_id="t")).result()).message == "seen"
        with pytest.raises(RunNotFound, match="has nothing of run nope"):
            await agent.attach("nope", thread_id="t")


async def test_a_run_whose_runtime_ended_goes_on_where_it_is_attached_to(tmp_path: Path) -> None:
    agent = looker(tmp_path / "gate", checkpointer=f"sqlite:///{tmp_path}/t.db")
    async with Runtime(inline=True):
        handle = await agent.start("go", thread_id="t")
        seen = await read(handle, 3)
    (tmp_path / "gate").touch()
    async with Runtime(inline=True) as other:
        again = await agent.attach(handle.run_id, after_seq=seen[-1].seq)
        rest = await read(again)
        assert [event.seq for event in rest] == list(range(3, 3 + len(rest))) and rest[0].event_type == "custom"
        result = await again.result()
        assert result.message == "seen" and len(result.tool_executions) == 1
        assert [entry.run_id for entry in await other.runs()] == [handle.run_id]


async def test_a_run_in_progress_elsewhere_is_left_alone(tmp_path: Path) -> None:
    agent = looker(tmp_path / "gate", checkpointer=f"sqlite:///{tmp_path}/t.db", lease_seconds=30)
    async with Runtime(inline=True):
        handle = await agent.start("go", thread_id="t")
        while not await agent.list_threads():
            await asyncio.sleep(0.005)
        other = Runtime(inline=True)
        with pytest.raises(ThreadBusy, match="is in progress elsewhere"):
            await agent.attach(handle.run_id, runtime=other)
        (tmp_path / "gate").touch()
        assert (await handle.result()).success
        await other.aclose()


def test_the_errors_are_public() -> None:
    assert all(issubclass(one, RunError) and issubclass(one, LookupError) for one in (umbel.RunNotFound, umbel.EventsExpired))


async def test_many_events_are_read_in_several_batches(tmp_path: Path) -> None:
    calls = tool_calls(*(("look", {"what": "y" * 9_000}) for _ in range(60)))
    async with Runtime(inline=True):
        handle = await Agent(ScriptedModel([calls, text("done")]), tools=[look]).start("go")
        await handle.result()
        events = await read(handle)
        assert [event.seq for event in events] == list(range(len(events))) and len(events) == 123
