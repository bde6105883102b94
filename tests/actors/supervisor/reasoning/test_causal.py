from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from umbel.actors.supervisor.reasoning.causal import CausalChain, Conflict, NodeType, Relationship
from umbel.protocol.errors import ConfigurationError

RELATIONSHIPS: tuple[Relationship, ...] = get_args(Relationship)
names = st.sampled_from("abcdef")
graphs = st.sets(st.tuples(names, names, st.sampled_from(RELATIONSHIPS)), max_size=14).map(sorted)


def chain_of(*edges: str | tuple[str, Relationship], nodes: str = "") -> CausalChain:
    """A chain of edges given as ("ab", relationship) or just "ab" for a cause; nodes are single letters."""
    pairs: list[tuple[str, Relationship]] = [(edge, "causes") if isinstance(edge, str) else edge for edge in edges]
    chain = CausalChain()
    for name in dict.fromkeys([*nodes, *(letter for pair, _ in pairs for letter in pair)]):
        chain.add_node(name)
    for pair, relationship in pairs:
        chain.add_edge(pair[0], pair[1], relationship)
    return chain


def drawn(edges: list[tuple[str, str, Relationship]]) -> CausalChain:
    return chain_of(*((source + target, relationship) for source, target, relationship in edges), nodes="abcdef")


def types(chain: CausalChain) -> dict[str, str]:
    return {node.id: node.node_type for node in chain.nodes}


class TestBuilding:
    @pytest.mark.spec("REAS-42")
    def test_defaults_and_kinds(self) -> None:
        chain = chain_of(nodes="ab")
        assert (chain.nodes[0].node_type, chain.nodes[0].confidence, chain.nodes[0].label) == ("unknown", 0.5, "a")
        for relationship in RELATIONSHIPS:
            assert chain.add_edge("a", "b", relationship).confidence == 0.5
        for node_type in get_args(NodeType):
            assert chain.add_node(node_type, node_type=node_type).node_type == node_type
        assert set(RELATIONSHIPS) == {"causes", "correlates_with", "precedes", "inhibits"}
        assert set(get_args(NodeType)) == {"root_cause", "intermediate", "symptom", "unknown"}

    @pytest.mark.spec("REAS-43")
    def test_an_id_is_used_once(self) -> None:
        chain = chain_of(nodes="a")
        with pytest.raises(ValueError, match="'a' already"):
            chain.add_node("a")
        assert chain.add_node("a", id="a2").id == "a2"

    @pytest.mark.spec("REAS-43")
    @pytest.mark.parametrize("ends", ["ax", "xa"])
    def test_an_edge_needs_both_nodes(self, ends: str) -> None:
        chain = chain_of(nodes="a")
        with pytest.raises(ValueError, match="no node 'x'"):
            chain.add_edge(*ends)
        assert chain.edges == ()

    @pytest.mark.parametrize("values", [{"node_type": "cause"}, {"confidence": 1.5}, {"evidence": "one text"}])
    def test_a_node_that_is_wrong_is_refused_and_not_kept(self, values: Any) -> None:
        chain = CausalChain()
        with pytest.raises(ConfigurationError, match=next(iter(values))):
            chain.add_node("a", **values)
        assert chain.nodes == ()

    def test_an_edge_that_is_wrong_or_there_already_is_refused(self) -> None:
        chain = chain_of("ab")
        with pytest.raises(ConfigurationError, match="relationship"):
            chain.add_edge("a", "b", "triggers")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="in the chain already"):
            chain.add_edge("a", "b", confidence=0.9)
        assert len(chain.edges) == 1


