"""A fleet's ledger in a store: what is recorded is recorded once, whole, by one writer, and any store will do."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from umbel.actors.checkpoints import CheckpointerActor, MemoryStore, Store, open_store
from umbel.actors.checkpoints.store import SaveOutcome
from umbel.actors.threads import Threads
from umbel.cluster.fleet import Fleet, delete_fleet, export, list_fleets, load_fleet, open_results, results_of
from umbel.cluster.fleet.holder import holder_name
from umbel.cluster.fleet.ledger import Ending, id_hash
from umbel.cluster.fleet.opening import open_ledger
from umbel.cluster.fleet.results import TaskResult
from umbel.cluster.fleet.segments import SEGMENT_BYTES, Segments, unpack
from umbel.cluster.fleet.store_ledger import StoreLedger
from umbel.cluster.fleet.stored import newest_lines
from umbel.protocol.commands import SaveCheckpoint
from umbel.protocol.errors import ConfigurationError, StaleWriter, StoreUnavailable
from umbel.protocol.storage import TakeLease

FINISHED = Ending(state="finished")


@pytest.fixture(params=["sqlite", "file", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_server').url}/2?prefix={uuid4().hex}:"
    return f"{request.param}:///{tmp_path}/fleets"


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fleets.sqlite"


class Lasting(MemoryStore):
    """Keeps what it holds when a ledger closes it."""

    async def close(self) -> None:
        pass


def result(task_id: Any, status: Any = "ok", **fields: Any) -> TaskResult:
    return TaskResult(id=str(task_id), status=status, attempts=1, **fields)


async def session(store: str | Store, *results: TaskResult, ending: Ending = FINISHED, **options: Any) -> StoreLedger:
    ledger = await open_ledger("f", store, **options)
    for one in results:
        ledger.put(one)
        await ledger.room()
    await ledger.close(ending)
    return ledger


async def until_refused(ledger: StoreLedger) -> None:
    while True:
        await ledger.room()
        await asyncio.sleep(0.01)


async def ids_of(url: str) -> list[tuple[str, str]]:
    return [(one.id, one.status) async for one in results_of(url, "f")]


async def test_results_and_record_are_in_the_store(url: str) -> None:
    await session(url, result("a", tokens=5, cost_usd=0.5), result("b", "failed", tokens=2))
    assert await ids_of(url) == [("a", "ok"), ("b", "failed")]
    record = await load_fleet(url, "f")
    assert (record.state, record.counts, record.tokens, record.cost_usd) == ("finished", {"ok": 1, "failed": 1}, 7, 0.5)
    assert (record.sessions, record.exit_code, record.owner, record.liveness) == (1, 0, None, "finished")


async def test_a_resumed_fleet_knows_what_is_done_and_the_newest_result_counts(url: str) -> None:
    await session(url, result("a", tokens=1), result("b", "failed", tokens=1), result("c", "cancelled", tokens=1))
    ledger = await open_ledger("f", url, resume=True)
    assert [ledger.is_done(id_hash(name)) for name in "abcd"] == [True, False, False, False]
    assert ledger.record.sessions == 2
    ledger.put(result("b", tokens=1))
    await ledger.close(FINISHED)
    assert await ids_of(url) == [("a", "ok"), ("c", "cancelled"), ("b", "ok")]
    record = await load_fleet(url, "f")
    assert (record.counts, record.tokens, record.sessions) == ({"ok": 2, "cancelled": 1}, 4, 2)


async def test_a_fleet_that_is_there_is_neither_gone_on_with_nor_replaced_unasked(url: str) -> None:
    await session(url, result("a"))
    with pytest.raises(ConfigurationError, match=r"1 ok.*--resume"):
        await open_ledger("f", url)
    await session(url, result("b"), overwrite=True)
    assert await ids_of(url) == [("b", "ok")]
    assert (await load_fleet(url, "f")).sessions == 1


async def test_one_process_at_a_time_runs_a_fleet(url: str) -> None:
    ledger = await open_ledger("f", url)
    with pytest.raises(ConfigurationError, match="is being run by process"):
        await open_ledger("f", url, resume=True)
    with pytest.raises(ConfigurationError, match="stop it first"):
        await delete_fleet(url, "f")
    assert (await load_fleet(url, "f")).liveness == "running"
    await ledger.close(FINISHED)
    await (await open_ledger("f", url, resume=True)).close(FINISHED)


async def test_whoever_has_lost_the_fleet_cannot_write_any_more() -> None:
    store = Lasting()
    ledger = await open_ledger("f", store)
    ledger.put(result("mine"))
    while not await _stored(store):
        await asyncio.sleep(0.01)
    await store.lease(TakeLease(store="", thread_id="fleet:f", owner="another", seconds=60, steal=True))
    ledger.put(result("late"))
    with pytest.raises(StaleWriter):
        await until_refused(ledger)
    with pytest.raises(StaleWriter):
        await ledger.close(FINISHED)
    assert await _stored(store) == ["mine"]


async def test_a_fleet_of_a_dead_process_can_be_taken_over_at_once(sqlite: str) -> None:
    store = open_store(sqlite)
    host, _, place, _ = holder_name().split("/")
    gone = f"{host}/{_free_pid()}/{place}/aa"
    await store.lease(TakeLease(store="", thread_id="fleet:f", owner=gone, seconds=600))
    await store.close()
    await session(sqlite, result("a"))
    assert await ids_of(sqlite) == [("a", "ok")]


async def test_a_lease_of_another_machine_is_waited_for_while_it_shows_no_sign_of_life(sqlite: str) -> None:
    store = open_store(sqlite)
    await store.lease(TakeLease(store="", thread_id="fleet:f", owner="elsewhere/1/boot-1/aa", seconds=1.0))
    await session(sqlite, result("a"))
    assert await ids_of(sqlite) == [("a", "ok")]
    await store.lease(TakeLease(store="", thread_id="fleet:f", owner="elsewhere/1/boot-1/aa", seconds=60))
    opening = asyncio.create_task(open_ledger("f", sqlite, resume=True))
    await asyncio.sleep(0.1)
    await store.lease(TakeLease(store="", thread_id="fleet:f", owner="elsewhere/1/boot-1/aa", seconds=90))
    with pytest.raises(ConfigurationError, match="process 1 on elsewhere"):
        await opening
    await store.close()


class Flaky(Lasting):
    """Fails some saves, before or after they are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: list[str] = []
        self.saves = 0

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        self.saves += 1
        what = self.plan.pop(0) if self.plan else "ok"
        if what == "lost":
            raise StoreUnavailable("away")
        outcomes = await super().save(saves)
        if what == "unheard":
            raise StoreUnavailable("away after it was stored")
        return outcomes


