"""Entrypoints that are played again: after pauses, failures and crashes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from umbel import Runtime, interrupt
from umbel.actors.checkpoints import build_save, restore
from umbel.actors.checkpoints.registry import open_store
from umbel.errors import InvalidArguments, MemberFailed
from umbel.patterns.functional import ask, entrypoint, step, task

from ..cases.killing import kill, until
from .tasks import confirm, double, fail, runs, writer


@pytest.fixture(autouse=True)
def _forget_runs() -> None:
    runs.clear()


@pytest.mark.spec("OURS-3", "OURS-24")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_bodies_and_tasks_ask_and_nothing_is_done_twice(runtime: Runtime, tmp_path: Path, kind: str) -> None:
    log = tmp_path / "log"

    @task
    def note(line: str) -> str:
        with log.open("a") as file:
            file.write(line + "\n")
        return line

    async def body(topic: str) -> dict[str, Any]:
        await note(topic)
        sure = await confirm(topic)
        await note("asked")
        return {"sure": sure, "when": await ask("When?", options=["now", "later"]), "draft": (await step(writer, "W")).text}

    def sync_body(topic: str) -> dict[str, Any]:
        note(topic).result()
        sure = confirm(topic).result()
        note("asked").result()
        return {"sure": sure, "when": ask("When?", options=["now", "later"]).result(), "draft": step(writer, "W").result().text}

    main = entrypoint(name="main", checkpointer=f"sqlite:///{tmp_path}/t.db")(body if kind == "async" else sync_body)
    result = await main.arun("sale", thread_id="t")
    asked = []
    for answer in ("yes", "yes, yes", "now"):
        assert (result.success, result.stop_reason) == (False, "interrupted")
        asked += [question["question"] for question in result.interrupts]
        result = await main.aresume(answer, thread_id="t")
    assert asked == ["sale, really?", "sale, certainly?", "When?"]
    assert result.value == {"sure": ["yes", "yes, yes"], "when": "now", "draft": "A draft."}
    assert [member.thread_id for member in result.members if member.run_id] == ["t#1.writer-1"]
    assert log.read_text().splitlines() == ["sale", "asked"]


async def test_questions_side_by_side_are_answered_one_by_one(inline: Runtime) -> None:
    @entrypoint
    async def main() -> Any:
        return await asyncio.gather(ask("A?"), double(2), ask("B?"))

    paused = await main.arun("go")
    first, second = (asked["interrupt_id"] for asked in paused.interrupts)
    again = await main.aresume("b", result=paused, interrupt_id=second)
    assert [asked["interrupt_id"] for asked in again.interrupts] == [first]
    assert (await main.aresume("a", result=again)).value == ["a", 4, "b"]
    assert runs["double 2"] == 1


@pytest.mark.spec("OURS-24")
async def test_a_pause_lets_what_runs_finish_and_begins_nothing(inline: Runtime) -> None:
    asked = asyncio.Event()

    @task
    async def slow() -> str:
        runs["slow"] += 1
        await asked.wait()
        return "slow"

    async def chain() -> str:
        await slow()
        return str(await double(1))

    @entrypoint
    async def main() -> list[Any]:
        asyncio.get_running_loop().call_later(0.01, asked.set)
        return list(await asyncio.gather(chain(), asyncio.gather(chain(), ask("Go on?"))))

    paused = await main.arun("go")
    assert [done.step for done in paused.members] == ["slow-1", "slow-2"]
    assert (await main.aresume("yes", result=paused)).value == ["2", ["2", "yes"]]
    assert runs == {"slow": 2, "double 1": 2}


async def image(url: str, to: str) -> None:
    """Store at ``to`` what a process that was killed now would have left at ``url``."""
    store, other = open_store(url), open_store(to)
    await store.open()
    await other.open()
    found = restore(await store.load("t"))
    assert found is not None
    save, _ = build_save(found.state, store=to, thread_id="t", checkpoint_id="c1", created_at=1.0)
    await other.save([save])
    await store.close()
    await other.close()


@pytest.mark.spec("PAT-64", "OURS-24")
@pytest.mark.parametrize("idempotent", [True, False])
async def test_after_a_crash_no_task_that_had_ended_runs_again(inline: Runtime, tmp_path: Path, idempotent: bool) -> None:
    url, crashed = f"sqlite:///{tmp_path}/t.db", f"sqlite:///{tmp_path}/crashed.db"

    @task(idempotent=idempotent)
    async def crash(n: int) -> int:
        runs["crash"] += 1
        if n == 2 and runs["crash"] == 2:
            await image(url, crashed)
        return n

    async def body() -> Any:
        doubled = await asyncio.gather(*(double(n) for n in range(4)))
        try:
            return [doubled, await crash(1), await crash(2)]
        except MemberFailed as error:
            return error.message

    main = entrypoint(checkpointer=url)(body)
    assert (await main.arun("go", thread_id="t")).value == [[0, 2, 4, 6], 1, 2]
    again = await entrypoint(checkpointer=crashed)(body).continue_turn("t")
    assert [runs[f"double {n}"] for n in range(4)] == [1, 1, 1, 1]
    if idempotent:
        assert (again.value, runs["crash"]) == ([[0, 2, 4, 6], 1, 2], 3)
    else:
        assert "crash: OutcomeUnknown" in again.value and runs["crash"] == 2


async def test_a_turn_that_failed_is_continued_where_it_failed(inline: Runtime, tmp_path: Path) -> None:
    @task
    async def flaky() -> str:
        runs["flaky"] += 1
        if runs["flaky"] == 1:
            raise OSError("not yet")
        return "at last"

    @entrypoint(checkpointer=f"sqlite:///{tmp_path}/t.db")
    async def main() -> list[Any]:
        return [await double(5), await flaky()]

    assert not (await main.arun("go", thread_id="t")).success
    result = await main.continue_turn("t")
    assert (result.value, runs["double 5"], runs["flaky"]) == ([10, "at last"], 1, 2)


async def test_a_group_whose_task_failed_is_the_same_when_it_is_played_again(inline: Runtime, tmp_path: Path) -> None:
    @task
    async def hang() -> None:
        await asyncio.Event().wait()

    @entrypoint(checkpointer=f"sqlite:///{tmp_path}/t.db", cancel_grace_seconds=0.01)
    async def main() -> list[Any]:
        problems: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(hang())
                group.create_task(fail("x"))
        except* MemberFailed as group_error:
            problems += [str(error) for error in group_error.exceptions]
        return [problems, await ask("Again?")]

    paused = await main.arun("go", thread_id="t")
    assert paused.stop_reason == "interrupted"
    assert (await main.aresume("no", thread_id="t")).value == [["fail: ValueError: x"], "no"]


async def test_patience_that_ended_has_ended_when_it_is_played_again(inline: Runtime, tmp_path: Path) -> None:
    @task
    async def hang() -> None:
        await asyncio.Event().wait()

    @entrypoint(checkpointer=f"sqlite:///{tmp_path}/t.db", cancel_grace_seconds=0.01)
    async def main() -> list[Any]:
        try:
            async with asyncio.timeout(0.25):
                await hang()
        except TimeoutError:
            return ["late", await ask("Again?")]
        return []

    assert (await main.arun("go", thread_id="t")).stop_reason == "interrupted"
    result = await main.aresume("no", thread_id="t")
    assert result.value == ["late", "no"] and result.details["tasks"][0]["status"] == "cancelled"


async def test_a_cancelled_run_cancels_its_tasks_and_body(inline: Runtime) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @task
    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    unwound = threading.Event()

    @entrypoint
    def main() -> None:
        call: Any = hang()
        try:
            call.result()
        finally:
            unwound.set()

    running = asyncio.ensure_future(main.arun("go"))
    await begun.wait()
    main.cancel()
    assert ((await running).stop_reason, ended.is_set()) == ("cancelled", True)
    assert await asyncio.to_thread(unwound.wait, 20)


@pytest.mark.spec("PAT-54")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_task_asks_wherever_it_runs(runtime: Runtime, kind: str) -> None:
    def sign(name: str) -> str:
        return f"{interrupt(f'Sign, {name}?')} and {interrupt('Date?')}"

    async def sign_later(name: str) -> str:
        return sign(name)

    signed: Any = task(name="sign")(sign if kind == "sync" else sign_later)

    @entrypoint
    async def main() -> list[str]:
        return list(await asyncio.gather(signed("Ada"), signed("Bob")))

    result = await main.arun("go")
    for round_of_answers in ("yes", "today"):
        assert len(result.interrupts) == 2
        answers = {asked["interrupt_id"]: f"{asked['question'][:9]}{round_of_answers}" for asked in result.interrupts}
        result = await main.aresume(answers=answers, result=result)
    assert result.value == ["Sign, Adayes and Date?today", "Sign, Bobyes and Date?today"]


async def test_what_was_cached_is_cached_again_when_it_is_played_again(inline: Runtime, tmp_path: Path) -> None:
    @task(cache="thread")
    async def look_up(key: str) -> str:
        runs[key] += 1
        return key.upper()

    @entrypoint(checkpointer=f"sqlite:///{tmp_path}/t.db")
    async def main(key: str) -> list[str]:
        found = await asyncio.gather(look_up(key), look_up(key))
        return [*found, await ask("On?"), await look_up(key)]

    for key in ("a", "b", "a"):
        await main.arun(key, thread_id="t")
        result = await main.aresume("on", thread_id="t")
        assert result.value == [key.upper(), key.upper(), "on", key.upper()]
    assert runs == {"a": 1, "b": 1}
    assert [done.get("cached", False) for done in result.details["tasks"]] == [True, True, True]


@pytest.mark.ray
@pytest.mark.case(15)
@pytest.mark.spec("OURS-24")
async def test_the_supervisor_of_a_body_dies_and_no_task_that_had_ended_runs_again(
    fragile_runtime: Runtime, tmp_path: Path
) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"

    @task
    async def note(n: int) -> int:
        with log.open("a") as file:
            file.write(f"{n}\n")
        while n == 3 and not gate.exists():
            await asyncio.sleep(0.01)
        return n

    @entrypoint(checkpointer=f"sqlite:///{tmp_path}/t.db")
    async def main() -> list[int]:
        first = await asyncio.gather(*(note(n) for n in range(3)))
        return [*first, await note(3), await note(4)]

    running = asyncio.ensure_future(main.arun("go", thread_id="t", runtime=fragile_runtime))
    await until(lambda: log.exists() and "3\n" in log.read_text())
    kill(fragile_runtime, "supervisor")
    gate.touch()
    assert (await running).value == [0, 1, 2, 3, 4]
    done = log.read_text().split()
    assert [done.count(str(n)) for n in (0, 1, 2, 4)] == [1, 1, 1, 1] and done.count("3") in (1, 2)


# caches


@pytest.mark.spec("PAT-64")
async def test_equal_calls_of_a_cached_task_run_once_and_are_recorded(inline: Runtime) -> None:
    @task(cache=True)
    async def look_up(query: dict[str, int]) -> str:
        runs["look_up"] += 1
        return f"{sorted(query.items())}"

    @entrypoint
    async def main() -> list[str]:
        both = await asyncio.gather(look_up({"a": 1, "b": 2}), look_up({"b": 2, "a": 1}))
        return [*both, await look_up({"a": 1, "b": 2}), await look_up({"a": 2})]

    result = await main.arun("go")
    assert len(set(result.value[:3])) == 1 and runs["look_up"] == 2
    assert [done.get("cached", False) for done in result.details["tasks"]] == [False, True, True, False]
    assert [done.cached for done in result.members] == [False, True, True, False]
    assert (await main.arun("go")).success and runs["look_up"] == 4, "the cache is the run's"


async def test_tasks_of_one_name_do_not_share_a_cache(inline: Runtime) -> None:
    @task(name="look", cache=True)
    async def here(n: int) -> str:
        return f"here {n}"

    @task(name="look", cache=True)
    async def there(n: int) -> str:
        return f"there {n}"

    @entrypoint
    async def main() -> list[str]:
        return [await here(1), await there(1), await here(1)]

    result = await main.arun("go")
    assert result.value == ["here 1", "there 1", "here 1"]
    assert [member.step for member in result.members] == ["look-1", "look-2", "look-3"]


async def test_of_equal_calls_one_asks(inline: Runtime) -> None:
    asking: Any = task(name="asking", cache=True)(confirm.function)

    @entrypoint
    async def main(n: int) -> Any:
        return await asyncio.gather(*(asking("It") for _ in range(n)))

    result = await main.arun({"n": 3})
    for answer in ("yes", "sure"):
        assert len(result.interrupts) == 1
        result = await main.aresume(answer, result=result)
    assert result.value == [["yes", "sure"]] * 3


async def test_a_failure_is_not_cached(inline: Runtime) -> None:
    @task(cache=True)
    async def flaky() -> int:
        runs["flaky"] += 1
        if runs["flaky"] == 1:
            raise OSError("no")
        return runs["flaky"]

    @entrypoint
    async def main() -> list[Any]:
        both = await asyncio.gather(flaky(), flaky(), return_exceptions=True)
        return [str(both[0]), both[1], await flaky()]

    assert (await main.arun("go")).value == ["flaky: OSError: no", 2, 2]


async def test_a_cache_of_a_thread_lasts_beyond_the_turn(inline: Runtime, tmp_path: Path) -> None:
    @task(cache="thread")
    async def look_up(key: str) -> str:
        runs[key] += 1
        return key.upper()

    @entrypoint(checkpointer=f"sqlite:///{tmp_path}/t.db")
    async def main(key: str, previous: str | None = None) -> str:
        return await look_up(key) + (previous or "")

    first = [(await main.arun(key, thread_id="t")).value for key in ("a", "b", "a")]
    assert (first, runs) == (["A", "BA", "ABA"], {"a": 1, "b": 1})
    assert (await main.arun("a", thread_id="other")).value == "A" and runs["a"] == 2
    with pytest.raises(InvalidArguments, match="previous: unknown parameter"):
        await main.arun({"key": "a", "previous": "mine"}, thread_id="t")


async def test_a_failure_is_not_kept_for_later_turns(inline: Runtime) -> None:
    @task(cache="thread")
    async def flaky() -> int:
        runs["flaky"] += 1
        if runs["flaky"] == 1:
            raise OSError("no")
        return runs["flaky"]

    @entrypoint(checkpointer="memory://")
    async def main(previous: int | None = None) -> list[int | None]:
        return [await flaky(), None if previous is None else 1]

    assert not (await main.arun("go", thread_id="t")).success
    assert (await main.arun("go", thread_id="t")).value == [2, None], "what failed returned nothing"
