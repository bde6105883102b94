"""Every script of ``examples/``, run as a user runs it: in a process of its own, offline, compared line by line."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PRINTS = {
    "approval": """
        interrupted:
          Transfer 900 to Ada? ['yes', 'no']
          Transfer 5 to Bob? ['yes', 'no']
        not transferred: 900 to Ada was turned down
        transferred 5 to Bob
        complete: The payments are settled.
    """,
    "basic": """
        Nice to meet you, Ada.
        Your first message was: 'My name is Ada.'
        complete: 1 model call, 5 messages in the thread
    """,
    "budget": """
          nudge at 0.016 of 0.02 US dollars
        complete, $0.018 of $0.020 in 9 calls: After 8 pages: more of the same.
        cost_budget, $0.010 of $0.011 in 5 calls: (no answer)
    """,
    "hooks": """
        journal: delete_file: deleted build/old.log
        journal: take_note: noted: ok
        delete_file({'path': 'build/old.log'}) -> deleted build/old.log
        delete_file({'path': 'README.md'}) -> refused: README.md is not in build/
        take_note({'note': 'ok'}) -> noted: ok
        One file is gone, the other one had to stay.
    """,
    "reflexion_grounding": """
        reflexion: stuck, confidence 0.00
        reflexion: on_track, confidence 0.15
        grounding: score 0.5, not backed: ['The attic is colder, with 12 degrees.']
        grounding: score 1, not backed: []
        complete, grounded 1: The kitchen has 21 degrees. The attic has no sensor to read.
    """,
    "streaming": """
        [download starts with {'pages': 2}]
        [download: 1 of 2, page 1]
        [download: 2 of 2, page 2]
        [download returned '2 pages']
        The| report| has| two| pages.|
        [complete after 2 iterations: 'The report has two pages.']
    """,
    "structured_output": """
        Ticket(subject='Printer on fire', priority=1, tags=['printer'])
        complete after 2 model calls
    """,
    "subagents": """
          botanist got 'three books about umbels'
          collector got 'three books about shelf 0'
          collector got 'three books about shelf 1'
          collector got 'three books about shelf 2'
          collector got 'three books about shelf 3'
          collector got 'three books about shelf 4'
        botanist: Carrots have umbels.
        collector: collector stopped: token_budget.
        complete: An umbel is what carrots bloom with.
        900 of 1100 tokens in 9 model calls, the children's included
    """,
    "termination": """
        tool_called:publish -> terminal_tool, success, 3 iterations
        tool_call_limit:search -> max_iterations, stopped early, 2 iterations
        text_mention:enough -> complete, success, 3 iterations
        text_mention:one more AND tool_called:publish -> terminal_tool, success, 4 iterations
        tool_call_limit AND not:ToolCalled(name='publish', require_success=False) -> max_iterations, stopped early, 2 iterations
    """,
    "tools": """
        convert({'amount': 250.0, 'currency': 'EUR'}) -> 225.00 EUR
        count_words({'sentence': 'to be or not to be'}) -> 6
        check_stock({'item': 'teapot'}) -> LookupError: no item is called 'teapot'
        complete: 3 calls, 1 failed
    """,
}
ON_RAY = ["approval", pytest.param("budget", marks=pytest.mark.chaos)]  # their pauses and prices must reach other processes


def lines(name: str) -> list[str]:
    return dedent(PRINTS[name]).strip("\n").splitlines()


def run(name: str, folder: Path, *options: str, **environment: str) -> tuple[int, list[str], str]:
    command = [sys.executable, *options, str(EXAMPLES / f"{name}.py")]
    clean = {**os.environ, "RAY_ADDRESS": "", "UMBEL_RUNTIME": "", **environment}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=110, check=False)
    return done.returncode, [line.rstrip() for line in done.stdout.splitlines()], done.stderr


def test_every_example_is_here_and_in_the_readme() -> None:
    scripts = sorted(script.name for script in EXAMPLES.glob("*.py"))
    assert scripts == sorted(f"{name}.py" for name in PRINTS)
    readme = (EXAMPLES.parent / "README.md").read_text()
    assert [script for script in scripts if f"| `{script}` |" not in readme] == []


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_prints_what_it_should(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path, "-W", "error", UMBEL_RUNTIME="inline") == (0, lines(name), "")
    assert not list(tmp_path.iterdir())


@pytest.mark.ray
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ON_RAY)
def test_the_same_on_ray(name: str, tmp_path: Path) -> None:
    code, printed, errors = run(name, tmp_path)
    assert (code, printed) == (0, lines(name)), errors


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_says_where_a_real_model_goes(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    assert "MODEL" in (ast.get_docstring(ast.parse(source)) or "")
    assert any(line.endswith("# MODEL") and "model=" in line for line in source.splitlines())
