from __future__ import annotations

import asyncio
import gc
import signal
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from umbel.cluster.fleet import Backoff, Fleet, FleetInterrupted, Task, attempt as attempt_module, runner as runner_module
from umbel.protocol.errors import (
    AuthenticationFailed,
    BadRequest,
    ConfigurationError,
    DefinitionError,
    RateLimited,
    RunLost,
    RuntimeClosed,
)

FAST = Backoff(first=0.0)


async def test_every_task_has_one_line(make_agent: Any, out: Any, read_results: Any) -> None:
    agent = make_agent()
    report = await Fleet(agent, concurrency=7).run([{"id": f"t{n}", "prompt": f"p{n}"} for n in range(100)], out)
    results = read_results(out)
    assert set(results) == {f"t{n}" for n in range(100)}
    assert results["t3"]["message"] == "did p3"
    assert (results["t3"]["status"], results["t3"]["attempts"], results["t3"]["error"]) == ("ok", 1, None)
    assert (report.total, report.ok, report.exit_code, report.tokens, report.cost_usd) == (100, 100, 0, 1000, 25.0)
    assert report.out == str(out)
    assert report.results == ()


async def test_the_agent_is_asked_for_a_summary_with_metadata_thread_and_timeout(make_agent: Any) -> None:
    agent = make_agent()
    await Fleet(agent, timeout=9, threads="night").run([{"id": "a", "prompt": "p", "metadata": {"k": 1}}])
    ((prompt, options),) = agent.calls
    assert prompt == "p"
    assert options == {"thread_id": "night/a", "metadata": {"task_id": "a", "k": 1}, "timeout": 9, "full": False}


async def test_in_flight_work_is_bounded_and_fills_the_bound(make_agent: Any) -> None:
    agent = make_agent()
    await Fleet(agent, concurrency=5).run(str(n) for n in range(200))
    assert agent.most_running == 5


async def test_results_without_a_file_come_in_task_order(make_agent: Any, outcome: Any) -> None:
    async def slow_first(prompt: str) -> Any:
        for _ in range(20 - int(prompt)):
            await asyncio.sleep(0)
        return outcome(message=prompt)

    report = await Fleet(make_agent(reply=lambda prompt, _: slow_first(prompt)), concurrency=20).run(
        [str(n) for n in range(20)]
    )
    assert [result.message for result in report.results] == [str(n) for n in range(20)]


async def test_failures_stay_with_their_task(make_agent: Any, outcome: Any, out: Any, read_results: Any) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        if prompt == "raise":
            raise ValueError("bad\nnews api_key=abcdefgh")
        if prompt == "stop":
            return outcome(success=False, stop_reason="max_iterations", message="partial")
        return outcome()

    report = await Fleet(make_agent(reply=reply), retries=3).run(
        [{"id": p, "prompt": p} for p in ("fine", "raise", "stop")], out
    )
    results = read_results(out)
    assert (report.ok, report.failed, report.exit_code) == (1, 2, 1)
    assert results["raise"]["error"] == "ValueError: bad news api_key=[REDACTED]"
    assert (results["stop"]["stop_reason"], results["stop"]["message"]) == ("max_iterations", "partial")
    assert results["stop"]["error"] == "the run ended with max_iterations"
    assert {failure.id for failure in report.failures} == {"raise", "stop"}


@pytest.mark.parametrize("raised", [True, False])
async def test_errors_that_may_go_away_are_retried_and_paid_for(
    make_agent: Any, outcome: Any, out: Any, read_results: Any, raised: Any
) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        if attempt < 3:
            error = RunLost("the supervisor died")
            if raised:
                raise error
            return outcome(success=False, stop_reason="error", error=error.to_wire())
        return outcome()

    report = await Fleet(make_agent(reply=reply), retries=2, threads="t", backoff=FAST).run([{"id": "a", "prompt": "p"}], out)
    result = read_results(out)["a"]
    assert (result["status"], result["attempts"]) == ("ok", 3)
    assert result["tokens"] == (10 if raised else 30)
    assert report.retries == 2


async def test_a_second_attempt_has_a_thread_of_its_own(make_agent: Any) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        raise RateLimited("busy")

    agent = make_agent(reply=reply)
    await Fleet(agent, retries=1, threads="t", backoff=FAST).run(["p"])
    assert [options["thread_id"] for _, options in agent.calls] == ["t/task-1", "t/task-1#2"]


