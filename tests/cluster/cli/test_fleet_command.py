from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Umbel = Callable[..., Result]
RUN = ("fleet", "run", "tasks.jsonl", "--agent", "cli_agents:echo", "--out", "results.jsonl", "--runtime", "inline")


def test_all_ok(umbel: Umbel, tasks: Path, read_results: Callable[[], dict[str, Any]]) -> None:
    done = umbel(*RUN)
    assert done.exit_code == 0, done.output
    assert "10 tasks" in done.stdout
    assert "results: results.jsonl" in done.stdout
    assert "fleet: 10/10" in done.stderr
    assert {result["message"] for result in read_results().values()} == {f"P{n}" for n in range(10)}


def test_json_is_all_there_is_on_stdout(umbel: Umbel, tasks: Path) -> None:
    done = umbel(*RUN, "--json")
    report = json.loads(done.stdout)
    assert (report["total"], report["ok"], report["tokens"], report["out"], report["exit_code"]) == (
        10,
        10,
        50,
        "results.jsonl",
        0,
    )


def test_quiet_says_nothing(umbel: Umbel, tasks: Path) -> None:
    done = umbel(*RUN, "-q")
    assert (done.exit_code, done.output) == (0, "")


def test_failed_tasks_are_shown_and_exit_with_1(umbel: Umbel, tasks: Path) -> None:
    tasks.write_text('{"id": "a", "prompt": "fail"}\n{"id": "b", "prompt": "raise"}\nnonsense\n{"prompt": "fine"}\n')
    done = umbel(*RUN)
    assert done.exit_code == 1
    for text in (
        "failed a: the run ended with max_iterations",
        "failed b: ValueError: no luck",
        "invalid line-3: tasks.jsonl:3: not JSON",
    ):
        assert text in done.stdout


def test_resume_overwrite_and_limit(umbel: Umbel, tasks: Path, read_results: Callable[[], dict[str, Any]]) -> None:
    assert umbel(*RUN, "--limit", 4).exit_code == 0
    refused = umbel(*RUN)
    assert refused.exit_code == 2
    assert "results.jsonl is there already; --resume goes on with it" in refused.stderr
    assert "6 ok, 4 skipped" in umbel(*RUN, "--resume").stdout
    assert len(read_results()) == 10
    assert umbel(*RUN, "--overwrite", "--limit", 2).exit_code == 0
    assert len(read_results()) == 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tasks.jsonl": "missing.jsonl"}, "cannot read missing.jsonl: No such file"),
        ({"tasks.jsonl": "tasks.xml"}, "cannot tell what tasks.xml holds"),
        ({"cli_agents:echo": "cli_agents:ecoh"}, "cli_agents has no 'ecoh'; did you mean 'echo'?"),
        ({"cli_agents:echo": "cli_agent:echo"}, "there is no module 'cli_agent'"),
        ({"cli_agents:echo": "cli_agents:not_an_agent"}, "not_an_agent is a int; expected an Agent or a pattern"),
        ({"results.jsonl": "tasks.jsonl"}, "tasks.jsonl is the tasks file"),
    ],
)
def test_wrong_usage_is_one_clear_message_and_exit_code_2(
    umbel: Umbel, tasks: Path, change: dict[str, str], expected: str
) -> None:
    done = umbel(*(change.get(argument, argument) for argument in RUN))
    assert done.exit_code == 2
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize("extra", [("--concurrency", 0), ("--retries", -1), ("--runtime", "mars"), ("--no-such-option",)])
def test_wrong_options_exit_with_2(umbel: Umbel, tasks: Path, extra: tuple[object, ...]) -> None:
    assert umbel(*RUN, *extra).exit_code == 2


def test_address_and_a_runtime_without_cluster_contradict(umbel: Umbel, tasks: Path) -> None:
    done = umbel(*RUN, "--address", "auto")
    assert done.exit_code == 2
    assert "give one of them" in done.stderr


def test_a_bad_first_line_stops_before_work(umbel: Umbel, tasks: Path, workplace: Path) -> None:
    tasks.write_text('{"id": "a", "question": "?"}\n')
    done = umbel(*RUN)
    assert done.exit_code == 2
    assert "tasks.jsonl:1: field 'prompt': missing" in done.stderr
    assert not (workplace / "results.jsonl").exists()


def test_no_tasks_is_said(umbel: Umbel, tasks: Path) -> None:
    tasks.write_text("")
    done = umbel(*RUN)
    assert done.exit_code == 0
    assert "there were no tasks" in done.stderr


FLEET = "agent: cli_agents:echo\ntasks: tasks.jsonl\nout: results.jsonl\nruntime: inline\n"


