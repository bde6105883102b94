"""Cases 23 and 28: whatever a tool does to itself, its siblings, other runs and the executor go on. On real Ray actors."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from umbel import Agent, AgentResult, Runtime, ToolCall, tool
from umbel.testing import ScriptedModel, text, tool_call, tool_calls, validate_history

EXECUTOR = "tools/default/0"


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait for a fact about the outside world (a file of another process), failing loudly when it does not come."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def gone(pid: int) -> None:
    """Until a process has ended."""
    await until(lambda: not is_alive(pid))


def executor(runtime: Runtime) -> dict[str, Any]:
    """What the tool executor says of itself."""
    report: dict[str, Any] = runtime.backend.reports()[EXECUTOR]  # type: ignore[attr-defined]
    return report


# good tools


@tool
async def good(ledger: str, name: str) -> str:
    """Work a while without blocking."""
    with open(ledger, "a") as file:  # noqa: ASYNC230, PTH123
        file.write(name + "\n")
    await asyncio.sleep(0.3)
    return f"good {name}"


@tool
def good_sync(ledger: str, name: str) -> str:
    """Work a while."""
    with open(ledger, "a") as file:  # noqa: PTH123
        file.write(name + "\n")
    time.sleep(0.3)
    return f"good {name}"


# hostile tools


@tool
async def raises(ledger: str) -> str:
    """Raise."""
    raise ValueError("no such luck")


@tool
async def leaves(ledger: str) -> str:
    """Ask the interpreter to end."""
    sys.exit(7)


@tool
async def interrupts(ledger: str) -> str:
    """Behave like Ctrl-C."""
    raise KeyboardInterrupt("not yours")


@tool
async def stops_its_loop(ledger: str) -> str:
    """Stop the event loop it runs on."""
    asyncio.get_running_loop().stop()
    return "stopped"


@tool
def exits(ledger: str) -> str:
    """End the process without a word."""
    os._exit(1)


@tool(isolation="process")
async def exits_async(ledger: str) -> str:
    """The same, async, and declared as what it is."""
    os._exit(3)


@tool
def segfaults(ledger: str) -> str:
    """Read address 0."""
    return str(ctypes.string_at(0))


@tool
def shoots_itself(ledger: str) -> str:
    """What the kernel's out-of-memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@tool(memory_mb=256)
def eats(ledger: str) -> int:
    """Take memory until there is none."""
    taken = []
    while True:
        taken.append(bytearray(16_000_000))


@tool(timeout=1)
def spins(ledger: str) -> str:
    """Never end."""
    while True:
        pass


@tool(timeout=1)
async def spins_async(ledger: str) -> str:
    """Never end, and never give way."""
    while True:
        pass


@tool(timeout=1)
def naps(ledger: str) -> str:
    """Sleep past the deadline, then act."""
    with open(ledger, "a") as file:  # noqa: PTH123
        file.write(f"pid-{os.getpid()}\n")
    time.sleep(3)
    with open(ledger, "a") as file:  # noqa: PTH123
        file.write("acted\n")
    return "acted"


