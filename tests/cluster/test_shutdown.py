"""However a program ends, with work in every place: no process of its session is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

MARK = "UMBEL_TEST_MARK"
DRIVER = """
import asyncio, os, subprocess, sys, threading, time
from umbel import Agent, Runtime, tool
from umbel.testing import ScriptedModel, text, tool_call, tool_calls

ending, folder, where = sys.argv[1:]

def mark(name):
    with open(os.path.join(folder, name), "w") as file:
        file.write(str(os.getpid()))

@tool(isolation="process")
def slow() -> str:
    '''Sleep in a worker process, beside a child of a session of its own.'''
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    mark("slow")
    time.sleep(600)
    return "never"

@tool
async def slow_async() -> str:
    '''Wait.'''
    mark("slow_async")
    await asyncio.sleep(600)
    return "never"

agent = Agent(ScriptedModel([tool_calls(("slow", {}), ("slow_async", {})), text("done")]), [slow, slow_async])
quick = Agent(ScriptedModel([text("quick")]), checkpointer=f"sqlite:///{folder}/threads.db")

def ready():
    while not {"slow", "slow_async"} <= set(os.listdir(folder)):
        time.sleep(0.02)
    mark("ready")

def run():
    try:
        agent.run_sync("go")
    except BaseException:
        pass

runtime = Runtime(inline=where == "inline")
runtime.__enter__()
print(quick.run_sync("go", thread_id="t").message, flush=True)
if ending in ("signal", "interrupt"):
    threading.Thread(target=ready, daemon=True).start()
    agent.run_sync("go")
else:
    threading.Thread(target=run, daemon=True).start()
    ready()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.02)
if ending == "closes":
    runtime.__exit__(None, None, None)
elif ending == "raises":
    raise RuntimeError("this is the end")
elif ending == "calls sys.exit":
    sys.exit(5)
"""


class Session:
    """A driver and everything that it starts, found by what they inherit and by who started them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.seen: dict[int, psutil.Process] = {}

    def start(self, ending: str, where: str = "ray") -> subprocess.Popen[str]:
        script = self.folder / "driver.py"
        script.write_text(DRIVER)
        marks = self.folder / "marks"
        marks.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, str(script), ending, str(marks), where],
            env={**os.environ, MARK: self.mark, "RAY_ADDRESS": "", "UMBEL_HOME": str(self.folder / "home")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def wait_until_ready(self) -> None:
        """Until both tools are running; then remember every process there is."""
        while not (self.folder / "marks" / "ready").exists():
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.05)
        self.look()
        self.seen |= {child.pid: child for child in psutil.Process(self.process.pid).children(recursive=True)}
        self.seen.pop(self.process.pid, None)

    def look(self) -> None:
        for process in psutil.process_iter():
            try:
                if f"{MARK}={self.mark}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                    self.seen[process.pid] = process
            except (OSError, psutil.Error):
                continue

    def left(self) -> list[str]:
        """What of it is alive or a zombie."""
        self.look()
        found = []
        for pid, process in self.seen.items():
            try:
                if pid != self.process.pid and process.is_running():
                    found.append(f"{pid} {process.status()} {' '.join(process.cmdline())[:100] or process.name()}")
            except psutil.NoSuchProcess:
                continue
        return found

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path)
    yield session
    left: list[Any] = [session.process, *session.seen.values()]
    for process in left:
        try:
            process.kill()
        except (OSError, psutil.NoSuchProcess):
            continue
    session.process.communicate()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


NOISE = ("Exception ignored", "an error occurred", "was destroyed", "never awaited", "never retrieved", "received at time=")


ENDINGS = {
    "closes": ("closes", None, {0}),
    "returns": ("returns", None, {0}),
    "raises": ("raises", None, {1}),
    "sys.exit": ("calls sys.exit", None, {5}),
    "SIGINT": ("interrupt", signal.SIGINT, {-signal.SIGINT, 130, 1}),
    "SIGTERM": ("signal", signal.SIGTERM, {-signal.SIGTERM, 143, 1}),
    "SIGKILL": ("signal", signal.SIGKILL, {-signal.SIGKILL}),
}
LIKE_RAISES = {"returns", "sys.exit"}  # on Ray they take the same way out; each costs a start of Ray


@pytest.mark.parametrize(
    ("ending", "number", "codes", "where"),
    [
        pytest.param(
            *ENDINGS[name], where, id=f"{name}-{where}", marks=[pytest.mark.chaos] * (where == "ray" and name in LIKE_RAISES)
        )
        for name in ENDINGS
        for where in ("ray", "inline")
    ],
)
def test_no_process_is_left(session: Session, ending: str, number: signal.Signals | None, codes: set[int], where: str) -> None:
    process = session.start(ending, where)
    session.wait_until_ready()
    assert any("sleep" in line for line in session.left())
    if where == "ray":
        assert any("raylet" in line for line in session.left()), "the right processes are being watched"
    if number is not None:
        process.send_signal(number)
    (session.folder / "marks" / "go").touch()
    code, out, err = session.finish()
    assert code in codes, err
    assert out == "quick\n"
    wait_until(lambda: not session.left(), 30)
    assert not session.left()
    assert not [noise for noise in NOISE if noise in err], err
    if number is None:
        assert err.count("Traceback") == (ending == "raises"), err
    if where == "inline" and ending in ("closes", "returns", "calls sys.exit"):
        assert not err
