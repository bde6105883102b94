"""What tools really did, written where no actor's death can take it back: the tools themselves, and their file.

A row is written before the effect and one after it, each with one ``write`` to a file that is opened for appending, and synced:
rows of many processes never mix, and a process that is killed loses at most the row it had not written yet.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from umbel import ToolContext, tool

EFFECT_SECONDS = 0.01
Call = tuple[str, str]  # run id, call id


@dataclass(frozen=True)
class Row:
    """One line of the file.

    Attributes:
        phase: ``begun`` or ``done``.
        run, call, task: whose effect.
        tool: its name.
        idempotent: whether it may be repeated.
        pid: the process.
        at: nanoseconds of the machine's monotonic clock, which all processes share.
    """

    phase: Literal["begun", "done"]
    run: str
    call: str
    task: str
    tool: str
    idempotent: bool
    pid: int
    at: int


def record(phase: str, ctx: ToolContext, *, idempotent: bool) -> None:
    """Append a row."""
    row = {
        "phase": phase,
        "run": ctx.run_id,
        "call": ctx.tool_call_id,
        "task": ctx.metadata["task_id"],
        "tool": ctx.tool_name,
        "idempotent": idempotent,
        "pid": os.getpid(),
        "at": time.monotonic_ns(),
    }
    descriptor = os.open(ctx.metadata["effects"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, json.dumps(row).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@tool
async def charge(step: int, ctx: ToolContext) -> str:
    """Take money: must not happen twice."""
    record("begun", ctx, idempotent=False)
    await asyncio.sleep(EFFECT_SECONDS)
    record("done", ctx, idempotent=False)
    return f"charged {step}"


@tool(idempotent=True)
async def look_up(step: int, ctx: ToolContext) -> str:
    """Read something: may happen twice, but not once its result is known."""
    record("begun", ctx, idempotent=True)
    await asyncio.sleep(EFFECT_SECONDS)
    record("done", ctx, idempotent=True)
    return f"found {step}"


@tool
def ship(step: int, ctx: ToolContext) -> str:
    """Send a parcel, in a worker process: must not happen twice."""
    record("begun", ctx, idempotent=False)
    time.sleep(EFFECT_SECONDS)
    record("done", ctx, idempotent=False)
    return f"shipped {step}"


@tool(idempotent=True)
def render(step: int, ctx: ToolContext) -> str:
    """Compute something, in a worker process: may happen twice."""
    record("begun", ctx, idempotent=True)
    time.sleep(EFFECT_SECONDS)
    record("done", ctx, idempotent=True)
    return f"rendered {step}"


TOOLS = [charge, look_up, ship, render]


@dataclass
class Effects:
    """Reads the file, as it grows.

    Attributes:
        path: the file; it need not be there yet.
        rows: what was read so far.
    """

    path: Path
    rows: list[Row] = field(default_factory=list)
    _read: int = 0

    def refresh(self) -> int:
        """Read what is new; how many rows there are."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read += len(whole)
            self.rows += [Row(**json.loads(line)) for line in whole.splitlines()]
        return len(self.rows)

    def by_call(self) -> dict[Call, list[Row]]:
        """The rows of every call, in the order of the file."""
        calls: dict[Call, list[Row]] = defaultdict(list)
        for row in self.rows:
            calls[row.run, row.call].append(row)
        return calls


def summary(effects: Effects) -> dict[str, Any]:
    """How often effects happened more often than tasks asked for."""
    done = [row for row in effects.rows if row.phase == "done"]
    distinct = {(row.task, row.tool) for row in done}
    return {"effects": len(done), "calls": len(effects.by_call()), "distinct": len(distinct)}
