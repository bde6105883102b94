"""Links to a real actor process: over a connection of their own, and with every frame as a Ray call."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from umbel.actors.link import Link
from umbel.protocol.commands import CheckpointSaved, ForgetRuns, LoadCheckpoint, Ping, SaveCheckpoint
from umbel.protocol.config import Topology
from umbel.protocol.errors import CheckpointConflict, PeerLost, UnknownKind

pytestmark = pytest.mark.ray
NAME = "checkpointer/default/0"
SECRET = b"s" * 32
BOUND_SECONDS = 60.0  # Ray needs about 2 s to notice a killed process and to restart it; a busy machine takes longer


def start(home: Path) -> tuple[str, Any]:
    """A host in a process of its own: (its namespace, its handle)."""
    from umbel.cluster.host import OPTIONS, Host
    from umbel.cluster.logs import LogSettings
    from umbel.cluster.named_actors import NAMESPACE, actor_name

    namespace = f"test-{uuid.uuid4().hex[:8]}"
    options = {**OPTIONS, "name": actor_name(namespace, NAME), "namespace": NAMESPACE}
    settings = (Topology().model_dump_json(), LogSettings(levels={}, home=str(home)).model_dump_json(), SECRET, "127.0.0.1")
    handle = Host.options(**options).remote(namespace, NAME, ["checkpointer"], *settings)  # type: ignore[attr-defined]  # Ray's
    return namespace, handle


def connect(namespace: str, *, direct: bool) -> Link:
    from umbel.cluster.host import Identity, RayTransport

    me = f"test-{uuid.uuid4().hex}"
    return Link(me, time.time_ns(), NAME, RayTransport(Identity(namespace, me, SECRET), NAME, direct=direct))


@pytest.fixture(scope="module")
def namespace(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The namespace of a host that was started for this module."""
    namespace, handle = start(tmp_path_factory.mktemp("home"))
    yield namespace
    ray_cluster.kill(handle)


@pytest.fixture(params=["connection", "Ray calls"])
async def link(request: pytest.FixtureRequest, namespace: str) -> AsyncIterator[Link]:
    link = connect(namespace, direct=request.param == "connection")
    yield link
    await link.close()


def save(thread_id: str, state: bytes = b'{"messages":[]}', **fields: Any) -> SaveCheckpoint:
    return SaveCheckpoint(store="memory://", thread_id=thread_id, checkpoint_id="c", state=state, **fields)


async def sent(link: Link, count: int) -> None:
    """Until the link has sent so many messages."""
    while link.stats["messages"] < count:
        await asyncio.sleep(0.01)


async def test_round_trips(link: Link) -> None:
    for _ in range(20):
        pong = await link.request(Ping())
        assert pong.pid != os.getpid()
        assert pong.busy >= 1


async def test_1000_at_once(link: Link) -> None:
    threads = [f"{uuid.uuid4().hex}-{number}" for number in range(1_000)]
    saved = await asyncio.gather(*(link.request(save(thread, metadata={"number": thread})) for thread in threads))
    assert saved == [CheckpointSaved(checkpoint_id="c")] * 1_000
    loads = (link.request(LoadCheckpoint(store="memory://", thread_id=thread)) for thread in threads)
    assert [loaded.metadata["number"] for loaded in await asyncio.gather(*loads)] == threads
    assert link.stats["frames"] < 200


async def test_a_large_body_in_both_directions(link: Link) -> None:
    thread, state = uuid.uuid4().hex, b'{"messages":[],"text":"' + b"x" * 5_000_000 + b'"}'
    await link.request(save(thread, state))
    loaded, pong = await asyncio.gather(link.request(LoadCheckpoint(store="memory://", thread_id=thread)), link.request(Ping()))
    assert loaded.state == state
    assert pong.epoch


async def test_errors_cross_as_what_they_are(link: Link) -> None:
    thread = uuid.uuid4().hex
    with pytest.raises(CheckpointConflict):
        await link.request(save(thread, parent_id="not there"))
    with pytest.raises(UnknownKind, match="does not serve ForgetRuns"):
        await link.request(ForgetRuns(run_ids=("r",)))


async def test_an_urgent_request(link: Link) -> None:
    assert (await link.request(Ping(), urgent=True)).epoch


@pytest.mark.case(25)
async def test_a_killed_process_fails_what_was_pending_and_the_next_request_reaches_its_successor(link: Link) -> None:
    before = await link.request(Ping())
    os.kill(before.pid, signal.SIGSTOP)  # so that nothing is answered before the kill
    pending = [asyncio.ensure_future(link.request(Ping())) for _ in range(50)]
    await sent(link, 51)
    os.kill(before.pid, signal.SIGKILL)
    async with asyncio.timeout(BOUND_SECONDS):
        errors = await asyncio.gather(*pending, return_exceptions=True)
        after = await link.request(Ping())
    assert {type(error) for error in errors} == {PeerLost}
    assert {error.delivered for error in errors if isinstance(error, PeerLost)} == {"unknown"}
    assert after.pid != before.pid
    assert after.epoch > before.epoch
    assert link.stats["restarts"] == 1


@pytest.mark.case(25)
@pytest.mark.parametrize("direct", [True, False])
async def test_an_actor_that_is_gone_for_good_fails_what_was_pending_and_all_later_requests(
    ray_cluster: Any, tmp_path: Path, direct: bool
) -> None:
    namespace, handle = start(tmp_path)
    link = connect(namespace, direct=direct)
    os.kill((await link.request(Ping())).pid, signal.SIGSTOP)
    pending = [asyncio.ensure_future(link.request(Ping())) for _ in range(5)]
    await sent(link, 6)
    ray_cluster.kill(handle)
    async with asyncio.timeout(BOUND_SECONDS):
        errors = await asyncio.gather(*pending, return_exceptions=True)
        with pytest.raises(PeerLost) as later:
            await link.request(Ping())
    assert [(type(error), error.delivered) for error in errors if isinstance(error, PeerLost)] == [(PeerLost, "unknown")] * 5
    assert later.value.delivered == "no"
    await link.close()


async def test_an_actor_that_never_was(ray_cluster: Any) -> None:
    link = connect("nowhere", direct=True)
    with pytest.raises(PeerLost, match="there is no actor umbel/nowhere/checkpointer/default/0") as caught:
        await link.request(Ping())
    assert caught.value.delivered == "no"
    await link.close()
