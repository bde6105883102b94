"""Children of a tool call whose body runs in a worker process: requests leave by the process's pipe, answers come in by it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...protocol.codec import decode, encode
from ...protocol.commands import CancelRun, SubagentAnswer, SubagentHeard, SubagentRequest
from ...protocol.errors import RunError
from ...protocol.messages import Frozen
from .children import Deliver


class WorkerPort:
    """The ``ChildPort`` of one call in a worker process.

    Args:
        send: writes a frame to the parent, from any thread.
        listen: makes sure that what the parent writes is read while the body runs.
    """

    def __init__(self, send: Callable[[list[Any]], None], listen: Callable[[], None]) -> None:
        self._send, self._listen = send, listen
        self._open: dict[str, Deliver] = {}
        self._over = False
        self._pid = os.getpid()

    def pack(self, definition: Any) -> tuple[str, bytes]:
        key, blob = definition.packed
        return key, blob

    def start(self, request: SubagentRequest, deliver: Deliver) -> None:
        if self._over or os.getpid() != self._pid:
            raise RunError("no agent can be run here: this code is not, or no longer, part of a running tool call")
        self._open[request.start.run_id] = deliver
        self._listen()
        self._write(request)

    def stop(self, run_id: str) -> None:
        if run_id in self._open and not self._over and os.getpid() == self._pid:
            self._write(CancelRun(run_id=run_id))

    def end(self) -> None:
        """The body has ended."""
        self._over = True

    def heard(self, kind: str, blob: bytes) -> None:
        """The parent wrote something; called in the thread that reads."""
        message = decode(kind, blob)
        if isinstance(message, SubagentHeard | SubagentAnswer):
            deliver = self._open.get(message.run_id)
            if isinstance(message, SubagentAnswer):
                self._open.pop(message.run_id, None)
            if deliver is not None:
                deliver(message)

    def _write(self, message: Frozen) -> None:
        self._send(["child", *encode(message)])
