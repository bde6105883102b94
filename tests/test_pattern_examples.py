"""Every script of ``examples/patterns/``: run as the main module on the inline runtime, compared line by line."""

from __future__ import annotations

import ast
import re
import runpy
import warnings
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from umbel import Agent, Pattern, Runtime
from umbel.patterns.drawing import draw_ascii
from umbel.testing import ScriptedModel, text

ROOT = Path(__file__).resolve().parent.parent
GALLERY = ROOT / "examples" / "patterns"
PRINTS = {
    "critic_loop": """
        round-1/0.writer: An umbel is a flower
        round-1/critic: Say more.
        round-2/0.writer: An umbel is a flower cluster
        round-2/critic: APPROVED
        complete after 2 rounds: An umbel is a flower cluster
        False max_iterations: Loop was not content after 2 rounds; raise max_loops, or change the condition
    """,
    "debate": """
        round-1/0.sure: hemlock
        round-1/1.unsure: carrot
        round-2/0.sure: hemlock
        round-2/1.unsure: hemlock
        complete, 2 rounds, consensus: True
        hemlock
    """,
    "functional": """
        interrupted: Publish it?
        fetch-1: completed
        fetch-2: completed
        fetch-3: cached
        writer-1: completed
        complete: {'draft': 'About carrots and hemlocks and carrots.', 'published': 'yes'}
    """,
    "graph_approval": """
        interrupted: Send 'Dear Ada, umbels bloom.'?
        complete: sent
    """,
    "graph_map_reduce": """
        complete: Known are carrot: harmless; hemlock: deadly; dill: harmless.
        1/look_up:1: completed
        1/look_up:2: completed
        1/look_up:3: completed
        2/sum_up: completed
    """,
    "group_chat": """
        cook: Parsley?
        gardener: There is only dill.
        cook: Dill, then. DONE
        complete, ended by until
    """,
    "handoff": """
        reception -> billing: They want their money back for ord-7.
        complete: Your money is on its way.
    """,
    "map_reduce": """
        essay 1: completed
        essay 2: completed
        essay 3: failed ModelError: unreadable
        essay 4: completed
        essay 5: completed
        complete: ['8', '9', None, '11', '12'] -> 12
    """,
    "nested": """
        report: Sequential
        |-- START -> researcher
        |-- researcher: agent -> panel
        `-- panel: Parallel -> END
            |-- START -> polish, sceptic
            |-- polish: Loop -> END [concatenate]
            |   |-- START -> writer
            |   |-- writer: agent -> critic
            |   `-- critic: auxiliary ~> writer [again, up to 5 rounds]; ~> END [content]
            `-- sceptic: agent -> END [concatenate]
        started below 1.panel: 0.polish
        started below 1.panel: 1.sceptic
        started below 1.panel: round-1/0.writer
        started below 1.panel: round-1/critic
        0.researcher: completed
        1.panel: completed
          1.sceptic: completed
          0.polish: completed
            round-1/0.writer: completed
            round-1/critic: completed
        complete: 4 model calls
    """,
    "orchestrator": """
        botanist was asked 'Describe the roots.': Carrots have taproots.
        toxicologist was asked 'Which is dangerous?': Hemlock is certainly deadly.
        complete: Carrots have taproots; hemlock is certainly deadly.
    """,
    "parallel_vote": """
        ann: Hemlock
        bob: carrot
        cy: hemlock
        dan: ModelError: the model is down
        complete: Hemlock
    """,
    "pipeline": """
        0.researcher: Umbels: carrots, dill, hemlock.
        1.writer: Draft of: Umbels: carrots, dill, hemlock.
        2.shorten: Umbels: carrots, dill, hemlock.
        complete: Umbels: carrots, dill, hemlock.
    """,
    "plan_execute": """
        plan-0: {"facts":"carrots are in the bed","plan":["ann pulls them","
        round-1/manager: {"is_done":false,"in_loop":false,"is_progressing":true,"next
        round-1/ann: pulled twelve
        round-2/manager: {"is_done":false,"in_loop":false,"is_progressing":true,"next
        round-2/bob: washed them
        round-3/manager: {"is_done":true,"in_loop":false,"is_progressing":true,"next_
        reporter: Twelve carrots, washed.
        complete: Twelve carrots, washed.
    """,
    "swarm": """
        1 look for dangerous plants: scout, completed
        1.1 remove the hogweed: gardener, completed
        complete: ['walked the meadow', 'removed it']
        False: Swarm has no agent for: task 1 (fly over the meadow) requires wings
    """,
}


def test_every_script_is_here_and_in_the_document() -> None:
    scripts = sorted(script.stem for script in GALLERY.glob("*.py"))
    assert scripts == sorted(PRINTS)
    document = (ROOT / "docs" / "patterns.md").read_text()
    assert [name for name in scripts if f"examples/patterns/{name}.py" not in document] == []


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_a_pattern_prints_what_it_should(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Runtime(inline=True), warnings.catch_warnings(action="error"):
        runpy.run_path(str(GALLERY / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert printed.out.splitlines() == dedent(PRINTS[name]).strip("\n").splitlines()
    assert printed.err == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_a_script_says_where_a_real_model_goes(name: str) -> None:
    source = (GALLERY / f"{name}.py").read_text()
    assert "MODEL" in (ast.get_docstring(ast.parse(source)) or "")
    assert any(line.endswith("# MODEL") and "model=" in line for line in source.splitlines())


def test_the_code_of_the_document_can_be_run() -> None:
    document = (ROOT / "docs" / "patterns.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", document, re.DOTALL | re.MULTILINE)
    model = ScriptedModel([text("x")])
    names: dict[str, Any] = {
        name: Agent(model, name=name) for name in ("researcher", "writer", "critic", "reception", "billing")
    }
    names["model"] = model
    for block in blocks[1:]:  # the first one is a sketch
        exec(compile(block, "docs/patterns.md", "exec", dont_inherit=True), names)
    patterns = [name for name, value in names.items() if isinstance(value, Pattern)]
    assert len(patterns) == 13 and len(blocks) == 10
    for name in patterns:
        assert draw_ascii(names[name])
    with Runtime(inline=True):
        paused = names["article"].run_sync({"urls": ["u"]}, thread_id="t")
        assert names["article"].resume_sync("yes", thread_id="t").value == "x" and paused.interrupts
        assert names["meadow"].run_sync({"plants": ["dill"]}).value["facts"] == ["dill: known"]
        assert names["Relay"]([names["writer"]]).run_sync("go").stop_reason == "max_iterations"