async def test_retries_end_and_hopeless_errors_are_not_retried(make_agent: Any, outcome: Any) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        raise RunLost("gone") if prompt == "lost" else BadRequest("no")

    agent = make_agent(reply=reply)
    report = await Fleet(agent, retries=2, backoff=FAST).run(["lost", "bad"])
    assert agent.attempts == {"lost": 3, "bad": 1}
    assert [result.attempts for result in report.results] == [3, 1]


@pytest.mark.case(24)
async def test_a_storm_is_not_answered_in_step_and_not_before_the_stated_time(make_agent: Any, outcome: Any) -> None:
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def reply(prompt: str, attempt: int) -> Any:
        if attempt == 1:
            raise RateLimited("429", retry_after=2)
        return outcome()

    report = await Fleet(make_agent(reply=reply), concurrency=20, backoff=Backoff(sleep=sleep)).run([str(n) for n in range(20)])
    assert report.ok == 20
    assert min(waits) >= 2
    assert len(set(waits)) == 20


async def test_bad_lines_and_duplicates_are_recorded_and_nothing_else_is_lost(
    make_agent: Any, write_tasks: Any, out: Any, read_results: Any
) -> None:
    agent = make_agent()
    path = write_tasks({"id": "a", "prompt": "1"}, "{oops", {"id": "a", "prompt": "again"}, {"id": "b", "prompt": "2"})
    report = await Fleet(agent).run(path, out)
    results = read_results(out)
    assert agent.prompts == ["1", "2"]
    assert results["line-2"]["status"] == "invalid"
    assert f"{path}:2: not JSON" in results["line-2"]["error"]
    assert "was used before" in results[f"a ({path}:3)"]["error"]
    assert results[f"a ({path}:3)"]["attempts"] == 0
    assert (report.ok, report.invalid, report.total, report.exit_code) == (2, 2, 4, 1)


async def test_a_bad_first_line_is_refused_before_any_work(make_agent: Any, write_tasks: Any, out: Any) -> None:
    agent = make_agent()
    path = write_tasks({"id": "a", "question": "1"}, {"id": "b", "prompt": "2"})
    with pytest.raises(ConfigurationError, match=f"{path}:1: field 'prompt': missing.*rename 'question'"):
        await Fleet(agent).run(path, out)
    assert agent.calls == []
    assert not out.exists()


async def test_resume_runs_what_is_not_ok_once(
    make_agent: Any, outcome: Any, write_tasks: Any, out: Any, read_results: Any
) -> None:
    path = write_tasks(*({"id": f"t{n}", "prompt": f"p{n}"} for n in range(10)))
    broken = make_agent(reply=lambda prompt, _: outcome(success=prompt not in ("p3", "p7"), stop_reason="complete"))
    first = await Fleet(broken).run(path, out)
    assert (first.ok, first.failed) == (8, 2)
    agent = make_agent()
    with pytest.raises(ConfigurationError, match="--resume"):
        await Fleet(agent).run(path, out)
    second = await Fleet(agent).run(path, out, resume=True)
    assert sorted(agent.prompts) == ["p3", "p7"]
    assert (second.total, second.ok, second.skipped, second.exit_code) == (2, 2, 8, 0)
    assert {result["status"] for result in read_results(out).values()} == {"ok"}
    assert len(read_results(out)) == 10


async def test_overwrite_starts_again(make_agent: Any, out: Any, read_results: Any) -> None:
    await Fleet(make_agent()).run(["a", "b"], out)
    await Fleet(make_agent()).run(["c"], out, overwrite=True)
    assert set(read_results(out)) == {"task-1"}


async def test_results_never_replace_the_tasks(make_agent: Any, write_tasks: Any) -> None:
    path = write_tasks({"prompt": "p"})
    before = path.read_bytes()
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(ConfigurationError, match="is the tasks file"):
            await Fleet(make_agent()).run(path, path, **options)
    assert path.read_bytes() == before


async def test_limit_counts_tasks_that_are_run_now(make_agent: Any, write_tasks: Any, out: Any, read_results: Any) -> None:
    path = write_tasks(*({"id": f"t{n}", "prompt": f"p{n}"} for n in range(10)))
    assert (await Fleet(make_agent()).run(path, out, limit=4)).total == 4
    second = await Fleet(make_agent()).run(path, out, limit=4, resume=True)
    assert (second.total, second.skipped) == (4, 4)
    assert set(read_results(out)) == {f"t{n}" for n in range(8)}


async def test_no_tasks_is_no_failure(make_agent: Any, write_tasks: Any) -> None:
    report = await Fleet(make_agent()).run(write_tasks())
    assert (report.total, report.exit_code, report.results) == (0, 0, ())


