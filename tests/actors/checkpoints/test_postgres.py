"""Faults of a real PostgreSQL: each is an error that says what to do, and none loses what was acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from umbel.actors.checkpoints import Store, open_store
from umbel.actors.checkpoints.static_parts import MARK
from umbel.protocol.commands import CheckpointSaved
from umbel.protocol.errors import (
    CheckpointError,
    ConfigurationError,
    SchemaVersionError,
    StoreUnavailable,
    ThreadBusy,
)
from umbel.protocol.storage import CollectGarbage, JournalEntry, ListThreads, RecordCalls, TakeLease

from .conftest import SaveMaker
from .postgres_server import PostgresServer


@pytest.fixture(scope="module")
def server(require_service: Callable[[str], str]) -> Iterator[PostgresServer]:
    """A server that the tests of this module may harm, if they mend it."""
    with tempfile.TemporaryDirectory(prefix="umbel-pg-") as folder:
        server = PostgresServer(require_service, Path(folder))
        yield server.start()
        server.kill()


@pytest.fixture
def schema() -> str:
    return f"t{uuid4().hex}"


@pytest.fixture
async def store(server: PostgresServer, schema: str) -> AsyncIterator[Store]:
    store = open_store(f"{server.url}?schema={schema}&timeout=20")
    yield store
    await store.close()


@pytest.mark.spec("OURS-21", "MEM-31", "MEM-33")
async def test_a_killed_server_is_an_outage_and_comes_back_with_everything(
    store: Store, server: PostgresServer, save: SaveMaker
) -> None:
    lease = await store.lease(TakeLease(store="", thread_id="thread", owner="run", seconds=600))
    entry = JournalEntry(run_id="run", call_id="1", phase="begun")
    first, later = save("c1", token=lease.token), save("c2", "c1", token=lease.token)
    await store.save([first])
    await store.record([RecordCalls(store="", thread_id="thread", token=lease.token, entries=(entry,))])
    before = await store.load("thread")
    assert (before.journal, before.token) == ((entry,), lease.token)

    server.kill()
    for call in (store.load("thread"), store.history("thread"), store.save([later]), store.threads(ListThreads(store=""))):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await call
    server.start()

    assert await store.load("thread") == before
    assert await store.save([first, later]) == [CheckpointSaved(checkpoint_id="c1"), CheckpointSaved(checkpoint_id="c2")]
    with pytest.raises(ThreadBusy):
        await store.lease(TakeLease(store="", thread_id="thread", owner="other", seconds=1))


async def test_settings_that_can_lose_checkpoints_are_warned_of(store: Store, postgres_server: PostgresServer) -> None:
    assert await store.warnings() == []
    careless = open_store(postgres_server.url)
    assert any("fsync off: a power cut" in warning and "set fsync = on" in warning for warning in await careless.warnings())
    await careless.close()


async def test_connections_that_the_server_ended_are_replaced(store: Store, server: PostgresServer, save: SaveMaker) -> None:
    await store.save([save("c1")])
    server.command(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'umbel'"
    )
    assert (await store.load("thread")).checkpoint_id == "c1"


async def test_a_server_that_does_not_answer_is_left_in_time(server: PostgresServer, schema: str, save: SaveMaker) -> None:
    store = open_store(f"{server.url}?schema={schema}&timeout=3&application_name={schema}")
    await store.save([save("c1")])
    [(pid,)] = server.command(f"SELECT pid FROM pg_stat_activity WHERE application_name = '{schema}'")
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match="timeout="):
        await store.save([save("c2", "c1")])
    os.kill(pid, signal.SIGCONT)

    assert await store.save([save("c2", "c1"), save("c3", "c2")]) == [
        CheckpointSaved(checkpoint_id="c2"),
        CheckpointSaved(checkpoint_id="c3"),
    ]
    assert [entry.checkpoint_id for entry in await store.history("thread")] == ["c3", "c2", "c1"]
    await store.close()


async def test_calls_that_are_cancelled_leave_the_others_alone(server: PostgresServer, schema: str, save: SaveMaker) -> None:
    store = open_store(f"{server.url}?schema={schema}&timeout=5&application_name={schema}")
    chance = random.Random(3)

    async def write(thread: str) -> None:
        parent = None
        for number in range(12):
            step = save(f"c{number}", parent, thread_id=thread)
            saving = asyncio.create_task(store.save([step]))
            await asyncio.sleep(chance.random() * 0.004)
            if chance.random() < 0.6:
                saving.cancel()
            await asyncio.wait([saving])
            assert await store.save([step]) == [CheckpointSaved(checkpoint_id=step.checkpoint_id)]
            parent = step.checkpoint_id
        assert len(await store.history(thread, 100)) == 12

    async with asyncio.timeout(60):
        await asyncio.gather(*(write(f"t{number}") for number in range(8)))
    [(connections,)] = server.command(f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'")
    assert connections <= 8
    await store.close()


async def test_a_lock_of_somebody_else_is_waited_for_but_not_for_ever(
    server: PostgresServer, schema: str, save: SaveMaker
) -> None:
    store = open_store(f"{server.url}?schema={schema}&timeout=3")
    await store.save([save("c1"), save("c1", thread_id="other")])
    with psycopg.connect(server.url) as other:
        other.execute(f"SELECT 1 FROM {schema}.threads WHERE thread_id = 'thread' FOR UPDATE".encode())
        with pytest.raises(StoreUnavailable, match="timeout="):
            await store.save([save("c2", "c1")])
        assert (await store.load("thread")).checkpoint_id == "c1", "readers do not wait"
        assert isinstance((await store.save([save("c2", "c1", thread_id="other")]))[0], CheckpointSaved)
    assert isinstance((await store.save([save("c2", "c1")]))[0], CheckpointSaved)
    await store.close()


async def test_many_create_the_schema_at_once(server: PostgresServer, schema: str) -> None:
    stores = [open_store(f"{server.url}?schema={schema}") for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.close() for store in stores))
    assert server.command(f"SELECT version FROM {schema}.schema_version") == [(1,)]


async def test_batches_over_the_same_threads_do_not_lock_each_other_out(
    server: PostgresServer, schema: str, save: SaveMaker
) -> None:
    stores = [open_store(f"{server.url}?schema={schema}") for _ in range(3)]
    names = [f"t{n}" for n in range(20)]

    async def write(number: int) -> int:
        order = names if number % 2 else list(reversed(names))
        outcomes = await stores[number].save([save(f"c{number}", thread_id=name) for name in order])
        return sum(isinstance(outcome, CheckpointSaved) for outcome in outcomes)

    assert sum(await asyncio.gather(*map(write, range(3)))) == len(names)
    await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.parametrize(
    ("user", "kind", "match"),
    [
        ("nobody", ConfigurationError, "check user and password"),
        ("secret:wr0ng", ConfigurationError, "check user and password"),
        ("plain", ConfigurationError, "GRANT CREATE"),
        ("reader", StoreUnavailable, "name the primary"),
    ],
)
async def test_a_user_who_may_not_is_told_why(
    server: PostgresServer, schema: str, user: str, kind: type[Exception], match: str
) -> None:
    if not server.command("SELECT 1 FROM pg_roles WHERE rolname = 'reader'"):
        hba = server.data / "pg_hba.conf"
        hba.write_text("host all secret 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        server.command("SELECT pg_reload_conf()")
        server.command("CREATE ROLE secret LOGIN PASSWORD 'right'")
        server.command("CREATE ROLE plain LOGIN")
        server.command("CREATE ROLE reader LOGIN SUPERUSER")
        server.command("ALTER ROLE reader SET default_transaction_read_only = on")
    store = open_store(server.url.replace("umbel@", f"{user}@") + f"?schema={schema}")
    with pytest.raises(kind, match=match) as raised:
        await store.load("thread")
    assert "wr0ng" not in str(raised.value)
    await store.close()


@pytest.mark.spec("BUG-56")
async def test_a_user_without_rights_may_use_a_schema_that_was_made_for_it(server: PostgresServer, schema: str) -> None:
    role = f"u{schema}"[:20]
    server.command(f"CREATE ROLE {role} LOGIN")
    store = open_store(server.url.replace("umbel@", f"{role}@") + f"?schema={schema}")
    with pytest.raises(ConfigurationError, match="GRANT CREATE"):
        await store.open()
    server.command(f"CREATE SCHEMA {schema} AUTHORIZATION {role}")
    await store.open()  # the store is not used before its tables are there
    await store.close()


async def test_a_database_that_is_not_there(server: PostgresServer) -> None:
    store = open_store(server.url.replace("/postgres", "/never"))
    with pytest.raises(ConfigurationError, match="createdb"):
        await store.open()
    await store.close()


async def test_tables_of_another_version_or_of_somebody_else_are_left_alone(server: PostgresServer, schema: str) -> None:
    for table, kind, match in (
        ("SELECT 7 AS version", SchemaVersionError, "version 7"),
        ("SELECT 7 AS colour", ConfigurationError, r"\?schema="),
    ):
        server.command(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        server.command(f"DROP TABLE IF EXISTS {schema}.schema_version")
        server.command(f"CREATE TABLE {schema}.schema_version AS {table}")
        store = open_store(f"{server.url}?schema={schema}")
        with pytest.raises(kind, match=match):
            await store.open()
        await store.close()


async def test_a_lost_part_is_an_error_and_not_another_state(
    store: Store, server: PostgresServer, schema: str, save: SaveMaker
) -> None:
    await store.save([save("c1"), save("c2", "c1", kind="delta")])
    server.command(f"DELETE FROM {schema}.checkpoints WHERE position = 1")
    with pytest.raises(CheckpointError, match="are missing"):
        await store.load("thread")
    await store.save([save("c1", thread_id="sound"), save("c2", "c1", thread_id="sound")])
    assert (await store.collect(CollectGarbage(store="", keep=1))).checkpoints == 1, "the damaged one keeps nobody from it"
    server.command(f"DELETE FROM {schema}.checkpoints")
    with pytest.raises(CheckpointError, match="newest checkpoint is missing"):
        await store.load("thread")


async def test_a_url_may_name_several_hosts_of_which_one_is_down(server: PostgresServer, schema: str, save: SaveMaker) -> None:
    several = server.url.replace("@", "@127.0.0.1:9,") + f"?schema={schema}&target_session_attrs=read-write"
    store = open_store(several)
    assert await store.save([save("c1")]) == [CheckpointSaved(checkpoint_id="c1")]
    await store.close()


@pytest.mark.case(18)
async def test_no_text_is_lost_to_a_collector_that_runs_while_threads_begin_and_end(store: Store, save: SaveMaker) -> None:
    digest = "a" * 64
    state = json.dumps({"messages": [MARK + digest]}).encode()
    ended = asyncio.Event()

    async def collect() -> int:
        texts = 0
        while not ended.is_set():
            texts += (await store.collect(CollectGarbage(store="", tombstones=0.0))).static_parts
        return texts

    collector = asyncio.create_task(collect())
    for n in range(40):
        await store.save([save("c1", thread_id=f"t{n}", state=state, statics={digest: "text"})])
        assert (await store.load(f"t{n}")).statics == {digest: "text"}
        await store.delete(f"t{n}")
    ended.set()
    assert await collector > 0, "the collector had nothing to do, so the test shows nothing"


async def test_more_threads_than_a_page(store: Store, save: SaveMaker) -> None:
    names = [f"t{n:03}" + "x" * 500 for n in range(250)]
    await store.save([save("c1", thread_id=name) for name in names])
    assert [info.thread_id for info in (await store.threads(ListThreads(store="", limit=1_000))).threads] == names
    [last] = (await store.threads(ListThreads(store="", after=names[-2]))).threads
    assert last.thread_id == names[-1]
