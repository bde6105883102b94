"""Patterns at the terminal: umbel draw, umbel run, umbel fleet run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from umbel.cluster.loading import load_agent
from umbel.patterns.drawing import draw_mermaid

Umbel = Callable[..., Result]
PATTERNS = '''
from umbel import Agent, sequential, parallel, tool
from umbel.patterns.functional import ask, entrypoint, step, task
from umbel.testing import ScriptedModel, error, text, tool_call


@tool
async def shout(word: str) -> str:
    """Say it louder."""
    return word.upper()


def agent(name, *turns, **settings):
    return Agent(ScriptedModel(list(turns) or [text(f"{name} says so.\\nIndeed.")]), name=name, **settings)


loud = agent("loud", tool_call("shout", word="hey"), text("HEY"), tools=[shout])
report = sequential(parallel(agent("ann"), loud, name="panel"), agent("editor"), name="report")
broken = sequential(agent("ann"), agent("bob", error("no paper")), name="broken")
kept = sequential(agent("ann"), agent("bob", error("no paper")), checkpointer="sqlite:///threads.db")
boss = agent("boss", tools=[loud.as_tool(), shout])


@task
async def double(n: int) -> int:
    return 2 * n


@entrypoint
async def doubled(n: int, times: int = 1) -> int:
    for _ in range(times):
        n = await double(n)
    return n


@entrypoint
async def many(n: int) -> int:
    return sum([await double(i) for i in range(n)])


@entrypoint
async def asking(topic: str) -> str:
    return await ask(f"Publish {topic}?", options=["yes", "no"])
'''


@pytest.fixture(autouse=True)
def _patterns(workplace: Path) -> None:
    (workplace / "cli_patterns.py").write_text(PATTERNS)


# draw


@pytest.mark.spec("PAT-63")
def test_a_drawing_on_the_screen(umbel: Umbel) -> None:
    done = umbel("draw", "cli_patterns:report")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:3] == ["report: Sequential", "|-- START -> panel", "|-- panel: Parallel -> editor"]
    assert "boss: agent ~> loud, shout [calls]" in umbel("draw", "cli_patterns:boss").stdout


def test_a_drawing_in_a_file_whose_name_says_how(umbel: Umbel, workplace: Path) -> None:
    assert umbel("draw", "cli_patterns:report", "-o", "report.mmd").stdout == ""
    assert (workplace / "report.mmd").read_text() == draw_mermaid(load_agent("cli_patterns:report"))
    umbel("draw", "cli_patterns:report", "--format", "dot", "-o", "report.txt")
    assert (workplace / "report.txt").read_text().startswith("digraph {")


def test_nodes_and_edges_as_json(umbel: Umbel) -> None:
    structure = json.loads(umbel("draw", "cli_patterns:report", "--json").stdout)
    assert [node["name"] for node in structure["nodes"]] == ["__start__", "panel", "editor", "__end__"]
    assert structure["edges"][0] == {"source": "__start__", "target": "panel", "kind": "plain", "label": ""}
    assert structure["nodes"][1]["inner"]["type"] == "Parallel"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("cli_patterns:nothing",), "draw 'cli_patterns:nothing': cli_patterns has no 'nothing'"),
        (("cli_agents:echo",), "draw 'cli_agents:echo': an agent or a pattern has a structure, not a Echo"),
        (("cli_patterns",), "draw 'cli_patterns': expected module:name"),
        (("cli_patterns:report", "-o", "no/such/folder/x.dot"), "--out no/such/folder/x.dot: No such file"),
        (("cli_patterns:report", "-o", "x.svg"), "svg needs the program 'dot' of Graphviz"),
        (("cli_patterns:report", "--format", "pdf"), "pdf"),
    ],
)
def test_what_cannot_be_drawn_says_why(
    umbel: Umbel, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], why: str
) -> None:
    monkeypatch.setenv("PATH", "")
    done = umbel("draw", *arguments)
    assert done.exit_code == 2 and why in done.stderr


# run


def test_the_answer_on_stdout_and_the_members_on_stderr(umbel: Umbel) -> None:
    done = umbel("run", "Go", "--agent", "cli_patterns:report")
    assert (done.exit_code, done.stdout) == (0, "editor says so.\nIndeed.\n")
    table = [line.split()[:2] for line in done.stderr.splitlines()]
    assert table == [["step", "status"], ["0.panel", "completed"], ["0.ann", "completed"], ["1.loud", "completed"],
                     ["1.editor", "completed"]]  # fmt: skip
    assert umbel("run", "Go", "--agent", "cli_patterns:report", "-q").stderr == ""


def test_a_result_as_json_has_every_member(umbel: Umbel) -> None:
    result = json.loads(umbel("run", "4", "--agent", "cli_patterns:doubled", "--json").stdout)
    assert (result["success"], result["message"], result["value"], result["error"]) == (True, "8", 8, None)
    [member] = result["members"]
    assert (member["step"], member["member"], member["status"], member["value"]) == ("double-1", "double", "completed", 8)
    deep = json.loads(umbel("run", "Go", "--agent", "cli_patterns:report", "--json").stdout)
    assert [[inner["step"] for inner in member["members"]] for member in deep["members"]] == [["0.ann", "1.loud"], []]


def test_structured_input(umbel: Umbel) -> None:
    run = ("run", '{"n": 3, "times": 2}', "--agent", "cli_patterns:doubled", "--values")
    assert umbel(*run).stdout == "12\n"
    for wrong, why in [("{", "not JSON"), ("[1]", "must be a JSON object")]:
        done = umbel("run", wrong, "--agent", "cli_patterns:doubled", "--values")
        assert done.exit_code == 2 and why in done.stderr
    assert "the input of doubled does not fit" in umbel("run", "x", "--agent", "cli_patterns:doubled").stderr


@pytest.mark.spec("OURS-25")
@pytest.mark.parametrize("extra", [(), ("--stream",), ("--json",)])
def test_a_failed_member_is_named(umbel: Umbel, extra: tuple[str, ...]) -> None:
    done = umbel("run", "Go", "--agent", "cli_patterns:broken", *extra)
    assert done.exit_code == 1
    assert "the run ended with error: bob: ModelError: no paper" in done.stderr
    if not extra:
        assert "1.bob" in done.stderr and "failed" in done.stderr


def test_a_question_is_shown(umbel: Umbel) -> None:
    done = umbel("run", "umbels", "--agent", "cli_patterns:asking")
    assert done.exit_code == 1
    assert "the run ended with interrupted" in done.stderr and "it asks, as ask-1: Publish umbels? (yes, no)" in done.stderr
    assert json.loads(umbel("run", "x", "--agent", "cli_patterns:asking", "--json").stdout)["interrupts"][0]["options"] == [
        "yes", "no"
    ]  # fmt: skip


def test_live_events_name_the_member(umbel: Umbel) -> None:
    done = umbel("run", "Go", "--agent", "cli_patterns:report", "--stream")
    assert (done.exit_code, done.stdout) == (0, "editor says so.\nIndeed.\n")
    told = done.stderr.splitlines()
    for line in (
        "umbel: 0.panel: started",
        "umbel: 0.panel/1.loud: calling shout",
        "0.panel/0.ann| ann says so.",
        "0.panel/0.ann| Indeed.",
        "1.editor| Indeed.",
    ):
        assert line in told, line
    assert told.index("umbel: 0.panel: started") < told.index("umbel: 0.panel/0.ann: started") < told.index("1.editor| Indeed.")
    quiet = umbel("run", "Go", "--agent", "cli_patterns:report", "--stream", "-q")
    assert (quiet.stdout, quiet.stderr) == ("editor says so.\nIndeed.\n", "")


def test_a_table_of_many_members_is_cut(umbel: Umbel) -> None:
    done = umbel("run", "100", "--agent", "cli_patterns:many")
    assert done.stdout == "9900\n"
    assert len(done.stderr.splitlines()) == 32 and "and 70 more" in done.stderr


def test_the_thread_of_a_pattern_lists_its_steps(umbel: Umbel) -> None:
    store = ("--store", "sqlite:///threads.db")
    umbel("run", "Go", "--agent", "cli_patterns:kept", "--thread", "t-1")
    shown = umbel("threads", "show", "t-1", *store).stdout
    assert "  step 0.ann completed: ann says so.\n    Indeed.\n  step 1.bob failed: no paper\n" in shown
    assert umbel("threads", "list", *store).stdout.count("t-1") == 1, "the members' threads are not listed"
    assert "t-1#1.0.ann" in umbel("threads", "list", "--members", *store).stdout


# fleet


def test_a_fleet_of_a_pattern(umbel: Umbel, workplace: Path, read_results: Callable[[], dict[str, Any]]) -> None:
    lines = [{"id": "a", "prompt": "4"}, {"id": "b", "prompt": {"n": 1, "times": 3}}, {"id": "c", "prompt": "x"}]
    (workplace / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = umbel("fleet", "run", "tasks.jsonl", "--agent", "cli_patterns:doubled", "-o", "results.jsonl", "--runtime", "inline")
    assert done.exit_code == 1
    results = read_results()
    assert [(results[key]["status"], results[key]["message"]) for key in "abc"] == [("ok", "8"), ("ok", "8"), ("failed", None)]
    assert "the input of doubled does not fit" in results["c"]["error"]