async def test_an_error_of_the_iterable_is_raised_after_the_tasks_before_it(
    make_agent: Any, out: Any, read_results: Any
) -> None:
    def rows() -> Iterator[str]:
        yield from ("a", "b", "c")
        raise LookupError("the database went away")

    with pytest.raises(LookupError, match="went away"):
        await Fleet(make_agent(), concurrency=2).run(rows(), out)
    assert len(read_results(out)) == 3


@pytest.mark.parametrize(
    "error", [DefinitionError("no such provider"), AuthenticationFailed("wrong key"), RuntimeClosed("closed")]
)
async def test_what_would_fail_every_task_stops_the_fleet_at_once(
    make_agent: Any, out: Any, read_results: Any, error: Any
) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        raise error

    agent = make_agent(reply=reply)
    with pytest.raises(type(error), match=error.message):
        await Fleet(agent, concurrency=4).run((str(n) for n in range(10_000)), out)
    assert len(agent.calls) <= 8
    assert {result["status"] for result in read_results(out).values()} <= {"failed", "cancelled"}


async def test_the_same_error_after_a_success_concerns_its_task_only(make_agent: Any, outcome: Any) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        if prompt == "7":
            raise ConfigurationError("metadata of this task")
        return outcome()

    report = await Fleet(make_agent(reply=reply), concurrency=1).run(str(n) for n in range(20))
    assert (report.ok, report.failed) == (19, 1)


class Gate:
    """An agent that waits for ever once it has answered ``free`` prompts."""

    def __init__(self, outcome: Any, *, free: int, stubborn: bool = False) -> None:
        self.outcome, self.free, self.stubborn = outcome, free, stubborn
        self.waiting = asyncio.Event()
        self.cancelled = 0

    async def arun(self, prompt: str, **_: Any) -> Any:
        if self.free:
            self.free -= 1
            return self.outcome()
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.stubborn:
                await asyncio.Event().wait()
            raise


async def test_stop_cancels_what_is_in_flight_and_the_rest_can_be_resumed(
    make_agent: Any, outcome: Any, out: Any, read_results: Any
) -> None:
    gate = Gate(outcome, free=5)
    fleet = Fleet(gate, concurrency=3)
    running = asyncio.create_task(fleet.run([{"id": f"t{n}", "prompt": "p"} for n in range(20)], out))
    await gate.waiting.wait()
    fleet.stop("SIGTERM")
    report = await running
    assert (report.ok, report.cancelled, report.stopped, report.exit_code) == (5, gate.cancelled, "SIGTERM", 143)
    statuses = [result["status"] for result in read_results(out).values()]
    assert statuses.count("ok") == 5
    resumed = await Fleet(make_agent()).run([{"id": f"t{n}", "prompt": "p"} for n in range(20)], out, resume=True)
    assert (resumed.ok, resumed.skipped) == (15, 5)
    assert len(read_results(out)) == 20


async def test_an_agent_that_ignores_its_cancellation_is_left_behind_and_accounted_for(
    outcome: Any, out: Any, read_results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "STOP_GRACE_SECONDS", 0.01)
    gate = Gate(outcome, free=0, stubborn=True)
    fleet = Fleet(gate, concurrency=2)
    running = asyncio.create_task(fleet.run(["a", "b", "c"], out))
    await gate.waiting.wait()
    fleet.stop("SIGINT")
    report = await running
    assert report.cancelled == 2
    assert "did not end in time" in read_results(out)["task-1"]["error"]
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
        await asyncio.wait([task])


async def test_cancelling_the_run_flushes_results_first(outcome: Any, out: Any, read_results: Any) -> None:
    gate = Gate(outcome, free=5)
    running = asyncio.create_task(Fleet(gate, concurrency=3).run([f"p{n}" for n in range(20)], out))
    await gate.waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [result["status"] for result in read_results(out).values()].count("ok") == 5
    assert len(asyncio.all_tasks()) == 1


async def test_a_run_that_is_cancelled_from_elsewhere_does_not_take_its_worker_along(make_agent: Any, outcome: Any) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        if prompt == "0":
            raise asyncio.CancelledError
        return outcome(success=prompt != "1", stop_reason="cancelled" if prompt == "1" else "complete")

    report = await Fleet(make_agent(reply=reply), concurrency=1).run([str(n) for n in range(5)])
    assert (report.ok, report.cancelled) == (3, 2)


