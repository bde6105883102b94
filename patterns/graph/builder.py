"""``StateGraph``: nodes and edges are added, and ``compile`` checks them and gives a frozen graph that can be run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, Unpack

from ...protocol.errors import ConfigurationError
from .checks import check, closes_cycle
from .commands import END, START
from .compiled import CompiledGraph
from .edges import Branch, Edge, Join
from .node import Node, NodeOptions, node_of
from .plan import Plan
from .schema import StateSchema
from .structure import Structure


class StateGraph:
    """A graph under construction. Its state is a dict of JSON values that nodes read, and write by returning updates.

    Args:
        state_schema: what the state holds: a pydantic model, a ``TypedDict`` or a dataclass, with defaults, and reducers as
            ``Annotated[list[str], append]``. Every superstep's state is validated. None: any key.
        name: for events, errors and drawings.
        input_schema: what a run's input is checked against; default is the state's schema.
        output_schema: the part of the final state that is the result; default is all of it.
        reducers: by key, a function or the name of a built-in one; for graphs without a schema, or over it.
        allow_cycles: whether plain edges may close a cycle, which only ``max_iterations`` or a ``Command`` can then end.
    """

    def __init__(
        self,
        state_schema: Any = None,
        *,
        name: str = "graph",
        input_schema: Any = None,
        output_schema: Any = None,
        reducers: Mapping[str, Any] | None = None,
        allow_cycles: bool = False,
    ) -> None:
        scope = dict(sys._getframe(1).f_locals)
        self.name = name
        self.allow_cycles = allow_cycles
        self.schema = StateSchema(state_schema, reducers, scope)
        self.input_schema = None if input_schema is None else StateSchema(input_schema, None, scope)
        self.output_schema = None if output_schema is None else StateSchema(output_schema, None, scope)
        self._nodes: dict[str, Node] = {}
        self._edges: list[Edge | Join] = []
        self._branches: dict[str, list[Branch]] = {}

    def add_node(self, name: str | Any, action: Any = None, **options: Unpack[NodeOptions]) -> Self:
        """Add a node.

        Args:
            name: its name; or the action alone, whose own name it then has.
            action: a function of the state, sync or async (``def node(state)`` or ``def node(state, ctx: ToolContext)``), an
                agent, a pattern, or another graph. A function returns what it writes as a dict (or a pydantic model), a
                :class:`Command`, a list of :class:`Send`, None for no change; anything else is written to ``"result"``.
            **options: fields of :class:`Node`: ``retry``, ``cache``, ``timeout``, ``condition``, ``defer``, ``on_error``,
                ``idempotent``, ``destinations``, ``sends``, ``writes``, ``input``, ``output``, ``placement``, ``isolation``,
                ``metadata``.

        Raises:
            ConfigurationError: the name is taken or impossible, or an option makes no sense (also a ``ValueError``).
            DefinitionError: the action cannot be a node (also a ``TypeError``).
        """
        if action is None:
            name, action = _name_of(name), name
        if isinstance(action, StateGraph):
            action = action.compile()
        if name in self._nodes:
            raise ConfigurationError(f"graph {self.name!r} has a node {name!r} already; give this one another name")
        self._nodes[name] = node_of(name, action, options)
        return self

    def add_edge(self, source: str | Iterable[str], target: str) -> Self:
        """Add an edge. Several sources are a barrier: ``target`` runs once when all of them have arrived.

        Raises:
            ConfigurationError: it leads into ``START`` or out of ``END``, is there already, or closes a cycle
                (``StateGraph(allow_cycles=True)`` lets it).
        """
        if isinstance(source, str):
            edge: Edge | Join = Edge(source, target)
        else:
            sources = tuple(source)
            if not sources or len(set(sources)) != len(sources):
                raise ConfigurationError(f"a join onto {target!r} needs different sources, not {list(sources)}")
            edge = Edge(sources[0], target) if len(sources) == 1 else Join(sources, target)
        ends = (edge.source,) if isinstance(edge, Edge) else edge.sources
        if END in ends or target == START or (isinstance(edge, Join) and START in ends):
            raise ConfigurationError(
                f"no edge leads out of END or into START, and START is in no join: {list(ends)} -> {target!r}"
            )
        if edge in self._edges:
            raise ConfigurationError(f"the edge {' + '.join(ends)} -> {target} is there already")
        if not self.allow_cycles and (path := closes_cycle(self._edges, edge)) is not None:
            raise ConfigurationError(
                f"the edge {' + '.join(ends)} -> {target} closes the cycle {' -> '.join(path)}, which nothing would leave; "
                "use a conditional edge, or StateGraph(allow_cycles=True)"
            )
        self._edges.append(edge)
        return self

    def add_conditional_edges(
        self,
        source: str,
        router: Callable[..., Any],
        targets: Mapping[Any, str] | Iterable[str] | None = None,
    ) -> Self:
        """Let a function of the state choose what follows ``source``.

        Args:
            source: a node, or ``START``.
            router: ``(state) -> answer``, sync or async, quick and pure: the name of a node, ``END``, a :class:`Send`, or a
                list of these; None leaves the choice to the next router of the same source, and then to its plain edges.
            targets: node by answer; or the names that the router may give. Without it, ``-> Literal["a", "b"]`` tells checks
                and drawings where it may lead.
        """
        if source == END:
            raise ConfigurationError("no edge leads out of END")
        if not callable(router):
            raise ConfigurationError(f"a router is a function of the state, not {type(router).__name__}")
        if targets is not None and not isinstance(targets, Mapping):
            targets = {target: target for target in ([targets] if isinstance(targets, str) else targets)}
        name = getattr(router, "__name__", type(router).__name__)
        branch = Branch(source, router, None if targets is None else dict(targets), name)
        self._branches.setdefault(source, []).append(branch)
        return self

    def set_entry_point(self, name: str) -> Self:
        """Begin with this node: an edge from ``START``."""
        return self.add_edge(START, name)

    def set_finish_point(self, name: str) -> Self:
        """End with this node: an edge to ``END``."""
        return self.add_edge(name, END)

    def structure(self) -> Structure:
        """What there is so far, as nodes and edges."""
        return self._plan().structure()

    def compile(self, **options: Any) -> CompiledGraph:
        """The graph as it is now, checked and frozen; this object may be changed and compiled again. Source: OURS-28.

        Args:
            **options: those of :class:`CompiledGraph`.

        Raises:
            ConfigurationError: nothing leads from ``START``, an edge names a node that is not there, a node cannot be reached.
            ConflictingWrites: two nodes that run in the same superstep declare a write to one key without a reducer.
        """
        plan = self._plan()
        check(plan)
        return CompiledGraph(plan, **options)

    def _plan(self) -> Plan:
        return Plan(
            name=self.name,
            schema=self.schema,
            input_schema=self.input_schema,
            output_schema=self.output_schema,
            nodes=dict(self._nodes),
            edges=tuple(self._edges),
            branches={source: tuple(branches) for source, branches in self._branches.items()},
        )


def _name_of(action: Any) -> str:
    name = getattr(action, "name", None) or getattr(action, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise ConfigurationError("this node needs a name: add_node('name', action)")
    return name
