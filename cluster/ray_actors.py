"""The actors of one runtime on Ray: joining or starting Ray, creating them, asking them, ending them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from ..actors.secrets import references
from ..protocol.config import Placement, Topology
from ..protocol.errors import ConfigurationError, DeadlineExceeded, RestartsExceeded, UmbelError
from .cell import AGENT, CHECKPOINTER, SUPERVISOR, TOOLS
from .gcs_register import forget_all, forget_orphans
from .local_ray import Watcher, is_joined, start_ray
from .logs import LogSettings, prune, summary
from .named_actors import NAMESPACE, actor_name, named_actors
from .nodes import cluster_nodes
from .restarts import Intensity, RestartWatch, is_dead, restarts_of
from .room import Room, check_placement
from .spreading import able_nodes, for_nodes, needs, node_ids, on_node, own_first

logger = logging.getLogger("umbel.runtime")
START_SECONDS = 120.0
CLOSE_SECONDS = 3.0
REPORT_SECONDS = 1.0
READY_SECONDS = 0.1
LOOPBACK = "127.0.0.1"


class RayActors:
    """Starts (or joins) Ray and creates the default actors; pools for special placements come when first asked for.

    Args:
        topology: which actors there are, every choice made.
        namespace: first part of their names.
        address: of a Ray cluster; see :func:`connect`.
        options: for ``ray.init``.
        detached: the actors outlive this driver; where actors of this name run already, they are joined.

    Attributes:
        shape: the topology; of a runtime that was joined, the one that it was started with.
        secret: what its processes must know to connect to each other.

    Raises:
        ConfigurationError: no cluster answers, the namespace is in use, or it cannot outlive this process.
    """

    def __init__(
        self, topology: Topology, namespace: str, address: str | None, options: dict[str, Any], *, detached: bool = False
    ) -> None:
        self.namespace = namespace
        self.secret = secrets.token_bytes(32)
        self.shape = topology
        self._detached = detached
        self._logs = LogSettings.from_environment()
        self._handles: dict[str, Any] = {}
        self._pools: set[str] = set()
        self._lock = threading.Lock()
        self._given_up: dict[str, RestartsExceeded] = {}
        self._owns_ray, self._watcher = connect(address, options)
        try:
            self._nodes = node_ids(topology.resources, topology.labels)
            self.shape = for_nodes(topology, len(self._nodes))
            self._room = Room(topology.autoscale)
            if detached:
                self._join_or_begin()
            self._create_default()
            forget_orphans(lambda: {owner for owner, _ in named_actors()})
        except BaseException:  # also Ctrl-C: a Ray that was started for nothing ends again
            self._leave_ray()
            raise
        limit = Intensity(topology.max_restarts, topology.restart_window_seconds)
        for name, handle in self._handles.items() if detached else ():
            limit.begin(name, restarts_of(handle)[0])
        self._restarts = RestartWatch(lambda: dict(self._handles), limit, time.monotonic, self._given_up.__setitem__)

    def ensure_pools(self, definition: Any) -> None:
        """Create the actors for the placements that a definition asks for, unless they exist.

        Raises:
            ConfigurationError: the cluster can never place one of them.
        """
        for role, placement in _placements(definition):
            with self._lock:
                self._create_pool(role, placement)

    def check(self, definition: Any) -> None:
        """Refuse a run of an agent whose actors were given up.

        Raises:
            RestartsExceeded: which, and why.
        """
        if self._given_up:
            pools = {"default", *(placement.pool for _, placement in _placements(definition))}
            for name, error in self._given_up.items():
                if name.split("/")[1] in pools:
                    raise RestartsExceeded(error.message, **error.details)

    def explain(self, error: dict[str, Any]) -> UmbelError | None:
        """What is behind the loss of an actor (``PeerLost`` in its wire form), if that was given up."""
        known = self._given_up.get((error.get("details") or {}).get("peer", ""))
        return None if known is None else RestartsExceeded(known.message, **known.details)

    def wait_ready(self, seconds: float) -> None:
        """Block until every actor answers.

        Raises:
            DeadlineExceeded: some did not, within ``seconds``; it names them.
            RestartsExceeded: one was given up.
        """
        import ray

        deadline = time.monotonic() + seconds
        asked = {handle.report.remote(): name for name, handle in self._handles.items()}
        while asked:
            for error in self._given_up.values():
                raise RestartsExceeded(error.message, **error.details)
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"{', '.join(sorted(asked.values()))} did not answer within {seconds:g} s")
            answered, _ = ray.wait(list(asked), timeout=READY_SECONDS)
            for answer in answered:
                name = asked.pop(answer)
                try:
                    ray.get(answer)
                except ray.exceptions.ActorUnavailableError:  # it is being restarted: asked again, it answers afterwards
                    asked[self._handles[name].report.remote()] = name
                    time.sleep(READY_SECONDS)
                except ray.exceptions.RayActorError as error:
                    if not is_dead(self._handles[name]):
                        asked[self._handles[name].report.remote()] = name
                        continue
                    raise self.explain({"details": {"peer": name}}) or DeadlineExceeded(f"{name} is dead: {error}") from None

    def reports(self) -> dict[str, Any]:
        """What every actor process is doing (its ``Pong``), by name."""
        import ray

        return {name: json.loads(ray.get(handle.report.remote())) for name, handle in sorted(self._handles.items())}

    def waiting(self) -> int:
        """Model calls that wait for their turn at a rate limit, in the agent actors that answer at once."""
        facts = self._facts_at_once(name for name in self._handles if self._has_agents(name))
        return sum(fact["waiting"] for fact in facts)

    def _has_agents(self, name: str) -> bool:
        return name.startswith(AGENT) or (self.shape.colocate_agents and name.startswith(SUPERVISOR))

    def _facts_at_once(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """What actors say of themselves; those that do not answer at once are left out."""
        import ray

        asked = [self._handles[name].report.remote() for name in list(names)]
        answered = ray.wait(asked, num_returns=len(asked), timeout=REPORT_SECONDS)[0] if asked else []
        facts = []
        for answer in answered:
            with contextlib.suppress(ray.exceptions.RayError):  # it died
                facts.append(json.loads(ray.get(answer))["stats"])
        return facts

    def shut_down(self) -> None:
        """End the actors (detached ones go on), and Ray if it was started here; blocks for a moment."""
        import ray

        self._restarts.close()
        self._room.give_back()
        if self._detached:
            self._handles.clear()
            self._leave_ray()
            return
        if ray.is_initialized():
            self._sum_up_logs()
            closing = [handle.close.remote() for handle in self._handles.values()]
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)  # they end workers, close stores
        if self._owns_ray:
            self._leave_ray()
        elif ray.is_initialized():
            for handle in self._handles.values():
                ray.kill(handle)
            forget_all(self.namespace)
        self._handles.clear()

    def _leave_ray(self) -> None:
        import ray

        if self._owns_ray:
            ray.shutdown()
            if self._watcher is not None:
                self._watcher.finish()

    def _join_or_begin(self) -> None:
        """Whoever creates the first supervisor decides on the topology and the secret; everybody else takes them over.

        Raises:
            ConfigurationError: this Ray ends with this process, or the namespace belongs to another driver.
        """
        if not is_joined():
            raise ConfigurationError(
                "a detached runtime needs a Ray that outlives this process: start it with 'ray start --head', give its address"
            )
        first = f"{SUPERVISOR}/default/0"
        self._create(first, self._supervisor_roles())
        settings = json.loads(_settings(self._handles[first]))
        if not settings["detached"]:
            raise ConfigurationError(
                f"{self.namespace!r} is in use by a driver whose runtime is not detached; choose another name"
            )
        self.secret = bytes.fromhex(settings["secret"])
        self.shape = Topology.model_validate_json(settings["topology"])

    def _supervisor_roles(self) -> list[str]:
        return [SUPERVISOR, *([AGENT] if self.shape.colocate_agents else [])]

    def _create_default(self) -> None:
        import ray

        shape = self.shape
        shards = (shape.supervisors or 1) + (0 if shape.colocate_agents else shape.agents) + shape.tool_executors
        shards += shape.checkpointers
        self._room.ask([(dict(shape.resources), dict(shape.labels))] * shards)
        for shard in range(shape.supervisors or 1):
            self._create(f"{SUPERVISOR}/default/{shard}", self._supervisor_roles())
        for shard in range(0 if shape.colocate_agents else shape.agents):
            self._create(f"{AGENT}/default/{shard}", [AGENT])
        for shard in range(shape.tool_executors):
            self._create(f"{TOOLS}/default/{shard}", [TOOLS])
        for shard in range(shape.checkpointers):
            self._create(f"{CHECKPOINTER}/default/{shard}", [CHECKPOINTER])
        ray.get([handle.hello.remote() for handle in self._handles.values()], timeout=START_SECONDS)

    def _create_pool(self, role: str, placement: Placement) -> None:
        if f"{role}/{placement.pool}" in self._pools:
            return
        check_placement(role, placement, self.shape)
        self._room.ask([(needs(placement), dict(placement.labels))] * placement.replicas)
        self._pools.add(f"{role}/{placement.pool}")
        for shard in range(placement.replicas):
            self._create(f"{role}/{placement.pool}/{shard}", [role], placement)

    def _create(self, name: str, roles: list[str], placement: Placement | None = None) -> None:
        from .host import OPTIONS, Host

        options: dict[str, Any] = {**OPTIONS, "name": actor_name(self.namespace, name), "namespace": NAMESPACE}
        options["resources"] = dict(self.shape.resources)
        if placement is None:
            options |= on_node(int(name.rpartition("/")[2]), self._nodes, (self.shape.labels,))
        if placement is not None:
            options |= {"num_cpus": placement.cpus, "num_gpus": placement.gpus, "resources": dict(placement.resources)}
            if placement.accelerator is not None:
                options["accelerator_type"] = placement.accelerator
            selectors = (placement.labels, *placement.fallback)
            nodes = own_first(able_nodes(cluster_nodes(), needs(placement), selectors)) if placement.spread else []
            options |= on_node(int(name.rpartition("/")[2]), nodes, selectors)
        if self._detached:
            options |= {"lifetime": "detached", "get_if_exists": True}
        actor: Any = Host
        try:
            self._handles[name] = actor.options(**options).remote(
                self.namespace,
                name,
                roles,
                self.shape.model_dump_json(),
                self._logs.model_dump_json(),
                self.secret,
                LOOPBACK if self._watcher is not None else None,  # a local Ray has no other machine
                self._detached,
                references(),
            )
        except ValueError as error:
            if "already taken" not in str(error):
                raise
            raise ConfigurationError(
                f"the namespace {self.namespace!r} is in use on this cluster: choose another, or join a detached runtime "
                "with detached=True"
            ) from None

    def _sum_up_logs(self) -> None:
        """One line about what the actors logged; those that do not answer at once are left out."""
        facts = [fact["log"] for fact in self._facts_at_once(self._handles)]
        line = summary(facts)
        if line is not None:
            logger.warning(line)
        prune(self._logs.folder)


def _settings(supervisor: Any) -> str:
    """What a runtime was started with, of its first supervisor; one that is being restarted is waited for."""
    import ray

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return str(ray.get(supervisor.settings.remote(), timeout=START_SECONDS))
        except ray.exceptions.ActorUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(READY_SECONDS)


def _placements(definition: Any) -> Iterator[tuple[str, Placement]]:
    """The special placements that an agent or a pattern, its tools and what runs inside it ask for."""
    tools = definition.tools_by_name.values()
    for role, placement in [(AGENT, definition.config.placement), *((TOOLS, tool.placement) for tool in tools)]:
        if isinstance(placement, Placement) and placement.pool != "default":
            yield role, placement
    for inner in definition.inner():
        yield from _placements(inner)


def connect(address: str | None, options: dict[str, Any]) -> tuple[bool, Watcher | None]:
    """Join a Ray cluster or start a local one.

    Returns:
        Whether this process now owns the connection, and who watches over a Ray that was started.

    Raises:
        ConfigurationError: the address does not answer.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 lets any other process starve the actors
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        return False, None
    address = address or os.environ.get("RAY_ADDRESS") or None
    settings: dict[str, Any] = {"namespace": "umbel", "logging_level": "ERROR", "log_to_driver": False, **options}
    if address in (None, "local"):
        settings = {"include_dashboard": False, **settings}
        # A local Ray dies with this process; its side processes then wait this long for a server that is gone (default 60).
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
        if sys.stderr.isatty():
            sys.stderr.write("umbel: starting a local Ray (a few seconds)...\n")
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        watcher = start_ray(address, settings)
    except ConnectionError as error:
        raise ConfigurationError(
            f"no Ray cluster answers at {address!r}: {error}. Start one with 'ray start --head', or leave the address out"
        ) from error
    if threading.current_thread() is threading.main_thread():  # Ray's handler prints a C++ stack, and may abort
        signal.signal(signal.SIGTERM, _terminate if on_term in (None, signal.SIG_DFL) else on_term)
    return True, watcher


def _terminate(number: int, _frame: Any) -> None:
    """End as after ``sys.exit``: what was started is closed."""
    sys.exit(128 + number)
