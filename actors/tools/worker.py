"""The child side of process isolation: one process, one tool call at a time (see ``workers.py`` for the parent).

The process must never outlive its executor, nor leave behind what a tool started: the kernel kills it when its parent
dies, and a tiny guard process then kills its group and every process that inherited its mark.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import hashlib
import json
import logging
import os
import queue
import resource
import signal
import socket
import struct
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .marks import kill_marked

if TYPE_CHECKING:
    from .decorator import Tool
    from .worker_children import WorkerPort

HEADER = struct.Struct(">I")
MARK = "UMBEL_TOOL_WORKER"  # in the environment of a worker and of all that it starts, with a value of its own
MAX_FRAME = 256 * 1024 * 1024
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_MEBIBYTE = 1024 * 1024
_LOG_CHARS = 20_000


def main(fd: int, parent: int, log_levels: dict[str, int]) -> None:
    """Serve the socket ``fd`` until the parent closes it or dies. What is logged here is handled there."""
    os.set_inheritable(fd, False)
    die_with(parent, signal.SIGKILL)
    _start_guard(fd)
    _prctl(_PR_SET_NAME, b"umbel-tool")
    with contextlib.suppress(OSError):  # not allowed in some containers; the memory limit still holds
        Path("/proc/self/oom_score_adj").write_text("1000")
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        worker = Worker(socket.socket(fileno=fd))
        logging.getLogger().addHandler(_ToParent(worker))
        for name, level in log_levels.items():
            logging.getLogger(name).setLevel(level)
        worker.serve()
    except (OSError, EOFError):
        os._exit(0)  # the parent is gone
    except BaseException:  # noqa: BLE001 - the last line of defence: say why, and let the parent report a crash
        traceback.print_exc()
        os._exit(os.EX_SOFTWARE)


def die_with(parent: int, number: int) -> None:
    """Have the kernel send this process signal ``number`` when ``parent`` ends; exit if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _start_guard(fd: int) -> None:
    """Fork a process that outlives this one just long enough to kill what tools have started here and left behind."""
    leader = os.getpid()
    if os.fork():
        return
    try:
        os.close(fd)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        _prctl(_PR_SET_NAME, b"umbel-guard")
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        os.setsid()  # whoever kills the leader's group must not kill the guard
        if os.getppid() == leader:
            signal.sigwait({signal.SIGTERM})
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        while kill_marked(f"{MARK}={os.environ[MARK]}"):
            continue
    finally:
        os._exit(0)