async def test_an_agent_that_ignores_its_timeout_does_not_hold_the_fleet(
    make_agent: Any, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "_TIMEOUT_GRACE_SECONDS", 0.0)

    async def never() -> None:
        await asyncio.Event().wait()

    agent = make_agent(reply=lambda *_: never())
    report = await Fleet(agent, timeout=0.01, retries=1, backoff=FAST).run(["p"])
    (result,) = report.results
    assert (result.status, result.attempts) == ("failed", 2)
    assert "did not end within its 0.01 s" in str(result.error)


async def test_a_full_disk_stops_the_fleet(make_agent: Any) -> None:
    from umbel.protocol.errors import StoreUnavailable

    agent = make_agent()
    with pytest.raises(StoreUnavailable, match="No space left"):
        await Fleet(agent, concurrency=2).run((str(n) for n in range(100_000)), "/dev/full")
    assert len(agent.calls) < 50_000


async def test_progress_sees_every_task_and_a_broken_reporter_stops_nothing(
    make_agent: Any, outcome: Any, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots: list[Any] = []
    await Fleet(make_agent()).run([str(n) for n in range(50)], progress=snapshots.append)
    assert (snapshots[-1].done, snapshots[-1].total, snapshots[-1].running) == (50, 50, 0)


async def test_async_iterables(make_agent: Any) -> None:
    async def stream() -> AsyncIterator[Any]:
        yield "one"
        yield Task(id="x", prompt="two")

    report = await Fleet(make_agent(), concurrency=8).run(stream())
    assert [result.id for result in report.results] == ["task-1", "x"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"retries": -1}, "retries: default: expected 0 or more, found -1"),
        ({"timeout": 0}, "timeout=0"),
    ],
)
def test_numbers_out_of_range_are_refused(make_agent: Any, options: Any, expected: Any) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        Fleet(make_agent(), **options)


def test_something_that_cannot_run_is_refused() -> None:
    with pytest.raises(DefinitionError, match="not a str"):
        Fleet(cast(Any, "my_agents:agent"))


def test_run_sync_without_and_within_a_running_loop(make_agent: Any) -> None:
    assert Fleet(make_agent()).run_sync(["a", "b"]).ok == 2

    async def inside() -> int:
        return Fleet(make_agent()).run_sync(["a", "b"]).ok

    assert asyncio.run(inside()) == 2


def test_errors_come_out_of_run_sync_within_a_running_loop(make_agent: Any, tmp_path: Path) -> None:
    async def inside() -> None:
        Fleet(make_agent()).run_sync(tmp_path / "missing.jsonl")

    with pytest.raises(ConfigurationError, match="No such file"):
        asyncio.run(inside())


def test_ctrl_c_in_run_sync_keeps_the_report(outcome: Any) -> None:
    gate = Gate(outcome, free=5)
    before = signal.getsignal(signal.SIGINT)

    def press() -> None:
        signal.raise_signal(signal.SIGINT)

    def progress(snapshot: Any) -> None:
        if snapshot.ok == 5 and snapshot.running == 2:
            threading.Thread(target=press).start()

    with pytest.raises(FleetInterrupted, match="5 tasks") as caught:
        Fleet(gate, concurrency=2).run_sync([str(n) for n in range(20)], progress=progress)
    assert (caught.value.report.ok, caught.value.report.cancelled, caught.value.report.exit_code) == (5, 2, 130)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.case(29)
async def test_memory_is_flat_in_the_number_of_tasks(make_agent: Any, outcome: Any, out: Any) -> None:
    class Instant:
        async def arun(self, prompt: str, **_: Any) -> Any:
            return outcome(message="x" * 500)

    async def peak(count: int) -> int:
        gc.collect()
        tracemalloc.start()
        await Fleet(Instant(), concurrency=50).run(
            ({"id": f"t{n}", "prompt": "p" * 500} for n in range(count)), out, overwrite=True
        )
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    await peak(1_000)
    small, large = await peak(2_000), await peak(12_000)
    assert (large - small) / 10_000 < 250  # bytes a task: hashes of ids, not tasks or results


@pytest.mark.case(32)
async def test_a_thousand_failures_are_a_few_lines_on_screen_and_a_thousand_in_the_file(
    make_agent: Any, out: Any, read_results: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def reply(prompt: str, attempt: int) -> Any:
        raise ValueError(f"unique trouble {prompt}")

    report = await Fleet(make_agent(reply=reply)).run([str(n) for n in range(1000)], out, progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) <= 3
    assert "1,000 failed" in captured.err
    assert caplog.records == []
    assert {result["error"] for result in read_results(out).values()} == {
        f"ValueError: unique trouble {n}" for n in range(1000)
    }
    assert len(report.failures) == 20