async def test_a_store_that_is_away_for_a_moment_loses_and_doubles_nothing() -> None:
    store = Flaky()
    ledger = await open_ledger("f", store)
    for number in range(6):
        store.plan = [("lost", "unheard")[number % 2]]
        before = store.saves
        ledger.put(result(number))
        while store.saves < before + 2:
            await asyncio.sleep(0.01)
    await ledger.close(FINISHED)
    assert await _stored(store) == [str(number) for number in range(6)]


async def test_a_store_that_stays_away_ends_the_fleet() -> None:
    store = Flaky()
    ledger = await open_ledger("f", store, outage=0.2)
    store.plan = ["lost"] * 100
    ledger.put(result("a"))
    with pytest.raises(StoreUnavailable):
        await until_refused(ledger)
    with pytest.raises(StoreUnavailable):
        await ledger.close(FINISHED)


async def test_a_batch_and_the_record_that_counts_it_are_stored_together() -> None:
    seen: list[tuple[int, int]] = []

    class Watching(Lasting):
        async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
            outcomes = await super().save(saves)
            stored = sum(len(unpack(thread.state, "")) for thread in self._threads["fleet:f"].rows)
            seen.append((stored, sum(saves[-1].metadata["fleet"]["counts"].values())))
            return outcomes

    store = Watching()
    ledger = await open_ledger("f", store)
    for number in range(300):
        ledger.put(result(number))
        if number % 50 == 0:
            await asyncio.sleep(0.05)
    await ledger.close(FINISHED)
    assert seen[-1] == (300, 300)
    assert all(stored == counted for stored, counted in seen)
    assert len(seen) > 3


def test_small_batches_are_merged_and_the_order_stays() -> None:
    segments, written = Segments(), 0
    for number in range(20_000):
        merge = segments.merge([b'{"id":"%d","status":"ok"}' % number])
        written += merge.size
        segments.stored(merge, str(number))
    sizes = [segment.size for segment in segments]
    assert sum(sizes) < 20_000 * 40
    assert len(sizes) < 24
    assert written < 16 * sum(sizes)
    held = [segment for segment in segments if segment.lines is not None]
    assert sum(segment.size for segment in held) <= 2 * SEGMENT_BYTES + max(sizes)


async def test_reading_goes_on_when_segments_are_merged_under_the_reader() -> None:
    store = Lasting()
    ledger = await open_ledger("f", store)
    for number in range(3):
        ledger.put(result(number, "failed", message="x" * 1000 * (3 - number)))
        await ledger._write()
    assert len(list(ledger._stored.segments)) > 1
    lines = newest_lines(store, "f")
    first = await anext(lines)
    ledger.put(result(3, message="y" * 5_000))
    await ledger._write()
    read = [json.loads(line)["id"] for line in [first, *[line async for line in lines]]]
    assert read == ["0", "1", "2"]
    await ledger.close(FINISHED)


