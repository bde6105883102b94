"""The run of ``recovery.py``: two tool steps and an answer, held at a chosen phase until the victim has been killed.

Everything that matters is written to a file of marks, in the processes where it happens: model calls with their tokens, and
the beginning and end of every tool body. Model and tools answer at once, so that all time that passes is the runtime's.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from umbel import Agent, Message, ModelResponse, ToolContext, tool
from umbel.hooks import Hook
from umbel.protocol.messages import ModelChunk, Usage
from umbel.testing import text, tool_calls

POLL_SECONDS = 0.002
STEPS = 2
MODEL_CALLS = STEPS + 1
CHARS_PER_TOKEN = 4


def mark(folder: str | Path, what: str, **facts: Any) -> None:
    """Append a line to the marks."""
    line = json.dumps({"what": what, "pid": os.getpid(), "at": time.monotonic(), **facts}) + "\n"
    descriptor = os.open(Path(folder) / "marks.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def marks(folder: Path, what: str) -> list[dict[str, Any]]:
    """The lines of one kind so far."""
    path = folder / "marks.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["what"] == what]


def holds(folder: str | Path, phase: str) -> bool:
    """Whether this process is the first to come to the phase at which the run is to be held; it says so."""
    try:
        (Path(folder) / f"hold-{phase}").rename(Path(folder) / f"held-{phase}")
    except FileNotFoundError:
        return False
    mark(folder, "held", phase=phase)
    return True


def is_free(folder: str | Path) -> bool:
    """Whether the victim was killed, so that what survived goes on."""
    return (Path(folder) / "killed").exists()


async def hold(folder: str | Path, phase: str) -> None:
    """Stay here until the victim has been killed, if the run is to be held here."""
    if holds(folder, phase):
        while not await asyncio.to_thread(is_free, folder):  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(POLL_SECONDS)


class Model:
    """Answers at once from the conversation; the second call of a run can be held. Tokens are counted when it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        done = sum(message.role == "assistant" for message in messages)
        prompt = sum(len(message.content or "") for message in messages) // CHARS_PER_TOKEN
        mark(self.folder, "model", tokens=prompt + 20)
        if done == 1:
            await hold(self.folder, "think")
        usage = Usage(prompt_tokens=prompt, completion_tokens=20)
        if done == STEPS:
            return text("done", usage=usage)
        calls = tool_calls(("pay", {"step": done}), ("read", {"step": done}), ("compute", {"step": done}))
        return calls.evolve(usage=usage)

    async def stream(self, messages: list[Message], tools: Any = None, **settings: Any) -> AsyncIterator[ModelChunk]:
        reply = await self.complete(messages, tools, **settings)
        yield ModelChunk(content=reply.content, tool_calls=reply.tool_calls)
        yield ModelChunk(done=True, usage=reply.usage, stop_reason=reply.stop_reason)


@tool
async def pay(step: int, ctx: ToolContext) -> str:
    """A side effect that must not be repeated."""
    folder = ctx.metadata["folder"]
    mark(folder, "begun", tool="pay", call=ctx.tool_call_id, step=step)
    if step == 1:
        await hold(folder, "execute")
    mark(folder, "done", tool="pay", call=ctx.tool_call_id, step=step)
    return f"paid {step}"


@tool(idempotent=True)
async def read(step: int, ctx: ToolContext) -> str:
    """Safe to repeat."""
    mark(ctx.metadata["folder"], "begun", tool="read", call=ctx.tool_call_id, step=step)
    return f"read {step}"


@tool(idempotent=True)
def compute(step: int, ctx: ToolContext) -> str:
    """Safe to repeat, in a worker process."""
    folder = ctx.metadata["folder"]
    mark(folder, "begun", tool="compute", call=ctx.tool_call_id, step=step)
    if step == 1 and holds(folder, "worker"):
        while not is_free(folder):
            time.sleep(POLL_SECONDS)
    return f"computed {step}"


class Reflecting(Hook):
    """Can hold the end of the run's second iteration, in the supervisor."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    async def on_iteration_end(self, iteration: int, state: Any) -> None:
        if iteration == 1:
            await hold(self.folder, "reflect")


def make_agent(folder: Path) -> Agent:
    """The agent of one repetition."""
    return Agent(
        Model(folder), [pay, read, compute], hooks=[Reflecting(folder)], checkpointer=f"sqlite:///{folder / 'threads.db'}"
    )
