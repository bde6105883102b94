"""Faults of a real Redis: each is an error that says what to do, and none loses what was acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis

from umbel.actors.checkpoints import CheckpointerActor, Store, open_store
from umbel.actors.checkpoints.redis_client import RedisClient
from umbel.actors.checkpoints.redis_errors import explain
from umbel.actors.checkpoints.redis_keys import thread_keys
from umbel.actors.checkpoints.redis_scripts import LOAD
from umbel.actors.checkpoints.redis_store import RedisStore
from umbel.actors.checkpoints.static_parts import MARK
from umbel.protocol.commands import CheckpointSaved, LoadCheckpoint
from umbel.protocol.errors import CheckpointConflict, CheckpointError, ConfigurationError, StoreUnavailable, UmbelError
from umbel.protocol.storage import CollectGarbage, JournalEntry, ListThreads, RecordCalls, TakeLease

from .conftest import SaveMaker
from .redis_server import RedisCluster, RedisServer

Service = Callable[[str], str]


@pytest.fixture
def server(require_service: Service, tmp_path: Path) -> Iterator[RedisServer]:
    """A server that the test may harm; what was acknowledged is on disk."""
    settings = ("--appendonly", "yes", "--appendfsync", "always")
    server = RedisServer(require_service("redis-server"), tmp_path / "data", *settings)
    yield server.start()
    server.kill()


@pytest.fixture
def make(require_service: Service, tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """A function that makes a server with other settings; it is ended even when the test fails."""
    made: list[RedisServer] = []

    def make(*settings: str) -> RedisServer:
        made.append(RedisServer(require_service("redis-server"), tmp_path / f"data-{len(made)}", *settings))
        return made[-1]

    yield make
    for server in made:
        server.kill()


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[Store]:
    store = open_store(f"{server.url}?timeout=5")
    yield store
    await store.close()


def _key(thread_id: str) -> str:
    return thread_keys("umbel:", thread_id)[0]


async def listed(store: Store) -> list[str]:
    return [thread.thread_id for thread in (await store.threads(ListThreads(store=""))).threads]


@pytest.mark.spec("OURS-21", "MEM-31", "MEM-32")
async def test_a_killed_server_is_an_outage_and_comes_back_with_everything(
    store: Store, server: RedisServer, save: SaveMaker
) -> None:
    lease = await store.lease(TakeLease(store="", thread_id="thread", owner="run", seconds=600))
    entry = JournalEntry(run_id="run", call_id="1", phase="begun")
    first = save("c1", token=lease.token, statics={"a" * 64: "text"})
    await store.save([first])
    await store.record([RecordCalls(store="", thread_id="thread", token=lease.token, entries=(entry,))])
    before = await store.load("thread")

    server.kill()
    later = save("c2", "c1", token=lease.token)
    for call in (store.load("thread"), store.history("thread"), store.save([later]), store.threads(ListThreads(store=""))):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await call
    server.start()

    assert await store.load("thread") == before
    assert (before.journal, before.token) == ((entry,), lease.token)
    assert await listed(store) == ["thread"]
    assert await store.save([first, later]) == [CheckpointSaved(checkpoint_id="c1"), CheckpointSaved(checkpoint_id="c2")]


async def test_a_save_whose_answer_was_lost_is_sent_again(server: RedisServer, save: SaveMaker) -> None:
    store = open_store(f"{server.url}?timeout=2")
    await store.save([save("c1")])
    os.kill(server.process.pid, signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match=r"timeout="):
        await store.save([save("c2", "c1")])
    os.kill(server.process.pid, signal.SIGCONT)

    assert await store.save([save("c2", "c1"), save("c3", "c2")] * 2) == [
        CheckpointSaved(checkpoint_id=name) for name in ("c2", "c3") * 2
    ]
    assert [entry.checkpoint_id for entry in await store.history("thread")] == ["c3", "c2", "c1"]
    await store.close()


async def test_a_server_that_came_back_empty_is_a_conflict_and_was_warned_of(
    make: Callable[..., RedisServer], save: SaveMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server = make("--maxmemory-policy", "allkeys-lru").start()
    store = open_store(server.url)
    actor = CheckpointerActor(lambda _: store)
    await asyncio.gather(
        actor.save(save("c1", store=server.url)), actor.load(LoadCheckpoint(store=server.url, thread_id="thread"))
    )
    await actor.load(LoadCheckpoint(store=server.url, thread_id="other"))
    async with asyncio.timeout(20):
        while caplog.text.count("set maxmemory-policy noeviction") < 1:
            await asyncio.sleep(0.01)
    assert (len(await store.warnings()), len(caplog.records)) == (2, 2), "each once"
    assert "set appendonly yes" in caplog.text
    server.kill()
    server.start()

    [outcome] = await store.save([save("c2", "c1")])
    assert isinstance(outcome, CheckpointConflict) and outcome.details["found"] is None
    await store.close()


async def test_what_is_asked_in_one_tick_is_one_round_trip(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as watch:
        before = int(watch.info("stats")["total_connections_received"])
        client = RedisClient(server.url, prefix="umbel:", timeout=10, cluster=False)
        asked = [client.attempt([client.about(LOAD, f"t-{number}", "")]) for number in range(50)]
        answers = await asyncio.gather(*asked)
        await client.close()
        after = int(watch.info("stats")["total_connections_received"])
    assert all(not isinstance(answer, Exception) for [answer] in answers) and len(answers) == 50
    assert after - before == 1  # side by side they would have taken a connection each


async def test_safe_settings_are_not_warned_of(store: Store, redis_cluster: RedisCluster) -> None:
    assert isinstance(store, RedisStore)
    assert await store.warnings() == []
    cluster = open_store(f"{redis_cluster.url}?cluster=yes")
    assert isinstance(cluster, RedisStore)
    assert "appendonly" in (await cluster.warnings())[0]
    await cluster.close()


async def test_a_full_memory_refuses_saves_but_reads_and_makes_room(store: Store, server: RedisServer, save: SaveMaker) -> None:
    await store.save([save("c1"), save("c1", thread_id="other")])
    server.command("CONFIG SET", "maxmemory", "1")
    for call in (store.save([save("c2", "c1")]), store.record([RecordCalls(store="", thread_id="thread")])):
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            await call
    assert (await store.load("thread")).checkpoint_id == "c1"
    assert await listed(store) == ["other", "thread"]
    assert (await store.delete("other")).existed
    server.command("CONFIG SET", "maxmemory", "0")
    assert await store.save([save("c2", "c1")]) == [CheckpointSaved(checkpoint_id="c2")]


async def test_a_replica_takes_no_writes(store: Store, server: RedisServer, save: SaveMaker, redis_server: RedisServer) -> None:
    server.command("REPLICAOF", "127.0.0.1", redis_server.port)
    with pytest.raises(StoreUnavailable, match="primary"):
        await store.save([save("c1")])


async def test_connections_to_a_primary_that_became_a_replica_are_given_up(
    store: Store, server: RedisServer, save: SaveMaker, redis_server: RedisServer
) -> None:
    """Its name may lead to the new primary by now; connections that are there would stay with the old one."""

    def connections() -> int:
        return len(server.command("CLIENT LIST", "TYPE", "normal")) - 1

    await store.save([save("c1")])
    assert connections() == 1
    server.command("REPLICAOF", "127.0.0.1", redis_server.port)
    for call in (store.save([save("c2", "c1")]), store.save([save("c1", thread_id="new")])):
        with pytest.raises(StoreUnavailable, match="primary"):
            await call
        async with asyncio.timeout(10):
            while connections():
                await asyncio.sleep(0.01)


async def test_a_server_that_cannot_write_to_its_disk_says_so(server: RedisServer, store: Store, save: SaveMaker) -> None:
    await store.save([save("c1")])
    server.command("CONFIG SET", "save", "3600 1")
    shutil.rmtree(server.command("CONFIG GET", "dir")["dir"])
    server.command("BGSAVE")
    async with asyncio.timeout(30):
        while server.command("INFO", "persistence")["rdb_last_bgsave_status"] == "ok":
            await asyncio.sleep(0.01)
    with pytest.raises(StoreUnavailable, match="disk"):
        await store.save([save("c2", "c1")])
    assert (await store.load("thread")).checkpoint_id == "c1"


@pytest.mark.spec("OURS-21")
async def test_credentials_are_asked_for_and_never_shown(server: RedisServer, save: SaveMaker) -> None:
    server.command("CONFIG SET", "requirepass", "s3cret")
    for url in (server.url, server.url.replace("//", "//:wr0ng@")):
        store = open_store(url)
        with pytest.raises(ConfigurationError, match="credentials") as raised:
            await store.save([save("c1")])
        assert "wr0ng" not in str(raised.value)
        await store.close()
    store = open_store(server.url.replace("//", "//:s3cret@"))
    assert isinstance((await store.save([save("c1")]))[0], CheckpointSaved)
    await store.close()


async def test_a_user_without_rights_is_told_so(server: RedisServer, save: SaveMaker) -> None:
    server.command("ACL SETUSER", "small", "on", ">pw", "~*", "+@read")
    store = open_store(server.url.replace("//", "//small:pw@"))
    with pytest.raises(ConfigurationError, match=r"\+@all"):
        await store.save([save("c1")])
    await store.close()


async def test_a_node_of_a_cluster_asks_for_the_option(redis_cluster: RedisCluster, save: SaveMaker) -> None:
    store = open_store(redis_cluster.url)
    here = redis_cluster.nodes[0]
    away = next(name for name in map(str, range(1_000)) if here.command("CLUSTER KEYSLOT", _key(name)) > 8_191)
    with pytest.raises(ConfigurationError, match=r"\?cluster=yes"):
        await store.load(away)
    await store.close()


async def test_keys_of_somebody_else_are_left_alone(server: RedisServer, save: SaveMaker) -> None:
    server.command("SET", "umbel:threads", "mine")
    store = open_store(server.url)
    with pytest.raises(ConfigurationError, match="prefix"):
        await store.save([save("c1")])
    await store.close()
    assert server.command("GET", "umbel:threads") == b"mine"


async def test_a_lost_part_is_an_error_and_not_another_state(store: Store, server: RedisServer, save: SaveMaker) -> None:
    await store.save([save("c1"), save("c2", "c1", kind="delta")])
    [states] = server.command("KEYS", "*:states")
    server.command("HDEL", states, 1)
    with pytest.raises(CheckpointError, match="part of it is missing"):
        await store.load("thread")
    await store.save([save("c1", thread_id="sound"), save("c2", "c1", thread_id="sound")])
    assert (await store.collect(CollectGarbage(store="", keep=1))).checkpoints == 1, "the damaged one keeps nobody from it"
    [facts] = server.command("KEYS", f"{_key('thread').removesuffix('thread')}facts")
    server.command("HDEL", facts, 2)
    for call in (store.history("thread"), store.threads(ListThreads(store=""))):
        with pytest.raises(CheckpointError, match="part of it is missing"):
            await call


async def test_collecting_puts_threads_back_into_the_list(store: Store, server: RedisServer, save: SaveMaker) -> None:
    await store.save([save("c1", thread_id=name) for name in "ab"])
    server.command("DEL", "umbel:threads")
    server.command("ZADD", "umbel:threads", 0, "never")
    assert await listed(store) == []
    await store.collect(CollectGarbage(store=""))
    assert await listed(store) == ["a", "b"]


async def test_more_threads_than_a_page(store: Store, save: SaveMaker) -> None:
    names = [f"t{n:03}" for n in range(250)]
    await store.save([save("c1", thread_id=name) for name in names])
    assert await listed(store) == names[:100]
    assert len((await store.threads(ListThreads(store="", limit=1_000, prefix="t"))).threads) == 250


@pytest.mark.case(18)
async def test_no_text_is_lost_to_a_collector_that_runs_while_threads_begin_and_end(store: Store, save: SaveMaker) -> None:
    digest = "a" * 64
    state = json.dumps({"messages": [MARK + digest]}).encode()
    ended = asyncio.Event()

    async def write() -> None:
        for n in range(60):
            thread = f"thread-{n}"
            await store.save([save("c1", thread_id=thread, state=state, statics={digest: "text"})])
            assert (await store.load(thread)).statics == {digest: "text"}
            await store.delete(thread)

    async def collect() -> int:
        texts = 0
        while not ended.is_set():
            texts += (await store.collect(CollectGarbage(store="", tombstones=0.0))).static_parts
        return texts

    collector = asyncio.create_task(collect())
    await write()
    ended.set()
    assert await collector > 0, "the collector had nothing to do, so the test shows nothing"


@pytest.mark.parametrize(
    ("answer", "kind", "remedy"),
    [
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), StoreUnavailable, "try again"),
        (redis.exceptions.ResponseError("MISCONF Redis is configured to save"), StoreUnavailable, "disk"),
        (redis.exceptions.ResponseError("NOREPLICAS Not enough good replicas"), StoreUnavailable, "replicas"),
        (redis.exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"), StoreUnavailable, "missing nodes"),
        (redis.exceptions.MasterDownError("MASTERDOWN Link with MASTER is down"), StoreUnavailable, "primary"),
        (redis.exceptions.ResponseError("Error compiling script (new function)"), ConfigurationError, "Redis 7"),
        (redis.exceptions.ResponseError("something new"), StoreUnavailable, "something new"),
    ],
)
def test_what_a_server_answers_is_explained(answer: Exception, kind: type[UmbelError], remedy: str) -> None:
    error = explain(answer, "host:6379")
    assert type(error) is kind
    assert "host:6379" in error.message and remedy in error.message


@pytest.fixture
def pair(require_service: Service, tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of loopback and its key."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([require_service("openssl"), *request, *names], check=True, capture_output=True)
    return certificate, key


async def test_tls(make: Callable[..., RedisServer], pair: tuple[Path, Path], save: SaveMaker) -> None:
    certificate, key = pair
    tls = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no"]
    server = make(*tls)
    server.start("--port", "0", "--tls-port", str(server.port))

    trusting = open_store(f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={certificate}")
    assert isinstance((await trusting.save([save("c1")]))[0], CheckpointSaved)
    await trusting.close()
    strict = open_store(f"rediss://127.0.0.1:{server.port}")
    with pytest.raises(StoreUnavailable, match="certificate"):
        await strict.load("thread")
    await strict.close()