@tool(timeout=1)
def spawns(ledger: str) -> str:
    """Start a process that would outlive the call, in a session of its own."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with open(ledger, "a") as file:  # noqa: PTH123
        file.write(f"pid-{child.pid}\n")
    time.sleep(600)
    return "never"


@tool
def babbles(ledger: str) -> str:
    """Write what no terminal should see to both outputs."""
    for descriptor in (1, 2):
        os.write(descriptor, b"\xff\x00\x1b[2J\r\n" * 10_000)
    print("\x00" * 1_000, "::task_name::", "{json", flush=True)  # noqa: T201
    return "babbled"


@tool
def sleeps_long(ledger: str) -> str:
    """Sleep without a deadline."""
    time.sleep(2)
    return "slept"


HOSTILE = [
    (raises, "tool", "ValueError: no such luck"),
    (leaves, "tool", "SystemExit: 7"),
    (interrupts, "tool", "KeyboardInterrupt: not yours"),
    (stops_its_loop, None, "stopped"),
    (exits, "tool_crashed", "tool 'exits' crashed: its process exited with code 1"),
    (exits_async, "tool_crashed", "tool 'exits_async' crashed: its process exited with code 3"),
    (segfaults, "tool_crashed", "tool 'segfaults' crashed: its process was killed by SIGSEGV"),
    (shoots_itself, "tool_crashed", "tool 'shoots_itself' crashed: its process was killed by SIGKILL (out of memory?)"),
    (eats, "tool", "MemoryError: tool 'eats' wanted more than its 256 MiB"),
    (spins, "tool_timeout", "tool 'spins' did not finish within 1 s"),
    (spins_async, "tool_timeout", "tool 'spins_async' did not finish within 1 s"),
    (naps, "tool_timeout", "tool 'naps' did not finish within 1 s"),
    (spawns, "tool_timeout", "tool 'spawns' did not finish within 1 s"),
    (babbles, None, "babbled"),
    (sleeps_long, None, "slept"),
]


def crowd(runtime: Runtime, ledger: Path, count: int = 4) -> list[asyncio.Future[AgentResult]]:
    """Other runs that go on at the same time, each with an async and a sync call."""
    runs: list[asyncio.Future[AgentResult]] = []
    for number in range(count):
        arguments = {"ledger": str(ledger), "name": f"other-{number}"}
        script = [tool_calls(("good", arguments), ("good_sync", arguments)), text(f"done {number}")]
        agent = Agent(ScriptedModel(script), [good, good_sync])
        runs.append(asyncio.ensure_future(agent.arun("go", runtime=runtime)))
    return runs


@pytest.mark.ray
@pytest.mark.case(28)
@pytest.mark.case(23)
@pytest.mark.spec("OURS-17", "TOOL-25", "LOOP-80")
@pytest.mark.parametrize(("hostile", "code", "says"), HOSTILE, ids=[each[0].name for each in HOSTILE])
async def test_a_hostile_tool_harms_its_own_call_only(
    ray_runtime: Runtime, tmp_path: Path, hostile: Any, code: str | None, says: str
) -> None:
    ledger, others = tmp_path / "ledger", tmp_path / "others"
    before = executor(ray_runtime)
    running = crowd(ray_runtime, others)
    calls = tool_calls(
        ("good", {"ledger": str(ledger), "name": "a"}),
        ToolCall(name=hostile.name, arguments={"ledger": str(tmp_path / "hostile")}),
        ("good_sync", {"ledger": str(ledger), "name": "b"}),
        ("good", {"ledger": str(ledger), "name": "c"}),
    )
    agent = Agent(ScriptedModel([calls, text("went on")]), [good, good_sync, hostile])
    result = await agent.arun("go", runtime=ray_runtime)

    assert result.success and result.message == "went on"
    validate_history(result.messages)
    first, harmed, *rest = result.tool_executions
    assert [execution.result for execution in (first, *rest)] == ["good a", "good b", "good c"]
    assert Counter(lines(ledger)) == {"a": 1, "b": 1, "c": 1}
    assert (harmed.code, harmed.tool_name) == (code, hostile.name)
    assert says in ((harmed.error if code else harmed.result) or ""), harmed

    assert [other.message for other in await asyncio.gather(*running)] == [f"done {number}" for number in range(4)]
    assert Counter(lines(others)) == {f"other-{number}": 2 for number in range(4)}
    after = executor(ray_runtime)
    assert (after["pid"], after["epoch"]) == (before["pid"], before["epoch"])
    for line in lines(tmp_path / "hostile"):
        await gone(int(line.removeprefix("pid-")))
    assert "acted" not in lines(tmp_path / "hostile")


@pytest.mark.ray
@pytest.mark.case(23)
@pytest.mark.spec("OURS-17")
async def test_the_slot_of_a_timed_out_tool_is_free_at_once(ray_runtime: Runtime, tmp_path: Path) -> None:
    log, acted = tmp_path / "log", tmp_path / "acted"

    @tool(timeout=1, max_concurrency=1)
    def step(seconds: float) -> str:
        """Sleep, then act."""
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(seconds)
        acted.touch()
        return "acted"

    script = [tool_call("step", seconds=30), tool_call("step", seconds=0), text("ok")]
    result = await Agent(ScriptedModel(script), [step]).arun("go", runtime=ray_runtime)
    assert [execution.code for execution in result.tool_executions] == ["tool_timeout", None]
    sleeper, successor = map(int, lines(log))
    assert sleeper != successor
    acted.unlink()
    await gone(sleeper)  # so it can never act

    # All places of the pool at once, and again: none of them stays taken.
    many = [tool_calls(*(("step_many", {"seconds": 30, "n": n}) for n in range(8))), tool_call("step_many", seconds=0, n=9)]

    @tool(timeout=1)
    def step_many(seconds: float, n: int) -> str:
        """Sleep, then act."""
        time.sleep(seconds)
        return "acted"

    result = await Agent(ScriptedModel([*many, text("ok")]), [step_many]).arun("go", runtime=ray_runtime)
    assert [execution.code for execution in result.tool_executions] == ["tool_timeout"] * 8 + [None]
    assert not acted.exists()


@pytest.mark.ray
@pytest.mark.case(28)
async def test_an_async_tool_that_blocks_its_loop_is_named_and_moved(ray_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def note(line: str) -> None:
        with log.open("a") as file:
            file.write(line + "\n")

    @tool
    async def blocks_the_loop(seconds: float) -> int:
        """Block."""
        note("block-start")
        time.sleep(seconds)  # noqa: ASYNC251 - the mistake
        note("block-end")
        return os.getpid()

    @tool
    async def waits(name: str) -> str:
        """Begin before the block, end after it."""
        note(f"{name}-start")
        while "block-end" not in lines(log):
            await asyncio.sleep(0.02)
        return name

    @tool
    async def brief(name: str) -> str:
        """Begin during the block."""
        note(f"{name}-start")
        await asyncio.sleep(0.05)
        note(f"{name}-end")
        return name

    before = executor(ray_runtime)
    early = asyncio.ensure_future(
        Agent(ScriptedModel([tool_call("waits", name="early"), text("ok")]), [waits]).arun("go", runtime=ray_runtime)
    )
    await until(lambda: "early-start" in lines(log))
    script = [tool_call("blocks_the_loop", seconds=2), tool_call("blocks_the_loop", seconds=0), text("ok")]
    blocking = asyncio.ensure_future(Agent(ScriptedModel(script), [blocks_the_loop]).arun("go", runtime=ray_runtime))
    await until(lambda: "block-start" in lines(log))
    late = Agent(ScriptedModel([tool_calls(*(("brief", {"name": f"late{n}"}) for n in range(3))), text("ok")]), [brief])
    assert (await late.arun("go", runtime=ray_runtime)).success
    assert "block-end" not in lines(log), "they did not wait for it"

    result = await blocking
    assert (await early).success
    inside, apart = (int(execution.result or 0) for execution in result.tool_executions)
    assert inside == before["pid"] and apart != before["pid"], "from now on it runs in a process"
    assert executor(ray_runtime)["pid"] == before["pid"]
    told = lines(Path(before["stats"]["log"]["file"]))
    assert "async tool 'blocks_the_loop' has blocked its event loop" in " ".join(told)


@pytest.mark.case(28)
@pytest.mark.spec("OURS-17", "BUG-33")
async def test_a_heartbeat_keeps_its_rhythm_while_a_sync_tool_sleeps(runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @tool
    def sleeps() -> str:
        """Sleep without giving way."""
        log.write_text("start\n")
        time.sleep(2)
        log.write_text("start\nend\n")
        return "slept"

    @tool
    async def beats() -> list[float]:
        """Tick every 50 ms until the sleeper has ended."""
        while not lines(log):
            await asyncio.sleep(0.01)
        ticks = [time.monotonic()]
        while "end" not in lines(log):
            await asyncio.sleep(0.05)
            ticks.append(time.monotonic())
        return [later - earlier for earlier, later in itertools.pairwise(ticks)]

    here = []

    async def beat_here() -> None:
        while True:
            await asyncio.sleep(0.05)
            here.append(time.monotonic())

    watch = asyncio.ensure_future(beat_here())
    result = await Agent(ScriptedModel([tool_calls(("sleeps", {}), ("beats", {})), text("ok")]), [sleeps, beats]).arun("go")
    watch.cancel()
    slept, beaten = result.tool_executions
    assert slept.result == "slept"
    gaps = [float(gap) for gap in (beaten.result or "").strip("[]\n ").split(",")]
    # 40 beats on an idle machine; one gap of 2 s and no more than 2 beats if the loop were blocked.
    assert len(gaps) > 10 and max(gaps) < 1.5
    assert len(here) > 10


@pytest.mark.ray
@pytest.mark.case(28)
@pytest.mark.spec("OURS-17", "TOOL-25")
async def test_an_async_tool_that_kills_the_executor(fragile_runtime: Runtime, tmp_path: Path) -> None:
    """The worst: the executor itself dies. Every call beside it ends, repeated if that is safe, and the runs go on."""
    log = tmp_path / "log"

    def note(line: str) -> None:
        with log.open("a") as file:
            file.write(line + "\n")

    @tool
    async def kills(partners: list[str]) -> str:
        """Wait for the others to begin, then end the process."""
        while not {f"{name}-start" for name in partners} <= set(lines(log)):
            await asyncio.sleep(0.02)
        os._exit(1)

    @tool(idempotent=True)
    async def reads(name: str) -> str:
        """Safe to repeat."""
        note(f"{name}-start")
        await asyncio.sleep(1 if lines(log).count(f"{name}-start") == 1 else 0)
        note(f"{name}-end")
        return name

    @tool
    async def pays(name: str) -> str:
        """Not safe to repeat."""
        note(f"{name}-start")
        await asyncio.sleep(1)
        note(f"{name}-end")
        return name

    @tool
    def pays_apart(name: str) -> str:
        """Not safe to repeat, and in a process of its own, which dies with the executor."""
        note(f"{name}-start")
        time.sleep(1)
        note(f"{name}-end")
        return name

    before = executor(fragile_runtime)
    partners = ["reads", "pays", "apart", "other"]
    calls = tool_calls(
        ("kills", {"partners": partners}),
        ("reads", {"name": "reads"}),
        ("pays", {"name": "pays"}),
        ("pays_apart", {"name": "apart"}),
    )
    agent = Agent(ScriptedModel([calls, tool_call("reads", name="after"), text("went on")]), [kills, reads, pays, pays_apart])
    other = Agent(ScriptedModel([tool_call("reads", name="other"), text("fine")]), [reads])
    elsewhere = asyncio.ensure_future(other.arun("go", runtime=fragile_runtime))
    result = await agent.arun("go", runtime=fragile_runtime)

    assert result.success and result.message == "went on"
    validate_history(result.messages)
    killed, read, paid, apart, after = result.tool_executions
    for lost in (killed, paid, apart):
        assert lost.code == "outcome_unknown" and lost.tool_name in (lost.error or "")
    assert (read.result, after.result) == ("reads", "after")
    assert (await elsewhere).message == "fine"
    seen = Counter(lines(log))
    assert (seen["reads-start"], seen["reads-end"]) == (2, 1)
    assert (seen["pays-start"], seen["pays-end"], seen["apart-start"], seen["apart-end"]) == (1, 0, 1, 0)
    assert executor(fragile_runtime)["pid"] != before["pid"]


@pytest.mark.ray
@pytest.mark.case(28)
async def test_a_deadly_tool_that_is_safe_to_repeat_kills_the_executor_once(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def note(line: str) -> None:
        with log.open("a") as file:
            file.write(line + "\n")

    @tool(idempotent=True)
    async def kills() -> str:
        """Kill whatever process runs this."""
        note("kills")
        os._exit(1)

    @tool(idempotent=True)
    async def reads() -> str:
        """Safe to repeat."""
        note("reads")
        await asyncio.sleep(1 if lines(log).count("reads") == 1 else 0)
        return "read"

    script = [tool_calls(("reads", {}), ("kills", {})), text("went on")]
    result = await Agent(ScriptedModel(script), [kills, reads]).arun("go", runtime=fragile_runtime)
    assert result.success
    read, killed = result.tool_executions
    assert read.result == "read"
    assert (killed.code, killed.error) == ("tool_crashed", "tool 'kills' crashed: its process exited with code 1")
    assert lines(log).count("kills") == 2, "the second time in a process of its own"