async def test_ledgers_are_no_conversations_and_are_never_tidied_away(url: str) -> None:
    await session(url, *[result(number, message="x" * 300_000) for number in range(6)])
    checkpointer = CheckpointerActor()
    threads = Threads(url, checkpointer.answer)
    try:
        assert await threads.page() == []
        assert await threads.collect(keep=1, older_than=0.0) is not None
    finally:
        await checkpointer.close()
    assert len(await ids_of(url)) == 6


async def test_a_deleted_fleet_is_gone_and_a_late_write_does_not_bring_it_back(url: str) -> None:
    await session(url, result("a"))
    assert await delete_fleet(url, "f")
    assert not await delete_fleet(url, "f")
    assert await list_fleets(url) == []
    store = open_store(url)
    [outcome] = await store.save([SaveCheckpoint(store="", thread_id="fleet:f", checkpoint_id="x", state=b"{}", token=1)])
    assert isinstance(outcome, StaleWriter)
    await store.close()
    await session(url, result("b"))
    assert await ids_of(url) == [("b", "ok")]


async def test_an_unknown_name_names_the_close_ones(sqlite: str) -> None:
    await session(sqlite, result("a"))
    with pytest.raises(ConfigurationError, match=r"no fleet 'ff'.*there is f"):
        await load_fleet(sqlite, "ff")


async def test_files_are_made_from_the_ledger_and_mended_when_it_goes_on(url: str, tmp_path: Path) -> None:
    jsonl, parquet = tmp_path / "r.jsonl", tmp_path / "r.parquet"
    await session(url, result("a"), result("b", "failed"), out=[jsonl, parquet])
    assert [json.loads(line)["id"] for line in jsonl.read_text().splitlines()] == ["a", "b"]
    jsonl.write_bytes(jsonl.read_bytes()[:-20])  # torn
    parquet.unlink()
    await session(url, result("b"), result("c", message="hi"), resume=True, out=[jsonl, parquet])
    assert [json.loads(line)["id"] for line in jsonl.read_text().splitlines()] == ["a", "b", "c"]
    read = [one async for one in open_results(str(parquet))]
    assert read == [one async for one in results_of(url, "f")]
    assert [(one.id, one.status) for one in read] == [("a", "ok"), ("b", "ok"), ("c", "ok")]
    assert await export(url, "f", tmp_path / "again.jsonl") == 3
    assert (tmp_path / "again.jsonl").read_bytes() == jsonl.read_bytes()


async def test_a_file_of_another_fleet_is_not_touched(sqlite: str, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    out.write_bytes(result("of another").line())
    await session(sqlite, result("a"))
    with pytest.raises(ConfigurationError, match="does not know"):
        await open_ledger("f", sqlite, resume=True, out=[out])
    assert out.read_bytes() == result("of another").line()
    with pytest.raises(ConfigurationError, match="is there already"):
        await open_ledger("g", sqlite, out=[out])
    await (await open_ledger("g", sqlite)).close(FINISHED)  # neither refusal holds the fleet


async def test_a_line_is_in_the_file_only_once_the_store_has_it(tmp_path: Path) -> None:
    store, out = Flaky(), tmp_path / "r.jsonl"
    ledger = await open_ledger("f", store, out=[out], outage=0.3)
    store.plan = ["lost"] * 100
    ledger.put(result("a"))
    with pytest.raises(StoreUnavailable):
        await until_refused(ledger)
    assert out.read_bytes() == b""
    with pytest.raises(StoreUnavailable):
        await ledger.close(FINISHED)


async def test_a_fleet_with_a_name_from_the_outside(make_agent: Any, sqlite: str, out: Path, read_results: Any) -> None:
    agent = make_agent()
    fleet = Fleet(agent, name="f", store=sqlite, spec={"agent": "m:a"})
    report = await fleet.run([f"p{number}" for number in range(30)], out, limit=20)
    assert (report.ok, report.name, report.out) == (20, "f", str(out))
    assert (await load_fleet(sqlite, "f")).state == "stopped"
    report = await fleet.run([f"p{number}" for number in range(30)], out, resume=True)
    assert (report.ok, report.skipped) == (10, 20)
    assert len(read_results(out)) == 30
    record = await load_fleet(sqlite, "f")
    assert (record.state, record.counts, record.total, record.tokens) == ("finished", {"ok": 30}, 30, 300)
    assert record.spec == {"agent": "m:a"}
    assert len(agent.calls) == 30


async def _stored(store: Store) -> list[str]:
    return [json.loads(line)["id"] async for line in newest_lines(store, "f")]


def _free_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid
