"""One workload of ``durability.py``, in a fresh process on the inline runtime; prints one JSON line.

python benchmarks/perf/_durable.py turns COUNT [STORE_URL]
python benchmarks/perf/_durable.py steps COUNT MILLISECONDS_A_COMMIT
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _measure import Meter, WrongAnswer, now, size_kib

from umbel import Agent, AgentState, Message, ModelResponse, Runtime, tool
from umbel.actors.checkpoints import Store, open_store, register_store
from umbel.actors.checkpoints.store import OneTransactionStore
from umbel.protocol.commands import SaveCheckpoint
from umbel.testing import text, tool_call

TURN_BYTES = 4_096  # half of it the prompt, half the answer
RESUMES = 15
STEPS_A_TURN = 250  # a turn has at most 500 iterations, and is told so near its end
STEPS_A_THREAD = 2_000  # loading a thread for the next turn costs what it holds
LOOK_EVERY = 125  # steps
UNBOUNDED = 10**9  # tokens: nothing is summed up
Figures = dict[str, Any]
held: list[int] = []


def unseen() -> str:
    """Half a turn of text that compresses badly and stands nowhere else."""
    return os.urandom(TURN_BYTES // 4).hex()


class Author:
    """Answers at once."""

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        return text(unseen())


class Walker:
    """Asks for one step after the other, so many a turn; a turn begins with the number of the step before it."""

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        done = int(messages[-1].content or 0)
        over = messages[-1].role == "tool" and done % STEPS_A_TURN == 0
        return text(str(done)) if over else tool_call("step", number=done + 1)


@tool(idempotent=True)
async def step(number: int) -> int:
    """Take a step; now and then look how many states are held."""
    await asyncio.sleep(0)  # as a step that does something
    if number % LOOK_EVERY == LOOK_EVERY - 1:
        held.append(sum(type(thing) is AgentState for thing in gc.get_objects()))
    return number


def measured(written: list[int], seconds: float = 0.0) -> Callable[[str], Store]:
    """A kind of store: ``measured://URL`` is that of ``URL``, with every save's bytes noted, and every commit delayed."""

    def opened(url: str) -> Store:
        store = open_store(url.removeprefix("measured://"))
        name = "transact" if isinstance(store, OneTransactionStore) else "commit"
        commit = getattr(store, name)

        async def noting(writes: Sequence[Any]) -> Any:
            if seconds:
                await asyncio.sleep(seconds)
            saves = [write for write in writes if isinstance(write, SaveCheckpoint)]
            written.extend(len(save.state) + sum(map(len, save.statics.values())) for save in saves)
            return await commit(writes)

        vars(store)[name] = noting
        return store

    return opened


async def turns(count: int, url: str | None) -> Figures:
    """So many turns on one thread; then some more, each in a runtime that has not seen the thread."""
    written: list[int] = []
    register_store("measured", measured(written))
    with tempfile.TemporaryDirectory(prefix="umbel-bench-") as folder:
        place = url or f"sqlite:///{folder}/checkpoints.sqlite"
        agent = Agent(Author(), checkpointer=f"measured://{place}", context_window=UNBOUNDED)
        thread = os.urandom(4).hex()
        async with Runtime(inline=True) as runtime:
            for number in range(count):
                await turn(agent, runtime, thread, number)
        sizes = list(written)
        disk = None if url else size_kib(Path(folder))
        first, resumed, loaded = [], [], []
        for number in range(RESUMES):
            async with Runtime(inline=True) as runtime:
                first.append(await turn(agent, runtime, f"{thread}-{number}", 0))
                resumed.append(await turn(agent, runtime, thread, count + number))
            loaded.append(await load(place, thread))
    later = sizes[count // 2 :]
    return {
        "turns": count,
        "store": url or "sqlite",
        "checkpoints": len(sizes),
        "written_kib": sum(sizes) / 1024,
        "x_new": sum(sizes) / (count * TURN_BYTES),
        "x_new_later": sum(later) / (len(later) * TURN_BYTES),
        "disk_kib": disk,
        "first_ms": statistics.median(first) * 1e3,
        "resume_ms": statistics.median(resumed) * 1e3,
        "resume_worst_ms": max(resumed) * 1e3,
        "load_ms": statistics.median(loaded) * 1e3,
    }


async def turn(agent: Agent, runtime: Runtime, thread: str, earlier: int) -> float:
    """Seconds of one turn, which must know the ``earlier`` ones."""
    start = now()
    result = await agent.arun(unseen(), thread_id=thread, runtime=runtime)
    took = now() - start
    if len(result.messages) != 1 + 2 * (earlier + 1):
        raise WrongAnswer(f"turn {earlier + 1} of {thread} has {len(result.messages)} messages")
    return took


async def load(url: str, thread: str) -> float:
    """Seconds in which a store that was just opened gives the thread's bytes."""
    store = open_store(url)
    await store.open()
    start = now()
    await store.load(thread)
    took = now() - start
    await store.close()
    return took


async def steps(count: int, milliseconds: float) -> Figures:
    """So many steps, saved behind their back in a store that takes so long over every commit."""
    written: list[int] = []
    register_store("measured", measured(written, milliseconds / 1e3))
    with tempfile.TemporaryDirectory(prefix="umbel-bench-") as folder:
        agent = Agent(
            Walker(),
            [step],
            checkpointer=f"measured://sqlite:///{folder}/checkpoints.sqlite",
            durability="async",
            context_window=UNBOUNDED,
            max_iterations=500,
            tool_loop_threshold=STEPS_A_TURN,
        )
        async with Runtime(inline=True) as runtime:
            await walk(agent, runtime, "warm", STEPS_A_TURN)
            written.clear()
            held.clear()
            meter = Meter(runtime)
            meter.mark()
            start = now()
            for begun in range(0, count, STEPS_A_THREAD):
                await walk(agent, runtime, f"t-{begun}", min(STEPS_A_THREAD, count - begun))
            took = now() - start
            grown = meter.growth()
    return {
        "steps": count,
        "commit_ms": milliseconds,
        "seconds": took,
        "saves": len(written),
        "written_kib": sum(written) / 1024,
        "states": max(held, default=0),
        "peak_kib": grown,
    }


async def walk(agent: Agent, runtime: Runtime, thread: str, count: int) -> None:
    """Steps on one thread, which must hold them all in the end."""
    for done in range(0, count, STEPS_A_TURN):
        result = await agent.arun(str(done), thread_id=thread, runtime=runtime)
        if len(result.tool_executions) != STEPS_A_TURN or result.message != str(done + STEPS_A_TURN):
            raise WrongAnswer(f"{result.message!r} ({result.stop_reason}) after {len(result.tool_executions)} steps")
    kept = await agent.get_state(thread, runtime=runtime)
    if sum(message.role == "tool" for message in kept.messages) != count:
        raise WrongAnswer(f"thread {thread} holds {len(kept.messages)} messages after {count} steps")


def main() -> None:
    workload, count, *rest = sys.argv[1:]
    job = turns(int(count), rest[0] if rest else None) if workload == "turns" else steps(int(count), float(rest[0]))
    print(json.dumps(asyncio.run(job)))


if __name__ == "__main__":
    main()
