"""Tasks that kill actors: found among those that were merely near, put aside, and the fleet goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from umbel import Fleet
from umbel.cluster.fleet import Backoff
from umbel.cluster.fleet.quarantine_file import QuarantineFile
from umbel.errors import ConfigurationError, DeadlineExceeded, Overloaded, PeerLost, RestartsExceeded, RunLost

ReadResults = Callable[[Path], dict[str, dict[str, Any]]]
FAST = Backoff(first=0)


class SharedActor:
    """What all tasks run on: when a poison task runs there, everything that runs there is lost."""

    def __init__(self, outcome: type[Any], *poison: str) -> None:
        self.attempts: dict[str, int] = {}
        self._outcome = outcome
        self._poison = poison
        self._running: dict[asyncio.Future[Any], str] = {}

    async def arun(self, prompt: str, **options: Any) -> Any:
        self.attempts[prompt] = self.attempts.get(prompt, 0) + 1
        lost = asyncio.get_running_loop().create_future()
        self._running[lost] = prompt
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            if prompt in self._poison:
                self._die()
            if lost.done():
                raise lost.result()
            return self._outcome(message=prompt)
        finally:
            del self._running[lost]

    def _die(self) -> None:
        for future in self._running:
            if not future.done():
                future.set_result(RunLost("the supervisor restarted"))


async def test_a_poison_task_is_put_aside_and_its_neighbours_succeed(
    outcome: Any, out: Path, read_results: ReadResults
) -> None:
    actor = SharedActor(outcome, "poison")
    tasks = [{"id": name, "prompt": name} for name in ("a", "b", "poison", "c", "d")]
    report = await Fleet(actor, concurrency=5, backoff=FAST).run(tasks, out)
    results = read_results(out)
    assert (report.ok, report.quarantined, report.failed, report.total) == (4, 1, 0, 5)
    assert report.exit_code == 1
    bad = results["poison"]
    assert (bad["status"], bad["attempts"]) == ("quarantined", 3)
    assert "in quarantine" in bad["error"] and "run_lost" in bad["error"]
    assert {results[name]["status"] for name in "abcd"} == {"ok"}
    assert actor.attempts["poison"] == 3, "it gets no fourth chance to kill"


async def test_several_poison_tasks_among_many(outcome: Any) -> None:
    actor = SharedActor(outcome, "7", "8", "31")
    report = await Fleet(actor, concurrency=10, backoff=FAST).run([str(number) for number in range(40)])
    assert (report.ok, report.quarantined) == (37, 3)
    assert [result.status for result in report.results if result.status != "ok"] == ["quarantined"] * 3


async def test_suspects_run_one_at_a_time(make_agent: Any, outcome: Any) -> None:
    together: list[int] = []

    def reply(prompt: str, attempt: int) -> Any:
        async def look() -> Any:
            await asyncio.sleep(0)
            if attempt < 2:
                raise PeerLost("the agent's actor died")
            together.append(agent.running)
            return outcome()

        return look()

    agent = make_agent(reply=reply)
    report = await Fleet(agent, concurrency=8, backoff=FAST, quarantine_after=2).run([str(number) for number in range(8)])
    assert report.ok == 8
    assert together == [1] * 8


async def test_losses_do_not_use_up_retries(make_agent: Any, outcome: Any) -> None:
    errors = [RunLost("1"), Overloaded("2"), RunLost("3"), Overloaded("4")]

    def reply(prompt: str, attempt: int) -> Any:
        if attempt <= len(errors):
            raise errors[attempt - 1]
        return outcome()

    report = await Fleet(make_agent(reply=reply), retries=2, backoff=FAST).run(["p"])
    assert (report.ok, report.retries) == (1, 4)


async def test_without_retries_a_loss_is_a_failure(make_agent: Any) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        raise RunLost("gone")

    agent = make_agent(reply=reply)
    report = await Fleet(agent, retries=0).run(["p"])
    assert (report.failed, report.quarantined, agent.attempts) == (1, 0, {"p": 1})


async def test_a_task_in_quarantine_runs_again_on_resume(make_agent: Any, outcome: Any, out: Path) -> None:
    def dies(prompt: str, attempt: int) -> Any:
        raise RunLost("gone")

    assert (await Fleet(make_agent(reply=dies), backoff=FAST).run(["p"], out)).quarantined == 1
    mended = await Fleet(make_agent(), backoff=FAST).run(["p"], out, resume=True)
    assert (mended.ok, mended.skipped) == (1, 0)


async def test_one_loss_is_never_proof() -> None:
    with pytest.raises(ConfigurationError, match="quarantine_after=1"):
        Fleet(SharedActor(object), quarantine_after=1)


class WaitingRuntime:
    """Answers ``ready`` when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def ready(self) -> None:
        self.asked += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, DeadlineExceeded("agent/default/0 did not answer within 60 s")])
async def test_no_attempt_is_spent_while_actors_are_restarted(
    make_agent: Any, outcome: Any, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    runtime: Any = WaitingRuntime()
    runtime.error = error

    def reply(prompt: str, attempt: int) -> Any:
        if attempt == 1:
            raise RunLost("gone")
        assert runtime.gate.is_set()
        return outcome()

    agent = make_agent(reply=reply)
    fleet = asyncio.ensure_future(Fleet(agent, runtime=runtime, backoff=FAST).run([str(number) for number in range(5)]))
    while runtime.asked == 0:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert set(agent.attempts.values()) == {1}, "nobody tries before the actors answer"
    runtime.gate.set()
    assert (await fleet).ok == 5
    assert runtime.asked == 1, "one wait serves all"
    assert ("did not answer" in caplog.text) == (error is not None)


async def test_a_runtime_that_gave_up_an_actor_stops_the_fleet(
    make_agent: Any, outcome: Any, out: Path, read_results: ReadResults
) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        if prompt != "first":
            raise RestartsExceeded("agent/default/0 was given up", peer="agent/default/0")
        return outcome()

    agent = make_agent(reply=reply)
    with pytest.raises(RestartsExceeded, match="agent/default/0"):
        await Fleet(agent, concurrency=1).run(["first", *map(str, range(100))], out)
    assert len(agent.calls) == 2, "no other task is tried in vain"
    assert {name: line["status"] for name, line in read_results(out).items()} == {"task-1": "ok", "task-2": "failed"}


async def test_the_quarantine_file_has_the_task_the_reason_and_every_death_and_can_be_run(
    outcome: Any, out: Path, tmp_path: Path
) -> None:
    file = tmp_path / "quarantine.jsonl"
    tasks = [{"id": name, "prompt": name, "metadata": {"k": 1}} for name in ("a", "poison", "b")]
    fleet = Fleet(SharedActor(outcome, "poison"), concurrency=3, backoff=FAST, quarantine=file)
    await fleet.run(tasks, out)
    (line,) = [json.loads(raw) for raw in file.read_text().splitlines()]
    assert {name: line[name] for name in ("id", "prompt", "metadata")} == tasks[1]
    assert "in quarantine" in line["reason"] and len(line["attempts"]) == 3 and "restarted" in line["attempts"][0]
    healed = Fleet(SharedActor(outcome), backoff=FAST, quarantine=file)
    again = await healed.run(file)
    assert (again.ok, again.results[0].id) == (1, "poison")
    assert file.read_text() == ""


def test_another_file_is_not_taken_for_a_quarantine_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("buy milk\n")
    with pytest.raises(ConfigurationError, match="not a quarantine file"):
        QuarantineFile(path, fresh=False)
    assert path.read_text() == "buy milk\n"
