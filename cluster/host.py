"""The Ray actor that hosts a cell, and the transport that reaches one."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError, RayTaskError

from ..actors.agent.limits.line import use
from ..actors.ambient import mark_process
from ..actors.definitions import Definitions
from ..actors.frames import Frames, Unreachable
from ..actors.secrets import use_references
from ..protocol.config import Topology
from ..protocol.errors import PeerLost, RemoteError, UmbelError
from ..protocol.handles import RunsListed
from .cell import CHECKPOINTER, SUPERVISOR, Cell
from .collector import relax
from .gcs_register import GcsRegister
from .limiter import connect
from .logs import LogSettings, open_log
from .named_actors import NAMESPACE, actor_name
from .node_drain import deadline_of, leave_in_time
from .restarts import Intensity, RestartWatch, is_dead, watch_over
from .sockets import COLLECT, CONTROL, DELIVER, Connection, FrameServer

logger = logging.getLogger("umbel.host")
LAST_REPLIES_SECONDS = 0.1  # until they have left the socket
COLLECT_AFTER = (200_000, 10, 50)  # a process of our own, whose runs leave no cycles behind
WATCHERS = (f"{SUPERVISOR}/default/0", f"{CHECKPOINTER}/default/0")  # two, who also look after each other
OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "max_concurrency": 5_000,
    "max_restarts": -1,
    "max_task_retries": 0,
    "enable_task_events": False,
}


@ray.remote(concurrency_groups={"ctl": 16})  # type: ignore[call-overload]  # a documented option
class Host:
    """One actor process. ``deliver`` and ``collect`` are the mailbox; what must get through always has its own threads.

    Args:
        namespace: first part of the names of this runtime's actors.
        name: this actor's own (``kind/pool/shard``).
        roles: what it hosts.
        topology: the runtime's, as JSON.
        logs: how it logs (``LogSettings``), as JSON.
        secret: what peers must know to connect directly.
        address: where to listen for them; None is this node's own.
        detached: the runtime outlives the driver that started it.
        secrets: where this process finds secrets: references by name.
    """

    def __init__(
        self,
        namespace: str,
        name: str,
        roles: list[str],
        topology: str,
        logs: str,
        secret: bytes,
        address: str | None,
        detached: bool = False,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        use_references(secrets or {})
        self._epoch = time.time_ns()
        mark_process("an actor of a runtime")
        use(connect)
        self._settings = {"topology": topology, "secret": secret.hex(), "detached": detached}
        self._log = open_log(LogSettings.model_validate_json(logs), namespace, name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: asyncio.Task[tuple[str, int]] | None = None
        self._node = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # of Ray
        shape = Topology.model_validate_json(topology)
        identity = Identity(namespace, name, secret)
        register = GcsRegister(namespace, name)
        self._cell = Cell(name, self._epoch, roles, shape, lambda peer: RayTransport(identity, peer), Definitions(), register)
        self._server = FrameServer(self._cell.mailbox, secret, address or self._node)
        relax(COLLECT_AFTER)
        if self._cell.begun is not None:  # Ray makes an async actor on its event loop
            self._recovery = asyncio.get_running_loop().create_task(self._cell.begun.ready())
        self._leaving = False
        self._node_id = str(ray.get_runtime_context().get_node_id())
        if address is None:  # else this Ray has no other node
            leave = leave_in_time(self._cell, lambda: deadline_of(self._node_id), self._start_elsewhere)
            self._drain = asyncio.get_running_loop().create_task(leave)
        self._restarts: RestartWatch | None = None
        if detached and name in WATCHERS:  # as drivers do, but there need not be one
            self._restarts = watch_over(namespace, Intensity(shape.max_restarts, shape.restart_window_seconds))

    async def hello(self) -> tuple[int, str, int]:
        """This incarnation, and where it listens."""
        if self._leaving:
            await asyncio.Event().wait()  # until this process has ended; the next one answers
        self._loop = asyncio.get_running_loop()
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._server.start())
        return (self._epoch, *await self._listening)

    async def deliver(self, frame: bytes, *large: bytes) -> Any:
        return _returned(*await self._cell.mailbox.deliver(frame, large))

    async def collect(self, frame: bytes) -> Any:
        return _returned(*await self._cell.mailbox.collect(frame))

    @ray.method(concurrency_group="ctl")
    async def control(self, frame: bytes) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cell.mailbox.control, frame)

    @ray.method(concurrency_group="ctl")
    async def report(self) -> str:
        report = self._cell.report()
        stats = {
            **report.stats,
            "log": self._log.facts(),
            "node": self._node,
            "node_id": self._node_id,
            "detached": self._settings["detached"],
        }
        return report.evolve(stats=stats).model_dump_json()

    @ray.method(concurrency_group="ctl")
    async def settings(self) -> str:
        """What a driver must know to join this runtime, as JSON; whoever may call actors of the cluster may know it."""
        return json.dumps(self._settings)

    @ray.method(concurrency_group="ctl")
    async def runs(self) -> str:
        """The runs of a supervisor that were begun with a handle (``RunsListed``), as JSON."""
        entries = self._cell.begun.entries() if self._cell.begun is not None else ()
        return RunsListed(runs=entries).model_dump_json()

    async def _start_elsewhere(self) -> None:
        """End here; Ray starts this actor again on a node that is not drained."""
        self._leaving = True
        await asyncio.sleep(LAST_REPLIES_SECONDS)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=False)

    async def close(self) -> None:
        if self._restarts is not None:
            await asyncio.to_thread(self._restarts.close)
        await self._server.close()
        await self._cell.close()


def _returned(frame: bytes, large: Sequence[bytes]) -> Any:
    """A plain frame travels inside the reply; large blobs travel beside it, by reference."""
    return (frame, [ray.put(blob) for blob in large]) if large else frame


@dataclass(frozen=True)
class Identity:
    """Who asks: the runtime's namespace, its own name in it, and the runtime's secret."""

    namespace: str
    name: str
    secret: bytes = field(repr=False)


class RayTransport:
    """Frames to a named actor: found, watched and met by way of Ray, then over a connection of their own.

    Args:
        identity: who asks.
        name: the actor's name in the runtime (``kind/pool/shard``).
        direct: False sends every frame as a Ray call, as is done anyway where no connection can be made.
    """

    def __init__(self, identity: Identity, name: str, *, direct: bool = True) -> None:
        self._identity = identity
        self._full_name = actor_name(identity.namespace, name)
        self._name = name
        self._direct = direct
        self._handle: Any = None
        self._connection: Connection | None = None

    async def hello(self) -> int:
        epoch, host, port = await self._call("hello")
        self.close()
        if self._direct:
            self._connection = await self._connect((host, port))
        return int(epoch)

    def deliver(self, frame: bytes, large: Sequence[bytes]) -> Awaitable[Frames]:
        if self._connection is not None:
            return self._connection.call(DELIVER, frame, large)
        return self._frames("deliver", frame, large)

    async def collect(self, frame: bytes) -> Frames:
        if self._connection is not None:
            return await self._connection.call(COLLECT, frame)
        return await self._frames("collect", frame)

    async def control(self, frame: bytes) -> None:
        if self._connection is not None:
            await self._connection.call(CONTROL, frame)
        else:
            await self._call("control", frame)

    def close(self) -> None:
        """Give up the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connect(self, address: tuple[str, int]) -> Connection | None:
        connection = Connection()
        try:
            await connection.connect(address, self._identity.secret, self._identity.name)
        except OSError as error:  # also a timeout
            logger.warning("no direct connection to %s at %s:%d (%s): its frames go as Ray calls", self._name, *address, error)
            return None
        return connection

    async def _frames(self, method: str, frame: bytes, large: Sequence[bytes] = ()) -> Frames:
        answer = await self._call(method, frame, *(ray.put(blob) for blob in large))
        if type(answer) is bytes:
            return answer, ()
        replies, references = answer
        return replies, [await reference for reference in references]

    async def _call(self, method: str, *arguments: Any) -> Any:
        """One Ray call, its errors in the mailbox's words: it may come back, it is gone, or its code is wrong."""
        try:
            if self._handle is None:
                self._handle = ray.get_actor(self._full_name, NAMESPACE)
            return await getattr(self._handle, method).remote(*arguments)
        except ActorDiedError as error:
            if not await asyncio.to_thread(is_dead, self._handle):
                raise Unreachable from None
            raise PeerLost(f"{self._name} died and is not restarted: {_line(error)}", peer=self._name) from None
        except (ActorUnavailableError, RayActorError):
            raise Unreachable from None
        except RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, UmbelError) else RemoteError(f"{self._name}: {_line(error)}") from None
        except RayError:  # a lost object, an overloaded node: the call may be tried again
            raise Unreachable from None
        except ValueError as error:
            raise PeerLost(f"there is no actor {self._full_name}: {_line(error)}", peer=self._name, delivered="no") from None


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:500] if lines else type(error).__name__
