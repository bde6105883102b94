"""Which tasks come next: edges, joins, commands, sends, deferred nodes. No actor, no loop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from umbel.errors import ConfigurationError, GraphError
from umbel.patterns.graph.commands import END, START, Command, Send, finish, goto, proceed, resume_with
from umbel.patterns.graph.edges import Edge, Join
from umbel.patterns.graph.planner import Ended, Planner, Schedule


def plan(*edges: tuple[Any, str], deferred: str = "") -> Planner:
    made = [Edge(s, t) if isinstance(s, str) else Join(tuple(s), t) for s, t in edges]
    return Planner("abcdef", made, deferred)


def run(planner: Planner, supersteps: int = 20, **targets: Any) -> list[str]:
    """The tasks of each superstep, ``targets`` being what nodes name themselves."""
    schedule = planner.begin()
    seen: list[str] = []
    while schedule.tasks and len(seen) < supersteps:
        seen.append(" ".join(task.id for task in schedule.tasks))
        schedule = planner.follow([Ended(task.node, targets.get(task.node)) for task in schedule.tasks], schedule)
    return seen


@pytest.mark.spec("PAT-35")
def test_ready_nodes_run_together_in_the_order_in_which_edges_made_them_ready() -> None:
    assert run(plan((START, "b"), (START, "a"), ("a", "c"), ("b", "d"), ("b", "c"))) == ["b a", "d c"]


@pytest.mark.spec("PAT-44", "OURS-28")
def test_a_join_fires_once_for_paths_of_any_length() -> None:
    edges = [(START, "a"), ("a", "b"), ("a", "c"), ("c", "d")]
    assert run(plan(*edges, (["b", "d"], "e"))) == ["a", "b c", "d", "e"]
    assert run(plan(*edges, ("b", "e"), ("d", "e"))) == ["a", "b c", "e d", "e"], "plain edges are one arrival each"


@pytest.mark.spec("OURS-28")
def test_a_join_begins_to_count_anew_when_it_has_fired() -> None:
    planner = plan((START, "a"), ("a", "b"), ("a", "c"), (["b", "c"], "d"))
    first = planner.follow([Ended("b"), Ended("c")], Schedule())
    assert [task.node for task in first.tasks] == ["d"] and first.arrived == {}
    half = planner.follow([Ended("b")], first)
    again = planner.follow([Ended("b")], half)
    assert half.tasks == again.tasks == () and again.arrived == {"b+c>d": ("b",)}
    assert planner.unfinished(again) == {"d": (("b",), ("c",))}
    assert [task.node for task in planner.follow([Ended("c")], again).tasks] == ["d"]


@pytest.mark.spec("PAT-43", "OURS-28")
def test_the_end_of_a_branch_lets_the_others_finish() -> None:
    edges = [(START, "a"), (START, "b"), ("a", END), ("b", "c"), ("c", "d"), ("d", END)]
    assert run(plan(*edges)) == ["a b", "c", "d"]
    assert run(plan((START, "a"), (START, "b"), ("a", "d"), ("b", "c")), a=(END,)) == ["a b", "c"]


@pytest.mark.spec("PAT-42")
def test_a_deferred_node_runs_once_when_nothing_else_is_left() -> None:
    edges = [(START, "a"), ("a", "b"), ("a", "c"), ("c", "d"), ("b", "e"), ("d", "e"), ("e", "f")]
    assert run(plan(*edges, deferred="e")) == ["a", "b c", "d", "e", "f"]


@pytest.mark.spec("PAT-40", "PAT-41")
def test_named_targets_win_over_edges_and_failures_lead_nowhere() -> None:
    planner = plan((START, "a"), ("a", "b"), (["a", "c"], "d"))
    ahead = planner.follow([Ended("a", ("c", "e", END))], Schedule())
    assert [task.node for task in ahead.tasks] == ["c", "e"] and ahead.arrived == {}
    assert planner.follow([Ended("a", success=False)], Schedule()) == Schedule()
    with pytest.raises(
        GraphError, match="node 'a' goes to 'x', which is no node of the graph; there are a, b, c, d, e, f and END"
    ):
        planner.follow([Ended("a", ("x",))], Schedule())


@pytest.mark.spec("PAT-49")
def test_each_send_is_a_task_and_a_node_is_one() -> None:
    planner = plan((START, "a"))
    sends = (Send("b", {"i": 1}), Send("b", {"i": 2}), Send("b", {"i": 3}, id="third"), "b", "b", Send("c"))
    tasks = planner.follow([Ended("a", sends)], Schedule()).tasks
    assert [(task.node, task.id, task.named) for task in tasks] == [
        ("b", "b:1", False),
        ("b", "b:2", False),
        ("b", "third", True),
        ("b", "b", False),
        ("c", "c:1", False),
    ]
    with pytest.raises(GraphError, match="the id 'x'"):
        planner.follow([Ended("a", (Send("b", id="x"), Send("c", id="x")))], Schedule())


def test_a_schedule_is_plain_values() -> None:
    planner = plan((START, "a"), (["a", "b"], "c"), (START, "d"), deferred="d")
    schedule = planner.follow([Ended("a", None), Ended("b", (Send("d", {"x": 1}), "e", "d"))], planner.begin())
    assert Schedule.from_json(schedule.to_json()) == schedule and schedule.deferred == ("d",)


@pytest.mark.spec("PAT-51")
def test_commands_and_sends_say_what_is_wrong_with_them() -> None:
    assert goto("a", "b", update={"x": 1}) == Command(update={"x": 1}, goto=("a", "b"))
    assert finish().targets == (END,) and proceed({"x": 1}).targets is None and resume_with(0).resume == 0
    odd: Any = [1]
    for wrong in (lambda: Command(goto=odd), lambda: Command(update=odd), lambda: Command(graph="x"), lambda: Send(END)):
        with pytest.raises(ConfigurationError):
            wrong()
    with pytest.raises(ConfigurationError, match="give the value a name"):
        Send("a", [1])  # type: ignore[arg-type]


@pytest.mark.spec("OURS-28", "PAT-44")
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_with_joins_every_node_of_any_graph_without_cycles_runs_once_and_after_all_before_it(data: st.DataObject) -> None:
    names = "abcdef"
    before = {
        name: data.draw(st.sets(st.sampled_from(names[:place]), min_size=1) if place else st.just(set()), label=name)
        for place, name in enumerate(names)
    }
    edges = [(START, name) if not sources else (sorted(sources), name) for name, sources in before.items()]
    planner = plan(*((sources[0] if len(sources) == 1 else sources, name) for sources, name in edges))
    ran: list[str] = []
    schedule = planner.begin()
    while schedule.tasks:
        for task in schedule.tasks:
            assert before[task.node] <= set(ran)
        ran += [task.node for task in schedule.tasks]
        schedule = planner.follow([Ended(task.node) for task in schedule.tasks], schedule)
    assert sorted(ran) == list(names) and planner.unfinished(schedule) == {}