class TestTypes:
    @pytest.mark.spec("REAS-44")
    def test_they_follow_from_the_causal_edges(self) -> None:
        chain = chain_of("ab", "bc", ("cd", "precedes"), ("da", "inhibits"), nodes="e")
        assert types(chain) == {"a": "root_cause", "b": "intermediate", "c": "symptom", "d": "unknown", "e": "unknown"}
        assert [node.id for node in chain.roots] == ["a"]
        assert [node.id for node in chain.symptoms] == ["c"]

    @pytest.mark.spec("REAS-44")
    def test_what_was_said_explicitly_stays(self) -> None:
        chain = CausalChain()
        chain.add_node("a", node_type="symptom")
        chain.add_node("b", node_type="root_cause")
        chain.add_edge("a", "b")
        assert types(chain) == {"a": "symptom", "b": "root_cause"}
        assert [node.id for node in chain.roots] == ["b"]

    def test_they_change_as_edges_come(self) -> None:
        chain = chain_of("ab", nodes="c")
        assert types(chain)["a"] == "root_cause"
        chain.add_edge("c", "a")
        assert types(chain) == {"a": "intermediate", "b": "symptom", "c": "root_cause"}


class TestPath:
    @pytest.mark.spec("REAS-45")
    def test_it_is_a_shortest_one_along_causes(self) -> None:
        chain = chain_of("ab", "bc", "cd", "bd", ("ad", "correlates_with"))
        assert chain.path("a", "d") == ("a", "b", "d")
        assert chain.path("a", "d", causal_only=False) == ("a", "d")
        assert chain.path("d", "a") is None
        assert chain.path("a", "a") == ("a",)

    def test_an_unknown_end_is_an_error(self) -> None:
        with pytest.raises(ConfigurationError, match="no node 'x'"):
            chain_of("ab").path("a", "x")

    @pytest.mark.spec("REAS-45")
    @given(graphs, names, names)
    def test_every_step_is_an_edge_of_the_asked_kind(
        self, edges: list[tuple[str, str, Relationship]], source: str, target: str
    ) -> None:
        chain = drawn(edges)
        causal, every = chain.path(source, target), chain.path(source, target, causal_only=False)
        for path, allowed in ((causal, {"causes"}), (every, set(RELATIONSHIPS))):
            if path is not None:
                assert (path[0], path[-1], len(set(path))) == (source, target, len(path))
                steps = set(pairwise(path))
                assert steps <= {(one, other) for one, other, relationship in edges if relationship in allowed}
        if causal is not None:
            assert every is not None
            assert len(every) <= len(causal)


class TestConflicts:
    @pytest.mark.spec("REAS-46")
    def test_a_cycle_of_causes(self) -> None:
        assert chain_of("ab", "bc", "ca", "cd").conflicts() == (Conflict(kind="cycle", nodes=("a", "b", "c")),)
        assert chain_of("aa").conflicts() == (Conflict(kind="cycle", nodes=("a",)),)

    @pytest.mark.spec("REAS-46")
    def test_other_relations_close_no_cycle(self) -> None:
        chain = chain_of("ab", "bc", ("ca", "correlates_with"), ("ba", "precedes"), ("cb", "inhibits"))
        assert chain.conflicts() == ()

    @pytest.mark.spec("REAS-46")
    def test_every_cycle_is_reported_not_just_the_first(self) -> None:
        kinds = chain_of("xa", "ab", "bc", "ca", "xd", "de", "ef", "fd").conflicts()
        assert [(conflict.kind, set(conflict.nodes)) for conflict in kinds] == [("cycle", set("abc")), ("cycle", set("def"))]

    @pytest.mark.spec("REAS-46")
    def test_two_nodes_that_cause_each_other(self) -> None:
        assert chain_of("ab", "ba").conflicts() == (Conflict(kind="bidirectional_causation", nodes=("a", "b")),)

    @pytest.mark.spec("REAS-46")
    def test_causing_and_inhibiting_the_same_thing(self) -> None:
        found = chain_of("ab", ("ab", "inhibits"), ("ba", "inhibits")).conflicts()
        assert found == (Conflict(kind="contradictory_relationship", nodes=("a", "b")),)

    @pytest.mark.spec("REAS-46")
    @given(graphs)
    def test_exactly_the_edges_on_cycles_are_covered(self, edges: list[tuple[str, str, Relationship]]) -> None:
        chain = drawn(edges)
        causal = {(source, target) for source, target, relationship in edges if relationship == "causes"}
        covered = set()
        for conflict in chain.conflicts():
            if conflict.kind != "contradictory_relationship":
                covered |= set(zip(conflict.nodes, (*conflict.nodes[1:], conflict.nodes[0]), strict=True))
        assert covered == {(source, target) for source, target in causal if chain.path(target, source) is not None}


