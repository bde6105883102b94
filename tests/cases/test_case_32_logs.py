"""Case 32: a thousand agents log. The console shows one line, every line is in a file, levels are set per component."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Message, ModelResponse, Runtime, ToolCall, tool
from umbel.errors import ModelError
from umbel.testing import ScriptedModel, text, tool_call, tool_calls

pytestmark = [pytest.mark.ray, pytest.mark.case(32)]

AGENTS = 1_000
DRIVER = """
import asyncio, logging, sys
from umbel import Agent, ModelResponse, Runtime, tool
from umbel.errors import ModelError
from umbel.testing import ScriptedModel, text, tool_call

log = logging.getLogger("my_app")

@tool
async def work(n: int) -> str:
    '''Log what everybody logs, and what nobody else logs.'''
    log.warning("the same warning as everybody")
    log.error("unique-%d-end", n)
    return "done"

@tool
def work_apart(n: int) -> str:
    '''The same in a worker process.'''
    log.warning("the same warning as everybody")
    log.error("unique-%d-end", n)
    return "done"

class Fails(ScriptedModel):
    async def complete(self, messages, tools=None, **settings):
        log.warning("the same warning as everybody")
        log.error("unique-%s-end", messages[-1].content)
        raise ModelError("no")

def agent(n):
    if n % 10 == 0:
        return Agent(Fails([]), name=f"agent-{n}")
    name = "work_apart" if n % 10 == 1 else "work"
    return Agent(ScriptedModel([tool_call(name, n=n), text("fine")]), [work, work_apart], name=f"agent-{n}")

async def main(count):
    outcomes = await asyncio.gather(*(agent(n).arun(str(n)) for n in range(count)), return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, ModelError)]
    print("fine", sum(not isinstance(outcome, Exception) for outcome in outcomes), "failed", len(failed))

count = int(sys.argv[1])
Runtime.current().run_sync(main(count))
"""


def log_lines(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("logs/*/*.log*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_thousand_agents_leave_one_line_on_the_console_and_every_line_in_a_file(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = {**os.environ, "UMBEL_HOME": str(tmp_path / "home"), "RAY_ADDRESS": "", "UMBEL_LOG": ""}
    command = [sys.executable, str(script), str(AGENTS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stdout) == (0, f"fine {AGENTS * 9 // 10} failed {AGENTS // 10}\n"), done.stderr
    (summary,) = done.stderr.splitlines()
    assert "1,000 errors" in summary and "1,000 warnings" in summary and str(tmp_path / "home" / "logs") in summary

    lines = log_lines(tmp_path / "home")
    unique = Counter(line["message"] for line in lines if line["level"] == "error")
    assert unique == Counter(f"unique-{n}-end" for n in range(AGENTS)), "each once: none folded away, none twice"
    assert sum(line["message"] == "the same warning as everybody" for line in lines) == AGENTS
    from_tools = [line for line in lines if line["actor"] == "tools/default/0" and line["logger"] == "my_app"]
    assert len(from_tools) == 2 * AGENTS * 9 // 10
    assert all(line["run_id"] and line["tool"] in ("work", "work_apart") for line in from_tools)


class Fails:
    """A model that fails; its error is logged by the supervisor at DEBUG only."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        raise ModelError("the model has no answer")


@tool
async def fetch(what: str) -> str:
    """Fetch."""
    logging.getLogger("my_app.fetching").info("fetching something")
    logging.getLogger("another").info("this is below the root's level")
    return f"body of {what}"


async def run_both(agent: Agent, failing: Agent) -> None:
    async with Runtime() as runtime:
        await agent.arun("prompt-body", runtime=runtime, metadata={"note": "metadata-body"})
        with pytest.raises(ModelError):
            await failing.arun("prompt-body", runtime=runtime)


async def test_levels_are_set_by_component(ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    monkeypatch.setenv("UMBEL_LOG", "error,umbel.supervisor=debug,my_app=info")
    await run_both(Agent(ScriptedModel([tool_call("fetch", what="x"), text("ok")]), [fetch]), Agent(Fails()))
    lines = log_lines(tmp_path)
    assert {(line["level"], line["logger"]) for line in lines} == {("debug", "umbel.supervisor"), ("info", "my_app.fetching")}
    (failure,) = [line for line in lines if line["logger"] == "umbel.supervisor"]
    assert failure["actor"] == "supervisor/default/0" and "the model has no answer" in failure["exception"]


async def test_no_message_bodies_at_info(
    ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    monkeypatch.setenv("UMBEL_LOG", "info,root=info")
    caplog.set_level(logging.INFO)
    broken = ToolCall(name="fetch", malformed_arguments='{"what": "argument-body')
    calls = tool_calls(("fetch", {"what": "argument-body"}), ("nothing", {"what": "argument-body"}), broken)
    await run_both(Agent(ScriptedModel([calls, text("answer-body")]), [fetch]), Agent(Fails()))
    lines = log_lines(tmp_path)
    assert any(line["logger"] == "my_app.fetching" for line in lines), "the tool's own line at INFO is there"
    for body in ("prompt-body", "metadata-body", "argument-body", "answer-body", "body of"):
        assert body not in json.dumps(lines) and body not in caplog.text
