"""Causal chains: what led to what, as a small graph that an investigation builds up step by step.

Only ``causes`` edges are causal. The other relations (``correlates_with``, ``precedes``, ``inhibits``) are kept and shown,
but make no node a root, are no cycle, and are walked by a path query only when asked for.

Source: spec/reasoning.md, REAS-42 to REAS-48.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import Field, ValidationError

from ....protocol.errors import ConfigurationError
from ....protocol.messages import Frozen, Text

NodeType = Literal["root_cause", "intermediate", "symptom", "unknown"]
Relationship = Literal["causes", "correlates_with", "precedes", "inhibits"]
ConflictKind = Literal["cycle", "bidirectional_causation", "contradictory_relationship"]
_Model = TypeVar("_Model", bound=Frozen)


class CausalNode(Frozen):
    """Something that happened, or a state of affairs.

    Attributes:
        id: unique in its chain.
        label: what it is, for people.
        node_type: its role; ``unknown`` means that the edges decide.
        evidence: what speaks for it.
        confidence: 0 to 1.
    """

    id: Text
    label: Text
    node_type: NodeType = "unknown"
    evidence: tuple[Text, ...] = ()
    confidence: float = Field(default=0.5, ge=0, le=1)


class CausalEdge(Frozen):
    """How one node bears on another.

    Attributes:
        source, target: ids of the nodes.
        relationship: ``causes`` is the causal one.
        confidence: 0 to 1.
    """

    source: Text
    target: Text
    relationship: Relationship = "causes"
    confidence: float = Field(default=0.5, ge=0, le=1)


class Conflict(Frozen):
    """Edges that can't all be right.

    Attributes:
        kind: what is wrong.
        nodes: the ids involved; for a cycle in its order, each once.
    """

    kind: ConflictKind
    nodes: tuple[Text, ...]


class CausalChain:
    """Nodes and edges, in the order in which they were added. Not safe for use by several threads at once."""

    def __init__(self) -> None:
        self._nodes: dict[str, CausalNode] = {}
        self._edges: dict[tuple[str, str, Relationship], CausalEdge] = {}

    # Building

    def add_node(
        self,
        label: str,
        *,
        id: str | None = None,  # noqa: A002 - the name of the field
        node_type: NodeType = "unknown",
        evidence: Sequence[str] = (),
        confidence: float = 0.5,
    ) -> CausalNode:
        """Add a node; without an ``id`` its label is its id.

        Raises:
            ConfigurationError: (a ValueError) the id is taken, or a value is out of range.
        """
        name = label if id is None else id
        if name in self._nodes:
            raise ConfigurationError(f"there is a node {name!r} already; give the new one an id of its own")
        node = _checked(CausalNode, id=name, label=label, node_type=node_type, evidence=evidence, confidence=confidence)
        self._nodes[name] = node
        return node

    def add_edge(
        self, source: str, target: str, relationship: Relationship = "causes", *, confidence: float = 0.5
    ) -> CausalEdge:
        """Add an edge between two nodes, given by id.

        Raises:
            ConfigurationError: (a ValueError) a node is unknown, the edge is there already, or a value is out of range.
        """
        self._known(source, target)
        edge = _checked(CausalEdge, source=source, target=target, relationship=relationship, confidence=confidence)
        key = (source, target, edge.relationship)
        if key in self._edges:
            raise ConfigurationError(f"{source!r} {relationship} {target!r} is in the chain already")
        self._edges[key] = edge
        return edge

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]]) -> Self:
        """A chain from a batch of events, in any order.

        Args:
            events: each with ``label`` and, if wanted, ``id`` (default: the label), ``type``, ``evidence`` (texts),
                ``confidence`` (0 to 1) and ``causes``: ids or labels of the events that caused this one. A cause that is
                not in the batch is ignored.

        Raises:
            KeyError: an event has no label.
            ConfigurationError: (a ValueError) two events have the same id, a cause names a label that several events
                share, or a type or confidence is not valid.
        """
        batch = list(events)
        chain, nodes = cls(), []
        for number, event in enumerate(batch):
            if "label" not in event:
                raise KeyError(f"event {number} of the batch has no 'label'")
            nodes.append(
                chain.add_node(
                    event["label"],
                    id=event.get("id"),
                    node_type=event.get("type", "unknown"),
                    evidence=event.get("evidence", ()),
                    confidence=event.get("confidence", 0.5),
                )
            )
        for node, event in zip(nodes, batch, strict=True):
            for cause in dict.fromkeys(chain._find(name) for name in _causes(event)):
                if cause is not None:
                    chain.add_edge(cause, node.id)
        return chain

    # Reading

    @property
    def nodes(self) -> tuple[CausalNode, ...]:
        """Every node, its type filled in from the edges where none was given."""
        degrees = self._degrees()
        return tuple(node.evolve(node_type=_type(node, *degrees)) for node in self._nodes.values())

    @property
    def edges(self) -> tuple[CausalEdge, ...]:
        """Every edge."""
        return tuple(self._edges.values())

    @property
    def roots(self) -> tuple[CausalNode, ...]:
        """Root causes: those that were declared, and nodes that cause something and that nothing causes."""
        return tuple(node for node in self.nodes if node.node_type == "root_cause")

    @property
    def symptoms(self) -> tuple[CausalNode, ...]:
        """Symptoms: those that were declared, and nodes that something causes and that cause nothing."""
        return tuple(node for node in self.nodes if node.node_type == "symptom")

    def path(self, source: str, target: str, *, causal_only: bool = True) -> tuple[str, ...] | None:
        """Ids along a shortest path in the direction of the edges, both ends included; None if there is none.

        Args:
            source: id of the first node.
            target: id of the last.
            causal_only: walk ``causes`` edges only; False walks every relation.

        Raises:
            ConfigurationError: (a ValueError) a node is unknown.
        """
        self._known(source, target)
        return _shortest(self._successors(causal_only), source, target)

    def conflicts(self) -> tuple[Conflict, ...]:
        """What cannot all be right: cycles of causes, pairs that cause each other, pairs where one causes and inhibits.

        Every causal edge that lies on a cycle is in a reported cycle or pair; a pair is reported as such, not as a cycle.
        """
        contradictions = [
            Conflict(kind="contradictory_relationship", nodes=(source, target))
            for source, target, relationship in self._edges
            if relationship == "inhibits" and (source, target, "causes") in self._edges
        ]
        return (*self._cycles(), *contradictions)

    def summary(self) -> dict[str, int]:
        """Counts: ``nodes``, ``edges``, ``conflicts``, and nodes by type."""
        types = Counter(node.node_type for node in self.nodes)
        by_type = {name: types[name] for name in get_args(NodeType)}
        return {"nodes": len(self._nodes), "edges": len(self._edges), "conflicts": len(self.conflicts()), **by_type}

    # Storing

    def to_dict(self) -> dict[str, Any]:
        """The chain as plain JSON values; types that were left to the edges stay ``unknown``."""
        return {
            "nodes": [node.model_dump(mode="json") for node in self._nodes.values()],
            "edges": [edge.model_dump(mode="json") for edge in self._edges.values()],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The chain that :meth:`to_dict` wrote.

        Raises:
            ConfigurationError: (a ValueError) it is not one.
        """
        chain = cls()
        try:
            nodes = [CausalNode.model_validate(node) for node in data["nodes"]]
            edges = [CausalEdge.model_validate(edge) for edge in data["edges"]]
        except (KeyError, TypeError, ValidationError) as error:
            raise ConfigurationError(f"not a causal chain: {error!r}"[:500]) from error
        for node in nodes:
            chain.add_node(**dict(node))
        for edge in edges:
            chain.add_edge(**dict(edge))
        return chain

    # Inside

    def _known(self, *ids: str) -> None:
        for name in ids:
            if name not in self._nodes:
                raise ConfigurationError(f"there is no node {name!r} in the chain; add it first")

    def _find(self, name: str) -> str | None:
        """The id that an event means by ``name``: an id, or else a label."""
        if name in self._nodes:
            return name
        ids = [node.id for node in self._nodes.values() if node.label == name]
        if len(ids) > 1:
            raise ConfigurationError(f"several events are labelled {name!r}; name the cause by id: {', '.join(ids)}")
        return ids[0] if ids else None

    def _degrees(self) -> tuple[frozenset[str], frozenset[str]]:
        """The ids that cause something, and those that something causes."""
        causal = [(source, target) for source, target, relationship in self._edges if relationship == "causes"]
        return frozenset(source for source, _ in causal), frozenset(target for _, target in causal)

    def _successors(self, causal_only: bool) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: [] for name in self._nodes}
        for source, target, relationship in self._edges:
            if relationship == "causes" or not causal_only:
                found[source].append(target)
        return found

    def _cycles(self) -> Iterator[Conflict]:
        successors = self._successors(causal_only=True)
        seen: set[tuple[str, str]] = set()
        edges = [(source, target) for source, targets in successors.items() for target in targets]
        for source, target in edges:
            if source != target and source in successors[target] and (source, target) not in seen:
                seen |= {(source, target), (target, source)}
                yield Conflict(kind="bidirectional_causation", nodes=(source, target))
        for source, target in edges:
            back = None if (source, target) in seen else _shortest(successors, target, source)
            if back is not None:
                nodes = (source, *back[:-1])
                seen |= set(zip(nodes, (*nodes[1:], nodes[0]), strict=True))
                yield Conflict(kind="cycle", nodes=nodes)