class Worker:
    """Reads calls from a socket, runs them one after another, writes results.

    Frames are msgpack lists with a length before them. From the parent: ``["call", hash, blob | None, call, context,
    state | None, memory_mb]`` and, about agents that a body runs, ``["heard", kind, blob]``. To the parent: ``["ready"]``,
    ``["unloadable", text]``, ``["started"]``, ``["progress", ...]``, ``["log", record]``, ``["child", kind, blob]``, and
    ``["done", result, retire]`` or, from a body that asks a person, ``["asked", result, False]``.
    """

    def __init__(self, sock: socket.socket) -> None:
        import msgpack

        self._pack, self._unpack = msgpack.packb, msgpack.unpackb
        self._socket = sock
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._calls: queue.SimpleQueue[list[Any] | None] | None = None  # once a thread of its own reads the socket
        self._port: WorkerPort | None = None
        self._tools: dict[str, Tool] = {}
        self._pid = os.getpid()
        from .. import ambient
        from . import invoke, worker_children  # noqa: F401 - before the first call, so that its clock does not pay for it

        ambient.mark_process("a worker process of a tool, outside of its body,")

    def serve(self) -> None:
        self.send(["ready"])
        while True:
            _, definition, blob, call, context, state, memory_mb = self._next_call()
            tool = self._load(definition, blob)
            if tool is not None:
                self.send(["started"])
                self._run(tool, call, {**json.loads(context), "state_json": state}, memory_mb)

    def send(self, frame: list[Any]) -> None:
        """Write a frame; callable from any thread."""
        data = self._pack(frame)
        with self._lock:
            self._socket.sendall(HEADER.pack(len(data)) + data)

    def listen(self) -> None:
        """From now on read the socket in a thread of its own, because a body that waits has to be told things."""
        with self._lock:
            if self._calls is None:
                self._calls = queue.SimpleQueue()
                threading.Thread(target=self._read, args=(self._calls,), name="umbel-worker-reader", daemon=True).start()

    def _read(self, calls: queue.SimpleQueue[list[Any] | None]) -> None:
        with self._reading, contextlib.suppress(OSError, EOFError):
            while True:
                frame = self._unpack(self._receive())
                if frame[0] != "heard":
                    calls.put(frame)
                elif self._port is not None:
                    self._port.heard(frame[1], frame[2])
        calls.put(None)

    def _next_call(self) -> list[Any]:
        if self._calls is None:
            with self._reading:
                while (frame := self._unpack(self._receive()))[0] != "call":
                    continue  # about a child of a body that has ended
                return list(frame)
        frame = self._calls.get()
        if frame is None:
            raise EOFError
        return frame

    def _receive(self) -> bytes:
        (size,) = HEADER.unpack(self._exactly(HEADER.size))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        filled = 0
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            if count == 0:
                raise EOFError
            filled += count
        return bytes(data)

    def _load(self, definition: str, blob: bytes | None) -> Tool | None:
        if blob is not None:
            import cloudpickle

            try:
                self._tools[definition] = cloudpickle.loads(blob)
            except BaseException as error:  # noqa: BLE001 - loading runs the user's imports; the parent reports it
                self.send(["unloadable", f"{type(error).__name__}: {error}"[:1_000]])
                return None
        return self._tools[definition]

    def _run(self, tool: Tool, call_json: bytes, fields: dict[str, Any], memory_mb: int) -> None:
        from ...protocol.messages import ToolCall
        from .context import ToolContext
        from .invoke import Asked, asked, failed
        from .worker_children import WorkerPort

        call = ToolCall.model_validate_json(call_json)
        listened = fields.pop("listened")
        port = self._port = WorkerPort(self.send, self.listen)
        context = ToolContext(**fields, reporter=self._report if listened else None, port=port)
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = memory_mb * _MEBIBYTE
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
        try:
            result = _call(tool, call, context)
        except BaseException as error:  # noqa: BLE001 - even a KeyboardInterrupt of a body is only that call's error
            result = asked(call, error)
        finally:
            port.end()
            if os.getpid() != self._pid:
                os._exit(0)  # a body that forked and returned twice: the copy must not answer
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        if result.error == "MemoryError":
            result = result.evolve(error=f"MemoryError: tool {tool.name!r} wanted more than its {memory_mb} MiB")
        kind, blob = "asked" if isinstance(result, Asked) else "done", result.model_dump_json().encode()
        if len(blob) > MAX_FRAME // 2:
            large = failed(call, MemoryError(f"a result of {len(blob)} bytes is too large"))
            kind, blob = "done", large.model_dump_json().encode()
        _flush()
        self.send([kind, blob, (result.error or "").startswith("MemoryError")])

    def _report(self, progress: float, total: float | None, message: str | None) -> bool:
        self.send(["progress", float(progress), total, message])
        return True


class _ToParent(logging.Handler):
    """Hands log records to the parent process, whose handlers and counters they are for."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker, self._pid = worker, os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._pid:
            return  # a process that a body forked shares the socket
        try:
            text = self.format(record)  # with the traceback, which does not travel by itself
            fields = {name: getattr(record, name) for name in ("name", "levelno", "levelname", "created", "process")}
            self._worker.send(["log", {**fields, **_whereabouts(), "msg": text[:_LOG_CHARS]}])
        except Exception:  # noqa: BLE001 - logging must not fail the body that logs; it says so on stderr
            self.handleError(record)


def _whereabouts() -> dict[str, str]:
    from .context import current_tool_context

    context = current_tool_context()
    return {} if context is None else {"run_id": context.run_id, "tool": context.tool_name}


def _call(tool: Tool, call: Any, context: Any) -> Any:
    from .invoke import run_async, run_sync

    if not tool.is_async:
        return run_sync(tool, call, context)
    import asyncio

    return asyncio.run(run_async(tool, call, context))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # a tool may close or replace its output


def content_hash(blob: bytes) -> str:
    """The name under which a definition is kept."""
    return hashlib.blake2b(blob, digest_size=16).hexdigest()
