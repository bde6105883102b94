"""Faults of a bucket: each is an error that says what to do, and none loses what was acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError

from umbel.actors.checkpoints import Store, open_store
from umbel.actors.checkpoints.s3_client import explain
from umbel.actors.checkpoints.s3_head import Head
from umbel.actors.checkpoints.s3_store import S3Store
from umbel.actors.checkpoints.static_parts import MARK
from umbel.protocol.commands import CheckpointSaved
from umbel.protocol.errors import CheckpointConflict, CheckpointError, ConfigurationError, StoreUnavailable
from umbel.protocol.storage import CollectGarbage, ListThreads, TakeLease

from .conftest import SaveMaker
from .s3_server import S3Server

pytestmark = pytest.mark.usefixtures("s3_credentials")


@pytest.fixture
def prefix() -> str:
    return uuid4().hex


@pytest.fixture
async def store(s3_server: S3Server, prefix: str) -> AsyncIterator[Store]:
    store = open_store(f"s3://umbel/{prefix}?endpoint={s3_server.endpoint}")
    yield store
    await store.close()


@pytest.mark.spec("OURS-21", "MEM-36")
async def test_a_server_that_does_not_answer_is_an_outage(s3_server: S3Server, prefix: str, save: SaveMaker) -> None:
    store = open_store(f"s3://umbel/{prefix}?endpoint={s3_server.endpoint}&timeout=0.2")
    patient = open_store(f"s3://umbel/{prefix}?endpoint={s3_server.endpoint}")
    await patient.save([save("c1")])
    os.kill(s3_server.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await store.load("thread")
    finally:
        os.kill(s3_server.process.pid, signal.SIGCONT)
    again = [save("c1"), save("c2", "c1")]
    assert await patient.save(again) == [CheckpointSaved(checkpoint_id="c1"), CheckpointSaved(checkpoint_id="c2")]
    await store.close()
    await patient.close()


async def test_nobody_there_is_an_outage() -> None:
    store = open_store("s3://umbel/x?endpoint=http://127.0.0.1:9&timeout=1")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.load("thread")
    await store.close()


async def test_a_bucket_that_came_back_empty_is_a_conflict(
    store: Store, s3_server: S3Server, prefix: str, save: SaveMaker
) -> None:
    await store.save([save("c1")])
    client = s3_server.client()
    for item in client.list_objects_v2(Bucket="umbel", Prefix=prefix)["Contents"]:
        client.delete_object(Bucket="umbel", Key=item["Key"])
    [outcome] = await store.save([save("c2", "c1")])
    assert isinstance(outcome, CheckpointConflict) and outcome.details["found"] is None


async def test_a_lost_or_damaged_object_is_an_error_and_not_another_state(
    store: Store, s3_server: S3Server, prefix: str, save: SaveMaker
) -> None:
    await store.save([save("c1"), save("c2", "c1", kind="delta")])
    client = s3_server.client()
    keys = [item["Key"] for item in client.list_objects_v2(Bucket="umbel", Prefix=f"{prefix}/threads/")["Contents"]]
    [head] = [key for key in keys if key.endswith("/head")]
    client.delete_object(Bucket="umbel", Key=next(key for key in keys if key != head))
    with pytest.raises(CheckpointError, match="objects are missing"):
        await store.load("thread")
    await store.save([save("c1", thread_id="sound"), save("c2", "c1", thread_id="sound")])
    assert (await store.collect(CollectGarbage(store="", keep=1))).checkpoints == 1, "the damaged one keeps nobody from it"
    client.put_object(Bucket="umbel", Key=head, Body=b'{"version":1}')
    with pytest.raises(CheckpointError, match="is damaged"):
        await store.load("thread")
    client.put_object(Bucket="umbel", Key=head, Body=b'{"version":2,"thread_id":"thread"}')
    with pytest.raises(CheckpointError, match="version 2"):
        await store.load("thread")


async def test_a_bucket_that_is_not_there(s3_server: S3Server) -> None:
    store = open_store(f"s3://never-made?endpoint={s3_server.endpoint}")
    with pytest.raises(ConfigurationError, match="no such bucket"):
        await store.open()
    await store.close()


async def test_without_credentials_the_error_names_the_variables(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/never")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/never")
    store = open_store(f"s3://umbel/x?endpoint={s3_server.endpoint}")
    with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID"):
        await store.open()
    await store.close()


async def test_of_many_owners_one_gets_the_lease(store: Store) -> None:
    requests = [TakeLease(store="", thread_id="thread", owner=f"run-{n}", seconds=600) for n in range(6)]
    answers = await asyncio.gather(*map(store.lease, requests), return_exceptions=True)
    assert sum(not isinstance(answer, Exception) for answer in answers) == 1


async def test_collecting_puts_threads_back_into_the_list(
    store: Store, s3_server: S3Server, prefix: str, save: SaveMaker
) -> None:
    long = "x" * 2_000
    await store.save([save("c1", thread_id=name) for name in ("a", long)])
    client = s3_server.client()
    for item in client.list_objects_v2(Bucket="umbel", Prefix=f"{prefix}/names/")["Contents"]:
        client.delete_object(Bucket="umbel", Key=item["Key"])
    assert (await store.threads(ListThreads(store=""))).threads == ()
    await store.collect(CollectGarbage(store=""))
    assert [thread.thread_id for thread in (await store.threads(ListThreads(store=""))).threads] == ["a", long]


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
    for n in range(12):
        thread = f"thread-{n % 3}"
        lease = await store.lease(TakeLease(store="", thread_id=thread, owner="run", seconds=600))
        await store.save([save("c1", thread_id=thread, state=state, statics={digest: "text"}, token=lease.token)])
        assert (await store.load(thread)).statics == {digest: "text"}
        await store.delete(thread)
    ended.set()
    await collector


def before_each_replacement(store: Store, monkeypatch: pytest.MonkeyPatch, happens: list[Callable[[], object]]) -> None:
    """Let the first of ``happens`` take place between a head that was read and the one that takes its place, once each."""
    assert isinstance(store, S3Store)
    client = store._threads.client
    replace = client.replace

    def late(key: str, body: bytes, etag: str | None) -> bool:
        if key.endswith("/head") and happens:
            happens.pop(0)()
        return replace(key, body, etag)

    monkeypatch.setattr(client, "replace", late)


async def test_a_collector_that_a_run_overtakes_deletes_nothing_of_its_thread(
    store: Store, s3_server: S3Server, prefix: str, save: SaveMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.save([save("c1"), save("c2", "c1", kind="delta"), save("c3", "c2", kind="delta")])
    whole = (await store.load("thread")).state
    other = open_store(f"s3://umbel/{prefix}?endpoint={s3_server.endpoint}")
    take = TakeLease(store="", thread_id="thread", owner="run", seconds=600)
    before_each_replacement(store, monkeypatch, [lambda: asyncio.run(other.lease(take))])
    freed = await store.collect(CollectGarbage(store="", keep=1))
    assert freed.checkpoints == 0
    assert (await store.load("thread")).state == whole
    assert [stored.checkpoint_id for stored in await store.history("thread")] == ["c3", "c2", "c1"]
    await other.close()


async def test_a_history_that_a_collector_folds_meanwhile_is_read_again(
    store: Store, s3_server: S3Server, prefix: str, save: SaveMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.save([save("c1"), save("c2", "c1"), save("c3", "c2")])
    other = open_store(f"s3://umbel/{prefix}?endpoint={s3_server.endpoint}")
    assert isinstance(store, S3Store)
    head, folds = store._threads.head, [CollectGarbage(store="", keep=2)]

    def early(thread_id: str) -> tuple[Head, str | None, float]:
        found = head(thread_id)
        while folds:
            asyncio.run(other.collect(folds.pop()))
        return found

    monkeypatch.setattr(store._threads, "head", early)
    assert [stored.checkpoint_id for stored in await store.history("thread")] == ["c3", "c2"]
    await other.close()


async def test_a_write_that_is_under_way_ends_before_the_store_closes_and_nothing_connects_again(
    store: Store, save: SaveMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, S3Store)
    await store.open()
    client, begun = store._threads.client, threading.Event()
    put = client.put

    def slow(key: str, body: bytes) -> None:
        begun.set()
        time.sleep(0.2)
        put(key, body)

    monkeypatch.setattr(client, "put", slow)
    writing = asyncio.create_task(store.save([save("c1")]))
    await asyncio.to_thread(begun.wait)
    await store.close()
    assert await writing == [CheckpointSaved(checkpoint_id="c1")]
    assert client._client is None


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        ("AccessDenied", ConfigurationError, "grant get, put, delete and list"),
        ("SignatureDoesNotMatch", ConfigurationError, "AWS_SECRET_ACCESS_KEY"),
        ("NotImplemented", ConfigurationError, "conditional writes"),
        ("SlowDown", StoreUnavailable, "fewer requests"),
        ("SomethingNew", StoreUnavailable, "SomethingNew"),
    ],
)
def test_what_a_server_answers_is_explained(code: str, kind: type[Exception], remedy: str) -> None:
    error = explain(ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject"), "S3, bucket b")
    assert type(error) is kind
    assert "bucket b" in error.message and remedy in error.message