def _causes(event: Mapping[str, Any]) -> Sequence[str]:
    causes = event.get("causes", ())
    if isinstance(causes, str) or not all(isinstance(name, str) for name in causes):
        raise ConfigurationError(f"event {event['label']!r}: causes must be a list of ids or labels, not {causes!r}"[:300])
    return tuple(causes)


def _type(node: CausalNode, causing: frozenset[str], caused: frozenset[str]) -> NodeType:
    if node.node_type != "unknown":
        return node.node_type
    if node.id in causing:
        return "intermediate" if node.id in caused else "root_cause"
    return "symptom" if node.id in caused else "unknown"


def _shortest(successors: Mapping[str, Sequence[str]], source: str, target: str) -> tuple[str, ...] | None:
    before: dict[str, str | None] = {source: None}
    queue = deque([source])
    while queue and target not in before:
        here = queue.popleft()
        for name in successors[here]:
            if name not in before:
                before[name] = here
                queue.append(name)
    if target not in before:
        return None
    path = [target]
    while (previous := before[path[-1]]) is not None:
        path.append(previous)
    return tuple(reversed(path))


def _checked(cls: type[_Model], **values: Any) -> _Model:
    try:
        return cls(**values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        raise ConfigurationError(f"not a {cls.__name__}: {problems}") from None
