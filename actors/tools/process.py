"""One worker process as its parent sees it: started, spoken to, killed with its whole group, reaped."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
from pydantic import ValidationError

from ...protocol.codec import decode, encode
from ...protocol.commands import CancelRun, SubagentRequest
from ...protocol.errors import ProtocolError, ToolCrashed
from ...protocol.messages import Frozen, ToolCall, ToolResult
from .context import ToolContext
from .decorator import Tool
from .invoke import Asked, failed, timed_out
from .output import keyed
from .worker import HEADER, MARK

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[3]); "
    "from umbel.actors.tools.worker import main; main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[4]))"
)
_LAST_WORDS = 0.2
_HIDDEN = ("reporter", "state_json", "port")
_CONTEXT_FIELDS = tuple(f.name for f in dataclasses.fields(ToolContext) if f.name not in _HIDDEN)

Outcome = ToolResult | str
Definition = tuple[str, bytes]


class WorkerProcess(asyncio.Protocol):
    """A worker. Everything here happens in the loop's thread, except waiting for the process to end.

    The process must be started by a thread that lives as long as it should: the kernel ends it with that thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, child = socket.socketpair()
        with child:
            command = [sys.executable, "-P", "-c", _BOOT, str(child.fileno()), str(os.getpid()), json.dumps(sys.path)]
            command.append(json.dumps(_log_levels()))
            environment = {**os.environ, MARK: uuid.uuid4().hex}
            self._process = subprocess.Popen(
                command, pass_fds=[child.fileno()], stdin=subprocess.DEVNULL, start_new_session=True, env=environment
            )
        self.pid = self._process.pid
        self.known: set[str] = set()
        self.served = 0
        self.exited: asyncio.Future[int | None] = self._loop.create_future()
        self.on_free: Callable[[WorkerProcess], None] = lambda worker: None
        self.on_exit: Callable[[WorkerProcess], None] = lambda worker: None
        self._signals = threading.Lock()
        self._reaped = self._doomed = False
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._call: _Call | None = None
        threading.Thread(target=self._reap, name="umbel-reaper", daemon=True).start()

    @property
    def usable(self) -> bool:
        return not self._doomed and self._call is None and not self.exited.done()

    async def connect(self) -> None:
        try:
            await self._loop.create_connection(lambda: self, sock=self._socket)
        except BaseException:  # also when cancelled: no process without an owner
            self.kill()
            raise

    def submit(
        self, tool: Tool, call: ToolCall, context: ToolContext, definition: Definition, memory_mb: int
    ) -> asyncio.Future[Outcome]:
        """Start a call. The outcome is its result, or text when the definition could not be loaded there."""
        name, blob = definition
        current = self._call = _Call(tool, call, context, self._loop.create_future(), name)
        self.served += 1
        fields = {field: getattr(context, field) for field in _CONTEXT_FIELDS}
        fields["listened"] = context.reporter is not None
        about = json.dumps(keyed(fields), default=str).encode()  # unlike msgpack it takes whole numbers of any size
        known = None if name in self.known else blob
        frame = ["call", name, known, call.model_dump_json().encode(), about, context.state_json, memory_mb]
        if self.exited.done():
            self._settle(self._crashed(current))
        else:
            self._write(msgpack.packb(frame))
        return current.outcome

    def abandon(self, grace: float) -> None:
        """Nobody waits for the current call any more: let it end within ``grace`` seconds, if it has begun at all."""
        current = self._call
        if current is None:
            return
        if current.started and grace > 0:
            current.timers.append(self._loop.call_later(grace, self._kill_if, current))
        else:
            self.kill()

    def kill(self) -> None:
        """SIGKILL the process and its group. It is never used again."""
        self._doomed = True
        with self._signals:
            if not self._reaped:
                family = _descendants(self.pid)
                _kill_group(self.pid)
                for pid in family:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
        if self._transport is not None:
            self._transport.abort()
        else:
            self._socket.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport) or hasattr(transport, "write")  # uvloop has its own classes
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= HEADER.size:
            end = HEADER.size + HEADER.unpack_from(buffer)[0]
            if len(buffer) < end:
                return
            frame = msgpack.unpackb(bytes(buffer[HEADER.size : end]))
            del buffer[:end]
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        # Either it died, and the reaper tells how, or a tool closed every descriptor: then it is of no use any more.
        if not self.exited.done():
            self._loop.call_later(_LAST_WORDS, self.kill)

    def _on_frame(self, frame: list[Any]) -> None:
        kind, current = frame[0], self._call
        if kind == "log":
            logging.getLogger(frame[1]["name"]).handle(logging.makeLogRecord(frame[1]))
        if current is None:
            return
        if kind == "started":
            current.started = True
            self.known.add(current.definition)
            if current.tool.timeout is not None:
                current.timers.append(self._loop.call_later(current.tool.timeout, self._expire, current))
        elif kind == "progress" and current.context.reporter is not None and not current.outcome.done():
            current.context.reporter(frame[1], frame[2], frame[3])
        elif kind == "child" and current.context.port is not None and not current.outcome.done():
            self._pass_on(current, frame)
        elif kind == "unloadable":
            self._settle(str(frame[1]))
            self.on_free(self)
        elif kind in ("done", "asked"):
            try:
                result: Outcome = (Asked if kind == "asked" else ToolResult).model_validate_json(frame[1])
            except ValidationError:
                result = failed(current.call, ToolCrashed(f"tool {current.tool.name!r} disturbed its worker process"))
            self._settle(result)
            if frame[2]:
                self.kill()
            else:
                self.on_free(self)

    def _pass_on(self, current: _Call, frame: list[Any]) -> None:
        """The body runs an agent, or stops one: the supervisor does that."""
        port = current.context.port
        assert port is not None
        try:
            message = decode(frame[1], frame[2])
        except ProtocolError:
            self._settle(failed(current.call, ToolCrashed(f"tool {current.tool.name!r} disturbed its worker process")))
            self.kill()
            return
        if isinstance(message, SubagentRequest):
            port.start(message, lambda heard: self._tell(current, heard))
        elif isinstance(message, CancelRun) and message.run_id is not None:
            port.stop(message.run_id)

    def _tell(self, current: _Call, message: Frozen) -> None:
        if self._call is current and not self.exited.done():
            self._write(msgpack.packb(["heard", *encode(message)]))

    def _expire(self, current: _Call) -> None:
        if self._call is current:
            self._settle(timed_out(current.tool, current.call))
            self.kill()

    def _kill_if(self, current: _Call) -> None:
        if self._call is current:
            self.kill()

    def _settle(self, outcome: Outcome) -> None:
        current, self._call = self._call, None
        if current is None:
            return
        for timer in current.timers:
            timer.cancel()
        if not current.outcome.done():
            current.outcome.set_result(outcome)

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(HEADER.pack(len(data)) + data)

    def _reap(self) -> None:
        # A process that ignores SIGCHLD has its children reaped by the kernel.
        with contextlib.suppress(ChildProcessError):
            # Without reaping, so that the pid (and with it the group id) cannot be given to another process yet.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._signals:
            _kill_group(self.pid)
            code: int | None = self._process.wait()
            self._reaped = True
        with contextlib.suppress(RuntimeError):  # the loop is closed; nobody waits
            self._loop.call_soon_threadsafe(self._on_exit, code)

    def _on_exit(self, code: int | None) -> None:
        self._doomed = True
        if not self.exited.done():
            self.exited.set_result(code)
        self.on_exit(self)
        # What it wrote before it ended may still be on the way.
        self._loop.call_later(0 if self._call is None else _LAST_WORDS / 4, self._bury)

    def _bury(self) -> None:
        if self._call is not None:
            self._settle(self._crashed(self._call))
        if self._transport is not None:
            self._transport.abort()

    def _crashed(self, current: _Call) -> ToolResult:
        code = self.exited.result() if self.exited.done() else None
        return failed(current.call, ToolCrashed(f"tool {current.tool.name!r} crashed: its process {_how(code)}"))


class _Call:
    __slots__ = ("call", "context", "definition", "outcome", "started", "timers", "tool")

    def __init__(
        self, tool: Tool, call: ToolCall, context: ToolContext, outcome: asyncio.Future[Outcome], definition: str
    ) -> None:
        self.tool, self.call, self.context, self.outcome, self.definition = tool, call, context, outcome, definition
        self.started = False
        self.timers: list[asyncio.TimerHandle] = []


def _how(code: int | None) -> str:
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _log_levels() -> dict[str, int]:
    """The loggers of this process that have a level of their own; a worker's are set alike."""
    levels = {
        name: logger.level for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)
    }
    return {"root": logging.root.level, **{name: level for name, level in levels.items() if level}}


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of it is left
        os.killpg(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Children of ``pid`` and theirs, also those that left its group (but not one whose parent has ended)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it ended while we looked
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]
