"""The Ray runtime as callers use it: runs go over links that live on the caller's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

from ..actors.link import Link
from ..actors.recovering import persistent, recovering
from ..protocol.commands import CancelRun, StartRun
from ..protocol.config import Topology
from ..protocol.errors import ConfigurationError, PeerLost, RuntimeClosed, UmbelError
from ..protocol.handles import BeginRun, ListRuns, RunEntry
from ..protocol.messages import Frozen
from ..protocol.results import RunOutcome
from .cell import CHECKPOINTER, SUPERVISOR, shard_of
from .host import Identity, RayTransport
from .loops import at_loop_end
from .ray_actors import RayActors

Shard = tuple[asyncio.AbstractEventLoop, Link]  # the link to a supervisor (or, last, the checkpointer), and whose it is


class RayBackend:
    """Runs agents on the actors of a Ray cluster. May be used from any number of threads and event loops."""

    def __init__(
        self,
        topology: Topology | None,
        address: str | None,
        namespace: str | None,
        options: dict[str, Any],
        *,
        detached: bool = False,
    ) -> None:
        name = namespace or f"run-{uuid.uuid4().hex[:8]}"
        self._actors = RayActors(settled(topology or Topology()), name, address, options, detached=detached)
        if topology is not None:
            check_shape(topology, self._actors)
        self._shards = self._actors.shape.supervisors or 1
        self._name = f"driver-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._numbers = itertools.count(1)
        self._blobs: dict[str, bytes] = {}
        self._links: dict[asyncio.AbstractEventLoop, list[Shard]] = {}
        self._guards: dict[asyncio.AbstractEventLoop, Any] = {}
        self._running: dict[str, Shard] = {}
        self._stopped: set[str] = set()  # of those: cancelled, which a supervisor that died may not have heard
        self._closed = False

    def register(self, definition: Any) -> str:
        key, blob = definition.packed
        if key not in self._blobs:
            self._actors.ensure_pools(definition)
            self._blobs[key] = blob
        return str(key)

    async def execute(self, definition: Any, request: StartRun, on_event: Callable[[Any], None] | None = None) -> RunOutcome:
        self._actors.check(definition)
        loop = asyncio.get_running_loop()
        links = self._links.get(loop) or await self._connect(loop)
        # A thread always goes to the same shard, so that its turns queue up in one place.
        shard = links[shard_of(request.thread_id or request.run_id, self._shards)]
        _, link = self._running[request.run_id] = shard
        link.define(request.definition, self._blobs.__getitem__)
        try:
            if request.thread_id is not None and definition.checkpointer is not None:
                return self._explained(await recovering(link, request, on_event, self._actors.shape, self._stopped))
            return self._explained((await link.request(request, on_partial=on_event)).outcome)
        except PeerLost as lost:
            raise self._actors.explain(lost.to_wire()) or lost from None
        except asyncio.CancelledError:
            await link.told()  # the supervisor must hear of it before this loop may close
            raise
        finally:
            del self._running[request.run_id]
            self._stopped.discard(request.run_id)

    def _explained(self, outcome: RunOutcome) -> RunOutcome:
        """The outcome of a run that lost an actor which was given up says so."""
        if outcome.error is None or outcome.error.get("code") != PeerLost.code:
            return outcome
        error = self._actors.explain(outcome.error)
        return outcome if error is None else outcome.evolve(error=error.to_wire())

    async def begin(self, definition: Any, request: StartRun, *, recall: bool = False) -> str:
        """Begin a run that goes on without this process; its id, which leads to the shard that has its thread."""
        self._actors.check(definition)
        if not recall and request.thread_id is not None:
            shard = shard_of(request.thread_id, self._shards)
            while shard_of(request.run_id, self._shards) != shard:
                request = request.evolve(run_id=os.urandom(16).hex())
        link = await self._link(request.run_id)
        link.define(request.definition, self._blobs.__getitem__)
        await self.ask_run(BeginRun(start=request, recall=recall), request.run_id)
        return request.run_id

    async def ask_run(self, message: Frozen, run_id: str) -> Any:
        """The reply to a message about a run that was begun; asked again when the supervisor dies over it."""
        link = await self._link(run_id)
        try:
            return await persistent(link, message, self._actors.shape)
        except PeerLost as lost:
            raise self._actors.explain(lost.to_wire()) or lost from None
        except asyncio.CancelledError:
            await link.told()
            raise

    async def ask(self, message: Frozen, thread_id: str) -> Any:
        """The reply to a message about a thread, of the supervisor that serves it."""
        return await (await self._link(thread_id)).request(message)

    async def ask_checkpointer(self, message: Frozen) -> Any:
        """The checkpointer's reply to a message about threads."""
        loop = asyncio.get_running_loop()
        links = self._links.get(loop) or await self._connect(loop)
        _, link = links[self._shards]
        try:
            return await link.request(message)
        except PeerLost as lost:
            raise self._actors.explain(lost.to_wire()) or lost from None

    async def runs(self) -> list[RunEntry]:
        """The runs that were begun here, on all shards."""
        loop = asyncio.get_running_loop()
        links = self._links.get(loop) or await self._connect(loop)
        listed = await asyncio.gather(*(persistent(link, ListRuns(), self._actors.shape) for _, link in links[: self._shards]))
        return sorted((entry for runs in listed for entry in runs.runs), key=lambda entry: -entry.seconds)

    def cancel(self, run_id: str, request: StartRun, *, suspend: bool = False) -> None:
        running = self._running.get(run_id)
        if running is not None:
            if not suspend:
                self._stopped.add(run_id)
            loop, link = running
            with contextlib.suppress(RuntimeError):  # the loop closed in between: nothing runs there
                loop.call_soon_threadsafe(_cancel, link, CancelRun(run_id=run_id, suspend=suspend))

    async def ready(self, seconds: float) -> None:
        """Until every actor answers; see :meth:`Runtime.ready`."""
        await asyncio.to_thread(self._actors.wait_ready, seconds)

    async def close_here(self) -> None:
        """Close the links of the running event loop."""
        loop = asyncio.get_running_loop()
        self._guards.pop(loop, None)
        for _, link in self._links.pop(loop, ()):
            await link.close()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self.close_here()
            await asyncio.get_running_loop().run_in_executor(None, self._actors.shut_down)

    def end(self) -> None:
        """:meth:`close` without an event loop."""
        if not self._closed:
            self._closed = True
            self._actors.shut_down()

    def reports(self) -> dict[str, Any]:
        """What every actor process is doing (its ``Pong``), by name."""
        return self._actors.reports()

    async def _link(self, key: str) -> Link:
        """To the supervisor that serves a thread, or a run."""
        loop = asyncio.get_running_loop()
        links = self._links.get(loop) or await self._connect(loop)
        return links[shard_of(key, self._shards)][1]

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> list[Shard]:
        """The links of an event loop that asks for the first time; they are closed when it ends."""
        if self._closed:
            raise RuntimeClosed("this runtime was closed; make another one")
        for ended in [other for other in list(self._links) if other.is_closed()]:
            self._links.pop(ended, None)
            self._guards.pop(ended, None)
        me = Identity(self._actors.namespace, f"{self._name}-{next(self._numbers)}", self._actors.secret)
        peers = [*(f"{SUPERVISOR}/default/{shard}" for shard in range(self._shards)), f"{CHECKPOINTER}/default/0"]
        patience = self._actors.shape.patience_seconds
        self._links[loop] = [
            (loop, Link(me.name, time.time_ns(), peer, RayTransport(me, peer), eager=True, patience=patience)) for peer in peers
        ]
        self._guards[loop] = await at_loop_end(self.close_here)
        return self._links[loop]


def _cancel(link: Link, message: CancelRun) -> None:
    with contextlib.suppress(UmbelError):  # the link is closed, and with it the run
        _, answer = link.ask(message, urgent=True)
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())


def settled(topology: Topology) -> Topology:
    """The topology with every choice made."""
    if topology.supervisors is not None:
        return topology
    return topology.model_copy(update={"supervisors": (os.cpu_count() or 1) if topology.colocate_agents else 1})


def check_shape(wanted: Topology, actors: RayActors) -> None:
    """Refuse a topology that was asked for, when a runtime that was joined has another.

    Raises:
        ConfigurationError: names what differs.
    """
    having = actors.shape
    counts = {"supervisors", "agents", "tool_executors"} if wanted.per_node and having.per_node else set()  # of one node
    fields = {
        name: getattr(wanted, name) for name in sorted(wanted.model_fields_set - counts) if getattr(wanted, name) is not None
    }
    other = [f"{name}={getattr(having, name)}" for name, value in fields.items() if value != getattr(having, name)]
    if other:
        actors.shut_down()
        raise ConfigurationError(
            f"the runtime {actors.namespace!r} was started with {', '.join(other)}: join it without a topology, or end it first"
            f" ('umbel down {actors.namespace}')"
        )
