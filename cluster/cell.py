"""The actors that one process hosts, behind one mailbox, and how they find those in other processes."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Callable, Collection
from typing import Any

import psutil

from ..actors.agent.actor import AgentActor
from ..actors.agent.models.gate import configure_limits
from ..actors.bundling import Bundling
from ..actors.checkpoints.actor import CheckpointerActor
from ..actors.checkpoints.by_thread import ByThread
from ..actors.definitions import Definitions
from ..actors.frames import Channel, Transport
from ..actors.link import Link, LocalLink
from ..actors.mailbox import Mailbox
from ..actors.supervisor.actor import SupervisorActor
from ..actors.supervisor.begun_runs import BegunRuns
from ..actors.supervisor.register import Register
from ..actors.tools.executor import ToolExecutorActor
from ..protocol.commands import (
    Define,
    ExecuteCall,
    ForgetRuns,
    LoadCheckpoint,
    LoadInterrupts,
    Ping,
    Pong,
    SaveCheckpoint,
    SubagentAnswer,
    SubagentHeard,
    ThinkRequest,
)
from ..protocol.config import Placement, Topology
from ..protocol.storage import RecordCalls
from .replicas import Replicas

SUPERVISOR, AGENT, TOOLS, CHECKPOINTER = "supervisor", "agent", "tools", "checkpointer"
MIX = 2_654_435_761  # the checksums of keys that differ in a number are not spread evenly; their multiples are
ROLES = (SUPERVISOR, AGENT, TOOLS, CHECKPOINTER)
EXECUTOR_LINGER = 0.001
LOOK_SECONDS = 0.05  # between two looks at what is still under way

Connect = Callable[[str], Transport]


class Cell:
    """One process's share of the actors.

    Args:
        name: this process's actor name.
        epoch: this incarnation.
        roles: which of ``ROLES`` it hosts.
        topology: how many of each there are.
        connect: from an actor's name (``kind/pool/shard``) to a transport.
        definitions: the agents known here.
        register: where a supervisor keeps what the incarnation after it has to know.

    Attributes:
        begun: runs that go on without a caller, of a supervisor.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        roles: Collection[str],
        topology: Topology,
        connect: Connect | None,
        definitions: Definitions,
        register: Register | None = None,
    ) -> None:
        own_process = set(roles) == {TOOLS}
        linger = EXECUTOR_LINGER if own_process else 0.0
        self.mailbox = Mailbox(name, epoch, capacity=topology.max_runs, linger=linger)
        self.directory = Directory(name, epoch, self.mailbox, roles, topology, connect, definitions)
        self._closers: list[Callable[[], Any]] = [self.directory.close]
        self._runs: Callable[[], int] = lambda: 0
        self._supervisor: SupervisorActor | None = None
        self.begun: BegunRuns | None = None
        self.mailbox.on(Define, definitions.define)
        self.mailbox.on(Ping, self._ping)
        if SUPERVISOR in roles:
            supervisor = SupervisorActor(definitions, self.directory)
            self.begun = BegunRuns(supervisor, definitions, self.directory, topology, register)
            self.mailbox.on(LoadInterrupts, supervisor.interrupts)
            for request, handler in self.begun.handlers().items():
                self.mailbox.on(request, handler)
            self._closers.insert(0, self.begun.close)  # it saves what it stops, while the others can be reached
            self.stop_runs = supervisor.stop_runs
            self._runs = lambda: supervisor.active
            self._supervisor = supervisor
        if AGENT in roles:
            configure_limits(topology.limits)
            agent = AgentActor(definitions)
            self.mailbox.on(ThinkRequest, agent.think)
            self.mailbox.on(ForgetRuns, agent.forget)
            self._closers.append(agent.close)
        if TOOLS in roles or SUPERVISOR in roles:  # beside a supervisor: tools placed "local"
            executor = ToolExecutorActor(definitions.find_tool, own_process=own_process, pack=definitions.pack)
            self.mailbox.on(ExecuteCall, executor.execute)
            self.mailbox.on(SubagentHeard, executor.heard)
            self.mailbox.on(SubagentAnswer, executor.answered)
            self._closers.append(executor.close)
        if CHECKPOINTER in roles:
            checkpointer = CheckpointerActor()
            for request, handler in checkpointer.handlers().items():
                self.mailbox.on(request, handler)
            self._closers.append(checkpointer.close)

    async def close(self) -> None:
        """Stop what runs and release connections, threads and processes."""
        await self.mailbox.close()
        for close in self._closers:
            await close()

    async def hand_over(self, seconds: float) -> bool:
        """Get ready for the incarnation after this one: new work is held for it, what is under way comes to an end.

        Durable runs wait at their next boundary; what else has not ended by then is broken off as by a crash.

        Args:
            seconds: how long it may take.

        Returns:
            Whether nothing was broken off. This process must end now: what is held has been sent back.
        """
        self.mailbox.hold()
        if self._supervisor is not None:
            self._supervisor.move()
        deadline = time.monotonic() + seconds
        while not (ready := self._may_leave()) and time.monotonic() < deadline:  # noqa: ASYNC110 - many things end, once
            await asyncio.sleep(LOOK_SECONDS)
        self.mailbox.release()
        return ready

    def _may_leave(self) -> bool:
        if self._supervisor is not None:  # who reads events waits for ever, and asks again
            return self._supervisor.may_leave and self.mailbox.told
        return self.mailbox.busy == 0 and self.mailbox.told

    async def _ping(self, message: Ping, caller: Any) -> Pong:
        return self.report()

    def report(self) -> Pong:
        """What this process is doing."""
        links = {name: dict(link.stats) for name, link in self.directory.links.items()}
        rss = psutil.Process().memory_info().rss
        stats = {"links": links, "runs": self._runs()}
        return Pong(epoch=self.mailbox.epoch, pid=os.getpid(), busy=self.mailbox.busy, rss_bytes=rss, stats=stats)