class TestEvents:
    @pytest.mark.spec("REAS-47")
    def test_a_batch_in_any_order(self) -> None:
        chain = CausalChain.from_events(
            [
                {"label": "errors", "causes": ["disk full", "cosmic rays"], "type": "symptom", "confidence": 0.9},
                {"label": "disk full", "evidence": ["df: 100%"], "causes": ["no rotation", "no rotation"]},
                {"label": "no rotation"},
            ]
        )
        assert [(edge.source, edge.target) for edge in chain.edges] == [("disk full", "errors"), ("no rotation", "disk full")]
        assert types(chain) == {"errors": "symptom", "disk full": "intermediate", "no rotation": "root_cause"}
        assert (chain.nodes[0].confidence, chain.nodes[1].evidence) == (0.9, ("df: 100%",))

    @pytest.mark.spec("REAS-47")
    def test_a_label_is_required_and_a_type_checked(self) -> None:
        with pytest.raises(KeyError, match="event 1"):
            CausalChain.from_events([{"label": "a"}, {"id": "b"}])
        with pytest.raises(ValueError, match="node_type"):
            CausalChain.from_events([{"label": "a", "type": "cause"}])
        with pytest.raises(ValueError, match="list of ids"):
            CausalChain.from_events([{"label": "a"}, {"label": "b", "causes": "a"}])

    @pytest.mark.spec("REAS-47")
    def test_equal_labels_need_ids_and_are_meant_by_id(self) -> None:
        twice = {"label": "restart"}
        with pytest.raises(ValueError, match="'restart' already"):
            CausalChain.from_events([twice, twice])
        restarts = [{**twice, "id": "first"}, {**twice, "id": "second"}]
        chain = CausalChain.from_events([*restarts, {"label": "outage", "causes": ["first"]}])
        assert [(edge.source, edge.target) for edge in chain.edges] == [("first", "outage")]
        with pytest.raises(ValueError, match="by id: first, second"):
            CausalChain.from_events([*restarts, {"label": "outage", "causes": ["restart"]}])

    def test_a_label_finds_an_event_that_has_an_id(self) -> None:
        chain = CausalChain.from_events([{"label": "crash", "id": "c1"}, {"label": "outage", "causes": ["crash"]}])
        assert [(edge.source, edge.target) for edge in chain.edges] == [("c1", "outage")]


class TestStoring:
    @pytest.mark.spec("REAS-48")
    @given(graphs)
    def test_it_survives_a_round_trip(self, edges: list[tuple[str, str, Relationship]]) -> None:
        chain = drawn(edges)
        chain.add_node("why", id="z", node_type="root_cause", evidence=["log"], confidence=0.7)
        back = CausalChain.from_dict(json.loads(json.dumps(chain.to_dict())))
        assert (back.nodes, back.edges) == (chain.nodes, chain.edges)
        back.add_edge("z", "a", "precedes")
        assert len(back.edges) == len(chain.edges) + 1

    @pytest.mark.spec("REAS-48")
    def test_the_summary_counts(self) -> None:
        assert chain_of("ab", "bc", "ca", "xa", "cy", ("xy", "precedes"), nodes="z").summary() == {
            "nodes": 6,
            "edges": 6,
            "conflicts": 1,
            "root_cause": 1,
            "intermediate": 3,
            "symptom": 1,
            "unknown": 1,
        }

    @pytest.mark.parametrize(
        "data",
        [
            {},
            {"nodes": []},
            {"nodes": 5, "edges": []},
            {"nodes": [{"id": "a"}], "edges": []},
            {"nodes": [{"id": "a", "label": "a"}] * 2, "edges": []},
            {"nodes": [{"id": "a", "label": "a"}], "edges": [{"source": "a", "target": "b"}]},
        ],
    )
    def test_what_is_no_chain_is_refused(self, data: Any) -> None:
        with pytest.raises(ConfigurationError):
            CausalChain.from_dict(data)
