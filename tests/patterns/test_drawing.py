"""Drawings: what every pattern gives as its structure, and the ways to draw it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from umbel import Agent, Pattern, tool
from umbel.errors import ConfigurationError, MissingExtra
from umbel.patterns.debate import Debate
from umbel.patterns.drawing import FORMATS, draw, draw_ascii, draw_dot, draw_image, draw_mermaid
from umbel.patterns.functional import entrypoint, step, task
from umbel.patterns.graph import Command, StateGraph
from umbel.patterns.group_chat import GroupChat
from umbel.patterns.handoff import Handoff
from umbel.patterns.map_reduce import MapReduce
from umbel.patterns.orchestrator import Orchestrator
from umbel.patterns.pipeline import Loop, Parallel, Sequential
from umbel.patterns.plan_execute import PlanExecute
from umbel.patterns.structure import END, START, Edge, Node, Structure, structure_of
from umbel.patterns.swarm import Swarm
from umbel.testing import ScriptedModel, text

MODEL = ScriptedModel([text("x")])


def agent(name: str, **settings: Any) -> Agent:
    return Agent(MODEL, name=name, **settings)


@tool
async def search(query: str) -> str:
    """Search."""
    return query


@task
async def fetch(url: str) -> str:
    return url


scribe = agent("scribe")


@entrypoint
async def notes(topic: str) -> str:
    return (await step(scribe, await fetch(topic))).text


def report() -> Sequential:
    """Four patterns deep."""
    deep = Sequential(
        [Parallel([agent("ann"), Loop(agent("bob"), critic=agent("cat"), name="polish")], name="pair")], name="mid"
    )
    return Sequential([agent("research"), deep, notes], name="report")


def test_every_kind_as_a_tree_of_text() -> None:
    assert draw_ascii(report()) == (
        "report: Sequential\n"
        "|-- START -> research\n"
        "|-- research: agent -> mid\n"
        "|-- mid: Sequential -> notes\n"
        "|   |-- START -> pair\n"
        "|   `-- pair: Parallel -> END\n"
        "|       |-- START -> ann, polish\n"
        "|       |-- ann: agent -> END [concatenate]\n"
        "|       `-- polish: Loop -> END [concatenate]\n"
        "|           |-- START -> bob\n"
        "|           |-- bob: agent -> critic\n"
        "|           `-- critic: auxiliary ~> bob [again, up to 5 rounds]; ~> END [content]\n"
        "`-- notes: Entrypoint -> END\n"
        "    |-- START ~> scribe, fetch\n"
        "    |-- scribe: agent ~> END\n"
        "    `-- fetch: function ~> END\n"
    )


@pytest.mark.spec("PAT-63")
def test_mermaid_of_every_kind() -> None:
    assert draw_mermaid(Sequential([agent("a"), Loop(agent("b"), name="l", max_loops=2)], name="s")) == (
        "flowchart TD\n"
        '    n0(["START"])\n'
        '    n1("a")\n'
        '    subgraph n2["l: Loop"]\n'
        '        n2_0(["START"])\n'
        '        n2_1("b")\n'
        '        n2_2(["END"])\n'
        "        n2_0 --> n2_1\n"
        '        n2_1 -.->|"again, up to 2 rounds"| n2_1\n'
        '        n2_1 -.->|"content"| n2_2\n'
        "    end\n"
        '    n3(["END"])\n'
        "    n0 --> n1\n"
        "    n1 --> n2_0\n"
        "    n2_2 --> n3\n"
    )


NASTY = ['say "hi"', "a<b>&c", "line\none", "end", "x];y", "`code`", "#35;", "ä|ö", "back\\slash"]


GRAPH = StateGraph(name="graph", allow_cycles=True)
for node in ("plan", "left", "right", "join"):
    GRAPH.add_node(node, agent(node) if node == "plan" else lambda state: {})
GRAPH.add_edge(START, "plan")
GRAPH.add_conditional_edges("plan", lambda state: "left", {"l": "left", "r": "right", "done": END})
GRAPH.add_edge(["left", "right"], "join")
GRAPH.add_edge("join", "plan")


OPEN = StateGraph(name="open")
OPEN.add_node("route", lambda state: Command(goto=state["where"]))
OPEN.add_edge(START, "route")


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        (Debate([agent("a"), agent("b")]), ["START -> a, b", "a: agent ~> b [next round]; -> END [vote]"]),
        (Debate([agent("a"), agent("b")], judge=agent("j")),
         ["b: agent ~> a [next round]; -> judge", "judge: auxiliary -> END"]),
        (MapReduce(agent("m"), agent("r")),
         ["START ~> mapper [each item]", "mapper: agent -> reducer", "reducer: auxiliary -> END"]),
        (MapReduce(agent("m"), len), ["mapper: agent -> END [reduce]"]),
        (GroupChat([agent("a"), agent("b")]), ["START -> a", "b: agent -> END; ~> a [next round]"]),
        (GroupChat([agent("a")], model=MODEL), ["a: agent -> selector", "selector: auxiliary ~> a [speaks]; ~> END [enough]"]),
        (GroupChat([agent("a")], speaker=len), ["START ~> a [each turn]", "a: agent ~> END"]),
        (PlanExecute([agent("a")], model=MODEL), ["START -> planner", "a: agent -> manager",
         "manager: auxiliary ~> a [next]; ~> planner [stalled]; ~> reporter [done]"]),
        (Swarm([agent("a"), agent("b")], model=MODEL), ["planner: auxiliary ~> a, b [claims]", "b: agent -> summarizer"]),
        (Swarm([agent("a")]), ["START ~> a [claims]", "a: agent -> END"]),
        (Handoff([agent("a"), agent("b"), agent("c")], allow={"b": []}, escalate_to="c"),
         ["START -> a", "a: agent ~> b, c [hands over]; ~> c [fails]; ~> END [answers]",
          "b: agent ~> c [fails]; ~> END [answers]"]),
        (Orchestrator([agent("a"), agent("b")], model=MODEL, max_rounds=3),
         ["START -> router", "router: auxiliary ~> a, b [asks]", "a: agent -> summariser; ~> router [again, up to 3 rounds]",
          "summariser: auxiliary -> END"]),
        (Orchestrator([agent("a")], correlate=agent("c")),
         ["START -> a", "a: agent -> correlator", "correlator: auxiliary -> END"]),
        (GRAPH.compile(), ["START -> plan", "plan: agent ~> left [l]; ~> right [r]; ~> END [done]", "right: function -> join",
         "join: function -> plan"]),
        (Sequential([OPEN.compile()]), ["open: StateGraph -> END", "route: function ~> (wherever the code says)"]),
        (Sequential([GRAPH.compile()]), ["graph: StateGraph -> END"]),
    ],
)  # fmt: skip
def test_every_pattern_says_how_it_flows(pattern: Pattern, lines: list[str]) -> None:
    drawn = [re.sub(r"^[|` -]*", "", line) for line in draw_ascii(pattern).splitlines()]
    assert [line for line in lines if line not in drawn] == [], drawn
    assert draw_mermaid(pattern).count("START") == 1 + sum(node.inner is not None for node in structure_of(pattern).nodes)


def test_labels_cannot_break_a_drawing() -> None:
    pattern = Parallel({name: agent("x") for name in NASTY}, name="all")
    lines = draw_mermaid(pattern).splitlines()
    assert len([line for line in lines if re.fullmatch(r'    n\d+\("[^"`<>\\]*"\)', line)]) == len(NASTY) - 1
    assert '    n3("line<br/>one")' in lines and '    n6("#96;code#96;")' in lines and '    n7("#35;35;")' in lines
    dot = draw_dot(pattern)
    assert len(re.findall(r'label="(?:[^"\\\n]|\\.)*", shape=box', dot)) == len(NASTY)
    assert r'label="say \"hi\""' in dot and r'label="line\none"' in dot and r'label="back\\slash"' in dot
    assert len(draw_ascii(pattern).splitlines()) == len(NASTY) + 2


def test_an_agent_with_the_tools_and_agents_that_it_calls() -> None:
    helper = agent("helper", tools=[search, agent("clerk").as_tool()])
    boss = agent("boss", tools=[helper.as_tool(), search])
    assert draw_ascii(boss) == (
        "boss: Agent\n"
        "|-- START -> boss\n"
        "|-- boss: agent ~> helper, search [calls]; -> END\n"
        "|-- helper: Agent\n"
        "|   |-- START -> helper\n"
        "|   |-- helper: agent ~> clerk [calls]; -> END\n"
        "|   `-- clerk: agent\n"
        "`-- search: function\n"
    )
    assert structure_of(Sequential([agent("plain", tools=[search])])).nodes[1].inner is None


def test_every_edge_leads_from_a_node_to_a_node() -> None:
    def check(structure: Structure) -> int:
        names = [node.name for node in structure.nodes]
        assert names[0] == START and names[-1] == END and len(set(names)) == len(names)
        assert {name for edge in structure.edges for name in (edge.source, edge.target)} <= set(names)
        return 1 + max([0, *(check(node.inner) for node in structure.nodes if node.inner is not None)])

    assert check(structure_of(report())) == 4
    assert check(structure_of(Parallel([agent("a")], merge=agent("m")))) == 1
    assert check(structure_of(Sequential([]))) == 1


def test_a_pattern_that_does_not_say_how_may_run_any_member() -> None:
    class Own(Pattern):
        """A pattern of a user's."""

    edges = structure_of(Own([agent("a")], auxiliary={"judge": agent("j")})).edges
    assert edges[0] == Edge(START, "a", "conditional") and Edge("judge", END, "conditional") in edges


