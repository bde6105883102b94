"""What a graph's builder takes, and what it refuses before anything runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import pytest

from umbel.errors import ConfigurationError, ConflictingWrites, DefinitionError
from umbel.patterns.graph.builder import StateGraph
from umbel.patterns.graph.commands import END, START, Command, Send
from umbel.patterns.graph.structure import EdgeView
from umbel.reducers import append


def step(state: Any) -> None:
    """Nothing."""


def graph(*edges: tuple[Any, str], nodes: str = "abcd", **options: Any) -> StateGraph:
    made = StateGraph(**options)
    for name in nodes:
        made.add_node(name, step)
    for source, target in edges:
        made.add_edge(source, target)
    return made


@pytest.mark.spec("PAT-33")
def test_a_plain_edge_that_closes_a_cycle_is_refused_at_once() -> None:
    made = graph((START, "a"), ("a", "b"), (["b", "d"], "c"))
    with pytest.raises(ValueError, match="c -> a -> b -> c"):
        made.add_edge("c", "a")
    with pytest.raises(ValueError, match="a -> a"):
        made.add_edge("a", "a")
    allowed = graph((START, "a"), ("a", "b"), ("b", "a"), nodes="ab", allow_cycles=True)
    assert len(allowed.compile().structure().edges) == 3
    routed = graph((START, "a"), ("a", "b"), nodes="ab").add_conditional_edges("b", lambda state: "a", ["a", END])
    routed.compile()


@pytest.mark.spec("PAT-33", "OURS-28")
def test_compile_gives_a_graph_of_its_own() -> None:
    made = graph((START, "a"), nodes="a")
    first = made.compile()
    made.add_node("b", step).add_edge("a", "b")
    second = made.compile()
    assert first is not second
    assert [node.name for node in first.structure().nodes] == [START, "a", END]
    assert [node.name for node in second.structure().nodes] == [START, "a", "b", END]


@pytest.mark.spec("PAT-47")
def test_nothing_from_start_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nothing leads from START"):
        graph(("a", "b"), nodes="ab").compile()
    with pytest.raises(ConfigurationError, match="no nodes"):
        StateGraph().compile()


def test_unknown_and_unreachable_nodes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'x', which is no node"):
        graph((START, "a"), ("a", "x"), nodes="a").compile()
    with pytest.raises(ConfigurationError, match="'x', which is no node"):
        graph((START, "a"), nodes="a").add_conditional_edges("a", step, {"yes": "x"}).compile()
    with pytest.raises(ConfigurationError, match="nothing leads to 'b', 'c'"):
        graph((START, "a"), ("b", "c"), nodes="abc").compile()
    with pytest.raises(ConfigurationError, match="destinations of 'e'"):
        graph((START, "a"), nodes="a").add_node("e", step, destinations=["x"]).compile()


def test_a_node_that_may_go_anywhere_makes_all_nodes_reachable() -> None:
    def jump(state: Any) -> Command:
        return Command(goto="b")

    def say(state: Any) -> Command[Literal["b"]]:
        return Command(goto="b")

    made = StateGraph().add_node("a", jump).add_node("b", step).add_edge(START, "a")
    assert made.compile().structure().open_ended == ("a",)
    told = StateGraph().add_node("a", say).add_node("b", step).add_edge(START, "a").compile().structure()
    assert told.open_ended == () and EdgeView("a", "b", "command") in told.edges
    lost = StateGraph().add_node("a", say).add_node("b", step).add_node("c", step).add_edge(START, "a")
    with pytest.raises(ConfigurationError, match="nothing leads to 'c'"):
        lost.compile()


def test_odd_edges_are_refused() -> None:
    made = graph((START, "a"), nodes="ab")
    for source, target in ((END, "a"), ("a", START), ([START, "a"], "b"), (["a", "a"], "b"), ([], "b"), (START, "a")):
        with pytest.raises(ConfigurationError):
            made.add_edge(source, target)
    with pytest.raises(ConfigurationError, match="out of END"):
        made.add_conditional_edges(END, step)
    with pytest.raises(ConfigurationError, match="router is a function"):
        made.add_conditional_edges("a", "b")  # type: ignore[arg-type]


def test_odd_nodes_are_refused() -> None:
    made = graph(nodes="a")
    with pytest.raises(ConfigurationError, match="has a node 'a' already"):
        made.add_node("a", step)
    with pytest.raises(ConfigurationError, match="needs a name"):
        made.add_node(lambda state: None)
    with pytest.raises(ConfigurationError, match="unknown option tries"):
        made.add_node("b", step, tries=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="positive number of seconds"):
        made.add_node("b", step, timeout=0)
    with pytest.raises(ConfigurationError, match="input= and output="):
        made.add_node("b", step, input="question")
    with pytest.raises(ConfigurationError, match="a name is"):
        made.add_node("__end__", step)
    with pytest.raises(DefinitionError, match="not int"):
        made.add_node("b", 3)
    with pytest.raises(DefinitionError, match="generator"):
        made.add_node("b", generator)
    assert [node.name for node in made.add_node(step).structure().nodes] == [START, "a", "step", END]


def generator(state: Any) -> Any:
    yield 1


class Log(TypedDict, total=False):
    x: int
    lines: Annotated[list[str], append]


@pytest.mark.case(20)
@pytest.mark.spec("OURS-28", "PAT-37")
def test_declared_writes_of_one_superstep_that_conflict_are_refused_when_the_graph_is_built() -> None:
    def fan_out(**writes: Any) -> StateGraph:
        made = StateGraph(Log).add_node("first", step)
        for name, keys in writes.items():
            made.add_node(name, step, writes=keys).add_edge("first", name)
        return made.add_edge(START, "first")

    with pytest.raises(ConflictingWrites, match="'left' and 'right' write 'x'") as refused:
        fan_out(left="x", right=["lines", "x"]).compile()
    assert refused.value.details["writers"] == ["left", "right"] and isinstance(refused.value, ValueError)
    fan_out(left="lines", right="lines").compile()
    fan_out(left="x", right="lines").compile()
    with pytest.raises(ConfigurationError, match="'y', which is no key of Log"):
        fan_out(left="y").compile()
    sure = fan_out(left="x").add_node("maybe", step, writes="x", condition=lambda state: False).add_edge("first", "maybe")
    sure.compile()
    apart = fan_out(left="x", middle="lines").add_node("right", step, writes="x").add_edge("middle", "right")
    apart.compile()
    later = fan_out(left="lines", right="lines").add_node("after", step, writes="x").add_edge("left", "after")
    with pytest.raises(ConflictingWrites, match="'after' and 'beside' write 'x'"):
        later.add_node("beside", step, writes="x").add_edge("right", "beside").compile()


def test_the_structure_shows_every_kind_of_node_and_edge() -> None:
    def router(state: Any) -> Literal["yes", "no"]:
        return "yes"

    def spread(state: Any) -> list[Send]:
        return [Send("work")]

    inner = graph((START, "a"), nodes="a", name="inner").compile()
    made = (
        StateGraph(name="outer")
        .add_node("split", spread, sends=["work"])
        .add_node("work", step, condition=lambda state: True)
        .add_node("yes", inner)
        .add_node("no", step)
        .add_node("sum", step, defer=True)
        .add_edge(START, "split")
        .add_conditional_edges("work", router)
        .add_conditional_edges("no", lambda state: 1, {1: END, 2: "sum"})
        .add_edge(["yes", "no"], "sum")
    )
    seen = made.compile().structure()
    assert seen.name == "outer" and seen.open_ended == ()
    assert [(node.name, node.kind) for node in seen.nodes[1:-1]] == [
        ("split", "function"),
        ("work", "function"),
        ("yes", "subgraph"),
        ("no", "function"),
        ("sum", "function"),
    ]
    assert seen.nodes[2].conditional and seen.nodes[5].deferred
    assert seen.nodes[3].inner is not None and seen.nodes[3].inner.name == "inner"
    assert seen.edges == (
        EdgeView(START, "split"),
        EdgeView("yes", "sum", "barrier", join="yes+no>sum"),
        EdgeView("no", "sum", "barrier", join="yes+no>sum"),
        EdgeView("work", "yes", "conditional"),
        EdgeView("work", "no", "conditional"),
        EdgeView("no", END, "conditional", "1"),
        EdgeView("no", "sum", "conditional", "2"),
        EdgeView("split", "work", "send"),
    )
