"""The Ray runtime: actors in processes of a cluster, reached from one thread of the caller's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from ..actors.link import Link
from ..protocol.commands import CancelRun, RunFinished, StartRun
from ..protocol.config import Placement, Topology
from ..protocol.errors import ConfigurationError, RuntimeClosed, UmbelError
from ..protocol.results import RunOutcome
from .cell import AGENT, CHECKPOINTER, SUPERVISOR, TOOLS, _shard
from .crossing import Crossing
from .logs import LogSettings, prune, summary

logger = logging.getLogger("umbel.runtime")
START_SECONDS = 120.0
CLOSE_SECONDS = 3.0
REPORT_SECONDS = 1.0


class RayBackend:
    """Starts (or joins) Ray, creates the actors, and talks to them from a thread with an event loop of its own.

    Callers may use it from any thread and any event loop; what they hand over crosses in bursts.
    """

    def __init__(self, topology: Topology, address: str | None, namespace: str | None, options: dict[str, Any]) -> None:
        self._shape = settled(topology)
        self._namespace = namespace or f"run-{uuid.uuid4().hex[:8]}"
        self._name = f"driver-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._blobs: dict[str, bytes] = {}
        self._pools: set[str] = set()
        self._lock = threading.Lock()
        self._handles: dict[str, Any] = {}
        self._links: dict[str, Link] = {}
        self._callers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Crossing] = weakref.WeakKeyDictionary()
        self._asked: dict[str, tuple[Link, int]] = {}
        self._closed = False
        self._logs = LogSettings.from_environment()
        self._owns_ray = connect(address, options)
        self._create_default()
        self._loop = asyncio.new_event_loop()
        self._crossing = Crossing(self._loop)
        self._thread = threading.Thread(target=self._serve, name="umbel-client", daemon=True)
        self._thread.start()

    # what callers use

    def register(self, definition: Any) -> str:
        key, blob = definition.packed
        if key not in self._blobs:
            self._create_pools(definition)
            self._blobs[key] = blob
        return str(key)

    async def execute(self, definition: Any, request: StartRun, on_event: Callable[[Any], None] | None = None) -> RunOutcome:
        if self._closed:
            raise RuntimeClosed("this runtime was closed; make another one")
        loop = asyncio.get_running_loop()
        crossing = self._callers.get(loop)
        if crossing is None:
            self._callers[loop] = crossing = Crossing(loop)
        done: asyncio.Future[RunFinished] = loop.create_future()
        self._crossing.post(self._ask, request, on_event, crossing, done)
        try:
            return (await done).outcome
        except asyncio.CancelledError:
            self._crossing.post(self._abandon, request.run_id)
            raise

    def cancel(self, run_id: str, request: StartRun) -> None:
        self._crossing.post(self._cancel, run_id, request)

    async def close_here(self) -> None:
        """Nothing belongs to the caller's event loop."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._shut_down)

    def end(self) -> None:
        """:meth:`close` without an event loop."""
        if not self._closed:
            self._closed = True
            self._shut_down()

    def reports(self) -> dict[str, Any]:
        """What every actor process is doing (its ``Pong``), by name."""
        import ray

        return {name: json.loads(ray.get(handle.report.remote())) for name, handle in sorted(self._handles.items())}

    # on the client thread

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _ask(
        self, request: StartRun, on_event: Callable[[Any], None] | None, crossing: Crossing, done: asyncio.Future[RunFinished]
    ) -> None:
        link = self._link(request)
        if link.full:
            job = self._loop.create_task(link.ready())
            job.add_done_callback(lambda _: self._ask(request, on_event, crossing, done))
            return
        link.define(request.definition, self._blobs.__getitem__)
        forward = None if on_event is None else lambda event: crossing.post(on_event, event)
        try:
            number, future = link.ask(request, forward)
        except UmbelError as error:
            crossing.post(_settle, done, None, error)
            return
        self._asked[request.run_id] = (link, number)
        future.add_done_callback(lambda answer: self._answered(request.run_id, answer, crossing, done))

    def _answered(
        self, run_id: str, answer: asyncio.Future[RunFinished], crossing: Crossing, done: asyncio.Future[RunFinished]
    ) -> None:
        self._asked.pop(run_id, None)
        if answer.cancelled():
            return
        error = answer.exception()
        try:
            crossing.post(_settle, done, None if error else answer.result(), error)
        except RuntimeError:  # the caller's loop is closed: nobody waits any more
            logger.debug("run %s ended after its caller was gone", run_id)

    def _abandon(self, run_id: str) -> None:
        asked = self._asked.pop(run_id, None)
        if asked is not None:
            asked[0].abandon(asked[1])

    def _cancel(self, run_id: str, request: StartRun) -> None:
        link = self._link(request)
        _, future = link.ask(CancelRun(run_id=run_id), urgent=True)
        future.add_done_callback(lambda answer: answer.cancelled() or answer.exception())

    def _link(self, request: StartRun) -> Link:
        """A thread always goes to the same supervisor shard, so that its turns queue up in one place."""
        from .host import RayTransport

        shard = _shard(request.thread_id or request.run_id, self._shape.supervisors or 1)
        name = f"{SUPERVISOR}/default/{shard}"
        link = self._links.get(name)
        if link is None:
            transport = RayTransport(self._namespace, name)
            self._links[name] = link = Link(self._name, time.time_ns(), name, transport, eager=True)
        return link

    # actors

    def _create_default(self) -> None:
        import ray

        shape = self._shape
        beside = [AGENT] if shape.colocate_agents else []
        for shard in range(shape.supervisors or 1):
            self._create(f"{SUPERVISOR}/default/{shard}", [SUPERVISOR, *beside])
        for shard in range(0 if shape.colocate_agents else shape.agents):
            self._create(f"{AGENT}/default/{shard}", [AGENT])
        for shard in range(shape.tool_executors):
            self._create(f"{TOOLS}/default/{shard}", [TOOLS])
        self._create(f"{CHECKPOINTER}/default/0", [CHECKPOINTER])
        ray.get([handle.hello.remote() for handle in self._handles.values()], timeout=START_SECONDS)

    def _create_pools(self, definition: Any) -> None:
        """Actors for the placements that a definition asks for, unless they exist."""
        config = definition.config
        wanted = [(AGENT, config.placement)] + [(TOOLS, tool.placement) for tool in config.tools]
        for role, placement in wanted:
            if isinstance(placement, Placement) and placement.pool != "default":
                with self._lock:
                    self._create_pool(role, placement)
        for tool in config.tools:
            if tool.agent is not None:
                self._create_pools(tool.agent)

    def _create_pool(self, role: str, placement: Placement) -> None:
        if f"{role}/{placement.pool}" in self._pools:
            return
        check_resources(role, placement)
        self._pools.add(f"{role}/{placement.pool}")
        for shard in range(placement.replicas):
            self._create(f"{role}/{placement.pool}/{shard}", [role], placement)

    def _create(self, name: str, roles: list[str], placement: Placement | None = None) -> None:
        from .host import NAMESPACE, OPTIONS, Host, actor_name

        options: dict[str, Any] = {**OPTIONS, "name": actor_name(self._namespace, name), "namespace": NAMESPACE}
        if placement is not None:
            options |= {"num_cpus": placement.cpus, "num_gpus": placement.gpus, "resources": dict(placement.resources)}
        actor: Any = Host
        self._handles[name] = actor.options(**options).remote(
            self._namespace, name, roles, self._shape.model_dump_json(), self._logs.model_dump_json()
        )

    def _shut_down(self) -> None:
        import ray

        async def close_links() -> None:
            for link in self._links.values():
                await link.close()

        asyncio.run_coroutine_threadsafe(close_links(), self._loop).result(10)
        self._sum_up_logs()
        self._close_hosts()
        if self._owns_ray:
            ray.shutdown()
        else:
            for handle in self._handles.values():
                ray.kill(handle)
        self._handles.clear()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _close_hosts(self) -> None:
        """Let the actors end their workers and close their stores; one that hangs is not waited for."""
        import ray

        if ray.is_initialized():
            closing = [handle.close.remote() for handle in self._handles.values()]
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)

    def _sum_up_logs(self) -> None:
        """One line about what the actors logged; those that do not answer at once are left out."""
        import ray

        if not ray.is_initialized():
            return
        asked = [handle.report.remote() for handle in self._handles.values()]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=REPORT_SECONDS)
        facts = []
        for answer in answered:
            with contextlib.suppress(ray.exceptions.RayError):  # it died: its file is still there
                facts.append(json.loads(ray.get(answer))["stats"]["log"])
        line = summary(facts)
        if line is not None:
            logger.warning(line)
        prune(self._logs.folder)


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)