def test_a_fleet_in_yaml_runs_and_options_win(
    umbel: Umbel, tasks: Path, workplace: Path, read_results: Callable[[], dict[str, Any]]
) -> None:
    (workplace / "fleet.yaml").write_text(FLEET + "limit: 9\n")
    done = umbel("fleet", "run", "fleet.yaml", "--limit", 3, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ok"] == len(read_results()) == 3
    done = umbel("fleet", "run", "fleet.yaml", "--resume", "--sample", 5, "--shuffle-seed", 2, "--out", "other.jsonl", "--json")
    assert json.loads(done.stdout)["ok"] == 5


def test_a_dry_run_shows_the_plan_and_runs_nothing(
    umbel: Umbel, tasks: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (workplace / "fleet.yaml").write_text(FLEET)
    done = umbel("fleet", "run", "fleet.yaml", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "tasks: 10 tasks from" in done.stdout and "nothing was run" in done.stdout
    assert not (workplace / "results.jsonl").exists()
    (workplace / "hosted.py").write_text("from umbel import Agent\nbot = Agent(model='openai:gpt-4o-mini')\n")
    done = umbel("fleet", "run", "fleet.yaml", "--dry-run", "--json", "--agent", "hosted:bot", "--limit", 2)
    plan = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (plan["models"], plan["total"], len(plan["first"])) == (["openai:gpt-4o-mini"], 2, 2)
    assert "OPENAI_API_KEY" in plan["problems"][0] and plan["cost_usd"] > 0


def test_a_budget_that_is_used_up_is_said_and_exits_with_1(umbel: Umbel, tasks: Path) -> None:
    done = umbel(*RUN, "--budget-tokens", 20, "--concurrency", 1)
    assert done.exit_code == 1
    assert "4 ok" in done.stdout
    assert "umbel: the budget (tokens) is used up: stopped after 4 tasks" in done.stderr
    assert "budget: 100% of 20 tokens" in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FLEET + "concurency: 5\n", "fleet.yaml:5: field 'concurency': there is no such field; did you mean 'concurrency'?"),
        (FLEET + "runtime: mars\n", "field 'runtime' is there twice, also in line 4"),
        (FLEET.replace("echo", "ecoh"), "cli_agents has no 'ecoh'; did you mean 'echo'?"),
    ],
)
def test_a_wrong_file_is_one_clear_message(umbel: Umbel, tasks: Path, workplace: Path, text: str, expected: str) -> None:
    (workplace / "fleet.yaml").write_text(text)
    done = umbel("fleet", "run", "fleet.yaml")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert expected in done.stderr


def test_tasks_need_an_agent_and_a_file_for_results(umbel: Umbel, tasks: Path) -> None:
    done = umbel("fleet", "run", "tasks.jsonl", "--out", "r.jsonl")
    assert (done.exit_code, done.stderr.startswith("umbel: --agent is missing")) == (2, True)


def test_standard_input_and_a_real_process(start: Any, read_results: Callable[[], dict[str, Any]]) -> None:
    command = start(*("-" if argument == "tasks.jsonl" else argument for argument in RUN), "--json")
    code, out, err = command.finish('{"id": "a", "prompt": "x"}\n{"id": "b", "prompt": "fail"}\n')
    assert (code, json.loads(out)["failed"]) == (1, 1), err
    assert read_results()["a"]["message"] == "X"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_cleanly_says_how_to_resume_and_loses_nothing(
    start: Any, tasks: Path, read_results: Callable[[], dict[str, Any]], number: signal.Signals, code: int
) -> None:
    command = start(*RUN, "--concurrency", 2, "--json", FREE="3")
    command.wait_until_waiting()
    command.signal(number)
    returned, out, err = command.finish()
    assert returned == code, err
    report = json.loads(out)
    assert (report["ok"], report["stopped"], report["exit_code"]) == (3, number.name, code)
    assert "run again with resume" in err
    assert "Traceback" not in err
    assert [result["status"] for result in read_results().values()].count("ok") == 3
    returned, out, _ = start(*RUN, "--resume", "--json").finish()
    assert (returned, json.loads(out)["ok"], json.loads(out)["skipped"]) == (0, 7, 3)
    assert {result["status"] for result in read_results().values()} == {"ok"}
    assert len(read_results()) == 10


def test_a_signal_while_waiting_for_standard_input_ends_at_once(start: Any) -> None:
    command = start(*("-" if argument == "tasks.jsonl" else argument for argument in RUN), "--concurrency", 1, FREE="0")
    command.process.stdin.write('{"id": "a", "prompt": "x"}\n')
    command.process.stdin.flush()
    command.wait_until_waiting()
    command.signal(signal.SIGTERM)
    code, _, err = command.finish()
    assert code == 143, err


def test_sigkill_loses_only_what_was_in_flight(
    start: Any, tasks: Path, workplace: Path, read_results: Callable[[], dict[str, Any]]
) -> None:
    command = start(*RUN, "--concurrency", 1, FREE="5")
    command.wait_until_waiting()
    while (workplace / "results.jsonl").read_bytes().count(b"\n") < 5:
        os.sched_yield()
    command.signal(signal.SIGKILL)
    command.finish()
    code, out, err = start(*RUN, "--resume", "--json").finish()
    assert code == 0, err
    assert json.loads(out)["skipped"] == 5
    assert len(read_results()) == 10
