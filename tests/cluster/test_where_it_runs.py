"""Scripts, prompts, notebooks, running loops, threads, clusters: wherever Python runs, agents do."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from umbel import Agent, Runtime, tool
from umbel.testing import ScriptedModel, text, tool_call

RAY_BINARY = Path(sys.executable).with_name("ray")
DEFINE = """
import asyncio
from umbel import Agent, Runtime, tool
from umbel.testing import ScriptedModel, text, tool_calls

@tool
async def add(a: int, b: int) -> int:
    return a + b

@tool
def multiply(a: int, b: int) -> int:
    return a * b

last = lambda messages: text(" ".join(message.content for message in messages if message.role == "tool"))
agent = Agent(ScriptedModel([tool_calls(("add", {"a": 1, "b": 2}), ("multiply", {"a": 3, "b": 4})), last]), [add, multiply])
"""
SCRIPT = """
import threading
print("first", agent.run_sync("go").message)
for _ in range(2):
    print("loop", asyncio.run(agent.arun("go")).message)

async def inside():
    return agent.run_sync("go").message

print("inside", asyncio.run(inside()))
answers = []
threads = [threading.Thread(target=lambda: answers.append(agent.run_sync("go").message)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("threads", len(answers), set(answers))
Runtime.current().close()
print("second", agent.run_sync("go").message)
"""
SAYS = ["first 3 12", "loop 3 12", "loop 3 12", "inside 3 12", "threads 8 {'3 12'}", "second 3 12"]


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def adder() -> Agent:
    return Agent(ScriptedModel([tool_call("add", a=1, b=2), text("three")]), [add])


def python(*arguments: str, stdin: str | None = None, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        env={**os.environ, "RAY_ADDRESS": "", **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """A Ray cluster that somebody else has started: the environment of those who use it."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: sockets have a place in it
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(RAY_BINARY), "start", "--head", "--block", f"--port={port}", f"--temp-dir={folder}", "--num-cpus=4"]
    command += ["--include-dashboard=false", "--disable-usage-stats"]
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # of this cluster only
    environment = {**os.environ, **access, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0", "RAY_worker_niceness": "0"}
    environment["RAY_ADDRESS"] = ""
    log = Path(folder) / "head.log"
    with log.open("w") as output:
        head = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    deadline = time.monotonic() + 60
    while (found := re.search(rf"--address='([\d.]+:{port})'", log.read_text())) is None:
        assert head.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    yield {**access, "RAY_ADDRESS": found[1]}
    head.send_signal(signal.SIGTERM)
    try:
        head.wait(30)
    except subprocess.TimeoutExpired:
        head.kill()
        head.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_plain_script_without_a_guard(tmp_path: Path) -> None:
    """On a local Ray that starts by itself; also several loops and threads, and a second runtime after the first."""
    (tmp_path / "script.py").write_text(DEFINE + SCRIPT)
    code, out, err = python(str(tmp_path / "script.py"))
    assert (code, out.splitlines()) == (0, SAYS), err
    assert "Traceback" not in err and "Exception ignored" not in err


def test_the_same_script_inline(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(DEFINE + SCRIPT)
    code, out, err = python("-W", "error", str(tmp_path / "script.py"), UMBEL_RUNTIME="inline")
    assert (code, out.splitlines(), err) == (0, SAYS, "")


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_the_first_run_may_come_from_a_thread_that_ends(tmp_path: Path) -> None:
    """The kernel ends a local Ray with the thread that started it, so that must not be the caller's."""
    script = DEFINE + (
        "import ray, threading, time\n"
        "starter = threading.Thread(target=lambda: print('thread', agent.run_sync('go').message))\n"
        "starter.start(); starter.join(); time.sleep(1)\n"
        "print('nodes', sum(node['Alive'] for node in ray.nodes()))\n"  # asks the server that would be gone
        "print('after', agent.run_sync('go').message)\n"
    )
    (tmp_path / "script.py").write_text(script)
    code, out, err = python(str(tmp_path / "script.py"))
    assert (code, out.splitlines()) == (0, ["thread 3 12", "nodes 1", "after 3 12"]), err


@pytest.mark.ray
def test_a_prompt(cluster: dict[str, str]) -> None:
    typed = DEFINE + "\nprint('typed', agent.run_sync('go').message)\n"
    code, out, err = python("-i", "-q", stdin=typed, **cluster)
    assert (code, out) == (0, "typed 3 12\n"), err


@pytest.mark.ray
def test_a_named_cluster_and_one_that_is_connected_already(cluster: dict[str, str], tmp_path: Path) -> None:
    script = DEFINE + (
        "import os, ray, sys\n"
        "if sys.argv[1] == 'before': ray.init(address=os.environ['RAY_ADDRESS'], logging_level='ERROR', log_to_driver=False)\n"
        "with Runtime() as runtime:\n"
        "    print(agent.run_sync('go').message, ray.get_runtime_context().gcs_address)\n"
        "print('still connected', ray.is_initialized())\n"
    )
    (tmp_path / "script.py").write_text(script)
    for when, connected in (("before", True), ("never", False)):
        code, out, err = python(str(tmp_path / "script.py"), when, **cluster)
        assert (code, out) == (0, f"3 12 {cluster['RAY_ADDRESS']}\nstill connected {connected}\n"), err
    code, out, err = python(str(tmp_path / "script.py"), "before", **cluster)
    assert code == 0, "the cluster has outlived its users"


@pytest.mark.ray
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore")  # of the notebook's own machinery
def test_a_notebook(cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)
    cells = [DEFINE, "print('sync', agent.run_sync('go').message)", "print('async', (await agent.arun('go')).message)"]
    cells.append("print('events', [event.event_type async for event in agent.run('go')][-1])")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [output["text"] for cell in notebook.cells for output in cell.outputs if output.get("name") == "stdout"]
    assert printed == ["sync 3 12\n", "async 3 12\n", "events terminate\n"]


def run_everywhere(runtime: Runtime) -> None:
    """Two loops one after the other, a call inside a running loop, and many threads, on one runtime."""
    agent = adder()

    async def once() -> str:
        return (await agent.arun("go", runtime=runtime)).message

    async def inside() -> str:
        return agent.run_sync("go", runtime=runtime).message

    assert [asyncio.run(once()), asyncio.run(once()), asyncio.run(inside())] == ["three"] * 3
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(agent.run_sync("go", runtime=runtime).message)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["three"] * 8


def test_loops_and_threads_inline() -> None:
    with Runtime(inline=True) as runtime:
        run_everywhere(runtime)


@pytest.mark.ray
def test_loops_and_threads_on_ray(ray_runtime: Runtime) -> None:
    run_everywhere(ray_runtime)