def check_resources(role: str, placement: Placement) -> None:
    """Refuse what this cluster can never give; Ray would wait for it for ever.

    Raises:
        ConfigurationError: the cluster as a whole has less of something than one actor asks for.
    """
    import ray

    having = ray.cluster_resources()  # type: ignore[no-untyped-call]  # of Ray
    wanted = {"CPU": placement.cpus, "GPU": placement.gpus, **placement.resources}
    short = [
        f"{name} {amount:g} (there is {having.get(name, 0):g})"
        for name, amount in wanted.items()
        if amount > having.get(name, 0)
    ]
    if short:
        raise ConfigurationError(f"the cluster cannot place a {role} actor that needs {', '.join(short)}")


def settled(topology: Topology) -> Topology:
    """The topology with every choice made."""
    if topology.supervisors is not None:
        return topology
    return topology.model_copy(update={"supervisors": (os.cpu_count() or 1) if topology.colocate_agents else 1})


def connect(address: str | None, options: dict[str, Any]) -> bool:
    """Join a Ray cluster or start a local one. Returns whether this process now owns the connection.

    Raises:
        ConfigurationError: the address does not answer.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 lets any other process starve the actors
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or None
    settings: dict[str, Any] = {"namespace": "umbel", "logging_level": "ERROR", "log_to_driver": False, **options}
    if address in (None, "local"):
        settings = {"include_dashboard": False, **settings}
        # A local Ray dies with this process; its side processes then wait this long for a server that is gone (default 60).
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
        if sys.stderr.isatty():
            sys.stderr.write("umbel: starting a local Ray (a few seconds)...\n")
    try:
        ray.init(address=address, **settings)
    except ConnectionError as error:
        raise ConfigurationError(
            f"no Ray cluster answers at {address!r}: {error}. Start one with 'ray start --head', or leave the address out"
        ) from error
    return True