def test_dot_draws_boxes_as_clusters() -> None:
    dot = draw_dot(Sequential([agent("a"), Sequential([agent("b")], name="inner")], name="s"))
    assert "subgraph cluster_n2 {" in dot and "compound=true" in dot
    assert "n1 -> n2_0 [style=solid, lhead=cluster_n2]" in dot
    assert "n2_2 -> n3 [style=solid, ltail=cluster_n2]" in dot
    assert dot.count("{") == dot.count("}")


def test_images_are_made_by_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for how in ("svg", "png"):
        with pytest.raises(MissingExtra, match="apt-get install graphviz"):
            draw(report(), how)
    program = tmp_path / "dot"
    program.write_text(
        '#!/bin/sh\nread first rest\ncase "$first" in broken) echo "syntax error" >&2; exit 1;; esac\necho "$1 $first"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
    assert draw(report(), "svg") == "-Tsvg digraph\n"
    assert draw_image(report(), "png") == draw(report(), "png") == b"-Tpng digraph\n"
    monkeypatch.setattr("umbel.patterns.drawing.draw_dot", lambda what: "broken")
    with pytest.raises(ConfigurationError, match="dot ended with 1: syntax error"):
        draw_image(report())


def test_graphviz_reads_what_is_drawn(require_service: Callable[[str], str]) -> None:
    require_service("dot")
    inner = Sequential([agent('a "quoted" <name>'), Sequential([agent("b")], name="deep")], name="in{ner}")
    pattern = Sequential([agent("first"), inner, agent("last")], name="outer")
    svg = ET.fromstring(draw_image(pattern))
    texts = {element.text for element in svg.iter() if element.tag.endswith("text")}
    assert {"first", "last", "b"} <= texts
    assert any('a "quoted" <name>' in (text or "") for text in texts), texts
    assert draw_image(pattern, "png").startswith(b"\x89PNG")


def test_what_cannot_be_drawn_says_so() -> None:
    with pytest.raises(ConfigurationError, match=f"use {', '.join(FORMATS)}"):
        draw(report(), "pdf")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a int"):
        draw_ascii(3)


def test_a_structure_of_another_kind_with_the_same_fields_is_drawn() -> None:
    inner = Structure("g", (Node(START, "start"), Node("x", "function"), Node(END, "end")), (Edge(START, "x"), Edge("x", END)))
    nodes = (Node(START, "start"), Node("sub", "subgraph", inner), Node("y", "agent"), Node(END, "end"))
    graph = Structure("graph", nodes, (Edge(START, "sub", "send"), Edge("sub", "y", "barrier"), Edge("y", END, "command")))
    assert draw_ascii(graph).splitlines()[:3] == ["graph", "|-- START ~> sub [each]", "|-- sub: subgraph -> y"]
    assert 'n0 -.->|"each"| n1_0' in draw_mermaid(graph) and "n1_2 ==> n2" in draw_mermaid(graph)
