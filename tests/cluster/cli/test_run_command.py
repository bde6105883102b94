from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Umbel = Callable[..., Result]
AGENTS = '''
import os

from umbel import Agent, tool
from umbel.testing import ScriptedModel, text, tool_call


@tool
async def shout(word: str) -> str:
    """Say it louder."""
    return word.upper()


@tool
async def hang() -> str:
    """Never come back."""
    import asyncio

    os.write(int(os.environ["READY_FD"]), b"x")
    await asyncio.Event().wait()
    return "never"


talker = Agent(model=ScriptedModel([tool_call("shout", word="hey"), text("It says: hey there.")]), tools=[shout])
short = Agent(model=ScriptedModel([tool_call("shout", word="hey")], loop=True), tools=[shout], token_budget=1)
hanging = Agent(model=ScriptedModel([tool_call("hang")]), tools=[hang])
wrong = Agent(model="nosuch:model")
threaded = Agent(model=ScriptedModel([lambda messages: text(f"{len(messages)} messages")]), checkpointer="sqlite:///threads.db")
'''


@pytest.fixture(autouse=True)
def _agents(workplace: Path) -> None:
    (workplace / "cli_real.py").write_text(AGENTS)


def test_the_answer_is_printed(umbel: Umbel) -> None:
    done = umbel("run", "Say hey", "--agent", "cli_real:talker")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "It says: hey there.\n", "")


def test_the_answer_as_json(umbel: Umbel) -> None:
    result = json.loads(umbel("run", "Say hey", "--agent", "cli_real:talker", "--json").stdout)
    assert (result["success"], result["stop_reason"], result["message"]) == (True, "complete", "It says: hey there.")
    assert result["metrics"]["tool_calls"] == 1


def test_the_answer_as_it_is_written(umbel: Umbel) -> None:
    done = umbel("run", "Say hey", "--agent", "cli_real:talker", "--stream")
    assert (done.exit_code, done.stdout.strip()) == (0, "It says: hey there.")
    assert "calling shout" in done.stderr


def test_every_event_as_json(umbel: Umbel) -> None:
    done = umbel("run", "Say hey", "--agent", "cli_real:talker", "--stream", "--json")
    kinds = [json.loads(line)["event_type"] for line in done.stdout.splitlines()]
    assert kinds[-1] == "terminate"
    assert {"think", "tool_start", "tool_complete", "model_chunk"} <= set(kinds)


@pytest.mark.parametrize("extra", [(), ("--stream",), ("--json",)])
def test_a_run_without_success_exits_with_1_and_says_why(umbel: Umbel, extra: tuple[str, ...]) -> None:
    done = umbel("run", "Say hey", "--agent", "cli_real:short", *extra)
    assert done.exit_code == 1
    assert "the run ended with token_budget" in done.stderr


def test_a_wrong_model_is_one_message_and_exit_code_2(umbel: Umbel) -> None:
    done = umbel("run", "Say hey", "--agent", "cli_real:wrong")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "nosuch" in done.stderr


def test_a_thread_goes_on(umbel: Umbel) -> None:
    ask = ("run", "Hello", "--agent", "cli_real:threaded", "--thread", "t-1")
    first, second = umbel(*ask).stdout, umbel(*ask).stdout
    assert int(second.split()[0]) > int(first.split()[0])


def test_the_prompt_from_standard_input_in_a_real_process(start: Any) -> None:
    code, out, err = start("run", "-", "--agent", "cli_real:talker").finish("Say hey\n")
    assert (code, out) == (0, "It says: hey there.\n"), err


def test_ctrl_c_is_130_without_a_traceback(start: Any) -> None:
    command = start("run", "Say hey", "--agent", "cli_real:hanging")
    command.wait_until_waiting()
    command.signal(signal.SIGINT)
    code, _, err = command.finish()
    assert code == 130, err
    assert "Traceback" not in err
