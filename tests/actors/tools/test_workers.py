"""Hostile bodies in worker processes: each costs its own call only, and nothing survives a deadline or its parent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import BaseModel

from umbel.actors.tools.context import ToolContext, current_tool_context
from umbel.actors.tools.decorator import tool
from umbel.actors.tools.invoke import invoke
from umbel.actors.tools.workers import WorkerPool
from umbel.protocol.messages import ToolCall

Make = Callable[..., Any]


class Item(BaseModel):
    """Lives in a module that workers cannot import by name."""

    n: int


@tool
def add(a: int, b: int) -> int:
    return a + b


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait for something that no event announces: the end of a process that is not ours to wait for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_worker_is_reused_and_knows_its_context(pool: WorkerPool, request_for: Make) -> None:
    @tool
    def look(ctx: ToolContext) -> list[Any]:
        return [os.getpid(), ctx.tool_call_id, ctx.metadata["tenant"], current_tool_context() is ctx]

    first, second = [await pool.run(*request_for(look)) for _ in range(2)]
    assert first.content == second.content
    assert '"call_1",\n  "t1",\n  true' in first.content
    assert str(os.getpid()) not in first.content
    assert (await pool.run(*request_for(add, a=1, b=2))).content == "3"
    assert len(pool.pids) == 1


async def test_metadata_is_as_exact_as_json(pool: WorkerPool, request_for: Make) -> None:
    @tool
    def look(ctx: ToolContext) -> dict[str, Any]:
        return dict(ctx.metadata)

    each, call, context = request_for(look)
    context.metadata = {"big": 2**70, "text": "é\U0001f600", "nested": {("a", 1): [None, 1.5]}, "other": Path("/x")}
    seen = json.loads((await pool.run(each, call, context)).content)
    assert seen == {"big": 2**70, "text": "é\U0001f600", "nested": {"('a', 1)": [None, 1.5]}, "other": "/x"}


async def test_async_bodies_local_types_and_closures(pool: WorkerPool, request_for: Make) -> None:
    factor = 3

    @tool(isolation="process")
    async def times(item: Item) -> Item:
        await asyncio.sleep(0)
        return Item(n=item.n * factor)

    assert (await pool.run(*request_for(times, item={"n": 2}))).content == '{"n":6}'
    assert (await pool.run(*request_for(times, item={"n": "x"}))).code == "invalid_arguments"


@pytest.mark.spec("OURS-17", "TOOL-24")
@pytest.mark.case(23)
async def test_a_deadline_is_real(request_for: Make, tmp_path: Path) -> None:
    pool = WorkerPool(1)
    begun, late = tmp_path / "begun", tmp_path / "late"

    @tool(timeout=0.3)
    def slow() -> None:
        begun.write_text(str(os.getpid()))
        time.sleep(2)
        late.write_text("side effect")

    try:
        result = await pool.run(*request_for(slow))
        assert result.code == "tool_timeout"
        # The only place is free: another call runs although the killed process may not even be reaped yet.
        assert (await pool.run(*request_for(add, a=1, b=2))).content == "3"
        await until(lambda: gone(int(begun.read_text())))
        assert not late.exists()
    finally:
        await pool.close()


@pytest.mark.spec("OURS-5", "TOOL-24")
async def test_cancellation_leaves_a_grace(request_for: Make, tmp_path: Path) -> None:
    pool = WorkerPool(2)
    begun, finished = tmp_path / "begun", tmp_path / "finished"

    @tool
    def work(seconds: float) -> None:
        begun.write_text(str(os.getpid()))
        time.sleep(seconds)
        finished.write_text("")

    async def cancelled(seconds: float) -> int:
        begun.unlink(missing_ok=True)
        task = asyncio.ensure_future(pool.run(*request_for(work, seconds=seconds)))
        await until(lambda: begun.exists() and begun.read_text())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return int(begun.read_text())

    try:
        pid = await cancelled(30)
        await until(lambda: gone(pid))
        assert not finished.exists()
        pid = await cancelled(0.1)
        await until(finished.exists)
        assert (await pool.run(*request_for(add, a=1, b=1))).success
        assert not gone(pid)
    finally:
        await pool.close()


@pytest.mark.spec("OURS-17", "TOOL-25")
@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("raise ValueError('plain')", "tool", "ValueError: plain"),
        ("raise KeyboardInterrupt", "tool", "KeyboardInterrupt"),
        ("sys.exit(4)", "tool", "SystemExit: 4"),
        ("os._exit(1)", "tool_crashed", "exited with code 1"),
        ("os._exit(0)", "tool_crashed", "exited with code 0"),
        ("ctypes.string_at(0)", "tool_crashed", "SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "tool_crashed", "SIGKILL"),
        ("os.abort()", "tool_crashed", "SIGABRT"),
        ("os.closerange(3, 1000); time.sleep(60)", "tool_crashed", "crashed"),
        ("import threading; threading.Thread(target=os._exit, args=(5,)).start(); time.sleep(60)", "tool_crashed", "code 5"),
        ("bytearray(3 * 1024**3)", "tool", "MemoryError"),
        ("sys.stdout.close(); sys.stderr.close(); raise ValueError('quiet')", "tool", "quiet"),
        ("os.fork()", None, ""),
        ("print('to stdout', flush=True)", None, ""),
    ],
)
async def test_hostile_bodies_cost_their_own_call_only(
    pool: WorkerPool, request_for: Make, body: str, code: str | None, words: str
) -> None:
    namespace: dict[str, Any] = {}
    source = "def hostile():\n    import ctypes, os, sys, time\n    " + body
    exec(source, namespace)
    hostile = tool(memory_mb=1024)(namespace["hostile"])
    result, sibling = await asyncio.gather(pool.run(*request_for(hostile)), pool.run(*request_for(add, a=1, b=2)))
    assert result.code == code
    assert words in (result.error or "")
    assert code is None or code == "tool" or "'hostile'" in (result.error or "")
    assert sibling.content == "3"
    assert (await pool.run(*request_for(add, a=2, b=2))).content == "4"


@pytest.mark.spec("OURS-17")
async def test_what_a_tool_started_is_killed_with_it(pool: WorkerPool, request_for: Make, tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    @tool(timeout=0.5)
    def spawn(session: bool) -> None:
        child = subprocess.Popen(["sleep", "60"], start_new_session=session)
        forked = os.fork()
        if not forked:
            time.sleep(60)
        pids.write_text(f"{child.pid} {forked}")
        time.sleep(60)

    for session in (False, True):
        assert (await pool.run(*request_for(spawn, session=session))).code == "tool_timeout"
        started = [int(pid) for pid in pids.read_text().split()]
        assert len(started) == 2
        await until(lambda: all(gone(pid) for pid in started))  # noqa: B023 - awaited within this turn of the loop

    @tool
    def crash() -> None:
        pids.write_text(str(subprocess.Popen(["sleep", "60"]).pid))
        os._exit(3)

    assert (await pool.run(*request_for(crash))).code == "tool_crashed"
    await until(lambda: gone(int(pids.read_text())))


async def test_closing_leaves_no_process_and_no_zombie(request_for: Make) -> None:
    pool = WorkerPool(2)
    await asyncio.gather(*(pool.run(*request_for(add, a=n, b=n)) for n in range(4)))

    @tool
    def forever() -> None:
        time.sleep(600)

    running = asyncio.ensure_future(pool.run(*request_for(forever)))
    await asyncio.sleep(0)
    pids = pool.pids
    assert pids
    await pool.close()
    assert (await running).code == "tool_crashed"
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert pool.pids == ()


async def test_idle_workers_end(request_for: Make) -> None:
    pool = WorkerPool(1, idle_seconds=0.05)
    assert (await pool.run(*request_for(add, a=1, b=2))).success
    await until(lambda: pool.pids == ())
    assert (await pool.run(*request_for(add, a=1, b=2))).success
    await pool.close()


PARENT = """
    import asyncio, os, sys, time
    from umbel.actors.tools.context import ToolContext
    from umbel.actors.tools.decorator import tool
    from umbel.actors.tools.workers import WorkerPool
    from umbel.protocol.messages import ToolCall

    @tool
    def sleeper(path: str) -> None:
        import subprocess
        child = subprocess.Popen(["sleep", "600"])
        with open(path + ".tmp", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        os.rename(path + ".tmp", path)
        time.sleep(600)

    async def main():
        await WorkerPool(1).run(sleeper, ToolCall(id="c", name="sleeper", arguments={"path": sys.argv[1]}), ToolContext())

    asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_the_parents_death_ends_the_worker_and_its_children(tmp_path: Path, number: int) -> None:
    script, pids = tmp_path / "parent.py", tmp_path / "pids"
    script.write_text(textwrap.dedent(PARENT))
    with subprocess.Popen(  # noqa: ASYNC220 - it must be a plain child, to be killed
        [sys.executable, str(script), str(pids)], stderr=subprocess.DEVNULL
    ) as parent:
        await until(pids.exists, 20)
        parent.send_signal(number)
        parent.wait(20)
    worker, child = (int(pid) for pid in pids.read_text().split())
    await until(lambda: gone(worker) and gone(child))


async def test_crashes_are_repeated_only_if_idempotent(pool: WorkerPool, request_for: Make, tmp_path: Path) -> None:
    tries = tmp_path / "tries"

    def crash() -> None:
        with tries.open("a") as file:
            file.write("x")
        os._exit(1)

    for idempotent, count in ((False, 1), (True, 2)):
        tries.write_text("")
        made = tool(retries=1, idempotent=idempotent)(crash)
        body, call, context = request_for(made)
        result = await invoke(body, call, context, pool.run)
        assert result.code == "tool_crashed"
        assert len(tries.read_text()) == count


async def test_a_body_that_cannot_be_pickled_is_an_error(pool: WorkerPool, request_for: Make, tmp_path: Path) -> None:
    with contextlib.closing((tmp_path / "f").open("wb")) as file:

        @tool(timeout=5)
        def write() -> None:
            file.write(b"x")

        result = await pool.run(*request_for(write))
    assert result.code == "tool"
    assert "'write'" in (result.error or "")


def test_it_works_on_uvloop_in_a_thread(request_for: Make) -> None:
    import threading

    uvloop = pytest.importorskip("uvloop")
    outcome: list[str] = []

    async def main() -> None:
        pool = WorkerPool(1)
        outcome.append((await pool.run(*request_for(add, a=1, b=2))).content)
        await pool.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert outcome == ["3"]


@pytest.mark.case(2)
async def test_surrogates_and_large_values_cross(pool: WorkerPool) -> None:
    @tool
    def echo(text: str) -> str:
        return text + " \ud83d"

    call = ToolCall(id="c", name="echo", arguments={"text": "x" * 5_000_000 + "\ud83d\ude00"})
    result = await pool.run(echo, call, ToolContext(ephemeral_metadata={"object": object()}))
    assert result.content.endswith("x\U0001f600 \ufffd")
    assert len(result.content) == 5_000_003