class Directory:
    """Finds the channel to another actor: in this process where it is hosted here, else a link, made at first use."""

    def __init__(
        self,
        name: str,
        epoch: int,
        mailbox: Mailbox,
        roles: Collection[str],
        topology: Topology,
        connect: Connect | None,
        definitions: Definitions,
    ) -> None:
        self.links: dict[str, Link] = {}
        self._name = name
        self._epoch = epoch
        self._roles = roles
        self.topology = topology
        self._connect = connect
        self._definitions = definitions
        self._local = LocalLink(mailbox)
        self._saves: Channel | None = None
        self._replicas = Replicas(topology.patience_seconds)

    def agent(self, agent: Any, run_id: str, attempt: int = 0) -> Channel:
        placement = agent.config.placement
        if placement is None or placement.pool == "default":
            return self._channel(AGENT, "default", shard_of(run_id, self.topology.agents, attempt))
        return self._replica(AGENT, placement, run_id, attempt)

    def tools(self, tool: Any, run_id: str) -> Channel:
        placement = tool.placement
        if placement == "local":
            return self._local
        if placement is None:
            return self._channel(TOOLS, "default", shard_of(run_id, self.topology.tool_executors))
        return self._replica(TOOLS, placement, run_id)

    def supervisor(self, run_id: str) -> Channel:
        return self._channel(SUPERVISOR, "default", shard_of(run_id, self.topology.supervisors or 1))

    def checkpointer(self) -> Channel:
        if self._connect is None or CHECKPOINTER in self._roles:
            return self._local
        if self._saves is None:
            links = [self._channel(CHECKPOINTER, "default", shard) for shard in range(self.topology.checkpointers)]
            bundles = [Bundling(link, (SaveCheckpoint, LoadCheckpoint, RecordCalls)) for link in links]
            self._saves = bundles[0] if len(bundles) == 1 else ByThread(bundles, shard_of)
        return self._saves

    def register(self, agent: Any) -> str:
        """Make a definition that came inside another one known here."""
        return self._definitions.register(agent)

    def admit(self, definition: str, blob: bytes) -> Any:
        """A definition that a tool's body sent along; no bytes where it is known here anyway."""
        return self._definitions.admit(definition, blob)

    def blob(self, definition: str) -> bytes:
        return bytes(self._definitions.get(definition).packed[1])

    async def close(self) -> None:
        for link in self.links.values():
            await link.close()

    def _replica(self, role: str, placement: Placement, run_id: str, attempt: int = 0) -> Channel:
        count = placement.replicas
        mine = [self._channel(role, placement.pool, shard_of(run_id, count, attempt + more)) for more in range(count)]
        return self._replicas.choose(mine)

    def _channel(self, role: str, pool: str, shard: int) -> Channel:
        if self._connect is None or (pool == "default" and role in self._roles and role != SUPERVISOR):
            return self._local
        name = f"{role}/{pool}/{shard}"
        if name == self._name:
            return self._local
        link = self.links.get(name)
        if link is None:
            patience = self.topology.patience_seconds
            self.links[name] = link = Link(self._name, self._epoch, name, self._connect(name), patience=patience)
        return link


def shard_of(run_id: str, count: int, attempt: int = 0) -> int:
    """Which of ``count`` shards serves a key; the next one at every further attempt."""
    if count == 1:
        return 0
    return ((zlib.crc32(run_id.encode()) * MIX & 0xFFFFFFFF) + (attempt << 12) >> 12) % count
